"""Measure how good a model's fills are, with 95 % intervals, on the path of an editor's request.

    python benchmarks/evaluate.py FILE [--model M] [--baseline copy] [--limit N] [--threads 1] [--json] [--csv OUT]
    python benchmarks/evaluate.py FILE --model M --execute         (runs the programs with their tests, in bubblewrap)
    python benchmarks/evaluate.py --make DIR --out FILE [--n N]    (only cuts tasks from source files)

FILE has tasks in the format of HumanEval-Infilling: .jsonl or .jsonl.gz. Each is asked for as an editor asks: as a whole file,
polished, and cut before the first token below the default threshold (`dg_lsp.evaluate.answers`); what it would show counts, and
no answer counts as an empty one. The prefix cache is cleared before each, so that no result or time depends on the order.
Baselines: copy (the longest match in the file), answer and empty (the expected answer, or no text, to check the scores).
Ends with 0, or with 2 on an error.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import json
import multiprocessing
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import sandbox, scores
from benchmarks.scores import FULL, ResultRow
from dg_lsp.cli import progress
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.common import copies
from dg_lsp.engine.model.fit import machine
from dg_lsp.evaluate import answers, make, tasks
from dg_lsp.evaluate.answers import Answer
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.wire import files
from dg_lsp.wire.settings import DEVICES, Precision

BASELINES = ("copy", "answer", "empty")


@dataclass(frozen=True, slots=True)
class Setup:
    """What to measure: the methods, the model and how it is loaded, and the seed of the noise."""

    methods: tuple[str, ...] = (FULL,)
    model: str = "embedded"
    device: str = "auto"
    threads: int = 0
    dtype: str = ""
    seed: int = 0


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    try:
        if options.make is not None:
            _make(options.make, options.out, options.n, options.seed)
        else:
            _measure(options)
    except (EvalError, OSError) as error:
        text = f"{error.filename} can't be used: {error.strerror}" if isinstance(error, OSError) else str(error)
        print(text, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("file", type=Path, nargs="?", metavar="FILE")
    add("--model", default="embedded", help="embedded, a laptop model, a folder, or a hub id")
    add("--baseline", action="append", default=[], choices=BASELINES, help="also measure this; can be given several times")
    add("--baselines-only", action="store_true", help="measure only the baselines")
    add("--limit", type=int, default=0, help="how many tasks to use, evenly spread over the file; 0: all")
    add("--seed", type=int, default=0, help="the same seed gives the same answers and the same intervals")
    add("--workers", type=int, default=1, help="processes, each with its own model; at most one per core")
    add("--threads", type=int, default=0, help="of each process; 0: the engine's default, or the cores shared by the workers")
    add("--device", default="auto", help=", ".join(DEVICES))
    add("--dtype", default="auto", choices=get_args(Precision), help="float32 is the same on every CPU")
    add("--language", default="python", help="the language of tasks without one")
    add("--execute", action="store_true", help="run the programs, which a model wrote, with their tests: pass@1")
    add("--unprotected", action="store_true", help="with --execute and without bubblewrap: run them with your rights")
    add("--json", action="store_true", help="print all figures as one JSON object")
    add("--csv", type=Path, metavar="FILE", help="also write one line per answer, to commit and compare")
    add("--make", type=Path, metavar="DIR", help="only create tasks from the source files in DIR")
    add("--out", type=Path, metavar="FILE", help="the file that --make writes")
    add("--n", type=int, default=300, help="how many tasks --make cuts in total")
    return parser


def write_tasks(path: Path, made: Iterable[Task]) -> None:
    """Write the tasks, gzipped if the name ends with .gz; the same tasks give the same bytes."""
    lines = []
    for task in made:
        required = dict(zip(tasks.NEEDED, (task.task_id, task.prompt, task.suffix, task.answer), strict=True))
        optional = {name: value for name in tasks.OPTIONAL if (value := getattr(task, name))}
        lines.append(json.dumps(required | optional, ensure_ascii=False) + "\n")
    data = "".join(lines).encode()
    # mtime=0, because a gzip header otherwise contains the time.
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def _make(folder: Path, out: Path | None, n: int, seed: int) -> None:
    if out is None:
        raise EvalError("--make needs --out FILE.jsonl or FILE.jsonl.gz")
    if problem := files.output_problem(out, is_made):
        raise EvalError(f"--out {out}: {problem}")
    made_tasks = make.tasks(folder, n, seed)
    if not made_tasks:
        raise EvalError(f"nothing can be cut from {folder}")
    write_tasks(out, made_tasks)
    counts = ", ".join(f"{sum(task.kind == kind for task in made_tasks)} {kind}" for kind in make.KINDS)
    short = f" (fewer than {n}, because the files have no more)" if len(made_tasks) < n else ""
    _say(f"{len(made_tasks)} tasks from {len({task.path for task in made_tasks})} files in {out}{short}: {counts}")


def is_made(head: bytes) -> bool:
    """Return whether a file that begins so, also gzipped, has tasks that were cut."""
    with contextlib.suppress(zlib.error):
        head = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(head, 64)
    return head.startswith(tuple(f'{{"task_id": "{kind}/'.encode() for kind in make.KINDS))


def _measure(options: argparse.Namespace) -> None:
    if options.file is None:
        raise EvalError("no tasks given; name a .jsonl file, or cut one from source files with --make DIR --out FILE")
    if options.baselines_only and not options.baseline:
        raise EvalError("nothing to measure: --baselines-only needs a --baseline")
    if options.csv is not None and (problem := files.output_problem(options.csv, scores.is_csv)):
        raise EvalError(f"--csv {options.csv}: {problem}")
    chosen = tasks.spread(tasks.read(options.file, options.language), options.limit)
    methods = tuple(dict.fromkeys([*([] if options.baselines_only else [FULL]), *options.baseline]))
    dtype = "" if options.dtype == "auto" else options.dtype
    setup = Setup(methods, options.model, options.device, options.threads, dtype, options.seed)
    n_tested = sum(bool(task.test and task.entry_point) for task in chosen)
    if options.execute and not n_tested:
        raise EvalError("--execute has nothing to run: no task has a test and an entry_point")
    if options.execute and not options.unprotected and sandbox.protection() is None:
        raise EvalError(sandbox.NEEDS_BUBBLEWRAP)  # before the work of filling
    workers = max(1, min(options.workers, machine.n_cores()))
    if workers < options.workers:
        _say(f"{workers} workers instead of {options.workers}: this machine has no more cores")
    with progress.counts("filling", len(chosen), elsewhere=_say) as (_, done):
        rows = run(chosen, setup, workers=workers, done=done)
    if options.execute:
        means = "in bubblewrap" if sandbox.protection() else "with your rights"
        _say(f"running generated programs of {n_tested} tasks, {means}")
        with progress.counts("running", len(rows), elsewhere=_say) as (_, done):
            rows = executed(rows, chosen, workers=workers, unprotected=options.unprotected, done=done)
    elif n_tested:
        _say("the tasks' tests were not run; --execute runs them, and with them the code that the model wrote")
    if options.csv is not None:
        files.write_output(options.csv, scores.as_csv(rows).encode(), is_own=scores.is_csv)
    if options.json:
        facts = {"file": options.file.name, "model": setup.model, "seed": setup.seed}
        print(json.dumps(scores.as_object(rows, facts, setup.seed), indent=2))
    else:
        print(scores.markdown(rows, setup.seed), *scores.remarks(rows, setup.seed), sep="\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- The answers of each method


@functools.cache
def engine_of(setup: Setup) -> answers.InProcess:
    """Return the loaded model; raise EvalError. It is warm, because a process is slow the first time."""
    from dg_lsp.engine.backends.local import filler_of, load_model
    from dg_lsp.engine.common.loading import LoadError

    try:
        loaded = load_model(setup.model, device=setup.device, threads=setup.threads, dtype=setup.dtype)
        engine = answers.InProcess(filler_of(loaded))
    except (LoadError, ValueError) as error:
        raise EvalError(str(error)) from error
    answers.answer(engine, Task("warm", "def f(a):\n    return ", "\n", "a"))
    return engine


class Copying:
    """An engine without a model, which copies the longest match in the file."""

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return the copy with the longest match, if there is one."""
        [hole] = request.holes
        best = copies.find(request.prefix, request.suffix, takes_lines=hole.extent == "block", indent=hole.indent, most=1)
        return tuple(Candidate((each.text,), row="copy") for each in best)


def answer(task: Task, setup: Setup, method: str) -> Answer:
    """Return the method's answer. Raises EvalError if the engine rejects the task."""
    match method:
        case "answer":
            return Answer(task.answer)
        case "empty":
            return Answer()
        case "copy":
            return answers.answer(Copying(), task)
        case _:
            engine = engine_of(setup)
            engine.filler.trim()
            return answers.answer(engine, task, setup.seed)


def rows_of(task: Task, setup: Setup) -> list[ResultRow]:
    """Return one row for each method. Raises EvalError if the engine rejects the task."""
    return [to_row(task, method, answer(task, setup, method)) for method in setup.methods]


def to_row(task: Task, method: str, answer: Answer) -> ResultRow:
    """Return the answer with its scores. `passed` is set later, by `executed`."""
    return ResultRow(
        task.task_id,
        task.cluster,
        task.kind,
        method,
        answer.text,
        answers.is_exact(answer.text, task.answer),
        round(scores.similarity(answer.text, task.answer), 4),
        scores.parses(task.prompt, answer.text, task.suffix, task.answer, task.language),
        ms=answer.ms,
        steps=answer.steps,
        keys=scores.keys(answer.text, task.answer),
        probability=answer.probability,
    )


def run(
    chosen: Sequence[Task], setup: Setup, *, workers: int = 1, done: Callable[[int], None] = lambda n: None
) -> list[ResultRow]:
    """Return the rows of every task and method, in the order of the tasks; `done` is called after each task.

    With several workers, each is a process that loads the model. The rows are the same, but times include the load of
    the others. Raises EvalError.
    """
    rows: list[ResultRow] = []
    with _mapping(workers) as mapped:
        setup = setup if workers == 1 else replace(setup, threads=setup.threads or max(machine.n_cores() // workers, 1))
        try:
            for task_rows in mapped(functools.partial(rows_of, setup=setup), chosen):
                rows += task_rows
                done(1)
        except BrokenProcessPool as error:
            raise EvalError("the system ended a worker process; use fewer --workers to save memory") from error
    return rows


@contextlib.contextmanager
def _mapping(workers: int) -> Iterator[Callable[..., Iterator[list[ResultRow]]]]:
    """Yield `map`, in this process or in several."""
    if workers == 1:
        yield map
        return
    # Torch's threads do not survive a fork.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def executed(
    rows: Sequence[ResultRow],
    chosen: Sequence[Task],
    *,
    workers: int = 1,
    unprotected: bool = False,
    done: Callable[[int], None] = lambda n: None,
) -> list[ResultRow]:
    """Return the rows with `passed` set, for tasks that have a test and an entry point. Raises EvalError as `run_all` does."""
    tested = {task.task_id: task for task in chosen if task.test and task.entry_point}
    at = [place for place, row in enumerate(rows) if row.task_id in tested]
    programs = [sandbox.program(tested[rows[place].task_id], rows[place].text) for place in at]
    result = list(rows)
    for place, verdict in zip(at, sandbox.run_all(programs, workers=workers, unprotected=unprotected), strict=True):
        result[place] = replace(result[place], passed=verdict == "passed")
        done(1)
    return result


if __name__ == "__main__":
    sys.exit(main())
