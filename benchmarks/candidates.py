"""Print every candidate of held-out holes: python benchmarks/candidates.py [FILE] [MODEL] [DEVICE] [N]

Each line has a task's id and its candidates, best first: text, row kind and confidence in full. So `diff` or `cmp` of two
runs shows any change of text, order or probability. One thread, 32 bits. N is the number of holes, 0 for all.

With a DEVICE such as cuda, each hole is filled there and on the processor, from the same seed and in 32 bits. Prints the
holes whose candidates differ, and how many they are. Ends with 1 if that is more than rounding: it may change a sampled token,
but neither the best text of many holes nor the probabilities of equal texts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import arguments
from dg_lsp.core import confidence
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.backends import local
from dg_lsp.engine.backends.local import filler_of
from dg_lsp.engine.common.local import LocalFiller
from dg_lsp.evaluate import tasks

HELDOUT = Path(__file__).parents[1] / "fixtures" / "eval" / "heldout.jsonl.gz"
SECONDS = 75  # in which two devices are compared: `on_gpu.py` has ten minutes for all
MOST_OTHER_BESTS = 0.02  # of the holes
MOST_APART = 0.01  # the probabilities of equal texts

Answer = tuple[tuple[str, ...], str, float | None]
"""The texts of the holes, the kind of row, and the probability, None if the model was never calibrated."""


def filler(name: str, device: str, threads: int) -> LocalFiller:
    """Return a model that computes in 32 bits on a device."""
    return filler_of(local.load_model(name, device=device, threads=threads, dtype="float32"))


def answers(model: LocalFiller, request: InfillRequest) -> list[Answer]:
    """Return the candidates for a request, best first, with nothing cached."""
    model.cache.clear()
    work = model.start(request)
    while work.step():
        pass
    found = work.candidates()
    work.close()
    return [(each.texts, each.row, confidence.probability(each.confidence)) for each in found]


def compare(read: Sequence[tasks.Task], name: str, device: str) -> int:
    """Print how the candidates on a device differ from those on the processor; return 1 if that is more than rounding."""
    models, end = [filler(name, place, 0) for place in ("cpu", device)], time.monotonic() + SECONDS
    n_compared = n_equal = n_same_best = 0
    furthest = 0.0
    for task in read:
        if time.monotonic() > end:
            break
        ours, theirs = (answers(model, task.request()) for model in models)
        n_compared += 1
        texts, other_texts = ([each[0] for each in found] for found in (ours, theirs))
        n_same_best += texts[:1] == other_texts[:1]
        if texts == other_texts:
            n_equal += 1
            for (*_, one), (*_, other) in zip(ours, theirs, strict=True):
                furthest = max(furthest, abs((one or 0.0) - (other or 0.0)))
        else:
            print(json.dumps([task.task_id, ours, theirs]), flush=True)
    print(f"{n_compared} of {len(read)} holes filled on the processor and on {device}, in 32 bits and from the same seeds:")
    print(f"{n_equal} have the same candidates in the same order, whose probabilities differ by at most {furthest:.1g};")
    print(f"{n_same_best} have the same best candidate")
    is_rounding = n_compared - n_same_best <= MOST_OTHER_BESTS * n_compared and furthest <= MOST_APART
    return int(not n_compared or not is_rounding)


def main(file: str, name: str, device: str, n_holes: int) -> int:
    read = list(islice(tasks.read(Path(file)), n_holes or None))
    if device:
        return compare(read, name, device)
    model = filler(name, "cpu", 1)
    for task in read:
        print(json.dumps([task.task_id, answers(model, task.request())]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*arguments.parsed(__doc__, file=str(HELDOUT), model="embedded", device="", n=0)))
