"""Fill the emptied bodies of a package's functions: python tests/benchmarks/emptied.py FOLDER [N] [SEED]

Each function's body is replaced by `pass`, its docstring stays, and the embedded model fills the hole that `dg-lsp infill`
finds there. The same candidates are polished twice: with the check of unbound names, and without. Prints how many
candidates the check drops, what would be written and how much of that is right, how often ruff finds a name undefined that
was not, and what the check costs. Ends with 1 where it does with the check on. The package should be one that the model was
not trained on.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core import holes, scope, syntax, values
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Hole, Span
from dg_lsp.engine.backends import local
from dg_lsp.engine.backends.local import filler_of
from dg_lsp.engine.common import loading
from dg_lsp.evaluate import score
from dg_lsp.infill import pipeline
from tests.benchmarks import arguments
from tests.e2e import positions
from tests.e2e.positions import Position

MOST_LINES, N_CANDIDATES = 12, 4


@dataclass(frozen=True)
class Emptied:
    """A file with one body that was emptied, the hole there, and what stood in it."""

    document: Document
    tree: Syntax
    hole: Hole
    truth: str


def main(folder: str, n: int, seed: int) -> int:
    files = sorted(Path(folder).rglob("*.py"))
    every = [body for path in files for body in bodies(path)]
    random.Random(seed).shuffle(every)
    filler = filler_of(local.load_model(loading.EMBEDDED))
    counts, took_ms = Counter[str](), list[float]()
    reasons = Counter[str]()
    for body in every[:n]:
        document, tree, hole = body.document, body.tree, body.hole
        settings = pipeline.FileContext(path=document.uri, budget=values.Budget(candidates=N_CANDIDATES))
        request = pipeline.to_request(document, (hole,), settings, syntax=tree)
        task = filler.start(request)
        while task.step():
            pass
        candidates = task.candidates()
        counts["candidates"] += len(candidates)
        for name, is_file in (("without", False), ("with", True)):
            answer = pipeline.to_answer(request, candidates, document, syntax=tree, is_file=is_file)
            counts[f"polished {name}"] += len(answer.suggestions)
            if is_file:
                reasons.update(answer.dropped)
            for place, suggestion in enumerate(answer.suggestions):
                text = suggestion.edits[0].text
                position = Position("body", document.uri, *around(document, hole), body.truth)
                is_unbound = bool(positions.unbound_names(position, text))
                counts[f"unbound {name}"] += is_unbound
                if place == 0:
                    counts[f"written {name}"] += 1
                    counts[f"written unbound {name}"] += is_unbound
                    counts[f"right {name}"] += score.is_exact(text, body.truth)
                    counts[f"similarity {name}"] += round(1000 * score.similarity(text, body.truth))
                if is_unbound and is_file:
                    print("unbound with the check:", document.uri, repr(text), positions.unbound_names(position, text))
                if not is_file:
                    took_ms.append(cost_ms(body, text))
    report(min(n, len(every)), counts, took_ms, reasons)
    return int(counts["unbound with"] > 0)


def report(n: int, counts: Counter[str], took_ms: list[float], reasons: Counter[str]) -> None:
    print(f"{n} bodies, {counts['candidates']} candidates")
    for name in ("without", "with"):
        n_written = counts[f"written {name}"]
        similarity = counts[f"similarity {name}"] / max(n_written, 1) / 1000
        n_right = counts[f"right {name}"]
        print(f"{name:8} the check: {counts[f'polished {name}']} candidates left, {counts[f'unbound {name}']} of them unbound;")
        print(f"  {n_written} bodies written, {counts[f'written unbound {name}']} of them unbound,", end=" ")
        print(f"{n_right} right ({n_right / max(n_written, 1):.1%}), similarity {similarity:.3f}")
    print("dropped:", dict(reasons.most_common()))
    if len(took_ms) > 1:
        p95 = statistics.quantiles(took_ms, n=20)[-1]
        print(f"the check took {statistics.median(took_ms):.2f} ms at the median, {p95:.2f} at the 95th percentile")


def bodies(path: Path) -> Iterator[Emptied]:
    """Yield the file with each of its short bodies emptied in turn."""
    text = path.read_text("utf-8")
    document = Document(path.as_posix(), "python", text)
    whole = syntax.of(document)
    assert whole is not None
    for owner in whole.facts.owners:
        items = [item for item in owner.items if not whole.facts.has("docstring", item)]
        if owner.kind != "function" or not items or any(whole.facts.has("comment", item) for item in items[:1]):
            continue
        span = Span(whole.span(items[0]).start, whole.span(items[-1]).end)
        truth = text[span.start : span.end]
        if truth.count("\n") >= MOST_LINES or not text[: span.start].rpartition("\n")[2].isspace():
            continue
        emptied_document = Document(document.uri, "python", f"{text[: span.start]}pass{text[span.end :]}")
        tree = syntax.of(emptied_document, whole)
        for hole in holes.in_document(emptied_document, tree, frozenset({"bodies", "empty"})):
            if tree is not None and hole.span == Span(span.start, span.start + len("pass")):
                yield Emptied(emptied_document, tree, hole, truth)


def around(document: Document, hole: Hole) -> tuple[str, str]:
    return document.text[: hole.span.start], document.text[hole.span.end :]


def cost_ms(body: Emptied, text: str) -> float:
    """Return the processor time of one check, with what a request before it may have cached."""
    before, after = around(body.document, body.hole)
    filled_syntax = syntax.parse(before + text + after, body.tree.language, body.tree)
    answer = Span(len(before), len(before) + len(text))
    began = time.thread_time()
    scope.unbound_names(filled_syntax, [(answer, "pass")], body.document.uri)
    return (time.thread_time() - began) * 1000


if __name__ == "__main__":
    raise SystemExit(main(*arguments.parsed(__doc__, folder=str, n=200, seed=1)))
