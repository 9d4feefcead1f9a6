"""Count the syntax errors of an edit in a file that is broken elsewhere.

There, a parser counts the errors of other lines too, and takes what follows one for a part of it. So an edit is judged in
ever smaller frames: the lines of a block around it, with the heads and the ends of the blocks around that one. Reads lines
and their indentation, because the tree of a broken file does not tell what belongs together.

Parsing takes time, so plain answers choose the frame, once for all answers of a request.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import languages, syntax, values
from dg_lsp.core.languages import Language
from dg_lsp.core.polish import plain
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Edit, Hole, Span, joined

MAX_LINES = 2_000  # that are read on each side of the edit
MAX_HEAD = 40  # the lines of a block's head
N_INNER = 2  # blocks around the edit that are frames, beside the outermost
N_TRIED = 2  # plain answers that are tried in larger frames, of those that fit equally badly
MAX_OPENERS = 20  # plain answers that are tried because they open what the lines below close

Edits = tuple[Edit, ...]


def errors(before: Syntax, holes: Sequence[Hole], options: Sequence[Edits]) -> list[int]:
    """Return how many syntax errors each option leaves: in the file, or in the frame that plain answers chose.

    An option is edits for the holes. If the file was whole, its errors are the option's own. If each option leaves errors in
    that frame, those of the lines around the holes count.
    """
    counts = [len(after(before, each).errors) for each in options]
    if 0 in counts or not before.errors:
        return counts
    frames = _frames(before, tuple(holes))
    return next((counts for counts in frames.counts(options) if 0 in counts), [frames.own.n_errors(each) for each in options])


def beside_plain(before: Syntax, holes: Sequence[Hole], edits: Edits) -> tuple[int, int]:
    """Return how many errors the edits leave, as `errors` does, and the fewest that plain answers leave there."""
    if not before.errors:
        return len(after(before, edits).errors), 0
    frames = _frames(before, tuple(holes))
    free = any(counts == [0] for counts in frames.counts((edits,)))
    judge = frames.own if frames.n_plain or frames.chosen is None else frames.chosen
    return (0, 0) if free else (judge.n_errors(edits), frames.n_plain)


def is_more_than_opened(before: Syntax, holes: Sequence[Hole], edits: Edits) -> bool:
    """Return whether the edits leave more errors in the lines around the holes than one that opens what is below."""
    frames = _frames(before, tuple(holes))
    return frames.opened.n_errors(edits) > frames.n_opened


def n_unclosed(before: Syntax, holes: Sequence[Hole], edits: Edits) -> int:
    """Return how many brackets, strings and comments the edits leave open in the lines around the holes."""
    return languages.n_unclosed(_frames(before, tuple(holes)).own.after(edits).parsed, before.language.name)


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


@dataclass(frozen=True, slots=True)
class _Frame:
    """Some lines of a text, and how much further ahead the holes are in them."""

    syntax: Syntax
    shift: int

    def after(self, edits: Edits) -> Syntax:
        """Return the lines with these edits."""
        spans = (Span(each.span.start - self.shift, each.span.end - self.shift) for each in edits)
        moved = tuple(replace(each, span=span) for each, span in zip(edits, spans, strict=True))
        return after(self.syntax, moved)

    def n_errors(self, edits: Edits) -> int:
        """Return how many syntax errors these edits leave in the lines."""
        return len(self.after(edits).errors)

    def closes_more(self, edits: Edits) -> bool:
        """Return whether these lines close more brackets than they open, with these edits in them."""
        parsed = self.after(edits)
        return languages.first_closer(parsed.parsed, parsed.language.name) is not None


@dataclass(frozen=True, eq=False)
class _Frames:
    """The frames of a request's holes, and what plain answers show about them. The class has no slots, for its caches."""

    before: Syntax
    holes: tuple[Hole, ...]
    own: _Frame
    """The lines around the holes, in the blocks around them."""
    around: tuple[_Frame, ...]
    """Blocks around the holes, from the inside out, in the blocks around these."""
    within: tuple[_Frame, ...]
    """Smaller frames, from the largest."""
    opened: _Frame
    """Where answers count that open what the lines below close: the holes' own lines, if their block is known."""

    def counts(self, options: Sequence[Edits]) -> Iterator[list[int]]:
        """Yield the errors of some options in the frame that plain answers chose; without one, in the few that may fit."""
        if self.chosen:
            yield [self.chosen.n_errors(each) for each in options]
            return
        for frame in (*self.around[:1], self.own):
            yield [frame.n_errors(each) for each in options]
        for frame in self.within:
            # Without what is around a statement, its brackets must be its own.
            if not any(frame.closes_more(each) for each in options):
                yield [frame.n_errors(each) for each in options]

    @property
    def chosen(self) -> _Frame | None:
        """The largest frame in which a plain answer leaves no error."""
        return self._plain[0]

    @property
    def n_plain(self) -> int:
        """The fewest errors of a plain answer there; in the holes' own lines, if none or only a closing one fits."""
        return self._plain[1]

    @functools.cached_property
    def _plain(self) -> tuple[_Frame | None, int]:
        text, language = self.before.text, self.before.language
        closing, others = (
            [plain.edits(text, self.holes, language, each) for each in answers]
            for answers in (plain.closing(self.before, self.holes), ("x", "pass", ""))
        )
        counts = {each: self.own.n_errors(each) for each in (*closing, *others, ())}
        least = min(counts.values())
        n_plain = min(n_errors for each, n_errors in counts.items() if each not in closing)
        # Those that fit best in the smallest frame are tried in larger ones.
        best = [each for each, n_errors in counts.items() if n_errors == least][: N_TRIED if least else 1]
        chosen = None if least else self.own
        for frame in self.around:
            fitting = next((each for each in best if not frame.n_errors(each)), None)
            if fitting is not None:
                chosen, best = frame, [fitting]
                n_plain = n_plain if fitting in closing else 0
        # An answer that leaves no error in the text leaves none in the largest block.
        is_whole = chosen is (self.own, *self.around)[-1] and not after(self.before, best[0]).errors
        return _Frame(self.before, 0) if is_whole else chosen, n_plain

    @functools.cached_property
    def n_opened(self) -> int:
        """The fewest errors with an answer that opens what the lines below close, or with none."""
        text, language, least = self.before.text, self.before.language, self.opened.n_errors(())
        for each in itertools.islice(plain.opening(self.before, self.holes), MAX_OPENERS):
            least = min(least, self.opened.n_errors(plain.edits(text, self.holes, language, each)))
            if not least:
                break
        return least


@functools.lru_cache(maxsize=8)
def _frames(before: Syntax, holes: tuple[Hole, ...]) -> _Frames:
    lines, language = before.lines, before.language
    span = Span(holes[0].span.start, holes[-1].span.end)
    reader, first, last = _Reader(lines, language), lines.at(span.start), lines.at(span.end)
    head = lines.text[lines.start(first) : span.start]
    depth = _width(lines.indent(first) if head.strip() else holes[0].indent)
    own = reader.block(reader.start(first, depth), last, depth)
    blocks = list(reader.blocks(own.first, depth))

    def frame(around: Sequence[_Block], start: int, end: int) -> _Frame:
        parts = reader.spans(around, start, end)
        text = "".join(lines.text[part.start : part.end] for part in parts)
        at = next(part for part in reversed(parts) if part.start <= span.start)
        ahead = sum(part.end - part.start for part in parts if part.end <= at.start)
        return _Frame(syntax.parse(text, language), at.start - ahead)

    chosen = dict.fromkeys((*range(len(blocks))[:N_INNER], *range(len(blocks))[-1:]))
    # A block may seem to end above the holes.
    around = [frame(blocks[number + 1 :], blocks[number].first, max(blocks[number].last, own.last)) for number in chosen]
    within = [
        frame([*blocks[:number], own], own.first, own.head) for number in dict.fromkeys((len(blocks), min(1, len(blocks)), 0))
    ]
    near = frame(blocks, own.first, own.last)
    opened = _Frame(before, 0) if not blocks and lines.indent(own.first) else near
    return _Frames(before, holes, near, tuple(around), tuple(within), opened)


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
