"""Several requests whose rows step in one pass, next to the same requests in turns: python tests/benchmarks/together.py

Held-out tasks on the embedded model, one thread. Prints the ratio of the processor time, which a busy machine changes
less than the clock's, and whether the answers are the same. Asserts nothing, as machines differ.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.generation import MAX_ROWS
from dg_lsp.evaluate import tasks

TASKS = Path(__file__).parents[2] / "fixtures" / "eval" / "heldout.jsonl.gz"
N_TASKS, AT_ONCE = 48, (2, 4, 8)


def main() -> None:
    loaded = load_model(threads=1)
    single = [task.request() for task in tasks.read(TASKS) if not task.hole.block][:N_TASKS]
    filled(loaded, single[:2], joins=True)  # what a process does for the first time is slow
    print("| requests at once | processor time, together / in turns | answers that differ |\n| ---: | ---: | ---: |")
    for n in AT_ONCE:
        ratios, differ, n_seen = [], 0, 0
        for at in range(0, len(single), n):
            apart_s, apart = filled(loaded, single[at : at + n], joins=False)
            together_s, together = filled(loaded, single[at : at + n], joins=True)
            ratios.append(together_s / apart_s)
            n_seen += len(apart)
            differ += sum(texts(apart[place]) != texts(together[place]) for place in apart)
        print(f"| {n} | {statistics.median(ratios):.2f} | {differ} of {n_seen} |")


def filled(
    loaded: Loaded[Any, Any], requests: list[InfillRequest], *, joins: bool
) -> tuple[float, dict[int, tuple[Candidate, ...]]]:
    """Return the processor time, in seconds, and each request's answers."""
    filler = DiffusionFiller(loaded, joins=joins)
    under_way = {place: filler.start(request) for place, request in enumerate(requests)}
    answers: dict[int, tuple[Candidate, ...]] = {}
    began = time.process_time()
    while under_way:
        order = list(under_way)
        joined_places = filler.predict_together([under_way[place] for place in order], MAX_ROWS)
        for place in [order[index] for index in joined_places] or order[:1]:
            task = under_way.pop(place)
            if task.step():
                under_way[place] = task  # behind those who wait
            else:
                answers[place] = task.candidates()
    return time.process_time() - began, answers


def texts(candidates: tuple[Candidate, ...]) -> list[tuple[str, ...]]:
    return [candidate.texts for candidate in candidates]


if __name__ == "__main__":
    main()
