"""Convert between the protocol's values and ours.

No other module of the server converts positions, and no conversion makes a decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lsprotocol import types as lsp

from dg_lsp.core import positions
from dg_lsp.core.place import first_line
from dg_lsp.core.positions import Encoding, Lines
from dg_lsp.core.values import Edit, Span

_ANNOTATION = "dg-lsp"


def to_offset(index: Lines, position: lsp.Position, encoding: Encoding) -> int:
    return positions.to_offset(index, position.line, position.character, encoding)


def to_span(index: Lines, range_: lsp.Range, encoding: Encoding) -> Span:
    """Return an editor's range as a span, whichever end comes first."""
    ends = to_offset(index, range_.start, encoding), to_offset(index, range_.end, encoding)
    return Span(min(ends), max(ends))


def to_range(index: Lines, span: Span, encoding: Encoding) -> lsp.Range:
    start, end = (lsp.Position(*positions.to_position(index, offset, encoding)) for offset in (span.start, span.end))
    return lsp.Range(start, end)


def to_path(uri: str) -> Path | None:
    """Return the path of the file that a URI names, for a cell that of its notebook; None when it names no file."""
    try:
        parts = urlsplit(uri)
        if parts.scheme not in ("file", "vscode-notebook-cell", "vscode-notebook") or not parts.path.strip("/"):
            return None
        # Names that are not UTF-8 are kept byte for byte; otherwise the path names no file, or another one.
        path = Path(unquote(parts.path, errors="surrogateescape"))
        return path if path.is_absolute() and "\0" not in str(path) else None
    except ValueError:
        return None


# Documents that are not saved yet, which Neovim calls `file://`, and those that an editor shows from another machine.
_UNSAVED, _ELSEWHERE = ("", "file", "untitled", "inmemory"), ("vscode-vfs", "vscode-remote")


def is_shown(uri: str) -> bool:
    """Return whether a document is no file, and not one to be: a revision (`git:`), an archive's, an editor's output.

    Such a URI names its file in the way of the extension that shows it, so no rule for the file could be relied on.
    """
    return to_path(uri) is None and not is_elsewhere(uri) and _scheme(uri) not in _UNSAVED


def is_elsewhere(uri: str) -> bool:
    """Return whether a document is a file of another machine, whose ignore rules are not here."""
    return _scheme(uri) in _ELSEWHERE


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].lower()


def to_paths(uri: str, folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the full paths that a document has or may get: a named one that was never saved may be in each folder."""
    if (path := to_path(uri)) is not None:
        return (path,)
    name = unquote(re.split(r"[?#]", uri.partition(":")[2])[0], errors="surrogateescape")
    # The editor made up a name such as `Untitled-1`, which has no ending.
    if _scheme(uri) != "untitled" or "\0" in name or not ("." in name or "/" in name):
        return ()
    return (Path(f"/{name.lstrip('/')}"),) if name.startswith("/") else tuple(folder / name for folder in folders)


def innermost(path: Path, tops: Mapping[Path, Path]) -> Path | None:
    """Return the innermost folder around a path, or None; `tops` has where each folder is, as it is written or on the disk."""
    around = [folder for folder, top in tops.items() if path.is_relative_to(top)]
    return max(around, key=lambda folder: len(tops[folder].parts), default=None)


def to_item(index: Lines, replaced: Span, text: str, *, to_line_end: bool, encoding: Encoding) -> lsp.InlineCompletionItem:
    """Return text in place of a span, as an item that the editor shows.

    Neovim needs an empty range. VS Code shows multi-line text only where the range reaches the line's end. With
    `to_line_end` a multi-line item at an empty span therefore replaces the rest of the line, and repeats that rest at its end.
    """
    if to_line_end and ("\n" in text or "\r" in text):
        replaced = Span(replaced.start, index.end(index.at(replaced.start)))
        text += index.text[replaced.start : replaced.end]
    return lsp.InlineCompletionItem(insert_text=text, range=to_range(index, replaced, encoding))


def to_completion_item(index: Lines, at: int, text: str, *, encoding: Encoding) -> lsp.CompletionItem:
    """Return text to insert at an offset, as an item of an ordinary completion list.

    Editors filter lists by the word before the cursor. The item therefore replaces that word by itself plus the text.
    """
    line_start = index.start(index.at(at))
    start = at
    while start > line_start and (index.text[start - 1].isalnum() or index.text[start - 1] == "_"):
        start -= 1
    whole = index.text[start:at] + text
    lines = whole.strip().split("\n")
    label = lines[0].strip() + (" …" if len(lines) > 1 else "")
    return lsp.CompletionItem(
        label=label or "…",
        kind=lsp.CompletionItemKind.Snippet if len(lines) > 1 else lsp.CompletionItemKind.Text,
        detail="dg-lsp",
        documentation=whole if len(lines) > 1 else None,
        filter_text=first_line(whole).strip() or whole,
        sort_text="\U0010ffff",
        text_edit=lsp.TextEdit(to_range(index, Span(start, at), encoding), whole),
        insert_text_mode=lsp.InsertTextMode.AsIs,
    )


def to_workspace_edit(
    uri: str,
    version: int | None,
    index: Lines,
    edits: Sequence[Edit],
    encoding: Encoding,
    *,
    versioned: bool,
    label: str = "",
    asks: bool = False,
) -> lsp.WorkspaceEdit:
    """Return the edits of a document as a workspace edit.

    With `versioned` the editor refuses them for any other version of the document; not every editor reads that form.
    Only that form has change annotations: `label` adds one, and with `asks` the editor asks for confirmation.
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
    annotation = lsp.ChangeAnnotation(label, needs_confirmation=asks or None, description="written by a model")
    return lsp.WorkspaceEdit(
        document_changes=[lsp.TextDocumentEdit(text_document=document, edits=document_edits)],
        change_annotations={_ANNOTATION: annotation} if label else None,
    )
