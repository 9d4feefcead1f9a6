"""What the prompts of other clients declare: the language, and both sides of the cursor."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.core.values import Snippet
from dg_lsp.engine.serve.compat import Parts, declared_language, read_prompt
from tests import marked
from tests.core.test_templates import AFTER, BEFORE, PUBLISHED

ROWS = marked.rows(Path(__file__).with_name("prompts.txt"))


@pytest.mark.parametrize(("before", "expected"), ROWS["languages"])
def test_a_declared_language_counts(before: str, expected: str) -> None:
    assert declared_language(before) == expected
    assert declared_language(f"{before}func total() int {{\n\treturn ") == expected


@pytest.mark.parametrize("text", ["# path: shop/total.py\r\nx\r\n", "# shop/total.py\r\n", "# language: python\r\n"])
def test_windows_line_ends_are_accepted(text: str) -> None:
    assert declared_language(text) == "python"


def test_the_last_of_several_files_counts() -> None:
    assert declared_language("// box.h\nclass Box {\n  public:\n    int a() { return ") == "cpp"
    assert declared_language("<|repo_name|>shop\n<|file_sep|>a.go\npackage a\n<|file_sep|>total.rs\nx\n") == "rust"


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_prompt_in_a_models_template_is_read(model: str) -> None:
    assert read_prompt(PUBLISHED[model]) == Parts(BEFORE, AFTER)


def test_a_template_without_spaces_is_read_too() -> None:
    assert read_prompt(f"<PRE>{BEFORE}<SUF>{AFTER}<MID>") == Parts(BEFORE, AFTER)


def test_other_files_before_the_markers_are_read() -> None:
    marked = f"<|repo_name|>shop\n<|file_sep|>a.py\nA = 1\n<|file_sep|>b.py\n{PUBLISHED['qwen2.5-coder:7b-base']}"
    assert read_prompt(marked) == Parts(BEFORE, AFTER, "b.py", (Snippet("a.py", "A = 1\n"),))
    mellum = f"<filename>a.py\nA = 1\n<filename>b.py\n{PUBLISHED['JetBrains/Mellum-4b-base']}"
    assert read_prompt(mellum) == Parts(BEFORE, AFTER, "b.py", (Snippet("a.py", "A = 1\n"),))


@pytest.mark.parametrize("text", ROWS["code"])
def test_code_that_contains_markers_stays_code(text: str) -> None:
    assert read_prompt(text) is None
