"""Lines that stand for missing code, recognised without a syntax tree. The rows are in placeholders.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.core import placeholders
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("placeholders.txt"))
REPLACED, LINES, LINES_WITH_MORE, CODE, SAYING_NOTHING, SAYING_SOMETHING = ROWS.values()


@pytest.mark.parametrize("line", LINES)
def test_a_placeholder_of_any_language_is_recognised(line: str) -> None:
    assert placeholders.is_line(line)
    assert placeholders.removed(f"before\n    {line}  \nafter\n") == "before\nafter\n"


@pytest.mark.parametrize("line", LINES_WITH_MORE)
def test_more_placeholders_and_the_ends_of_blocks_may_follow_on_the_line(line: str) -> None:
    assert placeholders.is_line(line)


@pytest.mark.parametrize("line", CODE)
def test_code_is_not_a_placeholder(line: str) -> None:
    assert not placeholders.is_line(line)
    assert placeholders.removed(f"{line}\n") == f"{line}\n"


def test_the_unfinished_last_line_stays() -> None:
    # It is the line of the hole, and drafts are compared with its white space.
    assert placeholders.removed("def f():\n    pass\n\ndef g():\n    ") == "def f():\n\ndef g():\n    "
    assert placeholders.removed("    pass") == "    pass"


@pytest.mark.parametrize("text", SAYING_NOTHING)
def test_docstrings_and_placeholders_say_nothing(text: str) -> None:
    assert placeholders.says_nothing(text)


@pytest.mark.parametrize("text", SAYING_SOMETHING)
def test_code_beside_a_docstring_says_something(text: str) -> None:
    assert not placeholders.says_nothing(text)


@pytest.mark.parametrize(("language", "before", "after", "expected"), REPLACED)
def test_shrinking_is_detected_from_the_texts_alone(language: str, before: str, after: str, expected: str) -> None:
    assert placeholders.shrinks(before, after, language) is (expected == "less")
