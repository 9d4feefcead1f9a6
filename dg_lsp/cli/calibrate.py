"""`dg-lsp calibrate`: parse the command line, run the calibration, print and store its result."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp import __version__
from dg_lsp.cli import progress
from dg_lsp.cli.options import command_group, model_option, named_path, print_message, reports
from dg_lsp.engine import backends
from dg_lsp.engine.common import calibration_store
from dg_lsp.engine.common.task import Filler, UserError
from dg_lsp.evaluate import make
from dg_lsp.evaluate import tasks as tasks_files
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.wire import config, model_names
from dg_lsp.wire.config import stays_local

if TYPE_CHECKING:
    from dg_lsp.evaluate.fitting import Fitted

app = command_group()


@app.command()
@reports(EvalError, doing="calibrating this model")
def calibrate(
    model: Annotated[str, model_option("The model, as in engine.model. Default: the configured one.")] = "",
    repo: Annotated[
        Path, typer.Option(metavar="PATH", help="Where to cut holes: a folder with your code.", parser=named_path)
    ] = Path(),
    tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Use these tasks (as HumanEval-Infilling's) instead of cutting holes.", parser=named_path
        ),
    ] = None,
    holes: Annotated[int, typer.Option(min=20, max=100_000, help="How many holes to fill.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="The same seed cuts the same holes.")] = 0,
    check: Annotated[bool, typer.Option("--check", help="Only measure the calibration in use; fit and write nothing.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Only remove the model's calibration.")] = False,
) -> None:
    """Fill holes cut from your code with a model, and learn how likely its answers are right.

    Afterwards the model's suggestions state that probability, and thresholds apply to it. The code around each hole is
    sent to a remote model. Exits with 0, or with 2 on an error.
    """
    from dg_lsp.evaluate.fitting import fitted, samples  # needs numpy

    configured, problems = config.read()
    for problem in problems:
        print_message(problem)
    # The engine process has another working directory and stores a calibration under the folder's full path, so use that here.
    name = model_names.full(configured.model(model))
    # Before the model, whose loading leaves a current folder that was removed.
    cut_tasks = [] if forget else _tasks(name, repo, tasks, holes, seed)
    try:
        filler = backends.load_filler(name, device=configured.settings.device)
    except UserError as error:
        raise EvalError(str(error)) from error
    if forget:
        known = filler.calibrations.model if filler.calibrations is not None else None
        try:
            is_removed = known is not None and calibration_store.forget(known)
        except OSError as error:
            raise EvalError(f"{error.filename} can't be removed: {(error.strerror or '').lower()}") from error
        print_message(f"the calibration of {name} is removed" if is_removed else f"you have no calibration of {name}")
        return
    if filler.calibrations is None:
        raise EvalError(f"{name} states its own confidence and can't be calibrated")
    used = filler.calibrations.current() if check else None
    if check and used is None:
        raise EvalError(f"{name} has no calibration to check; leave --check out to fit one")
    try:
        with progress.counts("filling", len(cut_tasks), elsewhere=print_message) as (_, done):
            answers = samples(filler, cut_tasks, seed, done)
    except UserError as error:
        raise EvalError(str(error)) from error
    with progress.counts("fitting", 1, elsewhere=print_message):
        result = fitted(answers, seed, used)
    facts = {"model": name, "seed": seed, "dg_lsp": __version__}
    stored = None if check else _stored(filler, result, facts)
    _show(name, result, stored)


def _tasks(name: str, repo: Path, file: Path | None, holes: int, seed: int) -> list[Task]:
    """Return the holes to fill, in mixed order, without files that a remote model must not see."""
    from dg_lsp.evaluate.fitting import with_small_files

    cut = tasks_files.spread(tasks_files.read(file), holes) if file else make.tasks(repo, holes, seed)
    if model_names.is_remote(name) and file is None:
        root = config.workspace_of(repo.resolve())
        patterns = config.read(root)[0].settings.local_only

        def names(path: str) -> tuple[str, ...]:
            # Both count: the path below the folder's workspace, and that below a repository inside it.
            return *config.private_names(repo.resolve() / path, root), *config.private_names(repo.resolve() / path)

        cut = [task for task in cut if not any(stays_local(name, patterns) for name in names(task.path))]
        print_message(f"the code around {len(cut)} holes is sent to {name}")
    if not cut:
        raise EvalError(f"nothing can be cut from {file or repo}; give a folder with more code as --repo")
    random.Random(seed).shuffle(cut)
    return cut if file else with_small_files(cut, seed)


def _stored(filler: Filler, result: Fitted, facts: dict[str, object]) -> Path:
    """Write the calibration to the file that the engine reads, and return that file. Raises EvalError."""
    assert filler.calibrations is not None
    assert filler.calibrations.model is not None
    figures = {"reliability": asdict(result.reliability), "holes": result.n_holes, "answered": result.n_answered}
    try:
        return calibration_store.write(filler.calibrations.model, result.calibration, {**facts, **figures})
    except OSError as error:
        raise EvalError(f"the calibration can't be written to {error.filename}: {(error.strerror or '').lower()}") from error


def _show(name: str, result: Fitted, stored: Path | None) -> None:
    figures = result.reliability
    typer.echo(
        f"{name}: {result.n_answered} of {result.n_holes} holes answered, {figures.base_rate:.1%} of the best answers right"
    )
    typer.echo("With 95 % intervals:" if stored is None else "On files that the fit had not seen, with 95 % intervals:")
    for title, measure in (
        ("expected calibration error", figures.calibration_error),
        ("Brier skill over the base rate", figures.brier_skill),
    ):
        typer.echo(f"  {title:32} {measure.value:6.3f}  ({measure.low:.3f} to {measure.high:.3f})")
    typer.echo("  stated   right   answers")
    for each in figures.bins:
        typer.echo(f"  {each.stated:6.3f}  {each.right:6.3f}   {each.n}")
    if figures.brier_skill.low <= 0:
        typer.echo("This model's signals hardly predict which answers are right; more --holes may help.")
    if stored is not None:
        typer.echo(f"Stored in {stored}")
