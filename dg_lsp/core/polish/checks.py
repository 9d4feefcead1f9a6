"""Check the document that a candidate leaves: whether it parses, and whether strings and brackets are closed."""

from __future__ import annotations

from collections.abc import Iterable

from dg_lsp.core import literals, scope, syntax
from dg_lsp.core.context import with_newlines
from dg_lsp.core.polish.whole import PLAIN, Whole, plainly_filled

# How far on each side strings are read where no tree tells.
READ_CHARS = 50_000


def parses(whole: Whole) -> bool:
    """Return whether there are no more syntax errors than with the holes as they are, or plainly filled."""
    if syntax.adds_errors(whole.after, whole.before):
        return False
    return not whole.after.errors or not any(syntax.adds_errors(whole.after, plainly_filled(whole, plain)) for plain in PLAIN)


def closes(whole: Whole) -> bool:
    """Return whether code that stays broken has no string and no bracket open for the answer's sake.

    Such an error is hidden from `parses` where code can't be parsed anyway: the parser counts one stretch of them, and
    takes all that follows for a string.
    """
    if not whole.after.errors:
        return True
    text, language = whole.document.text, whole.document.language
    is_better = len(whole.after.errors) < len(whole.before.errors)
    for edit in whole.edits:
        before = with_newlines(text[max(0, edit.span.start - READ_CHARS) : edit.span.start])
        line, end, below = with_newlines(text[edit.span.end : edit.span.end + READ_CHARS]).partition("\n")
        old = with_newlines(text[edit.span.start : edit.span.end]) + line
        new = with_newlines(edit.text) + line
        # Most answers have neither, and reading takes time.
        if _has_any(edit.text, literals.string_marks(language)) and (
            literals.opens_string(before + new, end + below, language)
            and not literals.opens_string(before + old, end + below, language)
        ):
            return False
        # A bracket that is opened for those below to close it leaves less of an error.
        if (
            not is_better
            and _has_any(edit.text, literals.brackets(language)[0])
            and literals.n_open(before, new, language) > literals.n_open(before, old, language)
        ):
            return False
    return True


def binds(whole: Whole) -> bool:
    """Return whether the file binds each name that the answers use, in a language where a file says what it binds."""
    return not scope.is_certain(whole.document.language) or not unbound_names(whole)


def unbound_names(whole: Whole) -> frozenset[str]:
    """Return the names that the answers use and that nothing in the file binds, as far as it can tell."""
    return scope.unbound_names(whole.after, tuple(whole.answers()), whole.document.uri) if whole.is_file else frozenset()


def _has_any(text: str, marks: Iterable[str]) -> bool:
    return any(mark in text for mark in marks)
