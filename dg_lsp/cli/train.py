"""`dg-lsp train`: train a canvas for a causal model, or an adapter for one that fills in the middle."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dg_lsp import is_interrupt
from dg_lsp.cli.command_group import command_group
from dg_lsp.cli.from_options import with_options
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.wire import model_names
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.settings import Option
from dg_lsp.wire.visible import visible_message


class Plain(typer.core.TyperGroup):
    """Commands that report expected errors as one sentence."""

    def invoke(self, ctx: Any) -> Any:  # click's context, or that of a newer typer
        """Run the command; on an expected error, print one sentence and exit with 2."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if is_interrupt(error) or not (text := sentence(error)):
                raise
            typer.echo(f"dg-lsp train: {visible_message(text)}", err=True)
            raise typer.Exit(2) from error


app = command_group(cls=Plain, summary="Train an adapter for a causal model.")


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What both kinds of training need."""

    base: Annotated[str, Option("The frozen causal model: a folder, or a hub id.")]
    sources: Annotated[tuple[Path, ...], Option("A folder of source files; give the option again for more.")]
    state: Annotated[Path, Option("The file of the run's state. The run continues from it, if it exists.")]
    minutes: Annotated[float, Option("How many minutes to train.", low=0)] = 60.0
    cool: Annotated[bool, Option("Let the rate fall to zero, for a milestone.", name="--cool")] = False
    threads: Annotated[int, Option("Threads on a CPU.", low=1)] = 1
    seed: Annotated[int, Option("It chooses the batches.", low=0)] = 1
    exclude: Annotated[Path | None, Option("A file of paths below the sources, one a line, that are never read.")] = None
    start: Annotated[Path | None, Option("A state or an exported adapter to start a new run from.", name="--from")] = None
    export: Annotated[Path | None, Option("Write the adapter to this safetensors file at the end.")] = None

    def run(self, **plan: Any) -> None:
        """Train by a plan with these further values."""
        from dg_lsp.train.canvas import loop

        whole = loop.TrainingPlan(minutes=self.minutes, cool=self.cool, threads=self.threads, seed=self.seed, **plan)
        folder = str(model_names.folder_of(self.base) or self.base)
        more = {"excluded": self.exclude, "start": self.start, "export": self.export}
        loop.train(folder, self.sources, self.state, whole, **more, on_message=typer.echo)


Rate = Annotated[float, typer.Option(help="The learning rate.", min=0)]
Rank = Annotated[int, typer.Option(help="The adapter's rank, for a new run.", min=1, max=512)]


@app.command()
@with_options
def canvas(options: TrainOptions, rate: Rate = 1.5e-3, rank: Rank = 32) -> None:
    """Train a canvas for a causal model that stays as it is. You can interrupt it at any time; it continues from its state."""
    options.run(rate=rate, rank=rank)


@app.command()
@with_options
def fim(
    options: TrainOptions,
    rate: Rate = 6e-4,
    rank: Rank = 8,
    holes: Annotated[int, typer.Option(help="The holes of a step.", min=1)] = 16,
) -> None:
    """Train an adapter for a model that fills in the middle: where answers begin and end, as dg-lsp asks for them.

    It becomes a part of the weights when `dg-lsp engine pull` converts a model, so it takes no time when the model runs. Only
    the adapter that comes with dg-lsp is added; so this is for who makes a release.
    """
    options.run(rate=rate, rank=rank, middles=holes, measured=160)


def sentence(error: Exception) -> str:
    """Return an expected error's message for users; "" for an unexpected error, or one that is reported elsewhere."""
    # Importing the module would import torch. If the error is one of its own, the module is already loaded.
    model = sys.modules.get("dg_lsp.engine.common.loading")
    if isinstance(error, EvalError) or (model is not None and isinstance(error, model.LoadError)):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"training needs {error.name}, which is not installed; install it with: {install_command('engine')}"
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        reason = (error.strerror or str(error)).lower()
        return f"{error.filename}: {reason}" if error.filename else reason
    return ""
