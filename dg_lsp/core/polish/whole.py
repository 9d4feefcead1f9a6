"""A candidate after all filters, and the document with plain answers to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dg_lsp.core import syntax, values
from dg_lsp.core.polish.around import edit_of, nearest_line_end
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Edit, Hole, Span


@dataclass(frozen=True, slots=True)
class Whole:
    """A candidate after all filters: its edits, the document, and its syntax before and after the edits.

    `is_file` is true if the document is a whole file, so that a name that nothing in it binds may count as unbound.
    """

    edits: tuple[Edit, ...]
    holes: tuple[Hole, ...]
    document: Document
    before: Syntax
    after: Syntax
    is_file: bool = False

    def answers(self) -> Iterator[tuple[Span, str]]:
        """Yield for each edit the span of its text in the edited document, without white space, and the text it replaced."""
        shift = 0
        for edit in self.edits:
            text = edit.text.strip()
            start = edit.span.start + shift + len(edit.text) - len(edit.text.lstrip())
            yield Span(start, start + len(text)), self.document.text[edit.span.start : edit.span.end]
            shift += len(edit.text) - (edit.span.end - edit.span.start)


# Returns whether to keep the candidate.
Check = Callable[[Whole], bool]

# Plain answers that fit most holes. The errors that they leave are the document's own.
PLAIN = ("", "x", "pass")


def plainly_filled(whole: Whole, plain: str) -> Syntax:
    """Return the syntax of the document with a plain answer in each hole."""
    edits = tuple(plain_edits(whole, whole.edits, plain))
    return syntax.parse(values.apply(whole.document.text, edits), whole.before.language, whole.before)


def plain_edits(whole: Whole, edits: Iterable[Edit], plain: str) -> list[Edit]:
    """Return the edits with a plain answer in place of their own."""
    holes = (whole.holes[whole.edits.index(edit)] for edit in edits)
    return [edit_of(plain, hole, nearest_line_end(whole.document.text, hole.span)) for hole in holes]
