"""Convert between the protocol's values and ours.

No other module of the server converts positions, and no conversion makes a decision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from lsprotocol import types as lsp

from dg_lsp.core import positions
from dg_lsp.core.place import first_line
from dg_lsp.core.positions import Encoding, Lines
from dg_lsp.core.values import Edit, Span
from dg_lsp.server import on_server

_ANNOTATION = "dg-lsp"


def to_offset(index: Lines, position: lsp.Position, encoding: Encoding) -> int:
    """Return an editor's position as an offset."""
    return positions.to_offset(index, position.line, position.character, encoding)


def to_span(index: Lines, range_: lsp.Range, encoding: Encoding) -> Span:
    """Return an editor's range as a span, whichever end comes first."""
    ends = to_offset(index, range_.start, encoding), to_offset(index, range_.end, encoding)
    return Span(min(ends), max(ends))


def to_range(index: Lines, span: Span, encoding: Encoding) -> lsp.Range:
    """Return a span as an editor's range."""
    start, end = (lsp.Position(*positions.to_position(index, offset, encoding)) for offset in (span.start, span.end))
    return lsp.Range(start, end)


def to_encoding(kind: lsp.PositionEncodingKind | str | None) -> Encoding:
    """Return our name of a position encoding; UTF-16 for an unknown one."""
    name = kind.value if isinstance(kind, lsp.PositionEncodingKind) else kind
    return "utf-8" if name == "utf-8" else "utf-32" if name == "utf-32" else "utf-16"


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


# The beginning of a URI; one letter would be a drive.
_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:")
# A repository, its submodule, and a file at a revision, which is a hash or stands before a colon.
_AT_REVISION = re.compile(
    r"(.*?)/\.git/(?:modules/(.+?)(?=//)|worktrees/[^/]+(?=//))?/*(?:[0-9a-f]+/|:?[^:]*:/*)(.+)", re.DOTALL
)
_INSIDE = re.compile(r"!/|::")  # what is behind it lies in an archive


def to_paths(uri: str, folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the full paths that a document belongs to, by all that its URI names; a relative one may be in each folder.

    A document of another scheme may show a file at another time, and have its path in the URI's path or query, or after the
    path of the repository: `git:/code/a.py?{"path": "/code/a.py", …}`, `fugitive:///code/.git//0/a.py`. A document
    that was never saved may be in each folder too.
    """
    if (path := to_path(uri)) is not None:
        return (path,)
    folders = tuple(folders)
    if name := unsaved_name(uri):
        return tuple(folder / name for folder in folders)
    names = (_at_revision(_INSIDE.split(text)[0]) for text in _named(uri))
    paths = [Path(name) for name in names if "\0" not in name]
    full = [folder / path for path in paths for folder in ((path,) if path.is_absolute() else folders)]
    return tuple(dict.fromkeys((*full, *on_server.in_copies(uri, folders))))


def unsaved_name(uri: str) -> str:
    """Return the name of a document that was never saved: `untitled:a.py`; "" if the editor made it up, or it has a folder."""
    scheme, _, name = uri.partition(":")
    name = unquote(re.split(r"[?#]", name)[0], errors="surrogateescape")
    # A name such as `Untitled-1` has no ending.
    is_name = scheme.lower() == "untitled" and "." in name and "/" not in name and "\0" not in name
    return name if is_name else ""


def _named(uri: str) -> Iterator[str]:
    """Yield the paths in a URI and in the URIs that it holds; a relative one also below each root that the URI names."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return
    path, *others = (unquote(part, errors="surrogateescape") for part in (parts.path, parts.query, parts.fragment))
    # GitLens encodes what belongs to a revision as the host.
    host = re.sub(r"\A[\w.-]+(?:\+|%2B)", "", parts.netloc, flags=re.IGNORECASE)
    if re.fullmatch(r"(?:[0-9a-f]{2}){4,}", host):
        others.append(bytes.fromhex(host).decode("utf-8", "replace"))
    values = [("", path), *(value for text in others for value in _values(text))]
    roots = [value.rstrip("/") for key, value in values if _ROOT.search(key) and value.startswith("/")]
    for key, value in values:
        if _SCHEME.match(value):
            yield from _named(value)
        elif value.startswith("/") or (value is path and "/" in value) or _PATH.search(key):
            yield value
            yield from (f"{root}/{value.lstrip('/')}" for root in roots if not value.startswith(root))


# The names of values in a query.
_ROOT = re.compile(r"(?i:root|repo|workspace|folder)")
_PATH = re.compile(r"(?i:path|file|uri|resource)")


def _values(text: str) -> Iterator[tuple[str, str]]:
    """Yield the texts in a query with their names: those of its JSON, or its parameters."""
    try:
        todo = [("", json.loads(text))]
    except (ValueError, RecursionError):
        yield from parse_qsl(text, errors="surrogateescape")
        yield "", text
        return
    while todo:
        key, value = todo.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, dict):
            todo += value.items()
        elif isinstance(value, list):
            todo += ((key, item) for item in value)


def _at_revision(path: str) -> str:
    """Return the path of the file that a path in a `.git` folder means at a revision; any other path as it is."""
    match = _AT_REVISION.fullmatch(path)
    return "/".join(filter(None, match.groups())) if match else path


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
