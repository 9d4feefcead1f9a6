"""Names that the code after a hole needs, drawn with ⟦⟧ for the hole."""

from __future__ import annotations

import textwrap

import pytest

from dg_lsp.core import languages, scope, syntax
from dg_lsp.core.values import Span

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


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (LOOP, ("total", "count")),
        ("def f(xs):\n    ⟦⟧\n        y += x\n    return y\n", ("y", "x")),  # the head of a loop may be missing
        ("def f(xs):\n⟦⟧\n        y += x\n    return y\n", ("y", "x")),
        ("def f(xs):\n    if xs:\n        ⟦⟧\n    return y\n", ("y",)),
        ("def f():\n    ⟦old = 1⟧\n    return new\n", ("new",)),
        ("def f():\n    if 1:\n        ⟦⟧\n    return x\n", ("x",)),
        ("def f():\n    try:\n        ⟦⟧\n    except E:\n        y = 1\n    return x.a + y\n", ("x",)),
        ("⟦⟧\n\ndef f():\n    return json.dumps(Path.cwd())\n", ("json", "Path")),
        ("class A:\n    def f(self):\n        ⟦⟧\n        self.x = x\n", ("x",)),
        ("async def f():\n    ⟦⟧\n    await g\n", ("g",)),
    ],
)
def test_what_the_code_after_a_hole_uses_and_nothing_binds_is_needed(drawn: str, expected: tuple[str, ...]) -> None:
    assert names(drawn) == expected


@pytest.mark.parametrize(
    "drawn",
    [
        "def f(x):\n    ⟦⟧\n    return x\n",  # bound
        "def f():\n    a = x\n    ⟦⟧\n    return x\n",  # used before, so it is not this answer's
        "def f():\n    y = ⟦⟧\n    return x\n",  # within a line
        "def f():\n    ⟦⟧\n    return Known\n",  # a class, probably of a module
        "def f():\n    ⟦⟧\n    return call(1)\n",  # a function
        "def f():\n    ⟦⟧\n    return other\n\n\nother = 1\n",
        "from x import *\n\ndef f():\n    ⟦⟧\n    return x\n",  # may be anything
        "globals()['x'] = 1\n\ndef f():\n    ⟦⟧\n    return x\n",
        "def f():\n    ⟦⟧\n    return [x for x in ()]\n",
        "def f():\n    ⟦⟧\n    x = 1\n    return x\n",
        "def f():\n    ⟦⟧\n\n\ndef g():\n    return x\n",  # another function
        "def f():\n    ⟦⟧\n    return (x\n",  # broken
        "⟦⟧\n\nprint(a, b, c, d, e, f, g)\n",  # too many: the imports are missing
        "def f():\n    return 1\n⟦⟧\n",
        "def f(path):\n    ⟦⟧\n    return json.loads(1)\n",  # its import is missing
        "def f():\n    x = g(\n        a,\n        ⟦⟧\n    )\n    return total\n",  # no statement may stand there
        "def f():\n    x = [\n        ⟦⟧\n    ]\n    return total\n",
        'def f():\n    """Words.\n    ⟦⟧\n    """\n    return total\n',
        "class A:\n    def f(self):\n        ⟦⟧\n        return __class__\n",
        f"KEY = '{'ab' * 50_000}'\n\ndef f():\n    ⟦⟧\n    return x\n",  # it would take long
    ],
)
def test_in_doubt_nothing_is_needed(drawn: str) -> None:
    assert names(drawn) == ()


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        ("function f() {\n  ⟦⟧\n  return x;\n}\n", ("x",)),
        ("const f = (xs) => {\n  ⟦⟧\n  return xs.map((y) => y + step(offset));\n};\n", ("offset",)),
        ("function f() {\n  ⟦⟧\n  console.log(a);\n}\n", ("a",)),
        ("function f(xs) {\n  ⟦⟧\n  for (const x of xs) {\n    sum += x;\n  }\n  return sum;\n}\n", ("sum",)),
        ("function f() {\n  ⟦⟧\n  return x;\n}\nlet x = 1;\n", ()),
        ("function f(x) {\n  ⟦⟧\n  return x;\n}\n", ()),
        ("function f() {\n  ⟦⟧\n  return g();\n}\n", ()),
        ("⟦⟧\nf(x);\n", ()),
        ("function f() {\n  g([\n    ⟦⟧\n  ]);\n  return x;\n}\n", ()),
        ("function f() {\n  /*\n  ⟦⟧\n  */\n  return x;\n}\n", ()),
        ("function f() {\n  const a = `\n  ⟦⟧\n  `;\n  return x;\n}\n", ()),
    ],
)
@pytest.mark.parametrize("language", ["javascript", "typescript", "tsx"])
def test_in_javascript_a_name_that_is_only_used_is_needed(drawn: str, expected: tuple[str, ...], language: str) -> None:
    assert names(drawn, language) == expected


def test_other_languages_need_nothing() -> None:
    assert names("func f() int {\n\t⟦⟧\n\treturn x\n}\n", "go") == ()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("total = count = 0", []),
        ("total = 0", ["count"]),
        ("self.total = 0", ["total", "count"]),
        ("totals, counts = 0, 0", ["total", "count"]),
        ("def total(count):\n    pass", []),
        ("", ["total", "count"]),
    ],
)
def test_an_answer_misses_the_names_that_it_does_not_mention(answer: str, expected: list[str]) -> None:
    assert scope.missing(("total", "count"), answer) == expected


@pytest.mark.parametrize(
    ("drawn", "answer", "expected"),
    [
        ("def f():\n    ⟦⟧\n    return x\n", "", "x"),  # the indentation is typed
        ("def f():\n⟦⟧\n    return x\n", "", "    x"),
        ("def f():\n⟦⟧\n    return x\n", "    y = 1", "\n    x"),
        ("def f():\n    if a:\n⟦⟧\n    return x\n", "", "    x"),  # no deeper than the line below
        ("def f():\n    if a:\n⟦⟧\n        return x\n", "", "        x"),
        ("def f():\n    if a:\n⟦⟧\n        return x\n", "        raise E", "\n    x"),
        ("def f():\n\tif a:\n\t\tpass\n⟦⟧\n\treturn x\n", "", "\tx"),
    ],
)
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
