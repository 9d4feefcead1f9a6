"""What a filter knows of the hole that an answer is for, and how the answer becomes an edit there."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from dg_lsp.core import syntax, values
from dg_lsp.core.context import with_newlines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Edit, Hole, Span

# How much text on each side the filters look at; only the syntax is judged on the whole file.
NEARBY_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Around:
    r"""What the filters know of a hole: the text next to it, with `\n` line ends, and how to judge a filling.

    `document` has the holes behind this one already filled. `before` and `after` include the hole's lead and trail,
    and reach `NEARBY_CHARS` far. With `allow_shrink`, working code may be replaced by less. `filled` returns the syntax
    of the document with a given answer; it is None where the language has no grammar.
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
        """What follows the hole on its own line."""
        return self.after.partition("\n")[0]

    @property
    def starts_line(self) -> bool:
        """Whether only white space stands before the hole on its line."""
        return not self.before.rpartition("\n")[2].strip()

    def is_worse(self, one: str, other: str) -> bool | None:
        """Return whether the one answer leaves more syntax errors than the other; None where nobody can tell."""
        return syntax.adds_errors(self.filled(one), self.filled(other)) if self.filled else None


# Returns the text, changed or not, or None where the candidate is of no use.
Filter = Callable[[str, Around], "str | None"]


def around_hole(document: Document, hole: Hole, tree: Syntax | None, *, allow_shrink: bool = False) -> Around:
    """Return what the filters know of the hole; `tree` is the document's syntax, where its language has a grammar."""
    text, span = document.text, hole.span
    before = with_newlines(text[max(0, span.start - NEARBY_CHARS) : span.start]) + hole.lead
    after = hole.trail + with_newlines(text[span.end : span.end + NEARBY_CHARS])
    around = Around(document, hole, before, after, nearest_line_end(text, span), allow_shrink)
    if tree is None:
        return around
    language = tree.language

    # Several filters ask about the same few texts.
    @functools.cache
    def filled(answer: str) -> Syntax:
        edit = edit_of(answer, hole, around.line_end)
        return syntax.parse(values.apply(text, (edit,)), language, tree)

    return replace(around, filled=filled)


def answer_span(text: str, around: Around) -> Span:
    """Return where the answer stands in the filled document, without the white space around it."""
    lead = around.hole.lead + text[: len(text) - len(text.lstrip())]
    start = around.hole.span.start + len(lead.replace("\n", around.line_end))
    return Span(start, start + len(text.strip().replace("\n", around.line_end)))


def edit_of(answer: str, hole: Hole, line_end: str) -> Edit:
    """Return the edit that writes the answer, with the file's own line ends."""
    return Edit(hole.span, (hole.lead + answer + hole.trail).replace("\n", line_end))


def nearest_line_end(text: str, span: Span) -> str:
    """Return the line end nearest to the hole: that of its own line, or else of the one above."""
    after = re.compile(r"\r\n|\r|\n").search(text, span.end)
    if after:
        return after[0]
    last = max(text.rfind("\n", 0, span.start), text.rfind("\r", 0, span.start))
    if last < 0:
        return "\n"
    return "\r\n" if text[last - 1 : last + 1] == "\r\n" else text[last]
