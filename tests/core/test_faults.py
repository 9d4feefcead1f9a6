"""Answers that a grammar accepts and a compiler does not, as drawings: ⟦⟧ is the hole."""

from __future__ import annotations

import pytest

from dg_lsp.core import languages, polish, syntax
from dg_lsp.core.values import Calibrated, Candidate
from tests.fakes import drawn


def dropped(language: str, text: str, answer: str) -> str:
    document, holes = drawn(text, language=language, kind="selection", block="\n" in answer)
    tree = syntax.of(document)
    assert tree is not None
    result = polish.to_edits(Candidate((answer,), Calibrated(0.9)), holes, document, syntax=tree, is_file=True)
    return result.dropped


JAVA = "class A {\n  int f(int x) {\n    ⟦g();⟧\n    return x;\n  }\n}\n"
BROKEN = [
    ("tsx", "const a = <b>⟦x⟧</b>;\n", "x</i><b>"),
    ("tsx", "const a = <div>⟦x⟧</div>;\n", "<b>x</i>"),
    ("tsx", "const a = <div>⟦x⟧</div>;\n", "<A.b>x</A.c>"),
    ("tsx", "const a = <div>⟦x⟧</div>;\n", "<>x</b>"),
    ("javascript", "const a = <div>⟦x⟧</div>;\n", "<b><i></b></i>"),
    ("ruby", "a = ⟦1⟧\nputs a\n", "<<A"),
    ("ruby", "a(⟦1⟧)\nputs a\n", "<<~SQL"),
    ("c", "void f(void) {\n  g(⟦1⟧);\n}\n", "sizeof"),
    ("cpp", "void f() {\n  g(⟦1⟧);\n}\n", "new"),
    ("csharp", "class A {\n  void F() {\n    a.Add(⟦1⟧);\n  }\n}\n", "new"),
    ("csharp", "class A {\n  void F() {\n    a.Add(⟦1⟧);\n  }\n}\n", "new Foo"),
    ("csharp", "class A {\n  void F() {\n    a(x, ⟦1⟧);\n  }\n}\n", "typeof"),
    ("csharp", "class A {\n  void F() {\n    var a = ⟦1⟧;\n  }\n}\n", "await"),
    ("csharp", "class A {\n  void F() {\n    ⟦g();⟧\n  }\n}\n", "a.b;"),
    ("typescript", "a.push(⟦1⟧);\n", "new"),
    ("typescript", "const a = ⟦1⟧;\n", "typeof"),
    ("javascript", "⟦let a = 1;⟧\n", "const a;"),
    ("javascript", "⟦f();⟧\n", "break;"),
    ("php", "<?php\nreturn ⟦1⟧;\n", "instanceof"),
    ("rust", "fn f() {\n    let x = ⟦1⟧;\n}\n", "dyn"),
    ("lua", "return ⟦1⟧\n", "return"),
    ("java", JAVA, "x + 1;"),
    ("java", JAVA, "x;"),
    ("java", JAVA, "if (x > 1) continue;"),
    ("c", "int f(int x) {\n  ⟦g();⟧\n}\n", "case 1: g();"),
    ("go", "package a\n\nfunc f() {\n\t⟦g()⟧\n}\n", "a.b"),
    ("go", "package a\n\nfunc f() {\n\t⟦g()⟧\n}\n", "x == 1"),
]


@pytest.mark.parametrize(("language", "text", "answer"), BROKEN)
def test_what_only_the_grammar_accepts_is_dropped(language: str, text: str, answer: str) -> None:
    assert dropped(language, text, answer) in ("does not compile", "adds a syntax error")


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("tsx", "const a = <div>⟦x⟧</div>;\n", "<b>y</b>"),
        ("tsx", "const a = <b>⟦x⟧</i>;\n", "y"),  # a fault that was there
        ("ruby", "⟦a = 1⟧\nputs a\n", "a = <<~A\n  b\nA"),
        ("ruby", "⟦1⟧\nputs a\n", "a.class"),
        ("c", "void f(void) {\n  g(⟦1⟧);\n}\n", "sizeof(int)"),
        ("csharp", "class A {\n  void F() {\n    a.Add(⟦1⟧);\n  }\n}\n", "new()"),
        ("csharp", "class A {\n  void F() {\n    a.Add(⟦1⟧);\n  }\n}\n", "new Foo { A = 1 }"),
        ("csharp", "class A {\n  void F() {\n    a.Add(⟦1⟧);\n  }\n}\n", "new Foo<int>(b)"),
        ("typescript", "⟦f();⟧\n", "a.delete(b.new);"),
        ("typescript", "⟦f();⟧\n", "for (const a of b) {\n  break;\n}"),
        ("javascript", "⟦f();⟧\n", "const { in: a, new: b } = c;"),
        ("php", "<?php\n⟦f();⟧\n", "$a->new($class, Foo::class);"),
        ("rust", "fn f() {\n    let x = ⟦1⟧;\n}\n", "'a: { break 'a 2 }"),
        ("java", JAVA, "x = switch (x) { case 1 -> x; default -> 2; };"),
        ("java", JAVA, "x++;"),
        ("java", JAVA, "new A();"),
        ("csharp", "class A {\n  async void F() {\n    ⟦g();⟧\n  }\n}\n", "await a?.b();"),
        ("go", "package a\n\nfunc f() {\n\t⟦g()⟧\n}\n", "<-a.b()"),
        ("go", "package a\n\nfunc f() {\n\tfor {\n\t\t⟦g()⟧\n\t}\n}\n", "break"),
    ],
)
def test_what_compiles_is_kept(language: str, text: str, answer: str) -> None:
    assert dropped(language, text, answer) == ""


def test_a_token_that_a_grammar_hides_is_missed_as_any_other() -> None:
    tree = syntax.parse("class A { void F() { var a = await; } }\n", languages.row("csharp"))
    assert len(tree.errors) == 1
