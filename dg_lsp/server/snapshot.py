"""Everything that a request for suggestions depends on, taken once: text, cursor, syntax, settings, and other files.

This module knows open documents, but no engines, earlier answers or running requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.importing import Sources
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Span
from dg_lsp.infill.file_context import FileContext
from dg_lsp.server import reuse
from dg_lsp.server.reuse import Place
from dg_lsp.server.settings import Settings
from dg_lsp.server.sync import OpenDocument


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of a document and its workspace.

    `index` is the editor's text. `document` is that text with the selected completion item inserted, and `offset` the
    cursor in it. `context` has the text from other files, and the index of the workspace as it was.
    """

    index: Lines
    document: Document
    offset: int
    place: Place
    syntax: Callable[[], Syntax | None]
    settings: Settings
    context: FileContext
    is_file: bool

    def is_current(self, doc: OpenDocument | None) -> bool:
        """Return whether the editor still has this text. Texts are compared by identity, because they are long."""
        return doc is not None and doc.index.text is self.index.text

    @property
    def sources(self) -> Sources | None:
        """What the document may import from; None if it is not a whole file."""
        return self.context.sources if self.is_file else None

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
        return replace(self, document=document, offset=offset, place=place, syntax=lambda: syntaxes.of(document, self.syntax()))


def take(
    doc: OpenDocument,
    offset: int,
    selected: tuple[Span, str] | None,
    settings: Settings,
    context: FileContext,
    *,
    is_file: bool,
) -> Snapshot:
    """Return the snapshot of an open document, which is a whole file or a notebook's cell.

    `selected` is the item selected in the editor's own completion list: the span that it replaces, and its text.
    """
    document = doc.document
    uri = document.uri
    if selected is None:
        place, syntax = reuse.place(uri, document.text, offset), _once(document, lambda: doc.near(offset))
        return Snapshot(doc.index, document, offset, place, syntax, settings, context, is_file)
    span, selected_text = selected
    whole = replace(document, text=document.text[: span.start] + selected_text + document.text[span.end :])
    offset = span.start + len(selected_text)
    before = doc.near(span.start)
    place = reuse.place(uri, whole.text, offset)
    return Snapshot(doc.index, whole, offset, place, lambda: syntaxes.of(whole, before), settings, context, is_file)


def _once(document: Document, current: Callable[[], Syntax | None]) -> Callable[[], Syntax | None]:
    """Return a function that returns the syntax of this text, even after the document has changed."""

    def syntax() -> Syntax | None:
        latest = current()
        if latest is not None and latest.text is not document.text:
            latest = syntaxes.of(document, latest)
        return latest

    return syntax
