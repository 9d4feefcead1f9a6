"""Measure what the other files of a repository add: python tests/benchmarks/repository.py FOLDER [HOLES] [--model MODEL]

Cuts holes from a repository's files and fills them with text from no other file, from related files
(`workspace.related`), and from the index of the whole repository (`core.repository`): by copying alone and, with
--model, by the whole engine. Prints the share of exact answers, the difference from related files with a 95 % interval
paired by hole (resampled by file), and the CPU time of a hole with and without the search.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core import repository as search
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.backends import local
from dg_lsp.engine.backends.local import filler_of
from dg_lsp.engine.common.local import LocalFiller
from dg_lsp.engine.common.propose import copies
from dg_lsp.evaluate import make, run, score
from dg_lsp.evaluate.run import COPY
from dg_lsp.evaluate.tasks import Task
from dg_lsp.infill import ignoring, repository, workspace

LIMIT = 6_000  # characters of other files: the default of context.related_chars
BASE = "related"

Fill = Callable[[Task, InfillRequest], str]
Context = Callable[[Task], InfillRequest]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("holes", type=int, nargs="?", default=200)
    parser.add_argument("--model", default="", help="also fill with this model")
    arguments = parser.parse_args()
    root: Path = arguments.folder.resolve()
    tasks = make.tasks(root, arguments.holes, 1)
    random.Random(1).shuffle(tasks)
    ways: dict[str, Fill] = {"copy": copied}
    if arguments.model:
        ways["engine"] = filled(filler_of(local.load_model(arguments.model)))
    for name, fill in ways.items():
        rows: dict[str, list[score.ResultRow]] = {}
        for label, context in contexts(root, tasks).items():
            rows[label], searched, spent = measured(tasks, label, context, fill)
            exact = score.measure(rows[label], lambda row: row.exact)
            gain = score.gain(rows[label], rows[BASE]) if BASE in rows and label != BASE else None
            paired = f", {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] from {BASE}" if gain else ""
            print(
                f"{name:6} {label:10} {exact.value if exact else 0:.3f} of {len(tasks)}{paired}; {spent:.0f} ms, "
                f"search {score.percentile(searched, 50):.1f} ms, p95 {score.percentile(searched, 95):.1f} ms",
                flush=True,
            )
    return 0


def contexts(root: Path, tasks: list[Task]) -> dict[str, Context]:
    """Return the ways to add text from other files, by name."""
    ignore = ignoring.Ignore.for_root(root)
    begun = time.thread_time()
    index = repository.RepositoryIndex(ignore, read_s=60.0)
    index.update()
    files = index.repository
    size, memory = (sum(each) for each in zip(*((len(file.text), file.n_bytes) for file in files.files.values()), strict=True))
    spent = time.thread_time() - begun
    print(f"{len(files.files)} files, {size / 1e6:.2f} M characters, index {memory / 1e6:.1f} MB in {spent:.1f} s", flush=True)
    # The related files are read once per file in an editor, so their search is not part of a hole's time.
    near = {task.task_id: workspace.related(root, root / task.path, task.document, LIMIT, ignore=ignore) for task in tasks}
    return {
        "nothing": lambda task: task.request(),
        BASE: lambda task: replace(task.request(), related=near[task.task_id]),
        "repository": lambda task: search.with_repository(task.request(), near[task.task_id], files, LIMIT),
    }


def measured(tasks: list[Task], label: str, context: Context, fill: Fill) -> tuple[list[score.ResultRow], list[float], float]:
    """Return a row for each task, each search's milliseconds of CPU time, and those of a fill with its search on average."""
    rows, searched, begun = list[score.ResultRow](), list[float](), time.thread_time()
    for task in tasks:
        start = time.thread_time()
        request = context(task)
        searched.append((time.thread_time() - start) * 1000)
        text = fill(task, request)
        exact = score.is_exact(text, task.answer)
        rows.append(
            score.ResultRow(task.task_id, task.cluster, task.kind, label, text, exact, score.similarity(text, task.answer))
        )
    return rows, searched, (time.thread_time() - begun) * 1000 / len(tasks)


def copied(task: Task, request: InfillRequest) -> str:
    hole, texts = task.hole, [snippet.text for snippet in request.related]
    found = copies.find(task.prompt, task.suffix, block=hole.block, indent=hole.indent, most=1, related=texts)
    return run.settled(task, COPY, [Candidate((copy.text,), row="copy") for copy in found])[0]


def filled(filler: LocalFiller) -> Fill:
    def fill(task: Task, request: InfillRequest) -> str:
        work = filler.start(request)
        while work.step():
            pass
        return run.settled(task, COPY, work.candidates())[0]

    return fill


if __name__ == "__main__":
    sys.exit(main())
