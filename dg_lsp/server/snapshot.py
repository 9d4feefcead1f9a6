"""Everything that a request depends on, taken once: text, cursor, syntax, settings, and other files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.importing import Sources
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Snippet, Span
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.server import reuse
from dg_lsp.server.nearby import Nearby
from dg_lsp.server.reuse import Place
from dg_lsp.server.sync import Documents, OpenDocument
from dg_lsp.wire.settings import Settings

MAX_CELLS = 4
"""A cell's request has the text of so many cells above it."""


@dataclass(frozen=True)
class Snapshot:
    """One moment of a document and its workspace.

    `doc` is the open document itself, which may change. `index` is its text, `document` that text with the selected
    completion item inserted, and `offset` the cursor in it. `syntax` returns the syntax near the cursor. `context` has the
    text from other files, and the index of the workspace as it was. `refused` says why the text may not be sent to a model,
    as the end of a sentence that begins with "it"; "" if it may. `is_file` is False for a notebook's cell.
    """

    doc: OpenDocument
    index: Lines
    document: Document
    offset: int
    syntax: Callable[[], Syntax | None]
    settings: Settings
    context: FileContext
    refused: str
    is_file: bool

    @property
    def is_current(self) -> bool:
        """Whether the editor still has this text. Texts are compared by identity, because they are long."""
        return self.doc.is_open and self.doc.index.text is self.index.text

    @cached_property
    def place(self) -> Place:
        """The cursor's place."""
        return reuse.place(self.document.uri, self.document.text, self.offset)

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
        return replace(self, document=document, offset=at + len(text), syntax=lambda: syntaxes.of(document, self.syntax()))


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Takes snapshots of the open documents."""

    documents: Documents
    nearby: Nearby
    settings: Callable[[str], Settings]

    async def take(self, uri: str, offset: int = 0, selected: tuple[Span, str] | None = None) -> Snapshot | None:
        """Return the snapshot of a document as it is now; None if it is not open.

        It first waits until the document was looked up, so the snapshot may not be current any more. `selected` is the item
        selected in the editor's own completion list: the span that it replaces, and its text.
        """
        if (doc := self.documents.get(uri)) is None:
            return None
        index, document = doc.index, doc.document
        refused = await self.nearby.look(uri)
        settings = self.settings(uri)
        # The folders of a refused document are not read for it.
        context = FileContext("") if refused else self._context(document, settings)
        is_file = not self.documents.is_cell(uri)
        syntax = _syntax_of(doc, document, offset)
        if selected is not None:
            span, text = selected
            before = _syntax_of(doc, document, span.start)
            whole = replace(document, text=document.text[: span.start] + text + document.text[span.end :])
            document, offset = whole, span.start + len(text)
            syntax = lambda: syntaxes.of(whole, before())  # noqa: E731
        return Snapshot(doc, index, document, offset, syntax, settings, context, refused, is_file)

    def _context(self, document: Document, settings: Settings) -> FileContext:
        """Return the document's context, with the text of the notebook's cells above a cell."""
        context, n_chars = self.nearby.context(document, settings), settings.related_chars
        cells = self.documents.cells_before(document.uri)[-MAX_CELLS:] if n_chars else ()
        name = f"{context.path} (cell)"
        near = tuple(Snippet(name, cell.text[max(len(cell.text) - n_chars, 0) :]) for cell in cells if cell.text.strip())
        return replace(context, related=(*near, *context.related)) if near else context


def _syntax_of(doc: OpenDocument, document: Document, offset: int) -> Callable[[], Syntax | None]:
    """Return a function that returns the syntax of this text near an offset, even after the document has changed."""

    def syntax() -> Syntax | None:
        latest = doc.near(offset)
        if latest is not None and latest.text is not document.text:
            latest = syntaxes.of(document, latest)
        return latest

    return syntax
