"""Count the syntax errors of an edit in a file that is broken elsewhere.

There, a parser counts the errors of other lines too, and takes what follows one for a part of it. So an edit is judged in
ever smaller frames: the lines of a block around it, with the heads and the ends of the blocks around that one. Reads lines
and their indentation, because the tree of a broken file does not tell what belongs together.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dg_lsp.core import languages, syntax, values
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Edit, Hole, Span, joined

MAX_LINES = 2_000  # that are read on each side of the edit
MAX_HEAD = 40  # the lines of a block's head

Edits = tuple[Edit, ...]


def errors(before: Syntax, holes: Sequence[Hole], options: Sequence[Edits], *, plain: bool = False) -> list[int]:
    """Return how many syntax errors each option leaves: in the file, or in the largest frame in which one leaves none.

    An option is edits for the holes, or none for the text as it is. If the file was whole, its errors are the option's own.
    If no frame is free of errors, those of the lines around the holes count.

    With `plain`, only the first option is an answer. That others have no error in a frame without what is around it then says
    nothing: an item of a list is no statement.
    """
    counts = [len(after(before, each).errors) for each in options]
    if 0 in counts or not before.errors:
        return counts
    own, frames = _frames(before, tuple(holes))
    for number, frame in enumerate(frames):
        parsed = [after(frame, each) for each in options]
        # Without what is around a statement, its brackets must be its own.
        is_own = number <= own or not ((plain and parsed[0].errors) or any(_closes_more(each) for each in parsed))
        if is_own and not all(each.errors for each in parsed):
            return [len(each.errors) for each in parsed]
    return [len(after(frames[own], each).errors) for each in options]


def n_unclosed(before: Syntax, holes: Sequence[Hole], edits: Edits) -> int:
    """Return how many brackets, strings and comments the edits leave open in the lines around the holes."""
    own, frames = _frames(before, tuple(holes))
    return languages.n_unclosed(after(frames[own], edits).parsed, before.language.name)


def n_touching(tree: Syntax, spans: Sequence[Span]) -> int:
    """Return how many syntax errors touch the lines of these spans, or the next line, where a parser sees what is missing."""
    lines, n_errors = tree.lines, 0
    for span in spans:
        first, last = lines.at(span.start), lines.at(span.end)
        below = next((number for number in range(last + 1, len(lines)) if not lines.is_blank(number)), last)
        around = Span(lines.start(first), lines.end(below))
        n_errors += sum(error.touches(around) for error in tree.errors)
    return n_errors


# Cached, because several rules ask about the same few texts.
@functools.lru_cache(maxsize=32)
def after(before: Syntax, edits: Edits) -> Syntax:
    """Return the syntax of a text with these edits."""
    return syntax.parse(values.apply(before.text, edits), before.language, before) if edits else before


def _closes_more(parsed: Syntax) -> bool:
    return languages.first_closer(parsed.parsed, parsed.language.name) is not None


@functools.lru_cache(maxsize=8)
def _frames(before: Syntax, holes: tuple[Hole, ...]) -> tuple[int, tuple[Syntax, ...]]:
    """Return the frames of the holes: their blocks from the largest, their own lines in these blocks, and in ever fewer.

    The number is that of the first with their own lines.
    """
    lines, language = before.lines, before.language
    span = Span(holes[0].span.start, holes[-1].span.end)
    reader, first, last = _Reader(lines, language), lines.at(span.start), lines.at(span.end)
    head = lines.text[lines.start(first) : span.start]
    depth = _width(lines.indent(first) if head.strip() else holes[0].indent)
    own = reader.block(reader.start(first, depth), last, depth)
    blocks = list(reader.blocks(own.first, depth))[::-1]
    parts = [reader.spans(blocks[:number], block.first, block.last) for number, block in enumerate(blocks)]
    parts.append(reader.spans(blocks, own.first, own.last))
    parts += [reader.spans([*blocks[number:], own], own.first, own.head) for number in range(len(blocks) + 1)]
    return len(blocks), tuple(syntax.parse(before.text, language, parts=each, lines=lines) for each in parts)


@dataclass(frozen=True, slots=True)
class _Block:
    """The lines of a block, by their numbers: the first, the last of its head, the last, and those that close it."""

    first: int
    head: int
    last: int
    closers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads which lines belong together."""

    lines: Lines
    language: Language

    def blocks(self, line: int, depth: int) -> Iterator[_Block]:
        """Yield the blocks around a line that is indented so far, from the inside out."""
        least = max(0, line - MAX_LINES)
        while depth > 0 and line > least:
            line -= 1
            width = self._width(line)
            if width is None or width >= depth:
                continue
            depth, first, head = width, self.start(line, width), line
            while head < min(line + MAX_HEAD, len(self.lines) - 1) and self._is_open(first, head):
                head += 1
            yield self.block(first, head, depth)
            line = first

    def block(self, first: int, head: int, depth: int) -> _Block:
        """Return the block with this head."""
        last = self.end(head, depth)
        closers = (number for number in range(head + 1, last + 1) if self._width(number) == depth and self._is_end(number))
        return _Block(first, head, last, tuple(closers))

    def start(self, line: int, depth: int) -> int:
        """Return the first line of the statement that a line goes on with, as `} else {` and `{` do."""
        first = line
        while first > 0 and self._closes(first):
            above = range(first - 1, max(-1, first - MAX_LINES), -1)
            widths = ((number, width) for number in above if (width := self._width(number)) is not None)
            number, width = next(((number, width) for number, width in widths if width <= depth), (-1, -1))
            if width != depth:
                break
            first = number
        return first

    def end(self, line: int, depth: int) -> int:
        """Return the last line below that is indented more than this depth, or that closes what is."""
        last = line
        for number in range(line + 1, min(len(self.lines), line + MAX_LINES)):
            width = self._width(number)
            if width is not None and (width < depth or (width == depth and not self._closes(number))):
                break
            last = number if width is not None else last
        return last

    def spans(self, blocks: Sequence[_Block], first: int, last: int) -> tuple[Span, ...]:
        """Return the spans of some lines, with the heads and the ends of the blocks around them."""
        ranges = [(first, last), *((block.first, min(block.head, first - 1)) for block in blocks)]
        ranges += [(number, number) for block in blocks for number in block.closers if number > last]
        lines, tag = self.lines, self.language.tag
        if tag and (at := lines.text.find(tag)) >= 0:
            ranges.append((lines.at(at), lines.at(at)))
        return joined(Span(lines.start(start), self._behind(end)) for start, end in ranges)

    def _behind(self, line: int) -> int:
        return self.lines.start(line + 1) if line + 1 < len(self.lines) else len(self.lines.text)

    def _width(self, line: int) -> int | None:
        """Return how far a line is indented; None if that says nothing, as for blank lines, comments and directives."""
        code = self.lines.content(line).strip()
        is_none = not code or code.startswith(self.language.line_comments)
        if is_none or (self.language.outdents and re.match(self.language.outdents, code)):
            return None
        return _width(self.lines.indent(line))

    def _closes(self, line: int) -> bool:
        return re.match(rf"[)\]{{}}]|(?:{self.language.closes})", self.lines.content(line).strip()) is not None

    def _is_end(self, line: int) -> bool:
        """Return whether a line closes a block, and needs no block of its own, as Python's `else:` does."""
        return self._closes(line) and not (self.language.by_indentation and self.lines.content(line).strip()[:1].isalpha())

    def _is_open(self, first: int, last: int) -> bool:
        """Return whether these lines end in round or square brackets, so that the next one goes on with them."""
        text = self.lines.text[self.lines.start(first) : self.lines.end(last)]
        return languages.closers(text, self.language.name)[1][:1] in (")", "]")


def _width(indent: str) -> int:
    return len(indent.expandtabs(4))
