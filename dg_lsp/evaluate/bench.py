"""`dg-lsp bench`: time fills of lines and of blocks, with nothing cached and with a known prefix.

Both ways take turns on each task, so that other load on the machine affects both; compare their ratios.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp.evaluate import run, score, tasks
from dg_lsp.evaluate.run import FULL
from dg_lsp.wire import completions
from dg_lsp.wire.command_group import command_group, reports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dg_lsp.engine.model.loading import Loaded

app = command_group()


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one way to fill; times in milliseconds."""

    name: str
    n: int
    ms_p50: float
    ms_p95: float
    exact_match: float
    edit_similarity: float


def measure(loaded: Loaded, holes: Sequence[tasks.Task], blocks: Sequence[tasks.Task] = (), *, seed: int = 0) -> list[Line]:
    """Return the figures of filling single-line holes, and of filling blocks.

    "prefix known" is a fill after the same request without its last character, as when a user types.
    """
    bench = run.Bench(run.Setup((FULL,), seed=seed), loaded)
    filler, lines = bench.fillers[FULL], list[Line]()
    for name, chosen in (("dg-lsp", holes), ("dg-lsp, a block", blocks)):
        rows: dict[str, list[score.ResultRow]] = {name: [], f"{name}, prefix known": []}
        for task in chosen[:1]:
            bench.warm_up(task)
        for task in chosen:
            rows[name].append(run.to_row(task, FULL, bench.answer(task, FULL)))
            filler.cache.clear()
            run.fill(filler, replace(task, prompt=task.prompt[:-1]), FULL, seed)
            rows[f"{name}, prefix known"].append(run.to_row(task, FULL, run.fill(filler, task, FULL, seed)))
        lines += [_line(way, own) for way, own in rows.items() if own]
    return lines


def _line(name: str, rows: Sequence[score.ResultRow]) -> Line:
    n = len(rows)
    middle, slow = (round(score.percentile([row.ms for row in rows], share), 1) for share in (50, 95))
    right, similarity = sum(row.exact for row in rows) / n, sum(row.similarity for row in rows) / n
    return Line(name, n, middle, slow, round(right, 4), round(similarity, 4))


def table(lines: Sequence[Line]) -> str:
    """Return the figures as a Markdown table."""
    head = "| way | ms p50 | ms p95 | exact match | edit similarity |\n| --- | --- | --- | --- | --- |\n"
    return head + "".join(
        f"| {line.name} | {line.ms_p50:.0f} | {line.ms_p95:.0f} | {line.exact_match:.3f} | {line.edit_similarity:.3f} |\n"
        for line in lines
    )


def as_object(lines: Sequence[Line], loaded: Loaded) -> dict[str, object]:
    """Return the figures and the hardware as an object for JSON.

    `dtype` is the precision of the weights; `products_dtype` is that of the products in our own layers.
    """
    return {
        "processor": processor(),
        "device": loaded.device,
        "dtype": loaded.dtype,
        "products_dtype": loaded.products_dtype,
        "threads": loaded.threads,
        "ways": [asdict(line) for line in lines],
    }


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@app.command()
@reports(tasks.EvalError, who="dg-lsp bench", doing="measuring")
def bench(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Tasks: .jsonl or .jsonl.gz, as `dg-lsp eval` reads them.")
    ] = None,
    model: Annotated[str, completions.model_option("The model: embedded, a folder, or a hub id.")] = "embedded",
    limit: Annotated[int, typer.Option(help="How many single-line tasks, and how many blocks, to use; 0: all.")] = 40,
    threads: Annotated[int, typer.Option(help="Threads on a CPU; 0: the engine's default.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the noise. The same seed gives the same answers.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
) -> None:
    """Time fills of single-line holes and of blocks, with nothing cached and with a known prefix."""
    from dg_lsp.engine.model.loading import LoadError, load_model

    if file is None:
        raise tasks.EvalError("no tasks given; name a .jsonl file")
    all_tasks = tasks.read(file)
    single, blocks = ([task for task in all_tasks if task.hole.block == block] for block in (False, True))
    if not single:
        raise tasks.EvalError(f"{file} has no single-line task")
    try:
        loaded = load_model(model, threads=threads)
    except LoadError as error:
        raise tasks.EvalError(str(error)) from error
    lines = measure(loaded, tasks.spread(single, limit), tasks.spread(blocks, limit), seed=seed)
    shown = json.dumps(as_object(lines, loaded), indent=2) if as_json else table(lines)
    typer.echo(shown, nl=as_json)
