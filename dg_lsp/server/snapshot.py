"""The text at the moment of a request for suggestions, with the cursor in it.

Knows open documents; nothing of engines, earlier answers or what is in flight.
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
    """The text as it was at entry, with the editor's own selection in it, and the cursor in that text."""

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
    """Return the snapshot of an open document; `selected` is what the editor's own list would put in place of a span."""
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
    """Return what gives the syntax of this very text, though the document may have moved on when it is asked."""

    def syntax() -> Syntax | None:
        now = current()
        if now is not None and now.text is not document.text:
            now = syntaxes.of(document, now)
        return now

    return syntax
