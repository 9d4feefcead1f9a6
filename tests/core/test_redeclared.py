"""Answers in JavaScript and TypeScript that declare a name again, as drawings: ⟦⟧ is the hole."""

from __future__ import annotations

import pytest

from dg_lsp.core import polish, syntax
from dg_lsp.core.values import Calibrated, Candidate
from tests.fakes import drawn


def dropped(language: str, text: str, answer: str) -> str:
    document, holes = drawn(text, language=language)
    candidate = Candidate((answer,), Calibrated(0.9))
    return polish.to_edits(candidate, holes, document, syntax=syntax.of(document), is_file=True).dropped


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("javascript", "function f(a) {\n  ⟦⟧\n}\n", "const a = 1;"),
        ("javascript", "const f = a => {\n  ⟦⟧\n};\n", "const a = 1;"),
        ("typescript", "function f({ a, b: c = 1 }: T, ...d: U[]) {\n  ⟦⟧\n}\n", "const c = 1;"),
        ("typescript", "function f({ a, b: c = 1 }: T, ...d: U[]) {\n  ⟦⟧\n}\n", "let d = 1;"),
        ("javascript", "function f() {\n  const rows = 1;\n  ⟦⟧\n}\n", "const rows = 2;"),
        ("javascript", "import { g } from 'a';\n⟦⟧\n", "const g = 1;"),
        ("javascript", "import g, * as h from 'a';\n⟦⟧\n", "export const h = 1;"),
        ("javascript", "try {\n  f();\n} catch (e) {\n  ⟦⟧\n}\n", "const e = 1;"),
        ("javascript", "function f(x) {\n  const ⟦⟧ = 1;\n}\n", "x"),
        ("javascript", "function f(x) {\n  const y = 1;\n  ⟦⟧\n}\n", "const [x, z] = y;"),
        ("tsx", "class A {\n  f(a?: T) {\n    ⟦⟧\n  }\n}\n", "const a = 1;"),
        ("javascript", "function f({ a = b }) {\n  ⟦⟧\n}\n", "const a = 1;"),
    ],
)
def test_an_answer_that_declares_a_name_again_is_dropped(language: str, text: str, answer: str) -> None:
    assert dropped(language, text, answer) == "declares a name again"


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("typescript", "function f(a: T, x = b) {\n  ⟦⟧\n}\n", "const b = 1;"),
        ("javascript", "function f() {\n  const rows = 1;\n  if (x) {\n    ⟦⟧\n  }\n}\n", "const rows = 2;"),
        ("javascript", "import { g } from 'a';\nfunction f() {\n  ⟦⟧\n}\n", "const g = 1;"),
        ("typescript", "import { Foo } from 'a';\n⟦⟧\n", "const Foo = 1;"),
        ("typescript", "import type { g } from 'a';\n⟦⟧\n", "const g = 1;"),
        ("typescript", "interface A {}\n⟦⟧\n", "const A = 1;"),
        ("javascript", "function f() {\n  const x = ⟦⟧;\n  const x = 3;\n}\n", "g(1)"),
        ("javascript", "const f = async (a) => {\n  ⟦⟧\n};\n", "for (const a of b) c();"),
        ("javascript", "function f({ b = a }) {\n  ⟦⟧\n}\n", "const a = 1;"),
    ],
)
def test_a_name_of_another_scope_may_be_declared(language: str, text: str, answer: str) -> None:
    assert dropped(language, text, answer) == ""
