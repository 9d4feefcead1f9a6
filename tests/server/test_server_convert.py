"""What clients are told apart by, and URIs as paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lsprotocol import converters
from lsprotocol import types as lsp

from dg_lsp.core import positions
from dg_lsp.core.values import Edit, Span
from dg_lsp.server import convert
from dg_lsp.server.configuration import Client
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("uris.txt"))

CONVERTER = converters.get_converter()


@pytest.mark.parametrize(("uri", "path"), ROWS["paths"])
def test_uris_name_files_or_nothing(uri: str, path: str) -> None:
    assert str(convert.to_path(uri) or "none") == path


def read(name: str = "", **capabilities: Any) -> Client:
    return Client(
        CONVERTER.structure(
            {"processId": None, "rootUri": None, "capabilities": capabilities, "clientInfo": {"name": name}},
            lsp.InitializeParams,
        )
    )


@pytest.mark.parametrize(
    ("name", "text_document", "expected"),
    [
        ("Visual Studio Code", {"inlineCompletion": {"dynamicRegistration": True}}, {"to_line_end", "inline"}),
        ("VSCodium", {}, {"to_line_end"}),
        ("Neovim", {"inlineCompletion": {}}, {"inline"}),
        ("emacs", {"inlineCompletion": None}, {"inline"}),
        ("helix", {}, set()),
    ],
)
def test_editors_are_recognized_by_name_and_capabilities(name: str, text_document: dict[str, Any], expected: set[str]) -> None:
    client = read(name, textDocument=text_document)
    assert {flag for flag in ("to_line_end", "inline") if getattr(client, flag)} == expected


def test_edits_are_plain_versioned_or_annotated() -> None:
    index = positions.lines("é = 1\n")
    edits = (Edit(Span(4, 5), "2"),)
    plain = convert.to_workspace_edit("u", 3, index, edits, "utf-8", versioned=False)
    assert plain.changes is not None
    assert plain.changes["u"][0].range == lsp.Range(lsp.Position(0, 5), lsp.Position(0, 6))
    versioned = convert.to_workspace_edit("u", 3, index, edits, "utf-8", versioned=True, label="Filling")
    assert versioned.document_changes is not None
    (change,) = versioned.document_changes
    assert isinstance(change, lsp.TextDocumentEdit)
    assert change.text_document.version == 3
    assert versioned.change_annotations


@pytest.mark.parametrize(
    ("text", "answer", "label", "new"),
    [("x = fo", "o(a)", "foo(a)", "foo(a)"), ("x = ", "f(\n  a)", "f( …", "f(\n  a)"), ("é_1", "", "é_1", "é_1")],
)
def test_items_of_lists_replace_the_word_before_the_cursor(text: str, answer: str, label: str, new: str) -> None:
    item = convert.to_completion_item(positions.lines(text), len(text), answer, encoding="utf-32")
    assert item.label == label
    assert isinstance(item.text_edit, lsp.TextEdit)
    assert item.text_edit.new_text == new
    assert item.text_edit.range.end == lsp.Position(0, len(text))
