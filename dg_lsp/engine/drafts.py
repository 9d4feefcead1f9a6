"""Drafts that cost no model: what followed the longest match of the prefix in the file, what an earlier answer left.

Knows text. Knows nothing of tokens or tensors.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

MIN_MATCH = 3
MAX_MATCH = 240
LINE_CHARS = 200
BLOCK_CHARS = 1500
BLOCK_LINES = 12
MAX_PLACES = 1000
MAX_RIGHT = 24  # what agrees with the suffix counts no further


@dataclass(frozen=True, slots=True)
class Copy:
    """Text that stood after a match: `left` characters before it agree with the prefix, `right` after it with the suffix."""

    text: str
    left: int
    right: int


# Returns the copy that begins at an offset of a text, which agrees with the prefix so far on the left.
Take = Callable[[str, int, int], "Copy | None"]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of a text to copy from, and the offset in the text that is no place to copy from."""

    text: str
    start: int
    end: int
    skip: int


def copies(prefix: str, suffix: str, *, block: bool, indent: str = "", most: int = 2) -> list[Copy]:
    """Return the best distinct continuations found in the file itself, longest agreement first.

    Of those that are equally good the first is the one whose text stands first. White space at the prefix's end stands
    again in each indentation, thousands of times in a long file; so the places that agree longest are looked at first, and
    only as many as can still be among the best, `MAX_PLACES` at most.
    """
    file = (_Stretch(prefix, 0, len(prefix), len(prefix)), _Stretch(suffix, 0, len(suffix), -1))
    take, most_right, near = _block(suffix, indent, file) if block else _line(suffix, file)
    found: dict[str, Copy] = {}
    longest, known, n_places = _longest(file, prefix), "", 0
    while longest >= MIN_MATCH and n_places < MAX_PLACES:
        enough = _enough(found, most)
        if longest + most_right < enough:
            break
        least = longest - longest // 4
        for source, at in _places(near if longest < enough else file, prefix[-least:]):
            # Those that agree longer were looked at before.
            if known and source.endswith(known, 0, at):
                continue
            copy = take(source, at, _agreement(source, at, prefix, least, longest))
            if copy and copy.text.strip() and (copy.text not in found or _rank(copy) > _rank(found[copy.text])):
                found[copy.text] = copy
            n_places += 1
            if n_places == MAX_PLACES:
                break
        longest, known = least - 1, prefix[-least:]
    ranked = sorted(found.values(), key=_rank, reverse=True)
    return _as_they_stand(ranked, most, _places(file, prefix[-MIN_MATCH:]), take)


def kept(previous: str, *, block: bool) -> str:
    """Return what an earlier answer would still write, no longer than a copy: for a hole that is no block, one line."""
    if block:
        return "\n".join(previous[:BLOCK_CHARS].split("\n")[:BLOCK_LINES])
    return previous[:LINE_CHARS].split("\n", 1)[0]


def _rank(copy: Copy) -> tuple[int, int, int]:
    return (copy.left + min(copy.right, MAX_RIGHT), copy.left, -len(copy.text))


def _enough(found: dict[str, Copy], most: int) -> int:
    """Return what a copy's agreement must come to for it to be among the best."""
    return heapq.nlargest(most, map(_rank, found.values()))[-1][0] if len(found) >= most else 0


def _longest(file: Sequence[_Stretch], prefix: str) -> int:
    """Return how many characters of the prefix's end stand elsewhere, with text behind them, `MAX_MATCH` at most."""
    low, high = 0, min(len(prefix), MAX_MATCH)
    while low < high:
        middle = (low + high + 1) // 2
        if next(_places(file, prefix[-middle:]), None):
            low = middle
        else:
            high = middle - 1
    return low


def _places(stretches: Sequence[_Stretch], tail: str) -> Iterator[tuple[str, int]]:
    """Yield the text and the offset behind each place where the tail stands that ends within a stretch."""
    for part in stretches:
        at = part.text.find(tail, max(0, part.start - len(tail)), part.end)
        while at >= 0:
            if at + len(tail) != part.skip and at + len(tail) < len(part.text):
                yield part.text, at + len(tail)
            at = part.text.find(tail, at + 1, part.end)


def _agreement(source: str, at: int, prefix: str, low: int, high: int) -> int:
    """Return how many characters before the offset agree with the prefix's end: at least `low`, at most `high`."""
    while low < high:
        middle = (low + high + 1) // 2
        if source.endswith(prefix[-middle:], 0, at):
            low = middle
        else:
            high = middle - 1
    return low


def _as_they_stand(ranked: list[Copy], most: int, places: Iterable[tuple[str, int]], take: Take) -> list[Copy]:
    """Return the best of the ranked copies, those of the same rank in the order in which their texts stand first."""
    best = ranked[:most]
    n_equal = Counter(map(_rank, ranked))
    n_missing = Counter(rank for rank in map(_rank, best) if n_equal[rank] > 1)
    tied = {copy.text: _rank(copy) for copy in ranked if _rank(copy) in n_missing}
    sizes = {len(text) for text in tied}
    order: dict[str, int] = {}
    for source, at in places if tied else ():
        for size in sizes:
            text = source[at : at + size]
            if text in tied and text not in order and (copy := take(source, at, 0)) and copy.text == text:
                order[text] = len(order)
                n_missing[tied[text]] -= 1
        if max(n_missing.values()) <= 0:
            break
    ranked = sorted(ranked, key=lambda copy: order.get(copy.text, len(order)))
    return sorted(ranked, key=_rank, reverse=True)[:most]


def _line(suffix: str, file: Sequence[_Stretch]) -> tuple[Take, int, Sequence[_Stretch]]:
    """Return what takes the continuation up to where the rest of the suffix's line stands again, at most one line.

    With it, how much its copies can agree with the suffix, and where they can do so at all.
    """
    remainder = suffix.split("\n", 1)[0].rstrip()
    lengths = [length for length in sorted({len(remainder), 16, 8, 4, 2, 1}, reverse=True) if length <= len(remainder)]

    def take(source: str, at: int, left: int) -> Copy | None:
        end = source.find("\n", at, at + LINE_CHARS)
        line = source[at : end if end >= 0 else at + LINE_CHARS]
        if not remainder:
            return Copy(line.rstrip(), left, 1)
        for length in lengths:
            if (stop := line.find(remainder[:length])) >= 0:
                return Copy(line[:stop], left, length)
        return None

    return take, min(len(remainder), MAX_RIGHT) or 1, file


def _block(suffix: str, indent: str, file: Sequence[_Stretch]) -> tuple[Take, int, Sequence[_Stretch]]:
    """Return what takes the continuation up to the suffix's first line, or else to the end of the block; and as `_line`."""
    anchor = suffix.lstrip("\n")[:80].split("\n", 1)[0]
    is_whole = suffix.startswith(("\n", "\r")) or not suffix

    def take(source: str, at: int, left: int) -> Copy | None:
        text = source[at : at + BLOCK_CHARS]
        lines = text.split("\n", BLOCK_LINES + 1)
        if is_whole:
            taken = [lines[0]]
            for line in lines[1:BLOCK_LINES]:
                if line.strip() and (not line.startswith(indent) or not indent or line == anchor):
                    break
                taken.append(line)
            right = len(anchor) if len(taken) < len(lines) and lines[len(taken)] == anchor else 0
            return Copy("\n".join(taken).rstrip(), left, right)
        if anchor.strip() and (stop := text.find("\n" + anchor)) >= 0:  # the hole ends where a line begins
            return Copy(text[: stop + 1], left, len(anchor))
        return Copy(lines[0] + "\n", left, 0) if len(lines) > 1 else None

    return take, min(len(anchor), MAX_RIGHT), tuple(_before(file, "\n" + anchor))


def _before(file: Sequence[_Stretch], mark: str) -> Iterator[_Stretch]:
    """Yield the stretches that end with the mark and are as long as a block may be, those that overlap as one."""
    for part in file:
        start, end = 0, -1
        at = part.text.find(mark)
        while at >= 0:
            if at - BLOCK_CHARS > end:
                if end >= 0:
                    yield replace(part, start=start, end=end)
                start = max(0, at - BLOCK_CHARS)
            end = at
            at = part.text.find(mark, at + 1)
        if end >= 0:
            yield replace(part, start=start, end=end)
