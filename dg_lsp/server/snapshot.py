"""The text and the cursor at the moment of a request for suggestions.

This module knows open documents, but no engines, earlier answers or running requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Span
from dg_lsp.server import reuse
from dg_lsp.server.reuse import Place
from dg_lsp.server.sync import OpenDocument


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The text at the start of a request, with the selected completion item inserted, and the cursor in that text."""

    document: Document
    offset: int
    place: Place
    syntax: Callable[[], Syntax | None]

    def with_text(self, syntax: Syntax | None, text: str) -> Syntax | None:
        """Return the syntax of the document with this text at the cursor."""
        at = self.offset
        return syntaxes.of(replace(self.document, text=self.document.text[:at] + text + self.document.text[at:]), syntax)

    def accepting(self, text: str) -> Snapshot:
        """Return the snapshot after this text was accepted at the cursor."""
        before, at = self.document.text, self.offset
        document = replace(self.document, text=before[:at] + text + before[at:])
        offset = at + len(text)
        place = reuse.place(self.place.uri, document.text, offset)
        return Snapshot(document, offset, place, lambda: syntaxes.of(document, self.syntax()))


def take(doc: OpenDocument, uri: str, offset: int, selected: tuple[Span, str] | None) -> Snapshot:
    """Return the snapshot of an open document.

    `selected` is the item selected in the editor's own completion list: the span that it replaces, and its text.
    """
    document = doc.document
    if selected is None:
        place = reuse.place(uri, document.text, offset)
        return Snapshot(document, offset, place, _once(document, lambda: doc.near(offset)))
    span, selected_text = selected
    whole = replace(document, text=document.text[: span.start] + selected_text + document.text[span.end :])
    offset = span.start + len(selected_text)
    before = doc.near(span.start)
    return Snapshot(whole, offset, reuse.place(uri, whole.text, offset), lambda: syntaxes.of(whole, before))


def _once(document: Document, current: Callable[[], Syntax | None]) -> Callable[[], Syntax | None]:
    """Return a function that returns the syntax of this text, even after the document has changed."""

    def syntax() -> Syntax | None:
        latest = current()
        if latest is not None and latest.text is not document.text:
            latest = syntaxes.of(document, latest)
        return latest

    return syntax
