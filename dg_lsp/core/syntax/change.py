"""Find the one range in which two texts differ, so that only the change is parsed again."""

from __future__ import annotations

from dataclasses import dataclass

import tree_sitter

from dg_lsp.core import positions, values
from dg_lsp.core.positions import ByteOffsets, Lines
from dg_lsp.core.syntax.tree import Syntax
from dg_lsp.core.values import Span


@dataclass(frozen=True, slots=True)
class Change:
    """The byte range in which two sources differ: its start, and its end in each of them."""

    start: int
    old_end: int
    new_end: int


def difference(before: bytes, source: bytes) -> Change:
    """Return the range in which the two sources differ, widened to whole characters."""
    start = _common_start(before, source)
    rest = _common_end(before, source, min(len(before), len(source)) - start)
    # Move both ends outwards to the start of a character.
    while start and start < max(len(before), len(source)) and _continues(before, source, start):
        start -= 1
    while rest and _continues(before, source, -rest):
        rest -= 1
    return Change(start, len(before) - rest, len(source) - rest)


def edited_tree(previous: Syntax, change: Change, source: bytes) -> tree_sitter.Tree:
    """Return a copy of the previous tree with the change applied to its positions."""
    before, start = previous.offsets.source, change.start
    # The previous text's lines are usually known. Counting lines again takes longer than parsing the change.
    line = previous.lines.at(previous.offsets.to_point(start))
    at = (line, start - previous.offsets.to_byte(previous.lines.starts[line]))
    tree = previous.tree.copy()
    old_end, new_end = (_after(at, text[start:end]) for text, end in ((before, change.old_end), (source, change.new_end)))
    tree.edit(start, change.old_end, change.new_end, at, old_end, new_end)
    return tree


def edited_lines(previous: Syntax, change: Change, syntax: Syntax) -> Lines:
    """Return the lines of a text that differs in one range. A lone carriage return ends a line, as a line feed does."""
    old, new = previous.offsets, syntax.offsets
    old_span = Span(old.to_point(change.start), old.to_point(change.old_end))
    inserted = syntax.text[new.to_point(change.start) : new.to_point(change.new_end)]
    return positions.spliced(previous.lines, old_span, inserted, syntax.text)


def moved_parts(previous: Syntax, change: Change, offsets: ByteOffsets) -> tuple[Span, ...]:
    """Return the new positions of the earlier text's parsed parts; one of them contains the whole change."""
    to_byte, to_point = previous.offsets.to_byte, offsets.to_point
    shift = change.new_end - change.old_end
    ranges = [(change.start, change.new_end)]
    for part in previous.parts:
        start, end = to_byte(part.start), to_byte(part.end)
        start = start if start <= change.start else max(start + shift, change.start)
        end = end + shift if end >= change.old_end else min(end, change.new_end)
        ranges.append((start, max(start, end)))
    return values.joined(Span(to_point(start), to_point(end)) for start, end in ranges)


def _after(at: tuple[int, int], text: bytes) -> tuple[int, int]:
    """Return the line and the byte column after a text that starts at `at`."""
    n_lines = text.count(b"\n")
    return at[0] + n_lines, len(text) - text.rfind(b"\n") - 1 + (0 if n_lines else at[1])


def _continues(before: bytes, source: bytes, at: int) -> bool:
    return any(-len(text) <= at < len(text) and text[at] & 0xC0 == 0x80 for text in (before, source))


def _common_start(left: bytes, right: bytes) -> int:
    """Return the length of the common prefix in bytes. Comparing halves leaves the work to C."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_end(left: bytes, right: bytes, most: int) -> int:
    """Return the length of the common suffix in bytes, at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if left[len(left) - middle : len(left) - low] == right[len(right) - middle : len(right) - low]:
            low = middle
        else:
            high = middle - 1
    return low
