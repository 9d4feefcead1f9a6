"""Names that an answer uses and nothing binds. The answer is between ⟦ and ⟧."""

from __future__ import annotations

import builtins
import symtable
import sysconfig
from pathlib import Path

import pytest

from dg_lsp.core import languages, local, scope, syntax
from dg_lsp.core.scope import python
from dg_lsp.core.values import Span


def unbound(text: str, *, language: str = "python", old: str = "pass", uri: str = "file:///a.py") -> list[str]:
    """Return the names that the marked answer leaves unbound."""
    start, end = text.index("⟦"), text.index("⟧") - 1
    known_language = languages.get(language)
    assert known_language is not None
    filled_syntax = syntax.parse(text.replace("⟦", "").replace("⟧", ""), known_language)
    return sorted(scope.unbound_names(filled_syntax, [(Span(start, end), old)], uri))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x):\n    ⟦return x + y⟧\n", ["y"]),
        ("def g(y):\n    return y\n\ndef f(x):\n    ⟦return x + y⟧\n", ["y"]),
        ("class A:\n    y = 1\n    def f(self):\n        ⟦return y⟧\n", ["y"]),
        ("class A:\n    def g(self, y):\n        pass\n    def f(self):\n        ⟦return self.y + y⟧\n", ["y"]),
        ("def f(xs):\n    ⟦return [x for x in xs] + [x]⟧\n", ["x"]),
        ("⟦y = later⟧\nlater = 1\n", ["later"]),
        ("class A:\n    ⟦y = later⟧\nlater = 1\n", ["later"]),
        ("def f(x: ⟦Later⟧):\n    pass\n", ["Later"]),
        ('def f(x: ⟦"Later"⟧):\n    pass\n', ["Later"]),
        ("def f(node):\n    if no⟦te is None:⟧\n        pass\n", ["note"]),
        ("def f():\n    if a⟦b: pass⟧\n", ["ab"]),
        ("if x:\n    def f():\n        ⟦return q⟧\nx = 1\n", ["q"]),
        ("async def f():\n    async with ⟦lock⟧:\n        pass\n", ["lock"]),
        ("def f():\n    def g():\n        ⟦return z⟧\n    return g\n", ["z"]),
        ("try:\n    import json\nexcept ImportError:\n    json = None\n⟦dump(json)⟧\n", ["dump"]),
        ('import typing as t\ndef f(x):\n    ⟦return t.cast("Later", x)⟧\n', ["Later"]),
        ('from typing import (\n    Any,\n    cast,\n)\ndef f(x):\n    ⟦y = cast("list[Later]", x)⟧\n', ["Later"]),
        ('import typing as t\ndef f(x: ⟦t.Optional["Later"]⟧ = None):\n    pass\n', ["Later"]),
        ('__all__ = [⟦"missing"⟧]\n', ["missing"]),
        ("def f():\r\n    ⟦return y⟧\r\n", ["y"]),
        ("def f(s):\n    ⟦return f'{s} {t}'⟧\n", ["t"]),
        ("def f(s):\n    ⟦return t⟧\n\ndef g(s):\n    return globals()[s] == 1\n", ["t"]),
        ("def f():\n    ⟦return nowhere_else⟧\n\nglobals().update(a)\n", ["nowhere_else"]),
        ("for name in names:\n    locals()[name] = 1\n⟦x = 'a b'.split(c)⟧\n", ["c"]),
        ("class A:\n    a = 1\n    def g(self): ...\n    b = a\n    ⟦c = a + b + g() + d⟧\n    def d(self): ...\n", ["d"]),
        ("class A:\n    def f(⟦self) -> A:⟧\n        return self\n", ["A"]),
        ("@dec\nclass A:\n    def f(self, ⟦x: A⟧):\n        return A()\n", ["A"]),
        ("class A:\n    ⟦x: A = None⟧\n", ["A"]),
        ("class A:\n    class B:\n        ⟦x: A | B⟧\n", ["A", "B"]),
        ("A = Union[\n    ⟦A,⟧\n    str,\n]\nB = list[A]\n", ["A"]),
        ("class A:\n    class B:\n        x = 1\n    @dec\n    def g(self): ...\n    ⟦y = x⟧\n", ["x"]),
    ],
)
def test_a_name_that_nothing_binds_is_unbound(text: str, expected: list[str]) -> None:
    assert unbound(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    ⟦return later(x)⟧\n\ndef later(x): ...\n",
        'from typing import Literal\ndef f(x: ⟦Literal["low", "high"]⟧):\n    pass\n',
        'import typing as t\ndef f(x):\n    ⟦y: t.Literal["low"] = x⟧\n',
        'import typing as t\ndef f(x):\n    ⟦return t.cast("A", x)⟧\n\nclass A: ...\n',
        'def f(x):\n    ⟦return g.cast("Later", x)⟧\n\nfrom a import g\n',
        "def f(x):\n    ⟦return later⟧\n\nif x:\n    later = 1\nelse:\n    later = 2\n",
        "def f(x):\n    ⟦return deep⟧\n\ntry:\n    with open('a') as (deep, other):\n        pass\nexcept E:\n    pass\n",
        "from a import (\n    b as c,  # a comment\n    d,\n)\ndef f():\n    ⟦return c, d⟧\n",
        "import os.path, sys as system\ndef f():\n    ⟦return os, system⟧\n",
        "from a import b, \\\n    c\ndef f():\n    ⟦return c⟧\n",
        "from a import *\ndef f():\n    ⟦return anything⟧\n",
        "def f():\n    from a import *\n    ⟦return anything⟧\n",
        "def f():\n    ⟦return anything⟧\n\nglobals().update(a)\n\ndef g():\n    return anything\n",
        "for name in ('RED', 'BLUE'):\n    globals()[name] = 1\n\ndef f(x):\n    ⟦return RED⟧\n    for i in\n",
        "def f():\n    x = anything(1)\n    ⟦return anything(x)⟧\n\nglobals().update(a)\n",
        "def f():\n    ⟦return anything⟧\n\nglobals()['anything'] = 1\n",
        "def g():\n    global counter, other\n    counter = 1\n\ndef f():\n    ⟦return counter⟧\n",
        "def f():\n    ⟦global made\n    made = 1⟧\n\ndef g():\n    return made\n",
        "def f():\n    n = 0\n    def g():\n        ⟦nonlocal n\n        n += 1⟧\n    return g\n",
        "def f(xs):\n    ⟦return [y for x in xs for y in x if (z := y)], z⟧\n",
        "def f(xs):\n    ⟦for i, (a, *b) in xs:\n        print(i, a, b)⟧\n",
        "def f():\n    ⟦return len(__name__), __file__, NotImplemented⟧\n",
        "class A:\n    def f(self):\n        ⟦return __class__, super()⟧\n",
        "class A:\n    x = 1\n    ⟦y = x⟧\n",
        'class A:\n    def f(⟦self) -> "A":⟧\n        return A()\n',
        "from __future__ import annotations\nclass A:\n    def f(⟦self) -> A:⟧\n        return self\n",
        "A = None\nclass A:\n    ⟦x: A⟧\n",
        "A = None\nA = Union[⟦A⟧, str]\n",
        "visit = lambda node: map(⟦visit⟧, node)\n",
        "class A:\n    f = ⟦lambda self: A()⟧\n",
        "class A:\n    def f(self):\n        ⟦return A()⟧\n",
        "class A:\n    ⟦def f(self):\n        return later()⟧\n\ndef later(): ...\n",
        "def f():\n    ⟦try:\n        return unicode\n    except NameError:\n        return str⟧\n",
        "def f(x):\n    ⟦match x:\n        case {'a': a, **rest}:\n            return a, rest⟧\n",
        "a = b = c = 1\n(d,\n e) = f = 2, 3\ndef g():\n    ⟦return a, b, c, d, e, f⟧\n",
        "x: int = 1; y = 2\ndef g():\n    ⟦return x, y⟧\n",
        "for i in range(3):\n    k = i\ndef g():\n    ⟦return i, k⟧\n",
        "if (n := 3) > 2: m = n\ndef g():\n    ⟦return n, m⟧\n",
        "table: dict[\n    str, int\n] = {}\ndef g():\n    ⟦return table⟧\n",
        "from __future__ import annotations\nclass A:\n    ⟦x: B⟧\n\nclass B: ...\n",
        "if TYPE_CHECKING:\n    from a import B\ndef f() -> None:\n    ⟦x: 'B' = g()⟧\n\ndef g(): ...\n",
        "def f(x):\n    y = helper(x)\n    ⟦return helper(y)⟧\n",
        "def g():\n    return helper(1)\n\ndef f(x):\n    ⟦return helper(x)⟧\n",
        "def f(self):\n    ⟦return self.anything.at.all⟧\n",
        "def f():\n    ⟦return g(anything=1)⟧\n\ndef g(**a): ...\n",
        "def f():\n    ⟦x = 1  # anything at all\n    return x⟧\n",
        '__all__ = [⟦"later"⟧]\nlater = 1\n',
        "def f(x):\n    ⟦del x⟧\n",
        "__all__ = [⟦'anything'⟧]\n\ndef __getattr__(name): ...\n",
        "__all__ = ['f']\n⟦__all__ += ['g']⟧\ndef f(): ...\ndef g(): ...\n",
        "def f():\n    ⟦import os\n    return os⟧\n",
        "def f():\n    ⟦return _('text')⟧\n\nimport gettext\n_ = gettext.gettext\n",
        "@decorator\ndef f(): ⟦return 1⟧\n",
    ],
)
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


@pytest.mark.parametrize(
    "text",
    [
        "def f(a):\n    b = 1\n# comment\n    def g():\n        ⟦return a, b⟧\n",
        'def f(a):\n    b = """\nselect\n"""\n    def g():\n        ⟦return a, b⟧\n',
        'def f(a):\n    b = """\nselect\n    """\n    def g():\n        ⟦return a, b⟧\n',
        "def f(a):\n    b = [\n1,\n    ]\n    def g():\n        ⟦return a, b⟧\n",
        "class A:\n    def f(self, a):\n        if a:\n            b = 1\n        ⟦return self.a + b + g()⟧\n\ndef g(): ...\n",
        "async def f(a):\n    async with a as b:\n        ⟦return b⟧\n",
    ],
)
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
    filled_syntax = syntax.parse(text, python, None, local.parts(whole.tree, whole.offsets, whole.lines, at))
    assert filled_syntax.parts
    assert scope.unbound_names(filled_syntax, [(Span(at, at + len("return far, function_9, x")), "")], "a.py") == frozenset()
    other = text.replace("far, function_9, x", "far, near, value")
    filled_syntax = syntax.parse(other, python, filled_syntax)
    assert scope.unbound_names(filled_syntax, [(Span(at, at + len("return far, near, value")), "")], "a.py") == {"value"}


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("javascript", "function f(x) {\n  ⟦return x + y⟧;\n}\n", ["y"]),
        ("javascript", "function f(x) {\n  ⟦return x + y⟧;\n}\nlet y = 1;\n", []),
        ("javascript", "function f(x) {\n  ⟦const y = x; return y.z + console.log(y)⟧;\n}\n", []),
        ("javascript", "const f = (a) => ⟦({ a, b })⟧;\n", ["b"]),
        ("javascript", "function f() {\n  ⟦return g({ name: 1 }, 'word')⟧;\n}\n", ["g"]),
        ("javascript", "g();\nfunction f() {\n  ⟦return g()⟧;\n}\n", []),
        ("typescript", "import { g } from './g';\nfunction f(x: Foo): Bar {\n  ⟦return g(x as Baz, h)⟧;\n}\n", ["h"]),
        ("tsx", "function F() {\n  ⟦return <A b={c}>{d(e)}</A>⟧;\n}\n", ["d", "e"]),
        ("go", 'package a\n\nimport "encoding/json"\n\nfunc f(x int) {\n\t⟦json.Do(x, y)⟧\n}\n', ["y"]),
        ("go", "package a\n\nfunc f(xs []int) int {\n\t⟦for i, x := range xs {\n\t\treturn i + x\n\t}\n\treturn 0⟧\n}\n", []),
        ("go", "package a\n\nfunc f() error {\n\t⟦return errors.New(nil)⟧\n}\n", ["errors"]),
        ("ruby", "def f\n  ⟦anything⟧\nend\n", []),
        ("javascript", "function f( {\n  ⟦return y⟧;\n", []),
    ],
)
def test_other_languages_report_names_that_the_file_only_uses(language: str, text: str, expected: list[str]) -> None:
    assert unbound(text, language=language) == expected
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
