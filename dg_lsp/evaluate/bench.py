"""`dg-lsp bench`: how long a fill takes, next to the strongest stock way, on the same tasks in one run.

The ways take turns on each task, so that a busy machine is busy for all of them; what counts is their ratio. Knows
tasks and fillers. Knows nothing of what happens inside them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp import ENGINE_INSTALL
from dg_lsp.evaluate import run, score, tasks
from dg_lsp.evaluate.methods import FULL, Method

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dg_lsp.engine.model import Loaded

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

WHOLE, WARM, CANVAS = "dg-lsp", "dg-lsp, prefix known", "dg-lsp, one canvas alone"
BARE = Method("canvas", without=("copy", "causal", "file", "scorer"), profile=(("noise_rows", 1), ("refine_steps", 0)))


@dataclass(frozen=True, slots=True)
class Line:
    """One way's figures: milliseconds, and how many times faster its median is than the stock way's."""

    name: str
    n: int
    ms_p50: float
    ms_p95: float
    times_faster: float
    exact_match: float
    edit_similarity: float


def compare(
    loaded: Loaded, chosen: Sequence[tasks.Task], *, seed: int = 0, done: Callable[[int], None] = lambda _n: None
) -> list[Line]:
    """Return the figures of each way of filling the tasks, the stock way with its own number of steps last.

    "prefix known" is a fill after the same request with a character less: what typing is like.
    """
    from dg_lsp.engine.stock import STEPS, StockFiller

    steps = loaded.profile.sampling.line_steps
    whole = run.Bench(run.Setup((FULL, BARE), seed=seed), loaded)
    stocks = {f"generate, {n} steps": StockFiller(loaded, steps=n) for n in (steps, STEPS)}
    rows: dict[str, list[score.Row]] = {name: [] for name in (WHOLE, WARM, CANVAS, *stocks)}
    for task in chosen[:1]:
        whole.warm_up(task)
        for stock in stocks.values():
            run.fill(stock, task, FULL, seed)
    for number, task in enumerate(chosen, 1):
        rows[WHOLE].append(run.to_row(task, FULL, whole.answer(task, FULL)))
        rows[WARM].append(run.to_row(task, FULL, _typed(whole, task, seed)))
        rows[CANVAS].append(run.to_row(task, BARE, whole.answer(task, BARE)))
        for name, stock in stocks.items():
            rows[name].append(run.to_row(task, FULL, run.fill(stock, task, FULL, seed)))
        done(number)
    slowest = score.percentile([row.ms for row in rows[f"generate, {STEPS} steps"]], 50)
    return [_line(name, found, slowest) for name, found in rows.items()]


def table(lines: Sequence[Line]) -> str:
    """Return the figures as a Markdown table."""
    head = "| way | ms p50 | ms p95 | times faster | exact match | edit similarity |\n| --- | --- | --- | --- | --- | --- |\n"
    return head + "".join(
        f"| {line.name} | {line.ms_p50:.0f} | {line.ms_p95:.0f} | {line.times_faster:.1f} "
        f"| {line.exact_match:.3f} | {line.edit_similarity:.3f} |\n"
        for line in lines
    )


@app.command()
def bench(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Tasks: .jsonl or .jsonl.gz, as `dg-lsp eval` reads them.")],
    model: Annotated[str, typer.Option(metavar="ID_OR_PATH", help="The model: embedded, a folder, or a hub id.")] = "embedded",
    limit: Annotated[int, typer.Option(help="How many of the tasks that end with their line; 0: all.")] = 40,
    threads: Annotated[int, typer.Option(help="Threads on a CPU; 0: as the engine decides.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Time fills of the rest of a line, and compare them with transformers' own generate."""
    try:
        single = [task for task in tasks.read(file) if not task.hole.block]
        if not single:
            raise tasks.EvalError(f"{file} has no task that ends with its line")
        lines = compare(_loaded(model, threads), tasks.spread(single, limit), seed=seed)
    except tasks.EvalError as error:
        typer.echo(f"dg-lsp bench: {error}", err=True)
        raise typer.Exit(2) from error
    except ModuleNotFoundError as error:
        told = f"measuring needs {error.name}, which is not installed; {ENGINE_INSTALL} brings it"
        typer.echo(f"dg-lsp bench: {told}", err=True)
        raise typer.Exit(2) from error
    typer.echo(json.dumps([asdict(line) for line in lines], indent=2) if as_json else table(lines), nl=as_json)


def _loaded(name: str, threads: int) -> Loaded:
    from dg_lsp.engine.model import LoadError, load

    try:
        return load(name, threads=threads)
    except LoadError as error:
        raise tasks.EvalError(str(error)) from error


def _typed(whole: run.Bench, task: tasks.Task, seed: int) -> run.Answer:
    """Return the answer to a task whose prefix was known but for its last character."""
    filler = whole.filler(FULL)
    filler.cache.clear()
    run.fill(filler, replace(task, prompt=task.prompt[:-1]), FULL, seed)
    return run.fill(filler, task, FULL, seed)


def _line(name: str, rows: Sequence[score.Row], slowest: float) -> Line:
    times = [row.ms for row in rows]
    middle, n = score.percentile(times, 50), len(rows)
    return Line(
        name,
        n,
        round(middle, 1),
        round(score.percentile(times, 95), 1),
        round(slowest / middle, 2),
        round(sum(row.exact for row in rows) / n, 4),
        round(sum(row.similarity for row in rows) / n, 4),
    )
