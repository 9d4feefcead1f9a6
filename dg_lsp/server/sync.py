r"""The open documents, byte for byte as the editor has them.

Lines end only where the protocol says (see `core.positions`), so a form feed or U+2028 in a file shifts no position. An
edit updates only the lines around it, in the line index too.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import tree_sitter
from lsprotocol import types as lsp

from dg_lsp.core import excerpt, languages, positions
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.positions import Encoding, Lines
from dg_lsp.core.syntax import ParseLimitError, Syntax
from dg_lsp.core.values import Document, Span
from dg_lsp.server import convert
from dg_lsp.wire.background import in_thread

Point = tuple[int, int]
Change = lsp.TextDocumentContentChangeEvent

log = logging.getLogger(__name__)

OWN_CHARS = 1_000
MOST_CHANGES_TO_WAIT = 256


class OpenDocument:
    """One open document, as the editor has it now."""

    def __init__(self, uri: str, language_id: str, version: int | None, text: str) -> None:
        self.lost = False
        """A change could not be parsed, so our text differs from the editor's until the editor sends the whole text."""
        self.index = positions.lines(text)
        self.document = Document(uri, "", text, version, language_id=language_id)
        self.document = replace(self.document, language=self._language(text))
        self._syntax: Syntax | None = None
        self._near: Syntax | None = None
        # The last parsed tree of the whole text, updated with the position of each edit since; None when it is outdated.
        self._shape: tree_sitter.Tree | None = None
        self._parts_fit = True
        self.is_unparsed = False
        """The parser took too long when it was last tried, so the document counts as one without a grammar."""
        self._n_failures = self._n_changes_to_wait = 0

    def change(self, version: int | None, changes: Iterable[Change], encoding: Encoding) -> None:
        self._n_changes_to_wait = max(self._n_changes_to_wait - 1, 0)
        known, is_told = {self.document.language, self._language("")}, False
        for change in changes:
            old, span = self.index, None
            if isinstance(change, lsp.TextDocumentContentChangePartial):
                span = convert.to_span(old, change.range, encoding)
                self.index = lines = positions.spliced(old, span, change.text)
                start, end = lines.start(lines.at(span.start)), lines.end(lines.at(span.start + len(change.text)))
                # The whole text is searched for what says its language only if the changed lines say another one.
                is_told |= self._language(lines.text[start:end]) not in known
            else:
                self.index, self.lost, is_told = positions.lines(change.text), False, True
            self._reshape(old, span, change.text)
        before, text = self.document.language, self.index.text
        language = self._language(text) if is_told else before
        self.document = replace(self.document, text=text, version=version, language=language)
        if language != before:
            self._syntax = self._near = self._shape = None

    def _language(self, text: str) -> str:
        """Return the document's language, which its text may decide."""
        language = languages.for_path(self.document.uri.split("#")[0], text, self.document.language_id)
        return language.name if language else ""

    async def syntax(self) -> Syntax | None:
        """Return the document's syntax, which a thread parses; None when its language has no grammar or it is unparsed."""
        parse = self._parse()  # here, because the document may change meanwhile
        return self._kept(await in_thread(partial(self._guarded, parse)))

    async def prepare(self) -> None:
        """Parse a long document for the first time, so that `near` does not parse all of it on the event loop."""
        if self._syntax is None and len(self.document.text) >= excerpt.LONG_CHARS:
            await self.syntax()

    def near(self, offset: int) -> Syntax | None:
        """Return the document's syntax near an offset, which is faster than parsing a long file (see `core.excerpt`)."""

        def shallow() -> Syntax | None:
            near = self._around(offset)
            if near is not None and near.is_deep(offset):
                raise ParseLimitError("the code at the cursor is nested too deeply")
            return near

        return self._guarded(shallow)

    def _guarded(self, parsed: Callable[[], Syntax | None]) -> Syntax | None:
        """Return what `parsed` returns; None when the parser takes too long, and then for the next few changes."""
        if self._n_changes_to_wait:
            return None
        try:
            syntax = parsed()
        except languages.GrammarError as error:
            self.is_unparsed = isinstance(error, ParseLimitError)
            if self.is_unparsed:
                # A try for `near` blocks the server up to the parser's limit, so it is tried less and less often.
                self._n_failures += 1
                self._n_changes_to_wait = min(4 << self._n_failures, MOST_CHANGES_TO_WAIT)
                log.warning("%s: %s; after %d changes it is tried again", self.document.uri, error, self._n_changes_to_wait)
            return None
        self.is_unparsed, self._n_failures = False, 0
        return syntax

    def _whole(self) -> Syntax | None:
        return self._kept(self._parse()())

    def _parse(self) -> Callable[[], Syntax | None]:
        """Return a function that parses the text as it is now, unless that is done."""
        text, language, syntax = self.document.text, languages.get(self.document.language), self._syntax
        if language is None or (syntax is not None and syntax.text is text):
            return lambda: syntax
        return partial(syntaxes.parse, text, language, syntax, lines=self.index)

    def _kept(self, syntax: Syntax | None) -> Syntax | None:
        """Keep a syntax, of an earlier text only if there is none yet: from that, the next parse is faster."""
        if syntax is not None and syntax is not self._syntax and syntax.language.name == self.document.language:
            is_current = syntax.text is self.document.text
            if is_current or self._syntax is None:
                self._syntax, self._shape = syntax, syntax.tree.copy() if is_current else None
        return syntax

    def _around(self, offset: int) -> Syntax | None:
        text = self.document.text
        if len(text) < excerpt.LONG_CHARS or not self._parts_fit:
            return self._whole()
        near = self._near
        if near is not None and near.text is not text and excerpt.covers(near, offset):
            near = self._parsed(near)
        if near is None or near.text is not text or not excerpt.covers(near, offset):
            if self._shape is None:
                self._whole()
            if self._shape is None:
                return None
            offsets = positions.byte_offsets(text)
            near = self._parsed(None, excerpt.parts(self._shape, offsets, self.index, offset))
            # An error near the cursor is the user's own. One further away may come from the text that was left out.
            is_own = all(abs(at - offset) <= OWN_CHARS for error in near.errors for at in (error.start, error.end))
            whole = None if is_own else self._whole()
            if whole is not None and not _are_within(near.errors, whole.errors):
                # The partial parse is wrong for this file, for example because of braces in preprocessor branches.
                self._parts_fit, near = False, whole
        self._near = near
        return near

    def _parsed(self, previous: Syntax | None, parts: tuple[Span, ...] | None = None) -> Syntax:
        assert self._syntax is not None
        return syntaxes.parse(self.document.text, self._syntax.language, previous, parts, self.index)

    def _reshape(self, old: Lines, span: Span | None, new: str) -> None:
        """Update the tree's positions after an edit of the old text."""
        # Tree positions are in bytes. Only in ASCII text, as nearly all long files are, do they equal ours without counting.
        if span is None or not old.text.isascii() or not new.isascii() or "\r" in old.text or "\r" in new:
            self._shape = None
        elif self._shape is not None:
            end = span.start + len(new)
            self._shape.edit(span.start, span.end, end, _point(old, span.start), _point(old, span.end), _point(self.index, end))


class Documents:
    """The open documents by URI, including the cells of notebooks."""

    def __init__(self) -> None:
        self.encoding: Encoding = "utf-16"
        self._open: dict[str, OpenDocument] = {}
        self._cells: dict[str, list[str]] = {}

    def get(self, uri: str) -> OpenDocument | None:
        return self._open.get(uri)

    def open(self, uri: str, language_id: str, version: int | None, text: str) -> OpenDocument:
        """Open and return a document; replace one that is open already, whatever its version."""
        self.close(uri)
        self._open[uri] = OpenDocument(uri, language_id, version, text)
        return self._open[uri]

    def change(self, uri: str, version: int | None, changes: Iterable[Change]) -> OpenDocument | None:
        """Apply the changes in order and return the document; None when it is not open."""
        doc = self._open.get(uri)
        if doc is not None:
            doc.change(version, changes, self.encoding)
        return doc

    def close(self, uri: str) -> None:
        self._open.pop(uri, None)

    def lose(self, uri: str) -> None:
        """Mark a document, or all cells of a notebook: a change could not be parsed, and may have concerned any of them."""
        for each in (uri, *self._cells.get(uri, ())):
            if (doc := self._open.get(each)) is not None:
                doc.lost = True

    def open_notebook(self, uri: str, cells: Iterable[str]) -> None:
        self._cells[uri] = list(cells)

    def splice_cells(self, uri: str, start: int, n_deleted: int, new: Iterable[str]) -> None:
        if (cells := self._cells.get(uri)) is not None:
            cells[start : start + n_deleted] = new

    def close_notebook(self, uri: str) -> None:
        for cell in self._cells.pop(uri, ()):
            self.close(cell)

    def files(self) -> Iterator[Document]:
        """Yield the open documents that are no cells of a notebook."""
        cells = {cell for cells in self._cells.values() for cell in cells}
        return (doc.document for uri, doc in self._open.items() if uri not in cells)

    def cells_before(self, uri: str) -> tuple[Document, ...] | None:
        """Return the open cells before this one in its notebook, in order; None if the document is no cell."""
        for cells in self._cells.values():
            if uri in cells:
                before = cells[: cells.index(uri)]
                return tuple(doc.document for cell in before if (doc := self._open.get(cell)))
        return None


def _are_within(errors: Iterable[Span], others: Sequence[Span]) -> bool:
    """Return whether each of the errors touches one of the others, which are in order."""
    starts = [each.start for each in others]
    before = ((error, bisect_right(starts, error.end)) for error in errors)
    return all(n and others[n - 1].end >= error.start for error, n in before)


def _point(index: Lines, offset: int) -> Point:
    line = index.at(offset)
    return line, offset - index.start(line)
