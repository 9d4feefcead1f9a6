"""An editor's text after a change, worked out as the protocol words it and by nothing of the server's own."""

from __future__ import annotations

import re

from lsprotocol import types as lsp

from dg_lsp.core.positions import Encoding, Lines
from dg_lsp.server.sync import Change, Point

CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


def offset(text: str, line: int, character: int, encoding: Encoding) -> int:
    """Return the offset as the protocol words it, by looking at each line as bytes."""
    codec, width = CODECS[encoding]
    parts = re.split(r"(\r\n|\r|\n)", text)
    if line >= len(parts[::2]):
        return len(text)
    before = sum(len(part) for part in parts[: 2 * line])
    content = parts[2 * line]
    for column in range(len(content) + 1):
        if len(content[:column].encode(codec, "surrogatepass")) > character * width:
            return before + column - 1
    return before + len(content)


def edit(text: str, start: Point | None = None, end: Point | None = None) -> Change:
    """Return the change that puts the text between two positions; without positions, in place of the whole document."""
    if start is None or end is None:
        return lsp.TextDocumentContentChangeWholeDocument(text)
    return lsp.TextDocumentContentChangePartial(lsp.Range(lsp.Position(*start), lsp.Position(*end)), text)


def change(text: str, what: Change, encoding: Encoding) -> str:
    """Return the text after a change."""
    if isinstance(what, lsp.TextDocumentContentChangeWholeDocument):
        return what.text
    ends = (what.range.start, what.range.end)
    start, end = sorted(offset(text, at.line, at.character, encoding) for at in ends)
    return text[:start] + what.text + text[end:]


def same_lines(one: Lines, other: Lines) -> bool:
    """Return whether two indexes say the same of every line and every offset."""

    def said(index: Lines) -> object:
        ends = [(index.start(line), index.end(line)) for line in range(len(index))]
        return index.text, ends, [index.at(offset) for offset in range(len(index.text) + 1)]

    return said(one) == said(other)
