"""Names that an answer uses and nothing binds. The answer is between ⟦ and ⟧."""

from __future__ import annotations

import builtins
import symtable
import sysconfig
from pathlib import Path

import pytest

from dg_lsp.core import excerpt, languages, scope, syntax
from dg_lsp.core.scope import python
from dg_lsp.core.values import Span
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("scope.txt"))


def unbound(text: str, *, language: str = "python", old: str = "pass", uri: str = "file:///a.py") -> list[str]:
    """Return the names that the marked answer leaves unbound."""
    start, end = text.index("⟦"), text.index("⟧") - 1
    known_language = languages.get(language)
    assert known_language is not None
    filled_syntax = syntax.parse(text.replace("⟦", "").replace("⟧", ""), known_language)
    return sorted(scope.unbound_names(filled_syntax, [(Span(start, end), old)], uri))


@pytest.mark.parametrize(("text", "expected"), ROWS["unbound"])
def test_a_name_that_nothing_binds_is_unbound(text: str, expected: str) -> None:
    assert ", ".join(unbound(text)) == expected


@pytest.mark.parametrize("text", ROWS["bound"])
def test_a_name_that_something_may_bind_is_not_unbound(text: str) -> None:
    assert unbound(text) == []


def test_only_module_files_are_checked_for_unbound_names() -> None:
    text = "env = ⟦Environment()⟧\n"
    assert unbound(text, uri="file:///x/a.py") == ["Environment"]
    assert unbound(text, uri="file:///x/SConstruct") == []
    assert unbound(text, uri="vscode-notebook-cell:/x/a.ipynb#W0") == []
    assert unbound(f"#!/usr/bin/env python3\n{text}", uri="file:///x/run") == ["Environment"]


@pytest.mark.parametrize("text", ["class A:\n    def f(⟦self) -> A: ...⟧\n", "class A:\n    ⟦x: B | C⟧\nclass B: ...\n"])
def test_a_stub_may_use_names_before_they_are_bound(text: str) -> None:
    assert unbound(text, uri="file:///x/a.pyi") == ([] if "C" not in text else ["C"])
    assert unbound(text) != []


def test_broken_code_elsewhere_neither_hides_nor_invents_unbound_names() -> None:
    broken_code = "import os\nx = (1,\ndef g(:\n    total = 1\n\nclass A(\n\n"
    assert unbound(f"{broken_code}def f(a):\n    ⟦return os, a⟧\n") == []
    assert unbound(f"def f(a):\n    ⟦return a + b⟧\n\n\n{broken_code}") == ["b"]


@pytest.mark.parametrize(
    "broken_code",
    ["x = (1,\n", "d = {\n", "for x in\n", "class B:\n    def f(self:\n        self.x = (1,\n"],
)
def test_names_in_a_function_after_broken_code_are_checked(broken_code: str) -> None:
    window = "class Window:\n    def width(self):\n        return self.w\n\n\n"
    function = "def total(\n    items,\n) -> int:\n    n = 1\n    ⟦return self.x + n + len(items)⟧\n"
    assert unbound(f"{window}{broken_code}\n\n{function}") == ["self"]
    assert unbound(f"{broken_code}\n\n{function}\n\n{window}") == ["self"]
    assert unbound(f"{broken_code}\n\nclass A:\n    n = 1\n\n    def f(self):\n        ⟦return self.x + n⟧\n") == ["n"]
    assert unbound(f"{broken_code}\n\nif a:\n    def f(self):\n        ⟦return self.x + q⟧\n") == ["q"]
    for body in (
        "\n    ⟦# add them\n    return self.x + q⟧",
        '\n    ⟦"".join(self.x + q)⟧',
        " ⟦return self.x + q⟧",
        "⟦\n    return self.x + q⟧",
    ):
        assert unbound(f"{window}{broken_code}\n\ndef f(a):{body}\n") == ["q", "self"], body


@pytest.mark.parametrize("text", ROWS["bound in a function after broken code"])
def test_no_bound_name_is_reported_in_a_function_after_broken_code(text: str) -> None:
    assert unbound(f"x = (1,\n\n\n{text}") == []
    assert unbound(f"for x in\n\n\n{text}\n\ny = {{\n") == []


def test_replacing_a_selection_that_bound_a_name_reports_the_name() -> None:
    text = "def f():\n    ⟦g()⟧\n    return total\n\ndef g(): ...\n"
    assert unbound(text, old="total = g()") == ["total"]
    assert unbound(text, old="") == []


def test_a_module_name_is_known_even_on_an_unparsed_line() -> None:
    lines = "".join(f"def function_{number}(value):\n    return value + {number}\n\n\n" for number in range(1500))
    text = f"import far\n{lines}def f(x):\n    return far, function_9, x\n\n\n{lines}def near(): ...\n"
    at = text.index("return far")
    python = languages.get("python")
    assert python is not None
    whole = syntax.parse(text, python)
    filled_syntax = syntax.parse(text, python, None, excerpt.parts(whole.tree, whole.offsets, whole.lines, at))
    assert filled_syntax.parts
    assert scope.unbound_names(filled_syntax, [(Span(at, at + len("return far, function_9, x")), "")], "a.py") == frozenset()
    other = text.replace("far, function_9, x", "far, near, value")
    filled_syntax = syntax.parse(other, python, filled_syntax)
    assert scope.unbound_names(filled_syntax, [(Span(at, at + len("return far, near, value")), "")], "a.py") == {"value"}


@pytest.mark.parametrize(("language", "text", "expected"), ROWS["other languages"])
def test_other_languages_report_names_that_the_file_only_uses(language: str, text: str, expected: str) -> None:
    assert ", ".join(unbound(text, language=language)) == expected
    assert not scope.is_certain(language)


def test_every_builtin_is_bound() -> None:
    for name in dir(builtins):
        if name.isidentifier() and name not in ("None", "True", "False", "__debug__"):
            assert unbound(f"def f():\n    ⟦return {name}⟧\n") == []


def test_module_names_agree_with_the_compiler() -> None:
    folder = Path(sysconfig.get_paths()["stdlib"])
    n_names = n_missed = 0
    for path in sorted(folder.glob("*.py")):
        text = path.read_text("utf-8")
        table = symtable.symtable(text, path.name, "exec")
        names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
        bound_names = python.bound_names(text)
        if bound_names is not None:
            n_names += len(names)
            n_missed += len(names - bound_names - {"__annotations__"})
    assert n_names > 3_000
    assert n_missed == 0
