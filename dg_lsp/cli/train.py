"""`dg-lsp train`: train a canvas for a causal model, or an adapter for one that fills in the middle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dg_lsp import is_interrupt
from dg_lsp.cli import completions
from dg_lsp.cli.command_group import command_group
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.wire import model_names
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.visible import visible_message

if TYPE_CHECKING:
    from dg_lsp.train.canvas.loop import TrainingPlan


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


Base = Annotated[str, typer.Option(help="The frozen causal model: a folder, or a hub id.", autocompletion=completions.model)]
Folders = Annotated[list[Path], typer.Option(help="A folder of source files; give the option again for more.")]
State = Annotated[Path, typer.Option(help="The file of the run's state. The run continues from it, if it exists.")]
Minutes = Annotated[float, typer.Option(help="How many minutes to train.", min=0)]
Cool = Annotated[bool, typer.Option("--cool", help="Let the rate fall to zero, for a milestone.")]
Threads = Annotated[int, typer.Option(help="Threads on a CPU.", min=1)]
Rate = Annotated[float, typer.Option(help="The learning rate.", min=0)]
Rank = Annotated[int, typer.Option(help="The adapter's rank, for a new run.", min=1, max=512)]
Seed = Annotated[int, typer.Option(help="It chooses the batches.", min=0)]
Exclude = Annotated[Path | None, typer.Option(help="A file of paths below the sources, one a line, that are never read.")]
Start = Annotated[Path | None, typer.Option("--from", help="A state or an exported adapter to start a new run from.")]
ExportTo = Annotated[Path | None, typer.Option("--export", help="Write the adapter to this safetensors file at the end.")]


@app.command()
def canvas(
    base: Base,
    sources: Folders,
    state: State,
    minutes: Minutes = 60.0,
    cool: Cool = False,
    threads: Threads = 1,
    rate: Rate = 1.5e-3,
    rank: Rank = 32,
    seed: Seed = 1,
    exclude: Exclude = None,
    start: Start = None,
    export_to: ExportTo = None,
) -> None:
    """Train a canvas for a causal model that stays as it is. You can interrupt it at any time; it continues from its state."""
    from dg_lsp.train.canvas import loop

    plan = loop.TrainingPlan(minutes=minutes, rate=rate, cool=cool, rank=rank, threads=threads, seed=seed)
    _run(base, sources, state, plan, exclude, start, export_to)


@app.command()
def fim(
    base: Base,
    sources: Folders,
    state: State,
    minutes: Minutes = 60.0,
    cool: Cool = False,
    threads: Threads = 1,
    rate: Rate = 6e-4,
    rank: Rank = 8,
    holes: Annotated[int, typer.Option(help="The holes of a step.", min=1)] = 16,
    seed: Seed = 1,
    exclude: Exclude = None,
    start: Start = None,
    export_to: ExportTo = None,
) -> None:
    """Train an adapter for a model that fills in the middle: where answers begin and end, as dg-lsp asks for them.

    It becomes a part of the weights when `dg-lsp engine pull` converts a model, so it takes no time when the model runs. Only
    the adapter that comes with dg-lsp is added; so this is for who makes a release.
    """
    from dg_lsp.train.canvas import loop

    plan = loop.TrainingPlan(
        minutes=minutes, rate=rate, cool=cool, rank=rank, threads=threads, seed=seed, middles=holes, measured=160
    )
    _run(base, sources, state, plan, exclude, start, export_to)


def _run(
    base: str,
    sources: list[Path],
    state: Path,
    plan: TrainingPlan,
    exclude: Path | None,
    start: Path | None,
    export: Path | None,
) -> None:
    from dg_lsp.train.canvas import loop

    folder = str(model_names.folder_of(base) or base)
    loop.train(folder, sources, state, plan, excluded=exclude, start=start, export=export, on_message=typer.echo)


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
