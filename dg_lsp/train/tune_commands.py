"""What `dg-lsp train tune` prints. This module knows the terminal, and nothing of how a model is trained."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from dg_lsp.engine.model.weights.tuned_store import Figures
from dg_lsp.train import repository
from dg_lsp.train.tune import Tuning
from dg_lsp.wire import model_names
from dg_lsp.wire.progress_line import Progress
from dg_lsp.wire.visible import visible_line


def tune_repository(sources: Path, base: str, minutes: float, threads: int, seed: int) -> None:
    """Tune a small model on a repository, and print the figures and whether they were good enough to store it."""
    line = Progress()

    def say(text: str) -> None:
        line.end()
        typer.echo(text)

    limits = repository.Limits(minutes=minutes, threads=threads, seed=seed)
    try:
        report = repository.run(sources, base, limits, say=say, progress=line.say)
    finally:
        line.end()
    typer.echo(
        f"trained for {report.minutes:.1f} minutes in total, on {report.tokens / 1e6:.2f} M tokens of {report.n_files} files"
    )
    typer.echo(f"held-out files, before: {_figures(report.before)}")
    typer.echo(f"held-out files, after:  {_figures(report.after)}")
    if report.entry is None:
        typer.echo("The tuned model is not better, so it was not stored. The engine uses the same weights as before.")
        raise typer.Exit(1)
    shown_root, shown_folder = visible_line(report.entry.root), visible_line(str(report.entry.folder))
    typer.echo(f"The engine now uses it for the files in {shown_root}. It is stored in {shown_folder}")
    typer.echo(f"To remove it, run: {visible_line(shlex.join(('dg-lsp', 'train', 'tune', str(sources), '--remove')))}")


def remove(sources: Path) -> None:
    """Remove what is stored for a repository, and print that."""
    n_removed = repository.remove(sources)
    shown = visible_line(str(sources.resolve()))
    if n_removed:
        typer.echo(f"The weights tuned on {shown} are removed. The engine uses the base model's weights from the next request.")
    else:
        typer.echo(f"Nothing is stored for {shown}.")


def train_adapter(sources: Path, base: str, out: Path, tuning: Tuning) -> None:
    """Train a LoRA adapter into a folder, and print how to use it."""
    from dg_lsp.train import tune

    result = tune.run(sources, base, out, tuning, say=typer.echo)
    typer.echo(f"{result.folder}: loss on held-out files {result.before:.3f} before, {result.after:.3f} after")
    typer.echo(f'To use it, set engine.model = "{result.folder.resolve()}"')
    if not model_names.comes_with_the_package(base):
        typer.echo(f'It also loads {base}, so add that to engine.allow = ["{base}"].')


def _figures(figures: Figures) -> str:
    share = figures.exact / max(figures.holes, 1)
    return f"loss {figures.loss:.3f}, {figures.exact} of {figures.holes} holes filled exactly ({100 * share:.1f} %)"
