"""Answers that declare or import what their scope has already, as drawings: ⟦⟧ is the hole."""

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
        ("typescript", 'import { useState, ⟦⟧ } from "react";\n', "useState"),
        ("javascript", 'import { useState, useMemo, ⟦⟧ } from "react";\n', "useEffect, useState"),
        ("javascript", "import g, * as h from 'a';\n⟦⟧\n", "import { h } from 'b';"),
        ("javascript", "function f() {\n  const rows = 1;\n  ⟦⟧\n}\n", "const rows = 2;"),
        ("javascript", "export function f() {}\nf();\n⟦⟧\n", "export function f() {}"),
        ("tsx", "const a = 1;\n⟦⟧\n", "export const a = 2;"),
        ("python", "from typing import Any, ⟦⟧\n", "Any"),
        ("python", "import os\nimport re\n⟦⟧\nx = os\n", "import os"),
        ("python", "class A:\n    def f(self):\n        return 1\n\n    def ⟦⟧\n        return 2\n", "f(self):"),
        ("python", "def f():\n    return 1\n\n\ndef ⟦⟧\n    return 2\n", "f():"),
        ("go", 'package a\n\nimport (\n\t"fmt"\n\t⟦⟧\n)\n', '"fmt"'),
        ("go", 'package a\n\nimport (\n\tf "fmt"\n\t⟦⟧\n)\n', 'f "os"'),
        ("go", "package a\n\nfunc f(x int) {\n}\n\nfunc ⟦⟧\n}\n", "f(y string) {"),
        ("go", "package a\n\nfunc (a A) f() {\n}\n\nfunc (a A) ⟦⟧\n}\n", "f() {"),
        ("rust", "use std::fs;\nuse ⟦⟧;\n", "std::fs"),
        ("rust", "use std::{fs, ⟦⟧};\n", "fs"),
        ("rust", "fn f(x: u8) {}\n\nfn ⟦⟧\n}\n", "f(y: u8) {"),
        ("rust", "impl A {\n    fn f(&self) {}\n\n    fn ⟦⟧\n    }\n}\n", "f(&self) {"),
        ("php", "<?php\nuse A\\B;\nuse ⟦⟧\n", "A\\B;"),
        ("php", "<?php\nclass A {\n  function f() {}\n  function ⟦⟧\n  }\n}\n", "f($x) {"),
        ("java", "import java.util.List;\nimport ⟦⟧\n", "java.util.List;"),
        ("java", "class A {\n  int f(int x) { return x; }\n  int ⟦⟧\n  }\n}\n", "f(int x) {"),
        ("java", "class A {\n  int x;\n  int ⟦⟧\n}\n", "x;"),
        ("csharp", "using System;\nusing ⟦⟧\n", "System;"),
        ("csharp", "class A {\n  int F(int x) { return x; }\n  int ⟦⟧\n  }\n}\n", "F(int x) {"),
        ("c", "#include <stdio.h>\n#include ⟦⟧\nint x;\n", "<stdio.h>"),
        ("cpp", '#include "a.h"\n#include ⟦⟧\nint x;\n', '"a.h"'),
        ("ruby", "class A\n  def f\n    1\n  end\n\n  def ⟦⟧\n    2\n  end\nend\n", "f"),
        ("lua", "function M.f()\nend\n\nfunction ⟦⟧\nend\n", "M.f()"),
        ("bash", "f() {\n  a\n}\n\n⟦⟧\n", "f() { b; }"),
        ("javascript", "const { a, ⟦⟧ } = x;\n", "a"),
        ("javascript", "export { a, ⟦⟧ };\nconst a = 1;\n", "a"),
        ("javascript", "class A {\n  m() {}\n  ⟦⟧\n}\n", "m() { f(); }"),
        ("typescript", "type A = 1;\n⟦⟧\n", "export type A = 2;"),
        ("typescript", "enum E { A, B = 2, ⟦⟧ }\n", "B"),
        ("typescript", "interface A {\n  x: number;\n  ⟦⟧\n}\n", "x: string;"),
        ("go", "package a\n\nvar x = 1\n⟦⟧\n", "var x = 2"),
        ("go", "package a\n\nconst (\n\tA = 1\n\t⟦⟧\n)\n", "A = 2"),
        ("go", "package a\n\ntype S struct {\n\tX int\n\t⟦⟧\n}\n", "X string"),
        ("go", "package a\n\nfunc f() {\n\ta, err := g()\n\t⟦⟧\n}\n", "a, err := h()"),
        ("rust", "struct S { x: u8, ⟦⟧ }\n", "x: u16"),
        ("rust", "enum E { A, ⟦⟧ }\n", "A(u8)"),
        ("rust", "trait T { fn f(&self); ⟦⟧ }\n", "fn f(&self) {}"),
        ("php", "<?php\nuse A\\{B, ⟦⟧};\n", "B"),
        ("php", "<?php\nuse A\\B as C;\n⟦⟧\n", "use A\\D as C;"),
        ("php", "<?php\nclass A {\n  const X = 1;\n  ⟦⟧\n}\n", "const X = 2;"),
        ("php", "<?php\nclass A {\n  private $x;\n  ⟦⟧\n}\n", "public $x;"),
        ("java", "enum E { A, ⟦⟧ }\n", "A(1)"),
        ("java", "class A {\n  int f(int x) { return x; }\n  ⟦⟧\n}\n", "int f(int y) { return y; }"),
        ("csharp", "enum E { A, ⟦⟧ }\n", "A = 2"),
        ("csharp", "using X = A.B;\n⟦⟧\n", "using X = A.C;"),
        ("csharp", "class A {\n  int F(int x) { return x; }\n  ⟦⟧\n}\n", "int F(int y) { return y; }"),
        ("c", "enum e { A, ⟦⟧ };\n", "A = 2"),
        ("c", "struct s { int x, *y; ⟦⟧ };\n", "char y[3];"),
        ("c", "char *f(int *a) { return a; }\n⟦⟧\n", "char *f(int *b) { return b; }"),
        ("cpp", "int f(int a) { return a; }\n⟦⟧\n", "int f(int b) { return b; }"),
        ("ruby", 'require "json"\n⟦⟧\n', "require 'json'"),
    ],
)
def test_what_a_scope_has_is_not_declared_or_imported_again(language: str, text: str, answer: str) -> None:
    assert dropped(language, text, answer) == "declares or imports what is there already"


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("javascript", "for (let i = 0; i < 3; i++) f(i);\n⟦⟧\n", "for (let i = 0; i < 5; i++) g(i);"),
        ("javascript", "function f() {\n  const rows = 1;\n  if (x) {\n    ⟦⟧\n  }\n}\n", "const rows = 2;"),
        ("javascript", "import { g } from 'a';\nfunction f() {\n  ⟦⟧\n}\n", "const g = 1;"),
        ("typescript", "function f(a: string): void;\n⟦⟧\n  return a;\n}\n", "function f(a: number): void {"),
        ("typescript", "interface A {}\n⟦⟧\n", "const A = 1;"),
        ("python", "@property\ndef f(self):\n    return 1\n\n\n@f.setter\ndef ⟦⟧\n    pass\n", "f(self, x):"),
        ("python", "@overload\ndef f(x: int) -> int: ...\n@overload\n⟦⟧\n", "def f(x: str) -> str: ..."),
        ("python", "try:\n    import a\nexcept ImportError:\n    ⟦⟧\nx = a\n", "import a"),
        ("python", "if x:\n    def f():\n        return 1\nelse:\n    def ⟦⟧\n        return 2\n", "f():"),
        ("python", "def f():\n    def g():\n        return 1\n\n    return g\n\n\ndef ⟦⟧\n    return 2\n", "g():"),
        ("go", 'package a\n\nimport (\n\t"fmt"\n\t⟦⟧\n)\n', 'f "fmt"'),
        ("go", 'package a\n\nimport (\n\t_ "a"\n\t⟦⟧\n)\n', '_ "b"'),
        ("go", "package a\n\nfunc init() {\n}\n\nfunc ⟦⟧\n}\n", "init() {"),
        ("go", "package a\n\nfunc (a A) f() {\n}\n\nfunc (b B) ⟦⟧\n}\n", "f() {"),
        ("rust", "#[cfg(unix)]\nfn f() {}\n\n#[cfg(windows)]\nfn ⟦⟧\n}\n", "f() {"),
        ("rust", "fn f() {\n    let x = 1;\n    ⟦⟧\n}\n", "let x = x + 1;"),
        ("java", "class A {\n  int f(int x) { return x; }\n  int ⟦⟧\n  }\n}\n", "f(long x) {"),
        ("csharp", "class A {\n  int F(int x) { return x; }\n  int ⟦⟧\n  }\n}\n", "F<T>(int x) {"),
        ("cpp", "int f(int x) { return x; }\nint ⟦⟧\n}\n", "f(long x) {"),
        ("c", "int f(int x);\n\nint ⟦⟧\n}\n", "f(int x) {"),
        ("javascript", "class A {\n  get x() { return 1; }\n  ⟦⟧\n}\n", "set x(v) {}"),
        ("javascript", "class A {\n  m() {}\n  ⟦⟧\n}\n", "static m() {}"),
        ("javascript", "const { a: { b }, ⟦⟧ } = x;\n", "a: c"),
        ("typescript", "class A {\n  m(a: string): void;\n  ⟦⟧\n}\n", "m(a: any) {}"),
        ("typescript", "const A = 1;\n⟦⟧\n", "type A = 2;"),
        ("typescript", "interface A { x: number }\n⟦⟧\n", "interface A { y: string }"),
        ("go", "package a\n\nvar _ I = A{}\n⟦⟧\n", "var _ I = B{}"),
        ("go", "package a\n\nfunc f() {\n\ta, err := g()\n\t⟦⟧\n}\n", "b, err := h()"),
        ("go", "package a\n\nfunc f() {\n\ta := g()\n\tif a {\n\t\t⟦⟧\n\t}\n}\n", "a := h()"),
        ("rust", "enum E { A { x: u8 }, ⟦⟧ }\n", "B { x: u8 }"),
        ("rust", "#[cfg(unix)]\n/// Return it.\nfn f() {}\n\n#[cfg(windows)]\n/// Return it.\nfn ⟦⟧\n}\n", "f() {"),
        ("rust", "struct S {\n    #[cfg(unix)]\n    x: u8,\n    #[cfg(windows)]\n    ⟦⟧\n}\n", "x: u16,"),
        ("php", "<?php\nuse A\\B as C;\n⟦⟧\n", "use function A\\D as C;"),
        ("php", "<?php\nclass A {\n  const X = 1;\n}\nclass B {\n  ⟦⟧\n}\n", "const X = 2;"),
        ("c", "struct s {\n#ifdef A\n  int x;\n#else\n  ⟦⟧\n#endif\n};\n", "long x;"),
        ("c", "struct s { struct { int x; } a; ⟦⟧ };\n", "int x;"),
        ("cpp", "struct s { int x(); ⟦⟧ };\n", "int x(int a);"),
        ("cpp", "int f(int a) { return a; }\n⟦⟧\n", "int f(int *a) { return *a; }"),
        ("ruby", 'require "json"\n⟦⟧\n', "require_relative 'json'"),
    ],
)
def test_what_may_be_there_twice_is_kept(language: str, text: str, answer: str) -> None:
    assert dropped(language, text, answer) == ""


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("c", "int g(int a);\n⟦⟧\n", f"int f(int {'(' * 2_000}a{')' * 2_000}) {{ return 1; }}"),
        ("java", "class A {\n⟦⟧\n}\n", f"int f({'L<' * 2_000}A{'>' * 2_000} a) {{ return 1; }}"),
    ],
)
def test_deep_types_are_judged(language: str, text: str, answer: str) -> None:
    assert dropped(language, text, answer) == ""
