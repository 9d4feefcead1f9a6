"""`dg-lsp eval`: measure a model's fills on a file of tasks, or cut such a file from source code. `dg-lsp bench`: time fills.

This module parses the command lines, starts the runs and prints the results.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dg_lsp.cli import completions, progress
from dg_lsp.cli.command_group import command_group, print_message, reports
from dg_lsp.cli.from_options import setting_option
from dg_lsp.core.wording import counted
from dg_lsp.evaluate import make, run, score, tasks
from dg_lsp.evaluate.execute import NEEDS_BUBBLEWRAP, protection
from dg_lsp.evaluate.run import FULL, Setup
from dg_lsp.evaluate.score import ResultRow
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.wire import files

if TYPE_CHECKING:
    from dg_lsp.engine.common.loading import Loaded
    from dg_lsp.engine.model.cores import Cores

app = command_group()
bench_app = command_group()

WIDTH = 160  # columns of a table that is not printed on a terminal


# Long, because each option is one parameter with its help.
@app.command()
@reports(EvalError, doing="measuring")
def evaluate(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Tasks in the format of HumanEval-Infilling: .jsonl or .jsonl.gz."),
    ] = None,
    model: Annotated[str, completions.model_option("The model: embedded, a folder, or a hub id.")] = "embedded",
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also measure a baseline: copy (the longest match in the file), ar (the encoder alone, left to right), "
            "answer or empty (the expected answer, or no text, to check the scores). Repeatable.",
            autocompletion=completions.one_of(completions.of("dg_lsp.evaluate.run", "BASELINES")),
        ),
    ] = None,
    baselines_only: Annotated[
        bool, typer.Option("--baselines-only", help="Measure only the baselines that --baseline names.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="How many tasks to use, evenly spread over the file; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same answers and the same intervals.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes, each with its own model; at most one per core.")] = 1,
    threads: Annotated[
        int,
        typer.Option(min=0, help="Threads of each process; 0: the engine's default, or the cores divided among the workers."),
    ] = 0,
    device: Annotated[str, setting_option("device")] = "auto",
    dtype: Annotated[str, setting_option("dtype", " float32 is the same on every CPU.")] = "auto",
    language: Annotated[
        str, typer.Option(help="The language of tasks without one.", autocompletion=completions.language)
    ] = "python",
    execute: Annotated[
        bool,
        typer.Option(
            "--execute",
            help="Run the filled programs with their tests, for pass@1 by kind and overall. This runs generated code, in "
            "bubblewrap, with limits on time, memory and files and without network. Off by default.",
        ),
    ] = False,
    unprotected: Annotated[
        bool, typer.Option("--unprotected", help="With --execute and without bubblewrap: run the programs with your rights.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as one JSON object.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the figures as a Markdown table.")] = False,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Also write one line per answer, to commit and compare."),
    ] = None,
    make: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only create tasks from the source files in DIR."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The file that --make writes.")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="How many tasks --make cuts in total.")] = 300,
) -> None:
    """Measure how good a model's fills are, with 95 % intervals, against baselines on the same tasks.

    Exits with 0, or with 2 on an error.
    """
    if make is not None:
        _make(make, out, n, seed)
        return
    if file is None:
        raise EvalError("no tasks given; name a .jsonl file, or cut one from source files with --make DIR --out FILE")
    if csv_file is not None and (problem := files.output_problem(csv_file, score.is_csv)):
        raise EvalError(f"--csv {csv_file}: {problem}")
    chosen_tasks = tasks.spread(tasks.read(file, language), limit)
    if unknown := [name for name in baseline or () if name not in run.BASELINES]:
        raise EvalError(f"unknown baseline {unknown[0]!r}; known baselines: {', '.join(run.BASELINES)}")
    selected = [] if baselines_only else [FULL]
    for name in baseline or ():
        selected += run.BASELINES[name]
    if not selected:
        raise EvalError("nothing to measure: --baselines-only needs a --baseline")
    setup = run.Setup(tuple(dict.fromkeys(selected)), model, device, threads, seed, "" if dtype == "auto" else dtype)
    rows = _rows(chosen_tasks, setup, workers, execute=execute, unprotected=unprotected)
    if csv_file is not None:
        try:
            files.write_output(csv_file, score.as_csv(rows).encode(), is_own=score.is_csv)
        except OSError as error:
            raise EvalError(f"{csv_file} can't be written: {(error.strerror or str(error)).lower()}") from error
    _show(rows, setup, file, as_json=as_json, as_markdown=as_markdown)


def _make(folder: Path, out: Path | None, n: int, seed: int) -> None:
    if out is None:
        raise EvalError("--make needs --out FILE.jsonl or FILE.jsonl.gz")
    if problem := files.output_problem(out, make.is_made):
        raise EvalError(f"--out {out}: {problem}")
    made_tasks = make.tasks(folder, n, seed)
    if not made_tasks:
        raise EvalError(f"nothing can be cut from {folder}")
    try:
        tasks.write(out, made_tasks)
    except (OSError, UnicodeEncodeError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
        raise EvalError(f"{out} can't be written: {reason}") from error
    counts = ", ".join(f"{sum(task.kind == kind for task in made_tasks)} {kind}" for kind in make.KINDS)
    short = f" (fewer than {n}, because the files have no more)" if len(made_tasks) < n else ""
    print_message(f"{len(made_tasks)} tasks from {len({task.path for task in made_tasks})} files in {out}{short}: {counts}")


def _rows(chosen_tasks: list[Task], setup: Setup, n_workers: int, *, execute: bool, unprotected: bool) -> list[ResultRow]:
    tested = sum(bool(task.test and task.entry_point) for task in chosen_tasks)
    if execute and not tested:
        raise EvalError("--execute has nothing to run: no task has a test and an entry_point")
    if execute and not unprotected and protection() is None:
        raise EvalError(NEEDS_BUBBLEWRAP)  # before the work of filling
    workers = run.n_workers(n_workers)
    if workers < n_workers:
        print_message(f"{workers} workers instead of {n_workers}: this machine has no more cores")
    with progress.counts("filling", len(chosen_tasks), elsewhere=print_message) as (_, done):
        rows = run.run(chosen_tasks, setup, workers=workers, done=done)
    if execute:
        means = "in bubblewrap" if protection() else "with your rights"
        print_message(f"running generated programs of {tested} tasks, {means}")
        with progress.counts("running", len(rows), elsewhere=print_message) as (_, done):
            rows = run.executed(rows, chosen_tasks, workers=workers, unprotected=unprotected, done=done)
    elif tested:
        print_message("the tasks' tests were not run; --execute runs them, and with them the code that the model wrote")
    return rows


def _show(rows: Sequence[ResultRow], setup: Setup, file: Path, *, as_json: bool, as_markdown: bool) -> None:
    from rich.console import Console

    if as_json:
        facts = {"file": file.name, "model": setup.model, "seed": setup.seed}
        typer.echo(json.dumps(score.as_object(rows, facts, setup.seed), indent=2))
    elif as_markdown:
        typer.echo(score.markdown(rows, setup.seed), nl=False)
    else:
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        console.print(results_table(rows, setup.seed))
        for line in score.remarks(rows, setup.seed):
            console.print(line, highlight=False)


def results_table(rows: Sequence[ResultRow], seed: int = 0) -> Any:
    """Return a table of each kind's figures, method by method, and of all kinds together."""
    from rich.table import Table

    methods, tested = score.by_method(rows), any(row.passed is not None for row in rows)
    view = Table(box=None, pad_edge=False, header_style="bold")
    view.add_column("kind")
    view.add_column("method")
    names = ["n", *(["pass@1"] if tested else []), "exact match", "edit similarity", "parse rate", "ms p50", "p95", "steps"]
    for name in names:
        view.add_column(name, justify="right", no_wrap=True)
    kinds = sorted({row.kind for row in rows})
    groups = [(kind or "other", [kind]) for kind in kinds] + ([(score.ALL, kinds)] if len(kinds) > 1 else [])
    for title, members in groups:
        for name, own in methods.items():
            if part := [row for row in own if row.kind in members]:
                facts = score.summary(part, seed)
                measures = [*([facts.pass_at_1] if tested else []), facts.exact_match, facts.edit_similarity, facts.parse_rate]
                times = f"{facts.ms_p50:.0f}", f"{facts.ms_p95:.0f}", f"{facts.steps_p50:g}"
                view.add_row(title, name, str(facts.n), *map(score.interval, measures), *times)
                title = ""
        view.add_section()
    return view


# --- The command `dg-lsp bench`: lines and blocks, with nothing cached and with a known prefix. Both ways take turns on each
# task, so that other load on the machine affects both; compare their ratios.


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one way to fill; times in milliseconds."""

    name: str
    n: int
    ms_p50: float
    ms_p95: float
    exact_match: float
    edit_similarity: float


def measure(loaded: Loaded[Any, Any], holes: Sequence[Task], blocks: Sequence[Task] = (), *, seed: int = 0) -> list[Line]:
    """Return the figures of filling single-line holes, and of filling blocks.

    "prefix known" is a fill after the same request without its last character, as when a user types.
    """
    bench = run.Bench(run.Setup((FULL,), seed=seed), loaded)
    filler, lines = bench.fillers[FULL], list[Line]()
    for name, chosen in (("dg-lsp", holes), ("dg-lsp, a block", blocks)):
        rows: dict[str, list[ResultRow]] = {name: [], f"{name}, prefix known": []}
        for task in chosen[:1]:
            bench.warm_up(task)
        for task in chosen:
            rows[name].append(run.to_row(task, FULL, bench.answer(task, FULL)))
            filler.cache.clear()
            run.fill(filler, replace(task, prompt=task.prompt[:-1]), FULL, seed)
            rows[f"{name}, prefix known"].append(run.to_row(task, FULL, run.fill(filler, task, FULL, seed)))
        lines += [_line(way, own) for way, own in rows.items() if own]
    return lines


def _line(name: str, rows: Sequence[ResultRow]) -> Line:
    n = len(rows)
    middle, slow = (round(score.percentile([row.ms for row in rows], share), 1) for share in (50, 95))
    right, similarity = sum(row.exact for row in rows) / n, sum(row.similarity for row in rows) / n
    return Line(name, n, middle, slow, round(right, 4), round(similarity, 4))


def table(lines: Sequence[Line], cores: Cores) -> str:
    """Return the figures as a Markdown table, and a line that says how many cores the passes had."""
    head = "| way | ms p50 | ms p95 | exact match | edit similarity |\n| --- | --- | --- | --- | --- |\n"
    rows = "".join(
        f"| {line.name} | {line.ms_p50:.0f} | {line.ms_p95:.0f} | {line.exact_match:.3f} | {line.edit_similarity:.3f} |\n"
        for line in lines
    )
    took = f"{cores.wall_ms / 1000:.1f} s, and {cores.processor_ms / 1000:.1f} s of processor time"
    return f"{head}{rows}\nAll passes took {took}; the last ones had {counted(cores.threads, 'thread')} ({cores.why}).\n"


def as_object(lines: Sequence[Line], loaded: Loaded[Any, Any]) -> dict[str, object]:
    """Return the figures and the hardware as an object for JSON.

    `dtype` is the precision of the weights; `products_dtype` is that of the products in our own layers.
    """
    return {
        "processor": processor(),
        "device": loaded.device,
        "dtype": loaded.dtype,
        "products_dtype": loaded.passes.products_dtype,
        "threads": loaded.cores.threads,
        "passes_s": round(loaded.cores.wall_ms / 1000, 3),
        "processor_s": round(loaded.cores.processor_ms / 1000, 3),
        "ways": [asdict(line) for line in lines],
    }


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@bench_app.command()
@reports(EvalError, who="dg-lsp bench", doing="measuring")
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
    from dg_lsp.engine.backends.local import load_model
    from dg_lsp.engine.common.loading import LoadError

    if file is None:
        raise EvalError("no tasks given; name a .jsonl file")
    all_tasks = tasks.read(file)
    single, blocks = ([task for task in all_tasks if task.hole.block == block] for block in (False, True))
    if not single:
        raise EvalError(f"{file} has no single-line task")
    try:
        loaded = load_model(model, threads=threads)
    except LoadError as error:
        raise EvalError(str(error)) from error
    lines = measure(loaded, tasks.spread(single, limit), tasks.spread(blocks, limit), seed=seed)
    shown = json.dumps(as_object(lines, loaded), indent=2) if as_json else table(lines, loaded.cores)
    typer.echo(shown, nl=as_json)
