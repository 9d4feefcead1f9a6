"""The text around a hole that filters read, and how an answer becomes an edit there."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from dg_lsp.core import syntax, values
from dg_lsp.core.context import with_newlines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Edit, Hole, Span

# How many characters on each side the filters read. Only the syntax is checked on the whole file.
NEARBY_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Around:
    r"""The text around a hole, with `\n` line ends, and a function that parses the document with an answer.

    In `document`, the holes after this one are already filled. `before` and `after` include the hole's lead and trail,
    and are at most `NEARBY_CHARS` long. With `allow_shrink`, less code may replace working code. `filled` returns the
    syntax of the document with a given answer; it is None if the language has no grammar.
    """

    document: Document
    hole: Hole
    before: str
    after: str
    line_end: str
    allow_shrink: bool = False
    filled: Callable[[str], Syntax] | None = None

    @property
    def old(self) -> str:
        """The text that the answer replaces."""
        return self.document.text[self.hole.span.start : self.hole.span.end]

    @property
    def rest(self) -> str:
        """The text after the hole on its own line."""
        return self.after.partition("\n")[0]

    @property
    def starts_line(self) -> bool:
        """Whether there is only white space before the hole on its line."""
        return not self.before.rpartition("\n")[2].strip()

    def is_worse(self, one: str, other: str) -> bool | None:
        """Return whether answer `one` leaves more syntax errors than answer `other`; None if there is no grammar."""
        return syntax.adds_errors(self.filled(one), self.filled(other)) if self.filled else None


# Returns the text, changed or not, or None to drop the candidate.
Filter = Callable[[str, Around], "str | None"]


def around_hole(document: Document, hole: Hole, tree: Syntax | None, *, allow_shrink: bool = False) -> Around:
    """Return the text around the hole; `tree` is the document's syntax, or None if its language has no grammar."""
    text, span = document.text, hole.span
    before = with_newlines(text[max(0, span.start - NEARBY_CHARS) : span.start]) + hole.lead
    after = hole.trail + with_newlines(text[span.end : span.end + NEARBY_CHARS])
    around = Around(document, hole, before, after, nearest_line_end(text, span), allow_shrink)
    if tree is None:
        return around
    language = tree.language

    # Cached, because several filters ask about the same few texts.
    @functools.cache
    def filled(answer: str) -> Syntax:
        edit = edit_of(answer, hole, around.line_end)
        return syntax.parse(values.apply(text, (edit,)), language, tree)

    return replace(around, filled=filled)


def answer_span(text: str, around: Around) -> Span:
    """Return the answer's span in the filled document, without surrounding white space."""
    lead = around.hole.lead + text[: len(text) - len(text.lstrip())]
    start = around.hole.span.start + len(lead.replace("\n", around.line_end))
    return Span(start, start + len(text.strip().replace("\n", around.line_end)))


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


def filled_lines(text: str) -> list[str]:
    """Return the lines that are not blank, without trailing white space."""
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def says_something(text: str) -> bool:
    """Return whether the text is more than brackets and a closing word such as `end`."""
    return bool(re.search(r"\w{4}|\w\W+\w", text))
