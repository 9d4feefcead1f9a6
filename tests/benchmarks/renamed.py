"""Measure whether renaming makes copies right: python tests/benchmarks/renamed.py FOLDER [HOLES]

Takes the best copy for each hole, with text of the whole repository as in `repository.py`. Aligns the lines before the
copied place with the lines before the hole, token by token. Where identifiers differ there, it renames them in the copy.
Prints how many copies change, and how many of those are exact before and after. The engine does not do this
(docs/decisions/0012-repository-index.md).
"""

from __future__ import annotations

import argparse
import difflib
import keyword
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core import repository as search
from dg_lsp.core.values import Candidate
from dg_lsp.engine.decode.propose import copies
from dg_lsp.evaluate import make, run, score
from dg_lsp.evaluate.run import COPY
from dg_lsp.infill import repository, workspace
from dg_lsp.infill.ignoring import Ignore

LIMIT = 6_000
LINES = 6  # to align before each place
TOKEN = re.compile(r"[^\W\d]\w*|\d+|[^\w\s]")
NAME = re.compile(r"[^\W\d]\w*")
KEYWORDS = frozenset(keyword.kwlist)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("holes", type=int, nargs="?", default=300)
    arguments = parser.parse_args()
    root = arguments.folder.resolve()
    ignore = Ignore.for_root(root)
    index = repository.RepositoryIndex(ignore, read_s=60.0)
    index.update()
    files = index.repository
    counts = Counter[str]()
    for task in make.tasks(root, arguments.holes, 1):
        counts["holes"] += 1
        near = workspace.related(root, root / task.path, task.document, LIMIT, ignore=ignore)
        request = search.with_repository(task.request(), near, files, LIMIT)
        texts = [snippet.text for snippet in request.related]
        hole = task.hole
        found = copies.find(task.prompt, task.suffix, block=hole.block, indent=hole.indent, most=1, related=texts)
        if not found:
            continue
        before = source_before(found[0].text, (task.prompt, task.suffix, *texts), task.prompt)
        renamed = rename(found[0].text, pairs(before, task.prompt))
        if renamed != found[0].text:
            counts["changed"] += 1
            for label, text in (("exact before", found[0].text), ("exact after", renamed)):
                settled = run.settled(task, COPY, [Candidate((text,), row="copy")])[0]
                counts[label] += score.is_exact(settled, task.answer)
    print(", ".join(f"{label} {counts[label]}" for label in ("holes", "changed", "exact before", "exact after")))
    return 0


def source_before(text: str, sources: Sequence[str], prefix: str) -> str:
    """Return the text before the place that a copy comes from: the place that agrees longest with the prefix."""
    best, before = -1, ""
    for source in sources:
        at = source.find(text)
        while at >= 0:
            agreeing = n_agreeing(source[:at], prefix)
            if agreeing > best and not (source is prefix and at + len(text) == len(prefix)):
                best, before = agreeing, source[:at]
            at = source.find(text, at + 1)
    return before


def n_agreeing(text: str, prefix: str) -> int:
    """Return the number of characters in which the ends of two texts agree, at most 240."""
    ends = zip(reversed(text[-240:]), reversed(prefix[-240:]), strict=False)
    return next((n for n, (one, other) in enumerate(ends) if one != other), min(len(text), len(prefix), 240))


def pairs(before: str, prefix: str) -> dict[str, str]:
    """Return the identifier of the prefix that most often stands where each identifier of the other text does."""
    one, other = (TOKEN.findall("\n".join(text.split("\n")[-LINES:])) for text in (before, prefix))
    votes: dict[str, Counter[str]] = {}
    for kind, start, end, other_start, other_end in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and end - start == other_end - other_start):
            for name, new in zip(one[start:end], other[other_start:other_end], strict=True):
                if NAME.fullmatch(name) and NAME.fullmatch(new) and not {name, new} & KEYWORDS:
                    votes.setdefault(name, Counter())[new] += 1
    return {name: counter.most_common(1)[0][0] for name, counter in votes.items()}


def rename(text: str, names: dict[str, str]) -> str:
    return NAME.sub(lambda match: names.get(match.group(), match.group()), text)


if __name__ == "__main__":
    sys.exit(main())
