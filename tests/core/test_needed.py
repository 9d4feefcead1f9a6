"""Names that the code after a hole needs, drawn with ⟦⟧ for the hole."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from dg_lsp.core import languages, scope, syntax
from dg_lsp.core.values import Span
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("needed.txt"))

LOOP = """
def mean(values):
    ⟦⟧
    for value in values:
        total += value
    return total / count
"""


def names(drawn: str, language: str = "python") -> tuple[str, ...]:
    before, inner, after = drawn.partition("⟦")[0], *drawn.partition("⟦")[2].split("⟧", 1)
    known = languages.get(language)
    assert known is not None
    return scope.needed_names(syntax.parse(before + inner + after, known), Span(len(before), len(before + inner)))


@pytest.mark.parametrize(("drawn", "expected"), ROWS["needed"])
def test_what_the_code_after_a_hole_uses_and_nothing_binds_is_needed(drawn: str, expected: str) -> None:
    assert ", ".join(names(drawn)) == expected


@pytest.mark.parametrize("drawn", ROWS["in doubt"])
def test_in_doubt_nothing_is_needed(drawn: str) -> None:
    assert names(drawn) == ()


@pytest.mark.parametrize(("drawn", "expected"), ROWS["in JavaScript"])
@pytest.mark.parametrize("language", ["javascript", "typescript", "tsx"])
def test_in_javascript_a_name_that_is_only_used_is_needed(drawn: str, expected: str, language: str) -> None:
    assert ", ".join(names(drawn, language)) == expected


def test_other_languages_need_nothing() -> None:
    assert names("func f() int {\n\t⟦⟧\n\treturn x\n}\n", "go") == ()


@pytest.mark.parametrize(("answer", "expected"), ROWS["missing"])
def test_an_answer_misses_the_names_that_it_does_not_mention(answer: str, expected: str) -> None:
    assert ", ".join(scope.missing(("total", "count"), answer)) == expected


@pytest.mark.parametrize(("drawn", "answer", "expected"), ROWS["starts of lines"])
def test_a_line_that_binds_a_name_starts_where_a_line_may_start(drawn: str, answer: str, expected: str) -> None:
    before, after = drawn.split("⟦⟧")
    assert scope.next_start(before, answer, after, "x", "python") == expected


def test_in_javascript_a_line_declares_the_name() -> None:
    assert scope.next_start("function f() {\n", "", "  return x;\n}\n", "x", "typescript") == "  const x"
    assert scope.next_start("function f() {\n  ", "g();", "\n  return x;\n}\n", "x", "javascript") == "\n  const x"
    for after in ("x += 1;", "x ??= 1;", "x++;", "x = 1;"):
        assert scope.next_start("function f() {\n  ", "", f"\n  {after}\n", "x", "typescript") == "let x"
    for after in ("x == 1;", "x => 1;", "y.x = 1;", "x >= 1;"):
        assert scope.next_start("function f() {\n  ", "", f"\n  {after}\n", "x", "typescript") == "const x"


def test_what_is_needed_is_found_in_large_files_too() -> None:
    many = "".join(f"def f{number}(a):\n    return a + {number}\n\n\n" for number in range(2_000))
    assert names(many + textwrap.dedent(LOOP)) == ("total", "count")
    body = "    a = 1\n" * 10_000
    assert names(f"def f():\n    ⟦⟧\n{body}    return x\n") == ()  # checking it takes too long
    assert names(f"KEY = '{'ab' * 50_000}'\n\ndef f():\n    ⟦⟧\n    return x\n") == ()
