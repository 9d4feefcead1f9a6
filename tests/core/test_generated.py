"""Which files say of themselves that a tool writes them. Each row is the beginning of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.core import generated, languages
from dg_lsp.core.values import Document
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("generated.txt"))


@pytest.mark.parametrize(("name", "text"), [*ROWS["generated"], *ROWS["written"]])
def test_a_statement_that_the_file_is_generated_is_found(name: str, text: str) -> None:
    language = languages.for_path(name)
    document = Document(f"file:///{name}", language.name if language else "", text)
    line = generated.line_of(document)
    assert bool(line) == ((name, text) in [row.values for row in ROWS["generated"]])
    assert line <= text.count("\n") + 1
