"""The language of a text without a file name, and where the evidence is too weak."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.core import languages
from dg_lsp.core.values import Snippet
from dg_lsp.engine.serve import prompts
from dg_lsp.engine.serve.prompts import Parts
from tests import marked
from tests.core.test_fim import AFTER, BEFORE, PUBLISHED

# A function in each language, with a cursor in it, and languages and formats that are not in the table.
CODE, FOREIGN = (marked.drawings(Path(__file__).parent / "prompts" / f"{name}.txt") for name in ("code", "foreign"))


def cut(text: str) -> tuple[str, str]:
    before, _, after = text.partition("$0")
    return before, after


@pytest.mark.parametrize("name", CODE)
def test_a_language_is_recognised_by_how_code_looks(name: str) -> None:
    assert prompts.declared_language(cut(CODE[name])[0]) is None
    assert prompts.language(*cut(CODE[name])) == name


def test_every_language_of_the_table_has_its_example() -> None:
    assert list(CODE) == [language.name for language in languages.TABLE]


@pytest.mark.parametrize("name", CODE)
def test_a_language_is_recognised_deep_in_a_long_file(name: str) -> None:
    before, after = cut(CODE[name])
    # Text that occurs once, at the top of a file.
    other = f"\n{before}0{after}".replace("import java.util.List;", "").replace("<?php", "") * 30
    assert prompts.language(f"{other}\n{before.replace('<?php', '')}", f"{after}{other}") == name


@pytest.mark.parametrize("name", FOREIGN)
def test_weak_evidence_gives_no_language(name: str) -> None:
    assert prompts.language(*cut(FOREIGN[name])) == ""


@pytest.mark.parametrize("text", ["", "\n", "x = 1\n", "foo(bar)\n", "return x\n", "a: b\n", "$", "\ud800 def", "\0" * 99])
def test_very_little_text_gives_no_language(text: str) -> None:
    assert prompts.language(text) == ""
    assert prompts.language("", text) == ""


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("# path: shop/total.py\nx\n", "python"),
        ("// Path: shop/total.ts\nx\n", "typescript"),
        ("-- file name: total.lua\n", "lua"),
        ("/* File: total.c */\n", "c"),
        ("# shop/total.rb\n", "ruby"),
        ("<|file_sep|>total.rs\nx\n", "rust"),
        ("<file_sep>total.java\nx\n", "java"),
        ("<filename>total.php\nx\n", "php"),
        # Continue sends other files first, including the clipboard, then the path of this file.
        ("# Path: Untitled.txt\n# total of what\n#\n# Path: shop/a.ts\n# x = 1\n# shop/total.py\nx\n", "python"),
        ("\n// shop/total.ts\nx\n", "typescript"),
        ("# Path: shop/a.ts\n# x\n# shop/notes.txt\nx\n", ""),
        ("# language: python\n# indentation: use 4 spaces for a tab\nx", "python"),
        ("// language: c++\n", "cpp"),
        ("/* language: c */\n", "c"),
        ("#!/usr/bin/env bash\nx\n", "bash"),
        # A declared language that is not in the table counts, whatever the text looks like.
        ("# path: notes.txt\n", ""),
        ("# language: cobol\n", ""),
        ("#!/usr/bin/perl\n", ""),
        # A shebang counts before a path below it, which may belong to any file.
        ("#!/usr/bin/env python3\n# example.com\n", "python"),
        # These declare no language.
        ("# -*- coding: utf-8 -*-\n", None),
        ("# path: the one to take.\n", None),
        ("x = 'path: a.py'\n", None),
        ("# see total.py\n", None),
        ("", None),
    ],
)
def test_a_declared_language_counts(before: str, expected: str | None) -> None:
    assert prompts.declared_language(before) == expected
    if expected is not None:
        code = "".join(cut(CODE["go" if expected != "go" else "lua"]))
        assert prompts.language(before + code, code) == expected


@pytest.mark.parametrize("text", ["# path: shop/total.py\r\nx\r\n", "# shop/total.py\r\n", "# language: python\r\n"])
def test_windows_line_ends_are_accepted(text: str) -> None:
    assert prompts.language(text) == "python"
    for name in CODE:
        assert prompts.language(*(part.replace("\n", "\r\n") for part in cut(CODE[name]))) == name


def test_the_last_of_several_files_counts() -> None:
    assert prompts.language("<|repo_name|>shop\n<|file_sep|>a.go\npackage a\n<|file_sep|>total.rs\nx\n") == "rust"


def test_paths_of_other_files_are_only_a_hint() -> None:
    once = "def total(prices):\n    return "
    assert prompts.language(once) == ""
    assert prompts.language(once, paths=["a.py"]) == "python"
    assert prompts.language(once, paths=["a.lua", "unknown"]) == ""
    assert prompts.language(*cut(FOREIGN["kotlin"]), paths=["a.py", "a.java"]) == ""
    assert prompts.language(*cut(CODE["go"]), paths=["a.py"]) == "go"


def test_broken_code_is_recognised() -> None:
    before, after = cut(CODE["python"])
    assert prompts.language(f"import os\nx = = 1\n\n{before}", f"{after}\n\n{before}0{after}") == "python"


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_prompt_in_a_models_template_is_read(model: str) -> None:
    assert prompts.read(PUBLISHED[model]) == Parts(BEFORE, AFTER)


def test_a_template_without_spaces_is_read_too() -> None:
    assert prompts.read(f"<PRE>{BEFORE}<SUF>{AFTER}<MID>") == Parts(BEFORE, AFTER)


def test_other_files_before_the_markers_are_read() -> None:
    marked = f"<|repo_name|>shop\n<|file_sep|>a.py\nA = 1\n<|file_sep|>b.py\n{PUBLISHED['qwen2.5-coder:7b-base']}"
    assert prompts.read(marked) == Parts(BEFORE, AFTER, "b.py", (Snippet("a.py", "A = 1\n"),))
    mellum = f"<filename>a.py\nA = 1\n<filename>b.py\n{PUBLISHED['JetBrains/Mellum-4b-base']}"
    assert prompts.read(mellum) == Parts(BEFORE, AFTER, "b.py", (Snippet("a.py", "A = 1\n"),))


@pytest.mark.parametrize(
    "text",
    [
        "",
        BEFORE,
        "x = '<fim_prefix>a<fim_suffix>b<fim_middle>'\n",
        "<fim_prefix>a<fim_suffix>b<fim_middle>\n",
        "# see <fim_prefix>a<fim_suffix>b<fim_middle>",
        "<fim_prefix>only",
        "<fim_prefix><fim_middle>",
        "[PREFIX]a[SUFFIX]b",
        "x[SUFFIX]a[PREFIX]b",
        "<|fim_prefix|>a<fim_suffix>b<|fim_middle|>",
    ],
)
def test_code_that_contains_markers_stays_code(text: str) -> None:
    assert prompts.read(text) is None
