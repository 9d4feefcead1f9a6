"""`dg-lsp bench`: time fills, and compare them in one run and on the same tasks with transformers' own generate.

The methods take turns on each task, so that other load on the machine affects all of them; compare their ratios.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp.evaluate import run, score, tasks
from dg_lsp.evaluate.methods import FULL, WITH_NOISE, Method
from dg_lsp.wire import completions
from dg_lsp.wire.command_group import command_group, reports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dg_lsp.engine.model.loading import Loaded

app = command_group()

WHOLE, WARM, CANVAS = "dg-lsp", "dg-lsp, prefix known", "dg-lsp, one canvas alone"
BLOCK, WARM_BLOCK = "dg-lsp, a block", "dg-lsp, a block, prefix known"
BARE = Method("canvas", without=("copy", "causal", "file", "scorer"), profile=(*WITH_NOISE, ("refine_steps", 0)))


@dataclass(frozen=True, slots=True)
class Line:
    """One method's figures: times in milliseconds, and how many times faster its median is than that of default generate.

    `times_faster` is None for blocks, which `generate` does not fill here, and for models without a canvas.
    """

    name: str
    n: int
    ms_p50: float
    ms_p95: float
    times_faster: float | None
    exact_match: float
    edit_similarity: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of all methods in one run, with our steps per canvas and the library's default number of steps."""

    lines: tuple[Line, ...]
    steps: int
    default_steps: int

    @property
    def speedup_equal_steps(self) -> float | None:
        """How many times faster one canvas alone is than `generate` with the same number of steps; None without canvases."""
        return self._ratio(_library(self.steps), CANVAS)

    @property
    def speedup_default(self) -> float | None:
        """How many times faster a whole fill without a cached prefix is than `generate` with its default steps."""
        return self._ratio(_library(self.default_steps), WHOLE)

    def _ratio(self, slower: str, faster: str) -> float | None:
        ms = {line.name: line.ms_p50 for line in self.lines}
        return round(ms[slower] / ms[faster], 2) if slower in ms and faster in ms else None


def _library(steps: int) -> str:
    return f"generate, {steps} steps"


def compare(
    loaded: Loaded,
    holes: Sequence[tasks.Task],
    blocks: Sequence[tasks.Task] = (),
    *,
    seed: int = 0,
) -> Comparison:
    """Return the figures of each way of filling single-line holes, and of filling blocks.

    "prefix known" is a fill after the same request without its last character, as when a user types.
    """
    from dg_lsp.engine.decode.canvas.stock import STEPS, StockFiller

    steps = loaded.profile.sampling.line_steps
    whole = run.Bench(run.Setup((FULL, BARE), seed=seed), loaded)
    # A pretrained causal model has no canvas, and the library's `generate` for it fills no holes.
    has_canvas = "canvas" in loaded.profile.line
    stocks = {_library(n): StockFiller(loaded, steps=n) for n in (steps, STEPS)} if has_canvas else {}
    rows: dict[str, list[score.ResultRow]] = {name: [] for name in (WHOLE, WARM, *([CANVAS] if has_canvas else []), *stocks)}
    for task in holes[:1]:
        whole.warm_up(task)
        for stock in stocks.values():
            run.fill(stock, task, FULL, seed)
    for task in holes:
        rows[WHOLE].append(run.to_row(task, FULL, whole.answer(task, FULL)))
        rows[WARM].append(run.to_row(task, FULL, _typed(whole, task, seed)))
        if has_canvas:
            rows[CANVAS].append(run.to_row(task, BARE, whole.answer(task, BARE)))
        for name, stock in stocks.items():
            rows[name].append(run.to_row(task, FULL, run.fill(stock, task, FULL, seed)))
    slowest = score.percentile([row.ms for row in rows[_library(STEPS)]], 50) if has_canvas else None
    lines = [_line(name, filled, slowest) for name, filled in rows.items()]
    return Comparison((*lines, *_block_lines(whole, blocks, seed)), steps, STEPS)


def _block_lines(whole: run.Bench, blocks: Sequence[tasks.Task], seed: int) -> list[Line]:
    """Return the figures of filling blocks: with nothing cached, and with a known prefix."""
    rows: dict[str, list[score.ResultRow]] = {BLOCK: [], WARM_BLOCK: []}
    if not blocks:
        return []
    whole.answer(blocks[0], FULL)
    for task in blocks:
        rows[BLOCK].append(run.to_row(task, FULL, whole.answer(task, FULL)))
        rows[WARM_BLOCK].append(run.to_row(task, FULL, _typed(whole, task, seed)))
    return [_line(name, filled, None) for name, filled in rows.items()]


def table(lines: Sequence[Line]) -> str:
    """Return the figures as a Markdown table."""
    head = "| way | ms p50 | ms p95 | times faster | exact match | edit similarity |\n| --- | --- | --- | --- | --- | --- |\n"
    return head + "".join(
        f"| {line.name} | {line.ms_p50:.0f} | {line.ms_p95:.0f} | {_ratio(line.times_faster)} "
        f"| {line.exact_match:.3f} | {line.edit_similarity:.3f} |\n"
        for line in lines
    )


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def as_object(compared: Comparison, loaded: Loaded) -> dict[str, object]:
    """Return the figures and the hardware as an object for JSON.

    `dtype` is the precision of the weights and of generate; `products_dtype` is that of the products in our own layers.
    """
    return {
        "processor": processor(),
        "device": loaded.device,
        "dtype": loaded.dtype,
        "products_dtype": loaded.products_dtype,
        "threads": loaded.threads,
        "speedup_equal_steps": compared.speedup_equal_steps,
        "speedup_default": compared.speedup_default,
        "ways": [asdict(line) for line in compared.lines],
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
    """Time fills of single-line holes, compare them with transformers' own generate, and time fills of blocks."""
    if file is None:
        raise tasks.EvalError("no tasks given; name a .jsonl file")
    single, blocks = _by_size(file)
    loaded = _loaded(model, threads)
    compared = compare(loaded, tasks.spread(single, limit), tasks.spread(blocks, limit), seed=seed)
    shown = json.dumps(as_object(compared, loaded), indent=2) if as_json else table(compared.lines)
    typer.echo(shown, nl=as_json)


def _by_size(file: Path) -> tuple[list[tasks.Task], list[tasks.Task]]:
    """Return the single-line tasks of a file and its blocks; raise EvalError if it has no single-line task."""
    all_tasks = list(tasks.read(file))
    single = [task for task in all_tasks if not task.hole.block]
    if not single:
        raise tasks.EvalError(f"{file} has no single-line task")
    return single, [task for task in all_tasks if task.hole.block]


def _loaded(name: str, threads: int) -> Loaded:
    from dg_lsp.engine.model.loading import LoadError, load_model

    try:
        return load_model(name, threads=threads)
    except LoadError as error:
        raise tasks.EvalError(str(error)) from error


def _typed(whole: run.Bench, task: tasks.Task, seed: int) -> run.MethodAnswer:
    """Return the answer to a task after the cache has seen all of its prefix but the last character."""
    filler = whole.fillers[FULL]
    filler.cache.clear()
    run.fill(filler, replace(task, prompt=task.prompt[:-1]), FULL, seed)
    return run.fill(filler, task, FULL, seed)


def _line(name: str, rows: Sequence[score.ResultRow], slowest: float | None) -> Line:
    times = [row.ms for row in rows]
    middle, n = score.percentile(times, 50), len(rows)
    return Line(
        name,
        n,
        round(middle, 1),
        round(score.percentile(times, 95), 1),
        None if slowest is None else round(slowest / middle, 2),
        round(sum(row.exact for row in rows) / n, 4),
        round(sum(row.similarity for row in rows) / n, 4),
    )
