"""Judge an edit's syntax in a file that is broken elsewhere.

There, a parser takes code behind an error for a part of it. So an edit is parsed in frames: its lines in the heads and the
ends of the blocks around them, and its statement alone. What leaves no error there is right. Otherwise, no more syntax errors
may touch the edit in the file than before. The frames read lines and their indentation, because the tree of a broken file does
not tell what belongs together.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dg_lsp.core import languages, memo, syntax, values
from dg_lsp.core.languages import Language
from dg_lsp.core.place import depth
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Edit, Hole, Span

MAX_LINES = 2_000  # that are read on each side of the edit
MAX_BLOCKS = 100  # around an edit
MAX_HEAD = 40  # the lines of a block's head, and those that may close it
MAX_BODY = 200  # the lines within a statement; those of a longer one are left out
MAX_OPENERS = 20  # plain answers that are tried because they open what the lines below close

PLAIN_ANSWERS = ("", "x")
NAME_CHARS = 200  # more than any name and the spaces after it
NAME_BEFORE = re.compile(r"\b([^\W\d]\w*) *\Z")

Edits = tuple[Edit, ...]


def edit_of(answer: str, hole: Hole, line_end: str) -> Edit:
    """Return the edit that writes the answer, with the file's own line ends."""
    return Edit(hole.span, (hole.lead + answer + hole.trail).replace("\n", line_end))


def nearest_line_end(text: str, span: Span) -> str:
    """Return the line end nearest to the hole: that of its own line, else that of the line above."""
    after = re.compile(r"\r\n|\r|\n").search(text, span.end)
    if after:
        return after[0]
    last = max(text.rfind("\n", 0, span.start), text.rfind("\r", 0, span.start))
    if last < 0:
        return "\n"
    return "\r\n" if text[last - 1 : last + 1] == "\r\n" else text[last]


def errors(before: Syntax, holes: Sequence[Hole], options: Sequence[Edits]) -> list[int]:
    """Return how many syntax errors each option leaves: in the file or, if that was broken and stays so, in the frame.

    An option is edits for the holes.
    """
    counts = [len(after(before, each).errors) for each in options]
    if 0 in counts or not before.errors:
        return counts
    frames = _frames(before, tuple(holes))
    # Without what is around a statement, its brackets must be its own.
    if any(_closes_more(frames[2].after(each)) for each in options):
        frames = frames[:1]
    in_frames = [[frame.n_errors(each) for each in options] for frame in frames]
    return next((counts for counts in in_frames if 0 in counts), in_frames[0])


def allows(before: Syntax, holes: tuple[Hole, ...], edits: Edits, written: Sequence[Span]) -> bool:
    """Return whether edits of a broken file add no error: they leave none in a frame, and no more errors touch them.

    `written` are their spans in the edited file. If they leave errors, these are no more than with plain answers.
    """
    frame, line, alone = _frames(before, holes)
    if not frame.n_errors(edits) or not line.n_errors(edits):
        return True
    n_plain, most = _least(before, holes)
    if frame.n_errors(edits) > most:
        return False
    changed = after(before, edits)
    n_new, n_old = n_touching(changed, written), n_touching(before, [hole.span for hole in holes])
    if not n_new and len(changed.errors) < len(before.errors):
        return True
    now, then = (languages.n_unclosed(frame.after(each).parsed, before.language.name) for each in (edits, ()))
    is_own = not _closes_more(alone.after(edits)) and not alone.n_errors(edits)
    return n_new <= n_old and now <= then and (is_own or frame.n_closed(alone, edits) <= n_plain)


def _closes_more(lines: Syntax) -> bool:
    return languages.first_closer(lines.parsed, lines.language.name) is not None


def n_touching(tree: Syntax, spans: Sequence[Span]) -> int:
    """Return how many syntax errors touch the lines of these spans, or the next line, where a parser sees what is missing.

    What a block lacks may be missing at the end of the line above; an error in that line alone is not counted.
    """
    lines, n_errors = tree.lines, 0
    for span in spans:
        above, last = max(lines.at(span.start) - 1, 0), lines.at(span.end)
        near = Span(lines.start(lines.at(span.start)), lines.end(lines.below(last) or last))
        wide = Span(min(lines.end(above), near.start), near.end)
        n_errors += sum(error.touches(near if lines.start(above) <= error.start < error.end else wide) for error in tree.errors)
    return n_errors


# Cached, because several rules ask about the same few texts.
@memo.in_tree
def after(before: Syntax, edits: Edits) -> Syntax:
    """Return the syntax of a text with these edits."""
    return syntax.parse(values.apply(before.text, edits), before.language, before) if edits else before


@dataclass(frozen=True, slots=True)
class _Frame:
    """The lines around holes, and how much further ahead the holes are in the text."""

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

    def n_closed(self, alone: _Frame, edits: Edits) -> int:
        """Return how many errors the edits leave, with or without brackets that close what the edit's line leaves open.

        Otherwise one error, that a bracket is open, would hide all others.
        """
        brackets = [each.closers(edits[-1]) for each in (alone, self) if edits]
        ends = dict.fromkeys(["", *(f"{each}{end}" for end in ("", ";") for each in brackets)])
        closed = ((*edits[:-1], *(replace(each, text=each.text + end) for each in edits[-1:])) for end in ends)
        return _fewest(map(self.n_errors, closed))

    def closers(self, edit: Edit) -> str:
        """Return the brackets that close what the lines up to the end of this edit leave open."""
        text, language = self.syntax.text[: edit.span.start - self.shift] + edit.text, self.syntax.language.name
        return ("\n" if languages.kind_at_end(text, language) == "comment" else "") + languages.closers(text, language)[1]


@memo.in_tree
def _frames(before: Syntax, holes: tuple[Hole, ...]) -> tuple[_Frame, ...]:
    """Return the frames of holes, from the largest: their lines in all blocks around them, without their block, and alone."""
    lines, language = before.lines, before.language
    reader, own, last = _Reader(lines, language), lines.at(holes[0].span.start), lines.at(holes[-1].span.end)
    depth = _width(lines.indent(own) or holes[0].indent)
    first = reader.start(own, depth)
    blocks, (end, closers) = list(itertools.islice(reader.blocks(first, depth), MAX_BLOCKS)), reader.below(last, depth)
    end = end if end - last <= MAX_BODY else last
    tag = lines.text.find(language.tag) if language.tag else -1
    known = {before.text: before}

    def frame(blocks: Iterable[Iterable[int]], end: int) -> _Frame:
        chosen = {
            *_between(first, own),
            *range(own, end + 1),
            *itertools.chain(*blocks),
            *((lines.at(tag),) if tag >= 0 else ()),
        }
        texts = {number: lines.text[lines.start(number) : lines.behind(number)] for number in sorted(chosen)}
        text = "".join(texts.values())
        if text not in known:
            known[text] = syntax.parse(text, language)
        ahead = sum(len(each) for number, each in texts.items() if number < own)
        return _Frame(known[text], lines.start(own) - ahead)

    return frame([*blocks, closers], end), frame([*blocks[:1], closers], last), frame([closers], last)


@memo.in_tree
def _least(before: Syntax, holes: tuple[Hole, ...]) -> tuple[int, float]:
    """Return the fewest errors of a plain answer in the frame, closed, and the most that an answer may leave there.

    That is what an answer leaves that opens a block, if this is less than others leave.
    """
    text, language, (frame, _, alone) = before.text, before.language, _frames(before, holes)
    plain = [plain_edits(text, holes, language, each) for each in PLAIN_ANSWERS]
    n_closed = _fewest(frame.n_closed(alone, each) for each in plain)
    opening = (plain_edits(text, holes, language, each) for each in itertools.islice(_opening(before, holes), MAX_OPENERS))
    n_opened = _fewest(map(frame.n_errors, itertools.chain([()], opening)))
    return n_closed, n_opened if n_opened < min(map(frame.n_errors, plain)) else math.inf


def _fewest(counts: Iterator[int]) -> int:
    """Return the smallest of some counts, up to the first that is 0."""
    least = next(counts)
    for each in counts:
        if not least:
            break
        least = min(least, each)
    return least


# --- Plain answers, which fit most holes: the errors that they leave are the document's own


def plain_edits(text: str, holes: Sequence[Hole], language: Language, answer: str) -> tuple[Edit, ...]:
    """Return edits that write a plain answer into each hole."""
    words, made = languages.words(language), []
    for hole in holes:
        word = NAME_BEFORE.search(text[max(0, hole.span.start - NAME_CHARS) : hole.span.start])
        is_behind_keyword = word is not None and word[1] in words and answer[:1].isalpha()
        # Right after a keyword, `x` would make it a name.
        own = f" {answer}" if is_behind_keyword else answer
        made.append(edit_of(own, hole, nearest_line_end(text, hole.span)))
    return tuple(made)


def _opening(before: Syntax, holes: Sequence[Hole]) -> Iterator[str]:
    """Yield plain answers that open what the next line of code needs, if that is indented more than the cursor's line.

    An answer that opens nothing adds no error, because the error was there before.
    """
    hole, lines = holes[0], before.lines
    if len(holes) > 1 or hole.kind != "cursor" or hole.extent == "block" or hole.trail:
        return
    line = lines.at(hole.span.end)
    head, rest = (
        lines.text[start:end] for start, end in ((lines.start(line), hole.span.start), (hole.span.end, lines.end(line)))
    )
    below = lines.below(line)
    if rest.strip() or below is None or depth(lines.indent(below)) <= depth(hole.indent):
        return
    language = before.language
    bracket = languages.missing_opener(lines.text, hole.span.end, language.name)
    openers = [
        opener for opener in language.openers if opener[-1:] == bracket or opener[-1:] not in tuple(language.brackets[0])
    ]
    quote, brackets = languages.closers(head, language.name)
    # In a string, an answer first closes it.
    starts = dict.fromkeys((quote, quote + brackets) if quote else ("", "x", brackets, f"x{brackets}"))
    yield from (start + opener for opener in openers for start in starts)


# --- Lines that belong together


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads which lines belong together, by their numbers."""

    lines: Lines
    language: Language
    widths: dict[int, int | None] = field(default_factory=dict)

    def blocks(self, line: int, depth: int) -> Iterator[list[int]]:
        """Yield the lines of the head and of the end of each block around a line that is indented so far, the inmost first."""
        least = max(0, line - MAX_LINES)
        while depth > 0 and line > least:
            line -= 1
            width = self._width(line)
            if width is None or width >= depth:
                continue
            depth, head, (last, _) = width, line, self.below(line, width)
            line = self.start(line, depth)
            while head < min(line + MAX_HEAD, last) and self._is_open(line, head):
                head += 1
            yield [*_between(line, head), *self.below(head, depth)[1]]

    def start(self, line: int, depth: int) -> int:
        """Return the first line of the statement that a line goes on with, as `} else {` and `{` do."""
        first = line
        while first > max(0, line - MAX_LINES) and self._closes(first):
            above = range(first - 1, max(-1, first - MAX_LINES), -1)
            widths = ((number, width) for number in above if (width := self._width(number)) is not None)
            number, width = next(((number, width) for number, width in widths if width <= depth), (-1, -1))
            if width != depth:
                break
            first = number
        return first

    def below(self, line: int, depth: int) -> tuple[int, list[int]]:
        """Return the last line below that is indented more than this depth or closes what is, and those that close a block."""
        last, closers = line, []
        for number in range(line + 1, min(len(self.lines), line + MAX_LINES)):
            width = self._width(number)
            if width is None:
                continue
            if width < depth or (width == depth and not self._closes(number)):
                break
            last = number
            # Python's `else:` needs a block of its own.
            if width == depth and not (self.language.by_indentation and self.lines.content(number).strip()[:1].isalpha()):
                closers.append(number)
        return last, [*closers[:MAX_HEAD], *closers[MAX_HEAD:][-1:]]

    def _width(self, line: int) -> int | None:
        """Return how far a line is indented; None if that says nothing, as for blank lines, comments and directives."""
        if line not in self.widths:
            code = self.lines.content(line).strip()
            is_none = not code or code.startswith(self.language.line_comments)
            is_none = is_none or bool(self.language.outdents and re.match(self.language.outdents, code))
            self.widths[line] = None if is_none else _width(self.lines.indent(line))
        return self.widths[line]

    def _closes(self, line: int) -> bool:
        code = self.lines.content(line).strip()
        if code.startswith("{"):
            # It goes on with the head above it; with a comma at the end of its code, the line is a row of a table.
            code = languages.mask(code, self.language.name).rstrip("\0 \t")
            return " {" in self.language.openers and not code.endswith(",")
        return re.match(rf"[)\]}}]|(?:{self.language.closes})", code) is not None

    def _is_open(self, first: int, last: int) -> bool:
        """Return whether these lines end in round or square brackets, so that the next one goes on with them."""
        text = self.lines.text[self.lines.start(first) : self.lines.end(last)]
        return languages.closers(text, self.language.name)[1][:1] in (")", "]")


def _between(first: int, last: int) -> Iterable[int]:
    """Return the lines from the first to the last, without those between them if these are many."""
    return range(first, last + 1) if last - first <= MAX_BODY else (first, last)


def _width(indent: str) -> int:
    return len(indent.expandtabs(4))
