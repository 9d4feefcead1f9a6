"""See what is left of an answer worth, once the user types something else: python tests/benchmarks/typed_against.py [N]

A model's folder may follow. At positions in held-out files the engine answers; where it is wrong, the word that really
stood there is typed, and it answers again, once with what the first answer would still write (`InfillRequest.previous`)
and once without. Drafts are corrected on the canvas in two steps, though the checkpoint's own profile may leave them as
they are.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core import holes, syntax
from dg_lsp.core.values import Document
from dg_lsp.engine import model
from dg_lsp.engine.local import LocalFiller
from dg_lsp.evaluate import score
from dg_lsp.infill import pipeline
from dg_lsp.server import reuse
from tests.e2e import positions
from tests.e2e.positions import Position

REFINE_STEPS, SEED = 2, 5


def main(n: int, name: str) -> int:
    loaded = model.load(name)
    filler = LocalFiller(replace(loaded, profile=replace(loaded.profile, refine_steps=REFINE_STEPS)))
    rights, similarities, n_asked, n_moved = [0, 0], [0.0, 0.0], 0, 0
    for position in positions.positions(n, SEED):
        if position.kind not in ("typing", "line", "broken"):
            continue
        first = answer(filler, position)
        typed, truth = parted(first, position.truth)
        left = reuse.left_over(first, typed, "")
        if not left.strip() or not truth.strip():
            continue
        later = replace(position, before=position.before + typed, truth=truth)
        texts = answer(filler, later), answer(filler, later, left)
        n_asked, n_moved = n_asked + 1, n_moved + (texts[0] != texts[1])
        for arm, text in enumerate(texts):
            rights[arm] += positions.is_right(later, text)
            similarities[arm] += score.similarity(text, truth)
    print(f"{n_asked} answers typed against; {n_moved} answered otherwise with what was left")
    for arm, what in enumerate(("without", "with")):
        print(f"{what:8} exactly right {rights[arm]:3}, similarity {similarities[arm] / max(n_asked, 1):.3f}")
    return 0


def parted(first: str, truth: str) -> tuple[str, str]:
    """Return what is typed of the truth until it differs from the answer, with the word in which it does, and the rest."""
    same = reuse.n_same(first, truth)
    word = re.compile(r"\w+|\s+|[^\w\s]").match(truth, same)
    end = word.end() if word else len(truth)
    return truth[:end], truth[end:]


def answer(filler: LocalFiller, position: Position, previous: str = "") -> str:
    """Return the text that would be shown."""
    document = Document(f"file:///{position.path}", "python", position.before + position.after)
    tree = syntax.of(document)
    hole = holes.at_cursor(document, len(position.before), tree)
    asked = pipeline.RequestOptions(path=position.path, previous=previous)
    request = pipeline.to_request(document, (hole,), asked, syntax=tree)
    task = filler.start(request)
    while task.step():
        pass
    found = pipeline.to_answer(request, task.candidates(), document, syntax=tree).suggestions
    return found[0].edits[0].text if found else ""


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 240, sys.argv[2] if len(sys.argv) > 2 else model.EMBEDDED))
