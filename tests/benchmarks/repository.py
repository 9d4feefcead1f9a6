"""Measure what related files add: python tests/benchmarks/repository.py FOLDER [HOLES] [--model MODEL]

Cuts holes from a repository's files and fills them with more and more text of related files (`workspace.related`), by
copying alone and, with --model, by the whole engine. Prints the share of exact answers and the time of a fill.
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

from dg_lsp.core.values import Candidate, Snippet
from dg_lsp.engine import drafts, model
from dg_lsp.engine.local import LocalFiller
from dg_lsp.evaluate import make, run, score
from dg_lsp.evaluate.methods import COPY
from dg_lsp.evaluate.tasks import Task
from dg_lsp.infill import workspace

LIMITS = (0, 6_000, 24_000, 100_000)  # characters of related files
Fill = Callable[[Task, tuple[Snippet, ...]], str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("holes", type=int, nargs="?", default=200)
    parser.add_argument("--model", default="", help="also fill with this model")
    arguments = parser.parse_args()
    tasks = make.tasks(arguments.folder, arguments.holes, 1)
    random.Random(1).shuffle(tasks)
    ways: dict[str, Fill] = {"copy": copied}
    if arguments.model:
        ways["engine"] = filled(LocalFiller(model.load_model(arguments.model)))
    for limit in LIMITS:
        for name, fill in ways.items():
            n_right, began = 0, time.perf_counter()
            for task in tasks:
                place = arguments.folder / task.path
                related = workspace.related(arguments.folder, place, task.document, limit)
                n_right += score.is_exact(fill(task, related), task.answer)
            ms = (time.perf_counter() - began) * 1000 / len(tasks)
            print(f"{name:6} {limit:7} related characters: {n_right / len(tasks):.3f} of {len(tasks)}, {ms:.0f} ms", flush=True)
    return 0


def copied(task: Task, related: tuple[Snippet, ...]) -> str:
    hole, texts = task.hole, [snippet.text for snippet in related]
    copies = drafts.copies(task.prompt, task.suffix, block=hole.block, indent=hole.indent, most=1, related=texts)
    return run.settled(task, COPY, [Candidate((copy.text,), row="copy") for copy in copies])[0]


def filled(filler: LocalFiller) -> Fill:
    def fill(task: Task, related: tuple[Snippet, ...]) -> str:
        work = filler.start(replace(task.request(), related=related))
        while work.step():
            pass
        return run.settled(task, COPY, work.candidates())[0]

    return fill


if __name__ == "__main__":
    sys.exit(main())
