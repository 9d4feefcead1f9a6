"""Drafts that cost no model: what followed the longest match of the prefix in the file, what an earlier answer left.

Knows text. Knows nothing of tokens or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_MATCH = 3
MAX_MATCH = 240
LINE_CHARS = 200
BLOCK_CHARS = 1500
BLOCK_LINES = 12


@dataclass(frozen=True, slots=True)
class Copy:
    """Text that stood after a match: `left` characters before it agree with the prefix, `right` after it with the suffix."""

    text: str
    left: int
    right: int


def copies(prefix: str, suffix: str, *, block: bool, indent: str = "", most: int = 2) -> list[Copy]:
    """Return the best distinct continuations found in the file itself, longest agreement first."""
    found: dict[str, Copy] = {}
    for source, skip in ((prefix, len(prefix)), (suffix, -1)):
        for at in _occurrences(source, prefix[-MIN_MATCH:], skip):
            left = _agreement(source, at, prefix)
            copy = _block(source, at, left, suffix, indent) if block else _line(source, at, left, suffix)
            if copy and copy.text.strip() and (copy.text not in found or _rank(copy) > _rank(found[copy.text])):
                found[copy.text] = copy
    return sorted(found.values(), key=_rank, reverse=True)[:most]


def kept(previous: str, *, block: bool) -> str:
    """Return what an earlier answer would still write, no longer than a copy: for a hole that is no block, one line."""
    if block:
        return "\n".join(previous[:BLOCK_CHARS].split("\n")[:BLOCK_LINES])
    return previous[:LINE_CHARS].split("\n", 1)[0]


def _rank(copy: Copy) -> tuple[int, int, int]:
    return (copy.left + min(copy.right, 24), copy.left, -len(copy.text))


def _occurrences(source: str, tail: str, skip: int) -> list[int]:
    """Return where the text after each occurrence of `tail` begins, nearest to the end last, but for the one at `skip`."""
    places: list[int] = []
    if len(tail) < MIN_MATCH:
        return places
    at = source.find(tail)
    while at >= 0:
        if at + len(tail) != skip and at + len(tail) < len(source):
            places.append(at + len(tail))
        at = source.find(tail, at + 1)
    return places


def _agreement(source: str, at: int, prefix: str) -> int:
    length, bound = 0, min(at, len(prefix), MAX_MATCH)
    while length < bound and source[at - 1 - length] == prefix[-1 - length]:
        length += 1
    return length


def _line(source: str, at: int, left: int, suffix: str) -> Copy | None:
    """Return the continuation up to where what remains of the suffix's line stands again, at most one line."""
    end = source.find("\n", at, at + LINE_CHARS)
    line = source[at : end if end >= 0 else at + LINE_CHARS]
    remainder = suffix.split("\n", 1)[0].rstrip()
    if not remainder:
        return Copy(line.rstrip(), left, 1)
    for length in sorted({len(remainder), 16, 8, 4, 2, 1}, reverse=True):
        if length <= len(remainder) and (stop := line.find(remainder[:length])) >= 0:
            return Copy(line[:stop], left, length)
    return None


def _block(source: str, at: int, left: int, suffix: str, indent: str) -> Copy | None:
    """Return the continuation up to the suffix's first line, or else to the end of the block."""
    text = source[at : at + BLOCK_CHARS]
    anchor = suffix.lstrip("\n")[:80].split("\n", 1)[0]
    lines = text.split("\n")
    if suffix.startswith(("\n", "\r")) or not suffix:
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
