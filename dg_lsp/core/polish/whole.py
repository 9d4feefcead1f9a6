"""A candidate whose texts are all polished, and the document with plain answers in its place to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dg_lsp.core import syntax, values
from dg_lsp.core.polish.around import edit_of, nearest_line_end
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Edit, Hole


@dataclass(frozen=True, slots=True)
class Whole:
    """A candidate whose texts are all polished: the edits, the document before them, and its syntax before and after."""

    edits: tuple[Edit, ...]
    holes: tuple[Hole, ...]
    document: Document
    before: Syntax
    after: Syntax


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
