"""Check the document with a candidate's edits: does it parse, and are strings and brackets closed?"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dg_lsp.core import languages, literals, scope, syntax
from dg_lsp.core.context import with_newlines
from dg_lsp.core.polish.whole import PLAIN, Whole, plainly_filled
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span

NAME_CHARS = 200  # more than any name and the spaces after it
_NAME_BEFORE = re.compile(r"\b([^\W\d]\w*) *\Z")

# How many characters on each side are scanned for strings, where the tree can't tell.
READ_CHARS = 50_000


def parses(whole: Whole) -> bool:
    """Return whether the edits leave no more syntax errors than the document has, as it is or with plain answers."""
    if syntax.adds_errors(whole.after, whole.before):
        return False
    return not whole.after.errors or not any(syntax.adds_errors(whole.after, plainly_filled(whole, plain)) for plain in PLAIN)


def closes(whole: Whole) -> bool:
    """Return whether an answer in broken code leaves no new string or bracket open.

    `parses` misses such an error where code can't be parsed anyway: the parser counts the whole broken stretch as one
    error, and reads everything after an open quote as a string.
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
        # Checked first, because most answers have no such mark and scanning takes time.
        if _has_any(edit.text, literals.string_marks(language)) and (
            literals.opens_string(before + new, end + below, language)
            and not literals.opens_string(before + old, end + below, language)
        ):
            return False
        # If there are fewer errors than before, an opened bracket may be one that the code below closes.
        if (
            not is_better
            and _has_any(edit.text, literals.brackets(language)[0])
            and literals.n_open(before, new, language) > literals.n_open(before, old, language)
        ):
            return False
    return True


def unbound_names(whole: Whole) -> frozenset[str]:
    """Return the names that the answers use and that nothing in the file binds; empty unless the document is a whole file.

    A name just before an answer counts as used by it: the answer takes what may be the beginning of a name for all of it.
    """
    if not whole.is_file:
        return frozenset()
    answers = tuple((span if old else _with_name_before(span, whole.after), old) for span, old in whole.answers())
    return scope.unbound_names(whole.after, answers, whole.document.uri)


def _with_name_before(answer: Span, after: Syntax) -> Span:
    """Return the span of the answer and of the name before it on its line, if only spaces are between them."""
    match = _NAME_BEFORE.search(after.text[max(0, answer.start - NAME_CHARS) : answer.start])
    if match is None or match[1] in languages.words(after.language):
        return answer
    return Span(answer.start - len(match[0]), answer.end)


def _has_any(text: str, marks: Iterable[str]) -> bool:
    return any(mark in text for mark in marks)
