"""Choose paragraphs of other files that resemble the lines around a place.

What stands near a hole says more about the names that it needs than the file's imports do: code that has the same rare names
often has the missing one too. A paragraph is a run of lines up to a blank line. Pure; the caller passes the files.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dg_lsp.core.context import with_newlines
from dg_lsp.core.values import Snippet

LEAST_LINES, MOST_LINES = 4, 16
"""A blank line ends a paragraph of at least so many lines; a longer one is divided."""
LINES_ABOVE, LINES_BELOW = 24, 8
HALF_LINES = 4  # a name counts half at this distance from the place
BELOW_SHARE = 0.7  # what a name below the place counts, compared with one above
N_FILES = 256  # files whose paragraphs are cached

_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class _Paragraphs:
    """The paragraphs of a file, the number of different names in each, and for each name the paragraphs that have it."""

    texts: tuple[str, ...]
    sizes: tuple[int, ...]
    by_name: dict[str, tuple[int, ...]]


def choose(above: str, below: str, files: Sequence[Snippet], limit_chars: int) -> tuple[Snippet, ...]:
    """Return the paragraphs of the files that have most in common with the lines above and below a place, best first.

    They have at most `limit_chars` characters in all, the last of them cut at a line end, and each shares a name with these
    lines. A name counts by how rare it is in the files and by how near it is. Files with the same paragraph give it once.
    """
    nearness = _nearness(above, below)
    indexed = [_paragraphs(file.text) for file in files] if nearness and limit_chars > 0 else []
    n_all = sum(len(each.texts) for each in indexed)
    scores = defaultdict[tuple[int, int], float](float)
    for name, near in nearness.items():
        places = [(number, at) for number, each in enumerate(indexed) for at in each.by_name.get(name, ())]
        for place in places:
            scores[place] += near * math.log((n_all + 1) / len(places))
    # A long paragraph has many names by chance.
    ranked = sorted(scores, key=lambda place: (-scores[place] / math.sqrt(indexed[place[0]].sizes[place[1]]), place))
    chosen = dict[str, Snippet]()
    for number, at in ranked:
        text = indexed[number].texts[at]
        if text in chosen:
            continue
        end = len(text) if len(text) <= limit_chars else text.rfind("\n", 0, limit_chars) + 1
        if not end:
            break
        chosen[text] = Snippet(files[number].path, text[:end])
        limit_chars -= end
    return tuple(chosen.values())


def prepare(files: Sequence[Snippet]) -> None:
    """Divide the files, which takes up to 40 ms for 24 of them, so that `choose` need not."""
    for file in files:
        _paragraphs(file.text)


def _nearness(above: str, below: str) -> dict[str, float]:
    """Return the names in the lines around a place, and how near each is: from 1 towards 0."""
    sides = ((above.split("\n")[: -LINES_ABOVE - 1 : -1], 1.0), (below.split("\n")[:LINES_BELOW], BELOW_SHARE))
    nearness = dict[str, float]()
    for lines, share in sides:
        for distance, line in enumerate(lines):
            for name in _NAME.findall(line):
                nearness[name] = max(nearness.get(name, 0.0), share / (1 + distance / HALF_LINES))
    return nearness


@functools.lru_cache(N_FILES)
def _paragraphs(text: str) -> _Paragraphs:
    texts, lines = list[str](), list[str]()
    for line in [*with_newlines(text.removeprefix("\ufeff")).split("\n"), ""]:
        lines += [line] if line.strip() or lines else []
        if len(lines) >= (MOST_LINES if line.strip() else LEAST_LINES):
            texts.append("\n".join(lines).rstrip() + "\n")
            lines = []
    texts += ["\n".join(lines).rstrip() + "\n"] if lines else []
    names = [frozenset(_NAME.findall(each)) for each in texts]
    by_name = defaultdict[str, list[int]](list)
    for at, own in enumerate(names):
        for name in own:
            by_name[name].append(at)
    sizes = tuple(max(len(own), 1) for own in names)
    return _Paragraphs(tuple(texts), sizes, {name: tuple(places) for name, places in by_name.items()})
