"""Time parsing after a key in a long file: python benchmarks/parse.py

Compares what a key costs where all of the text is parsed with what it costs near the cursor, in processor milliseconds at the
median and the 95th percentile of many places. Ends with 1 if the hole at a place differs.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

from dg_lsp.core import excerpt, holes, syntax
from dg_lsp.core.values import Document
from dg_lsp.evaluate.answers import percentile

LINES, PLACES = 10_000, 120


def long_text() -> str:
    """Return so many lines of a real file, repeated where it has fewer."""
    spec = importlib.util.find_spec("mypy")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the text is taken from mypy, which is not installed here")
    lines = Path(spec.submodule_search_locations[0], "checker.py").read_text(encoding="utf-8").split("\n")
    return "\n".join((lines * (LINES // len(lines) + 1))[:LINES])


def main() -> int:
    text = long_text()
    document = Document("untitled:long.py", "python", text)
    before = syntax.of(document)
    assert before is not None
    times: dict[str, list[float]] = {"whole": [], "near the cursor": []}
    n_same = 0
    ends = [before.lines.end(line) for line in range(len(before.lines)) if not before.lines.is_blank(line)]
    for at in random.Random(0).sample(ends, PLACES):
        typed_document = replace(document, text=f"{text[:at]}\n{text[at:]}")
        near = syntax.parse(text, before.language, None, excerpt.parts(before.tree, before.offsets, before.lines, at))
        found = []
        for own, earlier in zip(times.values(), (before, near), strict=True):
            assert earlier.lines  # the server has them at hand
            began = time.thread_time()
            after = syntax.of(typed_document, earlier)
            own.append(1000 * (time.thread_time() - began))
            found.append(holes.at_cursor(typed_document, at + 1, after))
        n_same += found[0] == found[1]
    for name, own in times.items():
        print(f"{name}: {percentile(own, 50):.1f} ms, {percentile(own, 95):.1f} ms")
    print(f"the same hole at {n_same} of {PLACES} places")
    return int(n_same < PLACES)


if __name__ == "__main__":
    sys.exit(main())
