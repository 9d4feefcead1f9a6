"""Print every candidate of held-out holes, to compare two versions: python tests/benchmarks/candidates.py [FILE] [MODEL]

Each line has a task's id and its candidates, best first: text, row kind and confidence in full. So `diff` or `cmp` of two
runs shows any change of text, order or probability. One thread, 32 bits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core import confidence
from dg_lsp.engine.backends import local
from dg_lsp.engine.backends.local import filler_of
from dg_lsp.evaluate import tasks
from tests.benchmarks import arguments

HELDOUT = Path(__file__).parents[2] / "fixtures" / "eval" / "heldout.jsonl.gz"


def main(file: str, name: str) -> int:
    filler = filler_of(local.load_model(name, device="cpu", threads=1, dtype="float32"))
    for task in tasks.read(Path(file)):
        filler.cache.clear()
        work = filler.start(task.request())
        while work.step():
            pass
        answers = [(each.texts, each.row, confidence.probability(each.confidence)) for each in work.candidates()]
        print(json.dumps([task.task_id, answers]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*arguments.parsed(__doc__, file=str(HELDOUT), model="embedded")))
