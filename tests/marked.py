"""Read tests' marked text: `$0` is the cursor, two of them a selection, `<hole>…</hole>` an expected hole; and tables of it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.core import syntax as core_syntax
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Hole, Span

_MARK = re.compile(r"(?<!\\)\$0|</?hole>")


def drawings(path: Path) -> dict[str, str]:
    """Return the texts of a file by their names, which stand before each as `=== NAME`."""
    _, *parts = re.split(r"^=== (.*)\n", path.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows(path: Path, n_options: int = 0) -> dict[str, list[Any]]:
    """Return the rows of a file as parameters of a test, by the heading `# NAME: what the fields are` above them.

    Fields are separated by ` ¦ `. `-` is an empty one, and the escapes are those of Python. The first `n_options` are as
    written. A line `## …` says why the rows below it are there.
    """
    found: dict[str, list[Any]] = {}
    heading = ""
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        if line.startswith("# "):
            heading = line.removeprefix("# ").partition(":")[0]
            found[heading] = []
        elif line and heading and not line.startswith("## "):
            fields = line.split(" ¦ ")
            values = [*fields[:n_options], *map(plain, fields[n_options:])]
            found[heading].append(pytest.param(*values, id=f"{path.name}:{number}"))
    return found


def plain(field: str) -> str:
    """Return a field without its escapes."""
    return "" if field == "-" else field.encode("latin-1", "backslashreplace").decode("unicode_escape")


def read(text: str, language: str = "python", uri: str = "file:///code") -> tuple[Document, list[Span], list[Span]]:
    r"""Return the document without marks, its cursors and selections, and its expected holes.

    The text is dedented, and an empty first line left out, so that it can be written below the call. `\$0` is a `$0` that is
    no mark.
    """
    text = textwrap.dedent(text.removeprefix("\n"))
    parts, at, length = [], 0, 0
    cursors: list[int] = []
    starts: list[int] = []
    expected: list[Span] = []
    for mark in _MARK.finditer(text):
        part = text[at : mark.start()].replace(r"\$0", "$0")
        parts.append(part)
        at, length = mark.end(), length + len(part)
        if mark.group() == "$0":
            cursors.append(length)
        elif mark.group() == "<hole>":
            starts.append(length)
        else:
            expected.append(Span(starts.pop(), length))
    parts.append(text[at:].replace(r"\$0", "$0"))
    assert not starts, "a <hole> without </hole>"
    spans = [Span(cursors[0], cursors[-1])] if cursors else []
    return Document(uri, language, "".join(parts)), spans, sorted(expected)


def cursor(text: str, language: str = "python") -> tuple[Document, int]:
    """Return the document and its one cursor."""
    document, spans, _ = read(text, language)
    assert len(spans) == 1, "a text with one $0"
    return document, spans[0].start


def selection(text: str, language: str = "python") -> tuple[Document, Span]:
    """Return the document and its selection, between two cursors."""
    document, spans, _ = read(text, language)
    return document, spans[0]


def holes(text: str, language: str = "python", uri: str = "file:///code") -> tuple[Document, list[Span]]:
    """Return the document and its expected holes."""
    document, _, expected = read(text, language, uri)
    return document, expected


def parse(document: Document) -> Syntax | None:
    """Return the document's syntax, or None where its language has no grammar."""
    return core_syntax.of(document)


def draw(document: Document, holes: Iterable[Hole]) -> str:
    """Return the document with its holes marked, so that a wrong one shows in the test's difference."""
    text = document.text
    for hole in sorted(holes, key=lambda hole: hole.span, reverse=True):
        start, end = hole.span.start, hole.span.end
        text = f"{text[:start]}<hole>{text[start:end]}</hole>{text[end:]}"
    return text


def filled(document: Document, hole: Hole, answer: str) -> str:
    """Return the document with the answer in the hole, lead and trail around it."""
    text = document.text
    return f"{text[: hole.span.start]}{hole.lead}{answer}{hole.trail}{text[hole.span.end :]}"


def make(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder, by their names there; return the folder."""
    for name, text in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root.resolve()
