r"""The open documents, equal to the editor's to the byte.

Lines end where the protocol says and nowhere else (see `core.positions`), so a form feed or U+2028 in a file shifts
nothing. An edit touches only the lines around it, also in the index of lines. Knows nothing of requests or answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import tree_sitter

from dg_lsp.core import languages, local, positions
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.positions import Encoding, Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Span

Point = tuple[int, int]

OWN_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class Change:
    """New text for the range between two positions of the editor's; for all of the text where there are none."""

    text: str
    start: Point | None = None
    end: Point | None = None


def replaced(index: Lines, change: Change, encoding: Encoding) -> Span | None:
    """Return what the change replaces, whichever end comes first; None for all of the text."""
    if change.start is None or change.end is None:
        return None
    start = positions.to_offset(index, *change.start, encoding)
    end = positions.to_offset(index, *change.end, encoding)
    return Span(min(start, end), max(start, end))


class OpenDocument:
    """One open document, as the editor has it now."""

    def __init__(self, uri: str, language_id: str, version: int, text: str) -> None:
        """Begin with the whole text."""
        self.language_id = language_id
        self.lost = False
        """A change could not be read, so that the editor's text is another; only its whole text helps."""
        self.index = positions.lines(text)
        self.document = Document(uri, _language(uri, language_id, self.index), text, version)
        self._syntax: Syntax | None = None
        self._near: Syntax | None = None
        # The tree of all of the text, as it was parsed last, told of each edit since; None where that can't be kept up.
        self._shape: tree_sitter.Tree | None = None
        self._parts_fit = True

    def change(self, version: int, changes: Iterable[Change], encoding: Encoding) -> None:
        """Become the next version."""
        for change in changes:
            if change.start is None:
                self.lost = False
            old, span = self.index, replaced(self.index, change, encoding)
            self.index = positions.lines(change.text) if span is None else positions.spliced(old, span, change.text)
            self._reshape(old, span, change.text)
        before = self.document
        self.document = Document(before.uri, before.language, self.index.text, version)

    def syntax(self) -> Syntax | None:
        """Return the document's syntax, parsed when first asked for; None where its language has no grammar."""
        if self._syntax is None or self._syntax.text is not self.document.text:
            try:
                self._syntax = syntaxes.of(self.document, self._syntax, self.index)
            except languages.GrammarError:
                return None
            if self._syntax is not None:
                self._shape = self._syntax.tree.copy()
        return self._syntax

    def near(self, offset: int) -> Syntax | None:
        """Return the document's syntax as far as it bears on an offset, for what a keystroke waits for; see `core.local`."""
        text = self.document.text
        if len(text) < local.LONG_CHARS or not self._parts_fit or (self._syntax is None and self.syntax() is None):
            return self.syntax()
        near = self._near
        if near is not None and near.text is not text and local.covers(near, offset):
            near = self._parsed(near)
        if near is None or near.text is not text or not local.covers(near, offset):
            if self._shape is None:
                whole = self.syntax()
                if whole is None:
                    return None
                self._shape = whole.tree.copy()
            offsets = positions.byte_offsets(text)
            near = self._parsed(None, local.parts(self._shape, offsets, self.index, offset))
            # An error where the user types is the user's; one further off may be due to what was passed over.
            is_own = all(abs(at - offset) <= OWN_CHARS for error in near.errors for at in (error.start, error.end))
            whole = None if is_own else self.syntax()
            if whole is not None and len(near.errors) > len(whole.errors):
                # What stands around the parts can't be told from heads and ends, as with braces in the preprocessor's branches.
                self._parts_fit, near = False, whole
        self._near = near
        return near

    def _parsed(self, previous: Syntax | None, parts: tuple[Span, ...] | None = None) -> Syntax:
        assert self._syntax is not None
        return syntaxes.parse(self.document.text, self._syntax.language, previous, parts, self.index)

    def _reshape(self, old: Lines, span: Span | None, new: str) -> None:
        """Tell the tree of an edit of what was the text until now."""
        if self._shape is None:
            return
        # Only where bytes are code points, as they are in nearly all long texts, is this free.
        if span is None or not old.text.isascii() or not new.isascii() or "\r" in old.text or "\r" in new:
            self._shape = None
            return
        end = span.start + len(new)
        self._shape.edit(span.start, span.end, end, _point(old, span.start), _point(old, span.end), _point(self.index, end))


class Documents:
    """The open documents by their URIs, cells of notebooks among them."""

    def __init__(self) -> None:
        """Hold none."""
        self.encoding: Encoding = "utf-16"
        self._open: dict[str, OpenDocument] = {}
        self._cells: dict[str, list[str]] = {}

    def __iter__(self) -> Iterator[OpenDocument]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def get(self, uri: str) -> OpenDocument | None:
        """Return the open document, or None."""
        return self._open.get(uri)

    def open(self, uri: str, language_id: str, version: int, text: str) -> OpenDocument:
        """Hold a document; one that is open already is replaced, whatever its version."""
        self._open[uri] = OpenDocument(uri, language_id, version, text)
        return self._open[uri]

    def change(self, uri: str, version: int, changes: Iterable[Change]) -> OpenDocument | None:
        """Apply changes in their order; return None for a document that is not open."""
        doc = self._open.get(uri)
        if doc is not None:
            doc.change(version, changes, self.encoding)
        return doc

    def close(self, uri: str) -> None:
        """Forget a document."""
        self._open.pop(uri, None)

    def lose(self, uri: str) -> None:
        """Note that a change of the document could not be read."""
        if (doc := self._open.get(uri)) is not None:
            doc.lost = True

    def open_notebook(self, uri: str, cells: Iterable[str]) -> None:
        """Hold the order of a notebook's cells."""
        self._cells[uri] = list(cells)

    def splice_cells(self, uri: str, start: int, n_deleted: int, new: Iterable[str]) -> None:
        """Put cells in place of others in a notebook's order."""
        if (cells := self._cells.get(uri)) is not None:
            cells[start : start + n_deleted] = new

    def close_notebook(self, uri: str) -> None:
        """Forget a notebook and its cells."""
        for cell in self._cells.pop(uri, ()):
            self.close(cell)

    def lose_notebook(self, uri: str) -> None:
        """Note that a change of the notebook could not be read, which may have been one of any of its cells."""
        for cell in self._cells.get(uri, ()):
            self.lose(cell)

    def is_cell(self, uri: str) -> bool:
        """Return whether the document is a cell of a notebook, which others may bind names for."""
        return any(uri in cells for cells in self._cells.values())

    def cells_before(self, uri: str) -> tuple[Document, ...]:
        """Return the open cells that stand before this one in its notebook, in order; none for any other document."""
        for cells in self._cells.values():
            if uri in cells:
                before = cells[: cells.index(uri)]
                return tuple(doc.document for cell in before if (doc := self._open.get(cell)))
        return ()


def _point(index: Lines, offset: int) -> Point:
    line = index.at(offset)
    return line, offset - index.starts[line]


def _language(uri: str, language_id: str, index: Lines) -> str:
    """Return the name of the document's language: what the editor calls it, else what its file's name says."""
    language = languages.by_id(language_id) or languages.for_path(uri.split("#")[0], index.content(0))
    return language.name if language else ""
