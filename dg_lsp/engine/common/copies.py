"""Find drafts without a model: the text after the longest match of the prefix in the file.

Knows text. Knows nothing of tokens or tensors.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core.extent import is_outside
from dg_lsp.core.place import first_line
from dg_lsp.core.values import n_common

MIN_MATCH = 3
MAX_MATCH = 240
LINE_CHARS = 200
BLOCK_CHARS = 1500
BLOCK_LINES = 12
MAX_PLACES = 1000
MAX_RIGHT = 24  # more agreement with the suffix than this many characters does not count


@dataclass(frozen=True, slots=True)
class Copy:
    """The text after a match. `left` characters before it agree with the prefix, `right` after it with the suffix."""

    text: str
    left: int
    right: int


# Returns the copy at an offset of a text; the third argument is the number of agreeing characters before the offset.
Take = Callable[[str, int, int], "Copy | None"]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of a text to copy from. `skip` is the one offset in the text to ignore."""

    text: str
    start: int
    end: int
    skip: int


def find(
    prefix: str, suffix: str, *, takes_lines: bool, indent: str = "", most: int = 2, related: Sequence[str] = ()
) -> list[Copy]:
    """Return the best distinct continuations in the file itself and in `related` texts, longest agreement first.

    Ties keep the order of their texts. White space at the prefix's end matches every indentation, thousands of places in a
    long file. So the search starts with the places that agree longest, stops when no other place can be among the best,
    and visits at most `MAX_PLACES` places.
    """
    own = (_Stretch(prefix, 0, len(prefix), len(prefix)), _Stretch(suffix, 0, len(suffix), -1))
    file = (*own, *(_Stretch(text, 0, len(text), -1) for text in related))
    take, most_right, near = _block(suffix, indent, file) if takes_lines else _line(suffix, file)
    copy_by_text: dict[str, Copy] = {}
    longest, searched, n_places = _longest(file, prefix), "", 0
    while longest >= MIN_MATCH and n_places < MAX_PLACES:
        # The agreement that a copy needs to be among the best.
        best = heapq.nlargest(most, map(_rank, copy_by_text.values()))
        enough = best[-1][0] if len(best) == most else 0
        if longest + most_right < enough:
            break
        least = longest - longest // 4
        for source, at in _places(near if longest < enough else file, prefix[-least:]):
            # Places with a longer agreement were already visited.
            if searched and source.endswith(searched, 0, at):
                continue
            # The number of characters before the place that agree with the prefix's end.
            n_left = n_common(source[max(0, at - longest) : at][::-1], prefix[-longest:][::-1])
            copy = take(source, at, n_left)
            if copy and copy.text.strip() and (copy.text not in copy_by_text or _rank(copy) > _rank(copy_by_text[copy.text])):
                copy_by_text[copy.text] = copy
            n_places += 1
            if n_places == MAX_PLACES:
                break
        longest, searched = least - 1, prefix[-least:]
    ranked = sorted(copy_by_text.values(), key=_rank, reverse=True)
    return _in_text_order(ranked, most, _places(file, prefix[-MIN_MATCH:]), take)


def _rank(copy: Copy) -> tuple[int, int, int]:
    return (copy.left + min(copy.right, MAX_RIGHT), copy.left, -len(copy.text))


def _longest(file: Sequence[_Stretch], prefix: str) -> int:
    """Return the length of the longest end of the prefix that occurs elsewhere before other text, at most `MAX_MATCH`."""
    low, high = 0, min(len(prefix), MAX_MATCH)
    while low < high:
        middle = (low + high + 1) // 2
        if next(_places(file, prefix[-middle:]), None):
            low = middle
        else:
            high = middle - 1
    return low


def _places(stretches: Sequence[_Stretch], tail: str) -> Iterator[tuple[str, int]]:
    """Yield the text and the end offset of each occurrence of the tail that ends within a stretch."""
    for part in stretches:
        at = part.text.find(tail, max(0, part.start - len(tail)), part.end)
        while at >= 0:
            if at + len(tail) != part.skip and at + len(tail) < len(part.text):
                yield part.text, at + len(tail)
            at = part.text.find(tail, at + 1, part.end)


def _in_text_order(ranked: list[Copy], most: int, places: Iterable[tuple[str, int]], take: Take) -> list[Copy]:
    """Return the best of the ranked copies; copies of equal rank are in the order of their first occurrence."""
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
    """Return a function that copies at most one line, up to the next occurrence of the rest of the suffix's line.

    Also return the most characters in which its copies can agree with the suffix, and the stretches where they can.
    """
    remainder = first_line(suffix).rstrip()
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
    """Return a function that copies up to the suffix's first line, or else to the block's end; the rest as in `_line`."""
    anchor = first_line(suffix.lstrip("\n")[:80])
    is_whole = suffix.startswith(("\n", "\r")) or not suffix

    def take(source: str, at: int, left: int) -> Copy | None:
        text = source[at : at + BLOCK_CHARS]
        lines = text.split("\n", BLOCK_LINES + 1)
        if is_whole:
            copied = [lines[0]]
            for line in lines[1:BLOCK_LINES]:
                if is_outside(line, indent) or (line.strip() and (not indent or line == anchor)):
                    break
                copied.append(line)
            right = len(anchor) if len(copied) < len(lines) and lines[len(copied)] == anchor else 0
            return Copy("\n".join(copied).rstrip(), left, right)
        if anchor.strip() and (stop := text.find("\n" + anchor)) >= 0:  # the hole ends at a line's start
            return Copy(text[: stop + 1], left, len(anchor))
        return Copy(lines[0] + "\n", left, 0) if len(lines) > 1 else None

    return take, min(len(anchor), MAX_RIGHT), tuple(_ends(file, "\n" + anchor))


def _ends(file: Sequence[_Stretch], mark: str) -> Iterator[_Stretch]:
    """Yield the stretches of a block's maximum length that end with the mark, with overlapping ones merged."""
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
