"""A candidate whose texts are all polished, and the document with plain answers in its place to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dg_lsp.core import syntax, values
from dg_lsp.core.polish.around import edit_of, nearest_line_end
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Edit, Hole, Span


@dataclass(frozen=True, slots=True)
class Whole:
    """A candidate whose texts are all polished: the edits, the document before them, and its syntax before and after.

    `is_file` says that the document is all of a file, so that a name which nothing in it binds may count as unbound.
    """

    edits: tuple[Edit, ...]
    holes: tuple[Hole, ...]
    document: Document
    before: Syntax
    after: Syntax
    is_file: bool = False

    def answers(self) -> Iterator[tuple[Span, str]]:
        """Yield for each edit where its text is in the document after, without white space, and the text it replaced."""
        shift = 0
        for edit in self.edits:
            text = edit.text.strip()
            start = edit.span.start + shift + len(edit.text) - len(edit.text.lstrip())
            yield Span(start, start + len(text)), self.document.text[edit.span.start : edit.span.end]
            shift += len(edit.text) - (edit.span.end - edit.span.start)


# Returns whether the candidate is of use.
Check = Callable[[Whole], bool]

# Fillings that fit most holes; the errors they leave are the document's own.
PLAIN = ("", "x", "pass")


def plainly_filled(whole: Whole, plain: str) -> Syntax:
    """Return the syntax of the document with a plain answer in each hole."""
    edits = tuple(plain_edits(whole, whole.edits, plain))
    return syntax.parse(values.apply(whole.document.text, edits), whole.before.language, whole.before)


def plain_edits(whole: Whole, edits: Iterable[Edit], plain: str) -> list[Edit]:
    """Return the edits with a plain answer instead of their own."""
    holes = (whole.holes[whole.edits.index(edit)] for edit in edits)
    return [edit_of(plain, hole, nearest_line_end(whole.document.text, hole.span)) for hole in holes]
