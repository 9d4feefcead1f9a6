"""Between the protocol's values and ours. Nothing else in the package knows positions, and nothing here decides."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lsprotocol import types as lsp

from dg_lsp.core import positions
from dg_lsp.core.positions import Encoding, Lines
from dg_lsp.core.values import Edit, Span
from dg_lsp.server.sync import Change

_ANNOTATION = "dg-lsp"


def to_changes(changes: Iterable[lsp.TextDocumentContentChangeEvent]) -> tuple[Change, ...]:
    """Return an editor's changes of a text."""
    return tuple(
        Change(change.text, _point(change.range.start), _point(change.range.end))
        if isinstance(change, lsp.TextDocumentContentChangePartial)
        else Change(change.text)
        for change in changes
    )


def to_offset(index: Lines, position: lsp.Position, encoding: Encoding) -> int:
    """Return an editor's position as an offset."""
    return positions.to_offset(index, position.line, position.character, encoding)


def to_span(index: Lines, range_: lsp.Range, encoding: Encoding) -> Span:
    """Return an editor's range as a span, whichever end comes first."""
    ends = to_offset(index, range_.start, encoding), to_offset(index, range_.end, encoding)
    return Span(min(ends), max(ends))


def to_position(index: Lines, offset: int, encoding: Encoding) -> lsp.Position:
    """Return an offset as an editor's position."""
    return lsp.Position(*positions.to_position(index, offset, encoding))


def to_range(index: Lines, span: Span, encoding: Encoding) -> lsp.Range:
    """Return a span as an editor's range."""
    return lsp.Range(to_position(index, span.start, encoding), to_position(index, span.end, encoding))


def to_encoding(kind: lsp.PositionEncodingKind | str | None) -> Encoding:
    """Return the encoding that was agreed on."""
    name = kind.value if isinstance(kind, lsp.PositionEncodingKind) else kind
    return "utf-8" if name == "utf-8" else "utf-32" if name == "utf-32" else "utf-16"


def to_path(uri: str) -> Path | None:
    """Return the file that a URI names, a notebook's for one of its cells; None where it names none."""
    try:
        parts = urlsplit(uri)
        if parts.scheme not in ("file", "vscode-notebook-cell", "vscode-notebook") or not parts.path.strip("/"):
            return None
        path = Path(_pathname(parts.path))
        return path if path.is_absolute() and "\0" not in str(path) else None
    except ValueError:
        return None


def _pathname(path: str) -> str:
    if os.name != "nt":
        return unquote(path)
    # Elsewhere it does no more than that, and brings all of HTTP with it.
    from urllib.request import url2pathname

    return url2pathname(path)


def to_item(
    index: Lines, at: int, text: str, *, to_line_end: bool, encoding: Encoding, command: lsp.Command
) -> lsp.InlineCompletionItem:
    """Return text to insert at an offset, as an item that the editor shows.

    Neovim draws an empty range best. VS Code shows text with a line break only where the range reaches the line's end,
    so with `to_line_end` such a text replaces the rest of the line by itself and what was there.
    """
    end = at
    if to_line_end and ("\n" in text or "\r" in text):
        end = index.ends[index.at(at)]
        text += index.text[at:end]
    return lsp.InlineCompletionItem(insert_text=text, range=to_range(index, Span(at, end), encoding), command=command)


def to_replacing_item(
    index: Lines, replaced: Span, text: str, *, encoding: Encoding, command: lsp.Command
) -> lsp.InlineCompletionItem:
    """Return text that replaces a span, such as what the editor's own list has selected and what goes on behind it."""
    return lsp.InlineCompletionItem(insert_text=text, range=to_range(index, replaced, encoding), command=command)


def to_completion_item(index: Lines, at: int, text: str, *, encoding: Encoding, detail: str) -> lsp.CompletionItem:
    """Return text to insert at an offset, as an item of an ordinary completion list.

    Lists are filtered by the word before the cursor, so the item begins with that word and replaces it.
    """
    line_start = index.starts[index.at(at)]
    start = at
    while start > line_start and (index.text[start - 1].isalnum() or index.text[start - 1] == "_"):
        start -= 1
    whole = index.text[start:at] + text
    lines = whole.strip().split("\n")
    label = lines[0].strip() + (" …" if len(lines) > 1 else "")
    return lsp.CompletionItem(
        label=label or "…",
        kind=lsp.CompletionItemKind.Snippet if len(lines) > 1 else lsp.CompletionItemKind.Text,
        detail=detail,
        documentation=whole if len(lines) > 1 else None,
        filter_text=whole.split("\n")[0].strip() or whole,
        sort_text="\U0010ffff",
        text_edit=lsp.TextEdit(to_range(index, Span(start, at), encoding), whole),
        insert_text_mode=lsp.InsertTextMode.AsIs,
    )


def to_workspace_edit(
    uri: str, version: int | None, index: Lines, edits: Sequence[Edit], encoding: Encoding, *, versioned: bool, label: str = ""
) -> lsp.WorkspaceEdit:
    """Return edits of one version of a document; with `label` they carry a change annotation.

    With `versioned` the editor refuses them for any other version; not every editor can read that form.
    """
    if not versioned:
        plain = [lsp.TextEdit(to_range(index, edit.span, encoding), edit.text) for edit in edits]
        return lsp.WorkspaceEdit(changes={uri: plain})
    document_edits: list[lsp.TextEdit | lsp.AnnotatedTextEdit | lsp.SnippetTextEdit] = []
    for edit in edits:
        range_ = to_range(index, edit.span, encoding)
        document_edits.append(
            lsp.AnnotatedTextEdit(_ANNOTATION, range_, edit.text) if label else lsp.TextEdit(range_, edit.text)
        )
    document = lsp.OptionalVersionedTextDocumentIdentifier(uri=uri, version=version)
    return lsp.WorkspaceEdit(
        document_changes=[lsp.TextDocumentEdit(text_document=document, edits=document_edits)],
        change_annotations={_ANNOTATION: lsp.ChangeAnnotation(label, description="written by a model")} if label else None,
    )


def from_points(index: Lines, start: tuple[int, int], end: tuple[int, int], encoding: Encoding) -> Span:
    """Return the span between two lines and characters."""
    return to_span(index, lsp.Range(lsp.Position(*start), lsp.Position(*end)), encoding)


def to_points(index: Lines, span: Span, encoding: Encoding) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return a span as two lines and characters."""
    return positions.to_position(index, span.start, encoding), positions.to_position(index, span.end, encoding)


def _point(position: lsp.Position) -> tuple[int, int]:
    return position.line, position.character
