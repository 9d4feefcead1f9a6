"""Answers that a grammar accepts and a compiler does not, as drawings: ⟦⟧ is the hole."""

from __future__ import annotations

import pytest

from dg_lsp.core import languages, polish, syntax
from dg_lsp.core.polish import faults
from dg_lsp.core.values import Calibrated, Candidate, Span
from tests.fakes import drawn


def failed(language: str, text: str, answer: str) -> str:
    """Return the check that drops the answer; "" if all keep it."""
    document, holes = drawn(text, language=language, kind="selection", block="\n" in answer)
    tree = syntax.of(document)
    assert tree is not None
    result = polish.to_edits(Candidate((answer,), Calibrated(0.9)), holes, document, syntax=tree, is_file=True)
    assert bool(result.dropped) == (not result.edits)
    return "".join(result.fired) if result.dropped else ""


CSHARP = "class A {\n  void F() {\n    ⟦g();⟧\n  }\n}\n"
JAVA = "class A {\n  int f(int x) {\n    ⟦g();⟧\n    return x;\n  }\n}\n"
BROKEN = [
    ("java", "class A {\n  void f() {\n    g(⟦1⟧);\n  }\n}\n", "class"),
    ("ruby", "f(⟦1⟧)\n", "else"),
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
    ("typescript", "a.push(⟦1⟧);\n", "new"),
    ("javascript", "⟦let a = 1;⟧\n", "const a;"),
    ("javascript", "⟦f();⟧\n", "break;"),
    ("php", "<?php\nreturn ⟦1⟧;\n", "instanceof"),
    ("rust", "fn f() {\n    let x = ⟦1⟧;\n}\n", "dyn"),
    ("lua", "return ⟦1⟧\n", "return"),
    ("java", JAVA, "x + 1;"),
    ("java", JAVA, "x;"),
    ("java", JAVA, "if (x > 1) continue;"),
    ("java", JAVA, "-x;"),
    ("java", JAVA, "(g());"),
    ("c", "int f(int x) {\n  ⟦g();⟧\n}\n", "case 1: g();"),
    ("c", "int f(int x) {\n  while (x) {\n    ⟦g();⟧\n  }\n}\n", "case 1: g();"),
    ("javascript", "a: {\n  ⟦f();⟧\n}\n", "break;"),
    *((language, JAVA, "switch (x) { case 1: continue; }") for language in ("java", "csharp")),
    *((language, "void f() {\n  ⟦g();⟧\n}\n", "switch (x) { case 1: continue; }") for language in ("c", "cpp")),
    *((language, "⟦f();⟧\n", "switch (x) { case 1: continue; }") for language in ("javascript", "typescript")),
    ("go", "package a\n\nfunc f() {\n\t⟦g()⟧\n}\n", "switch x {\n\tcase 1:\n\t\tcontinue\n\t}"),
    ("go", "package a\n\nfunc f() {\n\t⟦g()⟧\n}\n", "-x"),
    ("go", "package a\n\nfunc f() {\n\t⟦g()⟧\n}\n", "a.b"),
    ("go", "package a\n\nfunc f() {\n\t⟦g()⟧\n}\n", "x == 1"),
    # Words that close nothing, which the grammars take for names and commands.
    *(("bash", "if a; then\n  b\n  ⟦⟧\nfi\n", word) for word in ("fi", "c\nfi", "c && fi", "done", "esac", "then", "do")),
    ("bash", "for a in b; do\n  c\n  d⟦⟧\n  e\ndone\n", "one"),
    ("bash", "if a; then\n  b\nelse\n  c\n⟦⟧\nfi\n", "else\n  d"),
    ("bash", "if a; then\n  b\nelse\n  c\n⟦⟧\nfi\n", "elif d; then\n  e"),
    ("bash", "[ -f x ]⟦⟧\n", "; then\n  b\nfi"),
    *(("ruby", "def f\n  a\n  ⟦⟧\nend\n", word) for word in ("end", "b\nend", "b if c\nend", "else\n  b")),
    ("ruby", "class A\n  def f\n    a\n    e⟦⟧\n  end\nend\n", "nd"),
    # In another place than its own.
    ("javascript", "function f() {\n  ⟦g();⟧\n}\n", "await g();"),
    ("javascript", "const f = () => ⟦g()⟧;\n", "await g()"),
    ("typescript", "function f() {\n  ⟦g();⟧\n}\n", "for await (const x of y) {\n  }"),
    ("rust", "fn f() {\n    ⟦g();⟧\n}\n", "g().await;"),
    ("csharp", CSHARP, "await g();"),
    ("javascript", "function f() {\n  ⟦g();⟧\n}\n", "yield g();"),
    ("typescript", "import a from 'b';\n⟦f();⟧\n", "return 1;"),
    ("javascript", "class A {\n  static {\n    ⟦f();⟧\n  }\n}\n", "return 1;"),
    ("javascript", "function f() {\n  ⟦g();⟧\n}\n", "import a from 'b';"),
    ("typescript", "if (x) {\n  ⟦g();⟧\n}\n", "export const a = 1;"),
    ("java", JAVA, "import a.b;"),
    ("php", "<?php\nfunction f() {\n  ⟦g();⟧\n}\n", "use A\\B;"),
    ("javascript", "class A extends B {\n  f() {\n    ⟦g();⟧\n  }\n}\n", "super();"),
    ("javascript", "class A {\n  constructor() {\n    ⟦g();⟧\n  }\n}\n", "super();"),
    ("java", "class A {\n  ⟦int x;⟧\n}\n", "public f() { }"),
    ("csharp", "class A {\n  ⟦int x;⟧\n}\n", "public F() { }"),
    ("java", "class A {\n  ⟦int x;⟧\n}\n", "void f();"),
    ("csharp", "class A {\n  ⟦int x;⟧\n}\n", "abstract void F() { }"),
    ("go", "package a\n\n⟦var x = 1⟧\n", "x := 1"),
    ("go", "package a\n\n⟦var x = 1⟧\n", 'var x = 1\n\nimport "os"'),
    ("rust", "⟦const X: u8 = 1;⟧\n", "let x = 1;"),
    ("c", "⟦int x = 1;⟧\n", "return 1;"),
    # Twice.
    ("javascript", "const f = (⟦a⟧) => 1;\n", "a, a"),
    ("typescript", "function f(⟦a: T⟧) {}\n", "a: T, a: U"),
    *((language, "class A {\n  void f(int a, ⟦int b⟧) {}\n}\n", "int a") for language in ("java", "csharp")),
    ("c", "int f(int a, ⟦int b⟧) { return 1; }\n", "int a"),
    ("go", "package a\n\nfunc f(a int, ⟦b int⟧) {\n}\n", "a string"),
    ("rust", "fn f(a: T, ⟦b: U⟧) {}\n", "a: U"),
    ("php", "<?php\nfunction f($a, ⟦$b⟧) {}\n", "$a"),
    ("ruby", "def f(a, ⟦b⟧)\nend\n", "a"),
    ("javascript", "class A {\n  ⟦f() {}⟧\n}\n", "constructor() {}\n  constructor(a) {}"),
    ("javascript", "switch (x) {\n  ⟦case 1: f();⟧\n}\n", "default: f();\n  default: g();"),
    ("java", "class A { void f() { switch (x) {\n  ⟦case 1: f();⟧\n} } }\n", "default: f();\n  default: g();"),
    ("c", "void f() { switch (x) {\n  ⟦case 1: f();⟧\n} }\n", "default: f();\n  default: g();"),
    ("go", "package a\n\nfunc f() {\n\tswitch x {\n\t⟦case 1:⟧\n\t}\n}\n", "default:\n\tdefault:"),
    ("go", "package a\n\nfunc f() {\n\tx := 1\n\t⟦g(x)⟧\n}\n", "x := 2"),
]


REJECTED = [
    ("tsx", "const a = <b>⟦x⟧</b>;\n", "x</i><b>"),
    ("csharp", "class A {\n  void F() {\n    var a = ⟦1⟧;\n  }\n}\n", "await"),
    ("csharp", "class A {\n  void F() {\n    ⟦g();⟧\n  }\n}\n", "a.b;"),
    ("typescript", "const a = ⟦1⟧;\n", "typeof"),
]
# Files in which the words of a language are names. Every language allows other ones.
VALID = [
    ("javascript", "await f();\nconst f = async () => { await g(); };\nfor await (const x of y) {\n}\n"),
    ("javascript", "function* f() {\n  yield 1;\n}\nconst o = { *g() { yield 1; }, async *h() { yield await 1; } };\n"),
    ("javascript", "class A extends B { constructor() { const f = () => super(); f(); } }\nif (x) return;\n"),
    ("javascript", "class A extends B {\n  'constructor'() {\n    super();\n  }\n}\n"),
    ("javascript", "function f(_, _a, a, { b }) {}\nfunction g(a, a) {}\nif (a) b();\nelse if (c) d();\nelse e();\n"),
    ("typescript", "declare module 'x' {\n  import { a } from 'b';\n  export const c: T;\n}\nconst a = import('b');\n"),
    ("typescript", "namespace N {\n  export const a = 1;\n}\nclass A { constructor(a: T); constructor(a?: U) {} }\n"),
    ("rust", "async fn f() { g().await; }\nfn h() { let a = async move { g().await }; }\nfn i<F: Fn(T::A, T::A)>(f: F) {}\n"),
    (
        "csharp",
        "class A { A() { } async Task F() { await g(); Func<Task> h = async () => await g(); } }\n",
    ),
    (
        "java",
        "abstract class A { A() { } abstract void f(); native void g(); }\ninterface B { void f(); default void g() { } }\n",
    ),
    ("go", "package a\n\nfunc f(_ int, _ string) {\n\tx, a := g()\n\ty, a := g()\n\tif x := 1; x > 0 {\n\t\tx := 2\n\t}\n}\n"),
    ("c", "int f(int a, int (*g)(int a));\nvoid h(int a) { switch (a) { case 1: default: break; } }\n"),
    ("python", "match = re.match(a, b)\ncase = type = module = match\nprint(case, _)\n"),
    ("python", "match a:\n    case [b, *c]:\n        type X = int\n"),
    ("go", "package a\n\nfunc f() {\n\tslices.Sort[int](xs)\n\tSort[int](xs)\n\tR[A, B](xs)\n\tp.Q[*A](xs)\n\tlen := 1\n}\n"),
    ("csharp", "class A { void F() { var module = 1; var let = 1; var when = from; var @class = 1; g(out var x, ref a); } }\n"),
    ("csharp", "[module: B]\nclass A { [return: C] int this[int i] => i; static implicit operator A(int a) => new(); }\n"),
    ("php", "<?php\n$this->row(class: 'a', for: 'b');\nf(if: 1);\n$a = match(true) { default => 1 };\n"),
    ("php", "<?php\nnamespace A\\Class\\For;\nuse A\\Switch\\{If, Case as B};\nuse function A\\for;\nA\\for();\n"),
    ("php", "<?php\nclass A { const for = 2; use T { T::if insteadof U; } function new() { return self::for . A::new(); } }\n"),
    ("php", "<?php\nenum E { case for; case New; }\n"),
    ("typescript", "declare namespace A {\n  const a: T;\n  const b;\n}\n"),
    ("typescript", "declare module 'x' {\n  export const a: T;\n}\n"),
    ("typescript", "declare global {\n  const a: T;\n}\nexport const b: T;\n"),
    ("typescript", "import { default as a, for as b } from 'c';\nexport { a as if };\nexport * as in from 'd';\n"),
    ("typescript", "type T = [in: string, for?: number];\nlet type = 1, of = 2, get = 3, async = 5;\nlet x = a!.new;\n"),
    ("tsx", 'const a = <><var for="a">x</var><switch /><a.in /></>;\n'),
    ("javascript", "x = { if: 1, for() {}, get new() {} };\nclass A { #in; static for = 1; }\nlet m = import.meta.if;\n"),
    ("java", "class A<T extends B> { int record, module, when, with; void f() { var var = B::new; Object o = A.class; } }\n"),
    (
        "rust",
        "impl<'a> A<'static> { fn f(&'a self) { let r#match = union; m!(if for in x); self.r#type } }\n#[cfg(for)]\nuse a;\n",
    ),
    ("c", "#define for while\n#undef if\nint f(int new, int class, int try) { return CHECK(new, return) + sizeof try; }\n"),
    ("cpp", "struct A { A() = default; void operator new(size_t); };\nint module, import, final, override;\n"),
    ("cpp", "void f() {\n  Slice key(a, sizeof(a));\n}\n"),
    ("ruby", "x.end - y&.end\nf(end: 1, :end => z::end)\nbegin\n  a\nrescue B\n  c\nelse\n  d\nend\n"),
    ("ruby", "def class\n  self.class\nend\ndef if(for: 1, end:)\n  a.for(if: 1)&.end\nend\nalias class klass\nundef class\n"),
    ("ruby", "case a\nin {if: 1, for:} then 1\nend\nf(class:)\nx = :class\n"),
    ("lua", "goto end_\n::end_::\nlocal continue = a.b\n"),
    ("bash", "for=1\nexport in=3\necho $for if then done\n"),
    ("c", "void f(int a) { switch (a) { case 0: do { continue; case 1: break; } while (a); } }\n"),
    (
        "javascript",
        "a: {\n  break a;\n}\nb: for (;;) {\n  switch (x) {\n    case 1: continue b;\n    default: break;\n  }\n}\n",
    ),
    ("java", "class A { void f() { a: { break a; } b: for (;;) { switch (x) { case 1: continue b; default: break; } } } }\n"),
    ("php", "<?php\nswitch ($a) {\n  case 1: continue;\n}\n"),
    ("go", "package a\n\nfunc f() {\na:\n\tfor {\n\t\tselect {\n\t\tcase <-b:\n\t\t\tcontinue a\n\t\t}\n\t}\n}\n"),
    ("rust", "fn f() { loop { match x { 1 => break, _ => continue } } }\n"),
]


@pytest.mark.parametrize(("language", "text", "answer"), BROKEN)
def test_what_only_the_grammar_accepts_is_dropped(language: str, text: str, answer: str) -> None:
    assert failed(language, text, answer) == "adds_no_faults"


@pytest.mark.parametrize(("language", "text", "answer"), REJECTED)
def test_what_the_grammar_rejects_too_is_a_syntax_error(language: str, text: str, answer: str) -> None:
    assert failed(language, text, answer) == "parses"


@pytest.mark.parametrize(("language", "text"), VALID)
def test_a_valid_file_has_no_faults(language: str, text: str) -> None:
    tree = syntax.parse(text, languages.row(language))
    assert tree.errors == ()
    assert faults.count(tree, Span(0, len(text)), is_file=True) == 0


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", "def f(s):\n    ⟦g()⟧\n", "match = re.match('a', s)"),
        ("go", "package a\n\nfunc f() {\n\t⟦g()⟧\n}\n", "slices.Sort[int](xs)"),
        ("csharp", CSHARP, "var module = Load();"),
        ("php", "<?php\n⟦f();⟧\n", "row(class: 'a', for: 'b');"),
        ("typescript", "declare global {\n  ⟦var a;⟧\n}\n", "const a: T;"),
        ("tsx", "const a = <div>⟦x⟧</div>;\n", "<b>y</b>"),
        ("tsx", "const a = <b>⟦x⟧</i>;\n", "y"),  # a fault that was there
        ("ruby", "⟦a = 1⟧\nputs a\n", "a = <<~A\n  b\nA"),
        ("ruby", "⟦1⟧\nputs a\n", "a.class"),
        *(
            ("ruby", "def f\n  a\n  ⟦⟧\nend\n", each)
            for each in ("x.end", "f(end: 1)", "b if c", "if b\n  c\nend", "rescue B\n  c")
        ),
        ("ruby", "def f\n  a\n⟦⟧\nend\n", "end\n\ndef g\n  b"),
        ("ruby", "def f\n  a\n  ⟦⟧\n", "end"),
        *(
            ("bash", "if a; then\n  b\n  ⟦⟧\nfi\n", each)
            for each in ("echo done", "is-done", "c # fi", "else\n  c", "elif c; then\n  d", "time for c in d; do\n  e\ndone")
        ),
        ("bash", "if a; then\n  b\n  ⟦⟧\n", "fi"),
        ("bash", "time if a; then\n  b\n⟦⟧\nfi\n", "else\n  c"),  # a lone closer that was there
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
    assert failed(language, text, answer) == ""


def test_a_break_in_a_case_of_python_needs_a_loop() -> None:
    tree = syntax.parse("match x:\n    case 1:\n        break\n", languages.row("python"))
    assert faults.count(tree, Span(0, len(tree.text)), is_file=True) == 1


def test_a_token_that_a_grammar_hides_is_missed_as_any_other() -> None:
    tree = syntax.parse("class A { void F() { var a = await; } }\n", languages.row("csharp"))
    assert len(tree.errors) == 1
