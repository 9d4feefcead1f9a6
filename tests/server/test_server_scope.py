"""An expression in an interpolated string is code, complete and half typed; the string around it is a string."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.values import Document
from dg_lsp.server import reasons
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("scopes.txt"))
# Comments that look like calls of a macro, which a search from the cursor must not go through one by one.
LONG = [
    ("rust", "/*" + 100 * "as format!(\n" + '1" */\nconst S: &str = "{a$0}";'),
    ("rust", 'fn f() { let s = "' + 100 * "as format!(\n" + '"; println!("a$0"); }'),
]


def scope(language: str, text: str) -> str:
    document = Document("file:///a", language, text.replace("$0", ""))
    return reasons.scope_at(document, syntaxes.of(document), text.index("$0"))


def followed(language: str) -> tuple[str, ...]:
    """Return what may follow a text of this language."""
    mark = "#" if language in ("python", "ruby", "bash") else "//"
    return "", "\n", f"\n\n{mark} More, that's all\n"


@pytest.mark.parametrize(("language", "text"), ROWS["code in a string"])
def test_an_expression_in_an_interpolated_string_is_code(language: str, text: str) -> None:
    assert {scope(language, text + after) for after in followed(language)} == {"code"}


@pytest.mark.parametrize(("language", "text"), [*ROWS["strings around code"], *LONG])
def test_the_rest_of_an_interpolated_string_is_a_string(language: str, text: str) -> None:
    assert {scope(language, text + after) for after in followed(language)} == {"string"}


@pytest.mark.parametrize(("language", "text", "expected"), ROWS["other places"])
def test_the_cursor_is_in_code_a_string_or_a_comment(language: str, text: str, expected: str) -> None:
    assert scope(language, text) == expected


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "def f(\n    a = 'x'\n" + "    b = 1\n" * 300 + "    name=f'{a} and $0\n    other=1)\n"),
        ("typescript", "f({\n" + "  b: 1,\n" * 400 + "  c: `a ${b} c$0,\n  d: 1,\n});\n"),
        ("java", "class A {\n  void f() {\n" + "    int x = 1;\n" * 200 + '    String s = "abc$0\n  }\n}\n'),
    ],
)
def test_a_string_is_open_far_below_the_start_of_an_error(language: str, text: str) -> None:
    assert scope(language, text) == "string"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("java", 'def (((\nclass A {\n  String s = "abc";\n  int f() {\n    return this.$0\n  }\n}\n'),
        ("go", "package a\n\nfunc f( {\n\tx := `a\n  it's b`, func(m map[s$0\n}\n"),
        ("python", "def f(((\n    s = 'abc'\n    t = f'{s}'\n    return s.$0\n"),
    ],
)
def test_code_below_an_error_stays_code(language: str, text: str) -> None:
    assert scope(language, text) == "code"
