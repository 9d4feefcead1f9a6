"""The table finds languages by file name, extension and first line, and strings without a tree; each entry's grammar loads."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import languages
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("languages.txt"))


@pytest.mark.parametrize(("name", "text", "expected"), ROWS["names"])
def test_a_file_s_language_comes_from_its_name_or_text(name: str, text: str, expected: str) -> None:
    language = languages.for_path(name, text)
    assert (language.name if language else "none") == expected


def test_languages_are_found_by_name_and_by_editor_id() -> None:
    assert all(languages.get(language.name) is language for language in languages.TABLE)
    assert all(languages.by_id(one) is language for language in languages.TABLE for one in language.lsp_ids)
    assert languages.by_id("Python") is languages.get("python")
    assert languages.get("") is None
    assert languages.by_id("cobol") is None


@pytest.mark.parametrize(
    ("name", "text", "lsp_id", "expected"),
    [
        ("a.h", "int a;\n" * 4_000 + "class A {};", "c", "cpp"),
        ("a.h", "class A {};", "c", "cpp"),
        ("a.h", "int a;", "cpp", "cpp"),
        ("", "class A {};", "c", "c"),
    ],
)
def test_a_text_s_signs_count_more_than_an_editor_s_id(name: str, text: str, lsp_id: str, expected: str) -> None:
    assert languages.for_path(name, text, lsp_id) is languages.get(expected)


@pytest.mark.parametrize("language", languages.TABLE, ids=lambda language: language.name)
def test_every_grammar_and_query_loads(language: languages.Language) -> None:
    assert languages.query(language).capture_count > 5
    assert languages.grammar(language).node_kind_count > 50
    re.compile(language.opens)
    assert language.indent.isspace()


def test_no_two_languages_share_an_extension_id_name_or_shebang() -> None:
    for claims in ("extensions", "lsp_ids", "filenames", "shebangs"):
        every = [one for language in languages.TABLE for one in getattr(language, claims)]
        assert len(every) == len(set(every))


def test_a_missing_grammar_raises_an_error_for_the_user() -> None:
    (python, *_) = languages.TABLE
    with pytest.raises(languages.GrammarError, match=r"the grammar for python \(no_such_grammar\) can't be loaded"):
        languages.grammar(dataclasses.replace(python, grammar=("no_such_grammar", "language")))


def test_code_that_finds_and_fills_holes_names_no_language_but_python() -> None:
    """Only Python is named, for its compiler; a new language needs no other code."""
    core, names = Path(languages.__file__).parent, {language.name for language in languages.TABLE} - {"python"}
    occurrences = [
        f"{path.name}:{node.lineno} {node.value}"
        for path in [*core.glob("*.py"), *(core.parent / "infill").glob("*.py")]
        if path.name != "languages.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert occurrences == []


LANGUAGES = ["", *(language.name for language in languages.TABLE)]


@given(text=st.text("ab(){}[]'\"`\\#/*- \n", max_size=60), language=st.sampled_from(LANGUAGES))
def test_masking_strings_and_comments_keeps_length_and_lines(text: str, language: str) -> None:
    code = languages.mask(text, language)
    assert len(code) == len(text)
    assert all(one in (other, "\0") for one, other in zip(code, text, strict=True))
