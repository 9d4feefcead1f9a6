"""Answers that are valid and can hardly be meant, as drawings: ⟦⟧ is the hole."""

from __future__ import annotations

import pytest

from dg_lsp.core import polish, syntax
from dg_lsp.core.values import Calibrated, Candidate
from tests.fakes import drawn

RECURSION = "only calls its own function again"
OVERWRITES = "overwrites a value that nothing has read"


def check(language: str, text: str, answer: str, expected: str) -> None:
    head = text[: text.index("⟦")].rpartition("\n")[2]
    document, holes = drawn(text, language=language, block=True, indent=head if not head.strip() else "")
    result = polish.to_edits(Candidate((answer,), Calibrated(0.9)), holes, document, syntax=syntax.of(document))
    assert result.dropped == ""
    assert result.unlikely == expected


FUNCTIONS = {
    "python": "async def f(self, p):\n    ⟦⟧\n    return a\n",
    "ruby": "def f(p)\n  ⟦⟧\n  a\nend\n",
    "php": "<?php\nclass A {\n  function f($p) {\n    ⟦⟧\n    return $a;\n  }\n}\n",
    "rust": "impl A {\n  fn f(&mut self, p: P) -> T {\n    ⟦⟧\n    a\n  }\n}\n",
    **dict.fromkeys(("java", "csharp"), "class A {\n  T f(P p) {\n    ⟦⟧\n    return a;\n  }\n}\n"),
    "javascript": "const f = (p) => {\n  ⟦⟧\n  return a;\n};\n",
    "c": "int f(int p) {\n  ⟦⟧\n  return a;\n}\n",
}


def in_function(language: str, block: str) -> str:
    """Return a function with the block, and the hole below it."""
    text = FUNCTIONS[language]
    indent = text[: text.index("⟦")].rpartition("\n")[2]
    return text.replace("⟦⟧", block.replace("\n", f"\n{indent}") + f"\n{indent}⟦⟧")


PHP = "<?php\nclass A {\n  static function error($a) {\n    ⟦⟧\n  }\n}\n"
RUST = "impl A {\n    fn error(&self) -> R {\n        ⟦⟧\n    }\n}\n"
SETTER = "class A:\n    @f.setter\n    def f(self, x):\n        ⟦⟧\n"
SPECIAL = "class A:\n    def __NAME__(self, other=None):\n        ⟦⟧\n"
JAVA = "class A {\n  int f(int x) {\n    ⟦⟧\n  }\n}\n"


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", "def f(x):\n    ⟦⟧\n", "return f(x - 1)"),
        ("python", "def f(x):\n    return ⟦⟧\n", "1 + f(x)"),
        ("python", "def f(x):\n    ⟦⟧\n", "return [*f(x), f(x)[0] or x]"),
        ("python", "def f(x):\n    ⟦⟧\n", "yield from f(x)"),
        ("python", "async def f(x):\n    # Words.\n    ⟦⟧\n", "return await f(x)"),
        ("python", 'class A:\n    @property\n    def f(self):\n        """Words."""\n        ⟦⟧\n', "return self.f"),
        ("python", "class A:\n    def f(self):\n        return self.⟦⟧\n", "f()"),
        ("python", "class A:\n    @classmethod\n    def f(cls):\n        ⟦⟧\n", "return list(cls.f())"),
        ("python", "class A:\n    def f(self):\n        ⟦⟧\n", "return A.f(self)"),
        ("javascript", "const f = (x) => {\n  ⟦⟧\n};\n", "return f(x) || x;"),
        ("javascript", "A.prototype.f = function () {\n  ⟦⟧\n};\n", "return this.f();"),
        ("typescript", "class A {\n  f(x: T) {\n    ⟦⟧\n  }\n}\n", "return this.f(x);"),
        ("tsx", "function F() {\n  ⟦⟧\n}\n", "return F();"),
        ("go", "func f(x int) int {\n\t⟦⟧\n}\n", "return f(x)"),
        ("go", "func (s *T) f() error {\n\t⟦⟧\n}\n", "return s.f()"),
        ("rust", RUST, "Self::error(self)"),
        ("rust", RUST, "return Self::error();"),
        ("rust", RUST, "Ok(self.error()?)"),
        ("rust", "impl B for A {\n    fn error(&self) -> R {\n        ⟦⟧\n    }\n}\n", "self.error()"),
        ("java", JAVA, "return this.f(x);"),
        ("java", JAVA, "return f(x);"),
        ("csharp", JAVA, "return f(x);"),
        ("csharp", "class A {\n  override bool F(List x) {\n    ⟦⟧\n  }\n}\n", "return F(x);"),
        ("cpp", "int A::f(const int& x) {\n  ⟦⟧\n}\n", "return this->f(x);"),
        ("c", "static int *f(int x) {\n  ⟦⟧\n}\n", "return f(x);"),
        ("php", PHP, "return self::error($a);"),
        ("php", PHP, "return $this->error($a);"),
        ("ruby", "def f(x)\n  ⟦⟧\nend\n", "f(x)"),
        ("ruby", "class A\n  def f\n    ⟦⟧\n  end\nend\n", "f"),
        ("lua", "function M:f(x)\n  ⟦⟧\nend\n", "return self:f(x)"),
        ("lua", "function M.f(x)\n  ⟦⟧\nend\n", "return M.f(x)"),
        ("bash", "f() {\n  ⟦⟧\n}\n", 'f "$@"'),
        ("javascript", "const f = (x) => ⟦⟧;\n", "f(x)"),
        ("javascript", "let f = (x) => ⟦⟧;\n", "f?.(x)"),
        ("javascript", "class A {\n  get f() {\n    ⟦⟧\n  }\n}\n", "return this.f + 1;"),
        ("typescript", "function f(x: T): U {\n  ⟦⟧\n}\n", "return f(x) as U;"),
        ("typescript", "function f(x: T): U {\n  ⟦⟧\n}\n", "return f(x)!;"),
        ("rust", "fn f(x: T) -> T {\n    ⟦⟧\n}\n", "f::<T>(x)"),
        ("rust", RUST, "&self.error()"),
        ("python", "class A:\n    @property\n    def f(self):\n        ⟦⟧\n", "return str(self.f)"),
        ("python", "class A:\n    @functools.cached_property\n    def f(self):\n        ⟦⟧\n", "return self.f + 1"),
        ("javascript", "const f = x => ⟦⟧;\n", "f(x - 1)"),
        ("typescript", "const f = (x: T): U => ⟦⟧;\n", "f(x)"),
        ("typescript", "export const f = async (x: T) => ⟦⟧;\n", "await f(x)"),
        ("tsx", "const F = () => ⟦⟧;\n", "<F />"),
        ("tsx", "function F() {\n  return ⟦⟧;\n}\n", "<F />"),
        ("tsx", "function F() {\n  return ⟦⟧;\n}\n", "<F><b /></F>"),
        ("tsx", "const F = () => {\n  ⟦⟧\n};\n", "return <div><F /></div>;"),
        ("javascript", "const o = {\n  f(x) {\n    ⟦⟧\n  },\n};\n", "return this.f(x);"),
        ("javascript", "const o = {\n  f(x) {\n    ⟦⟧\n  },\n};\n", "return o.f(x);"),
        ("javascript", "const o = {\n  f: (x) => ⟦⟧,\n};\n", "o.f(x)"),
        ("javascript", "const o = {\n  f: function (x) {\n    ⟦⟧\n  },\n};\n", "return this.f(x);"),
        ("javascript", "class A {\n  f = (x) => ⟦⟧;\n}\n", "this.f(x)"),
        ("javascript", "class A {\n  f = (x) => {\n    ⟦⟧\n  };\n}\n", "return this.f(x);"),
        ("javascript", "class A {\n  get f() {\n    ⟦⟧\n  }\n}\n", "return this.f;"),
        ("javascript", "class A {\n  static f() {\n    ⟦⟧\n  }\n}\n", "return A.f();"),
        ("javascript", "class A {\n  #f() {\n    ⟦⟧\n  }\n}\n", "return this.#f();"),
        ("javascript", "exports.f = (x) => ⟦⟧;\n", "exports.f(x)"),
        ("javascript", "module.exports.f = function (x) {\n  ⟦⟧\n};\n", "return module.exports.f(x);"),
        ("javascript", "const f = function (x) {\n  ⟦⟧\n};\n", "return f(x);"),
        ("javascript", "let f;\nf = (x) => ⟦⟧;\n", "f(x)"),
        ("javascript", "const f = (x) => (⟦⟧);\n", "f(x)"),
        ("javascript", "const f = (x) => ⟦⟧;\n", "[...f(x)]"),
        ("javascript", "const f = (x) => ⟦⟧;\n", "({ a: f(x) })"),
        ("javascript", "const f = (x) => ⟦⟧;\n", "`${f(x)}`"),
        ("typescript", "class A {\n  private f = (x: T): U => ⟦⟧;\n}\n", "this.f(x)"),
        ("typescript", "class A {\n  f = async (): Promise<T> => {\n    ⟦⟧\n  };\n}\n", "return await this.f();"),
        ("csharp", "class A {\n  int F(int x) => ⟦⟧;\n}\n", "F(x)"),
        ("csharp", "class A {\n  int F(int x) => ⟦⟧;\n}\n", "this.F(x)"),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "P"),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "this.P"),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "this.P + 1"),
        ("csharp", "class A {\n  int P { get { ⟦⟧ } }\n}\n", "return P;"),
        ("csharp", "class A {\n  int P { get => ⟦⟧; }\n}\n", "P"),
        ("csharp", "class A {\n  void G() {\n    int f(int x) => ⟦⟧;\n  }\n}\n", "f(x)"),
        ("csharp", "class A {\n  string N { get { ⟦⟧ } set { } }\n}\n", "return this.N;"),
        ("python", "f = lambda x: ⟦⟧\n", "f(x)"),
        ("python", "class A:\n    @property\n    def f(self) -> T:\n        ⟦⟧\n", "return self.f"),
        ("python", "class A:\n    @staticmethod\n    def f(x):\n        ⟦⟧\n", "return A.f(x)"),
        ("python", "def f(x):\n    ⟦⟧\n", "yield f(x)"),
        ("python", "def f(x):\n    ⟦⟧\n", "return {**f(x)}"),
        ("python", "def f(x):\n    ⟦⟧\n", "return {'a': f(x)}"),
        ("python", "def f(x):\n    ⟦⟧\n", "return f'{f(x)}'"),
        ("python", "def f(x):\n    ⟦⟧\n", "for y in f(x):\n        yield y"),
        ("python", "def f(x):\n    ⟦⟧\n", "y = f(x)\n    return y"),
        ("python", "def f(x):\n    ⟦⟧\n", "return (yield from f(x))"),
        ("python", "def f(x):\n    ⟦⟧\n", "return not f(x)"),
        ("python", "def f(x):\n    ⟦⟧\n", "if f(x):\n        return 1"),
        ("python", "def f(x):\n    ⟦⟧\n", "return [y for y in f(x)]"),
        ("python", "def f(x):\n    ⟦⟧\n", "raise f(x)"),
        ("python", "def f(x):\n    ⟦⟧\n", "assert f(x)"),
        ("python", "def f(x):\n    ⟦⟧\n", "return f(x)[0]"),
        ("python", "def f(x):\n    ⟦⟧\n", "return f(x).y"),
        ("ruby", "def f(x) = ⟦⟧\n", "f(x)"),
        ("ruby", "class A\n  def self.f(x)\n    ⟦⟧\n  end\nend\n", "f(x)"),
        ("ruby", "class A\n  def self.f(x)\n    ⟦⟧\n  end\nend\n", "self.f(x)"),
        ("ruby", "class A\n  def self.f(x)\n    ⟦⟧\n  end\nend\n", "A.f(x)"),
        ("php", "<?php\n$f = fn($x) => ⟦⟧;\n", "$f($x)"),
        ("php", "<?php\nfunction f($x) {\n  ⟦⟧\n}\n", "return f($x);"),
        ("php", "<?php\nclass A {\n  public function f() {\n    ⟦⟧\n  }\n}\n", "return $this->f();"),
        ("php", "<?php\nclass A {\n  public function f() {\n    ⟦⟧\n  }\n}\n", "return static::f();"),
        ("go", "func f(x int) int {\n\t⟦⟧\n}\n", "if y := f(x); y > 0 {\n\t\treturn y\n\t}"),
        ("go", "func (s T) String() string {\n\t⟦⟧\n}\n", "return fmt.Sprint(s.String())"),
        ("rust", "impl D for A {\n    fn default() -> Self {\n        ⟦⟧\n    }\n}\n", "Self::default()"),
        ("rust", "impl D for A {\n    fn default() -> Self {\n        ⟦⟧\n    }\n}\n", "A::default()"),
        ("rust", "impl A {\n    fn f(&self) -> R {\n        ⟦⟧\n    }\n}\n", "Some(Self::f(&self))"),
        ("rust", "fn f(x: T) -> R {\n    ⟦⟧\n}\n", "let y = f(x);\n    y"),
        ("rust", "fn f(x: T) -> R {\n    ⟦⟧\n}\n", "f(x).unwrap()"),
        ("rust", "fn f(x: T) -> R {\n    ⟦⟧\n}\n", "match f(x) {\n        A => 1,\n    }"),
        ("java", "class A {\n  @Override\n  public String toString() {\n    ⟦⟧\n  }\n}\n", "return toString();"),
        ("java", "class A {\n  @Override\n  public String toString() {\n    ⟦⟧\n  }\n}\n", "return this.toString();"),
        ("java", "class A {\n  static A of(B b) {\n    ⟦⟧\n  }\n}\n", "return A.of(b);"),
        ("java", "class A {\n  int getX() {\n    ⟦⟧\n  }\n}\n", "return getX();"),
        ("cpp", "struct A {\n  int f() const { ⟦⟧ }\n};\n", "return f();"),
        ("cpp", "template <class T> T f(T x) {\n  ⟦⟧\n}\n", "return f<T>(x);"),
        ("cpp", "int f(int x) {\n  ⟦⟧\n}\n", "return ::f(x);"),
        ("lua", "local f = function(x)\n  ⟦⟧\nend\n", "return f(x)"),
        ("lua", "local M = {\n  f = function(self)\n    ⟦⟧\n  end,\n}\n", "return self:f()"),
        ("bash", "f() {\n  ⟦⟧\n}\n", "f"),
        ("bash", "f() {\n  ⟦⟧\n}\n", 'echo "$(f "$1")"'),
        ("csharp", "class A {\n  int P { get; set { ⟦⟧ } }\n}\n", "P = value;"),
        ("csharp", "class A {\n  int P { get; set => ⟦⟧; }\n}\n", "this.P = value"),
        ("ruby", "class A\n  def f=(x)\n    ⟦⟧\n  end\nend\n", "self.f = x"),
        ("ruby", "class A\n  def self.f=(x)\n    ⟦⟧\n  end\nend\n", "self.f = x.to_s"),
        ("javascript", "class A {\n  set f(x) {\n    ⟦⟧\n  }\n}\n", "this.f = x;"),
        ("javascript", "const o = {\n  set f(x) {\n    ⟦⟧\n  },\n};\n", "this.f = x;"),
        ("typescript", "class A {\n  public set f(x: T) {\n    ⟦⟧\n  }\n}\n", "this.f = x;"),
        ("python", SETTER, "self.f = x"),
        ("python", SETTER, "self.f = str(x)\n        self.g = x"),
        *(("python", SPECIAL.replace("NAME", name), f"return {name}(self)") for name in ("len", "str", "iter", "repr", "hash")),
        ("python", SPECIAL.replace("NAME", "len"), "return len(self) + 1"),
        ("python", SPECIAL.replace("NAME", "eq"), "return self == other"),
        ("python", SPECIAL.replace("NAME", "lt"), "return self < other and True"),
    ],
)
def test_a_function_that_only_calls_itself_is_unlikely(language: str, text: str, answer: str) -> None:
    check(language, text, answer, RECURSION)


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", "def f(x):\n    ⟦⟧\n", "return f(x - 1) if x else 1"),
        ("python", "def f(x):\n    ⟦⟧\n", "return x and f(x - 1)"),
        ("python", "def f(x):\n    ⟦⟧\n", "return f[x]()"),
        ("python", "class A:\n    @property\n    def f(self):\n        ⟦⟧\n", "return self._f or self.f"),
        ("python", "def f(x):\n    ⟦⟧\n", "if x:\n        f(x - 1)"),
        ("python", "def f(x):\n    ⟦⟧\n", "return [f(y) for y in x]"),
        ("python", "def f(x):\n    ⟦⟧\n", "for y in x:\n        f(y)"),
        ("python", "def f(x):\n    ⟦⟧\n", "return lambda: f(x)"),
        ("python", "def f(x):\n    if not x:\n        return 1\n    ⟦⟧\n", "return f(x - 1)"),
        ("python", "def f(x, f):\n    ⟦⟧\n", "return f(x)"),
        (
            "csharp",
            "class A {\n  bool F(object x) { return x == 1; }\n  override bool F(List x) {\n    ⟦⟧\n  }\n}\n",
            "return F(x);",
        ),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "items.P"),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "items.P()"),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "P.Red"),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "items[0].P + 1"),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "new P(x)"),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "(P)x"),
        ("csharp", "class A {\n  int P => ⟦⟧;\n}\n", "this.items.P"),
        ("csharp", "class A {\n  int P { get { ⟦⟧ } }\n}\n", "return P.Red;"),
        ("csharp", "class A {\n  int P { get { ⟦⟧ } }\n}\n", "return new P(x);"),
        ("csharp", "class A {\n  int P { get { ⟦⟧ } set { } }\n}\n", "this.P = 1;"),
        ("csharp", "class A {\n  int P { get => ⟦⟧; }\n}\n", "inner.P"),
        ("python", "class A:\n    def f(self, x):\n        ⟦⟧\n\n\ndef f(x):\n    return x\n", "return f(x)"),
        ("python", "class A(B):\n    def f(self):\n        ⟦⟧\n", "return super().f()"),
        ("python", "class A(B):\n    def f(self):\n        ⟦⟧\n", "return self.other.f()"),
        ("python", "def f(x):\n    ⟦⟧\n", "timer.start(f)"),
        ("javascript", "function f(x) {\n  ⟦⟧\n}\n", "return x ? f(x - 1) : 1;"),
        ("javascript", "function tick() {\n  ⟦⟧\n}\n", "requestAnimationFrame(tick);"),
        ("javascript", "const a = {\n  f(x) {\n    ⟦⟧\n  },\n};\n", "return f(x);"),
        ("typescript", "class A {\n  f(x: T[]) {\n    ⟦⟧\n  }\n}\n", "return x.map((y) => this.f(y));"),
        ("go", "func (s *T) f() error {\n\t⟦⟧\n}\n", "return f(s)"),
        ("go", "func (s *T) f() error {\n\t⟦⟧\n}\n", "return s.inner.f()"),
        ("rust", RUST, "match self.x {\n    0 => 1,\n    _ => self.error(),\n}"),
        ("rust", "impl From<&str> for A {\n    fn from(x: &str) -> A {\n        ⟦⟧\n    }\n}\n", "Self::from(x.to_string())"),
        ("rust", RUST.replace("A {", "B for A {") + "impl A { fn error(&self) -> R { R } }\n", "self.error()"),
        ("java", JAVA, "return f(x, 0);"),
        ("java", JAVA, "return f((long) x);"),
        ("cpp", "void log(int x) {\n  ⟦⟧\n}\n", "log(std::to_string(x));"),
        ("php", PHP, "return parent::error($a);"),
        ("ruby", "def f(x)\n  ⟦⟧\nend\n", "f(x - 1) if x"),
        ("ruby", "def f(x)\n  ⟦⟧\nend\n", "x.each { |y| f(y) }"),
        ("ruby", "def f(f)\n  ⟦⟧\nend\n", "f"),
        ("lua", "function M.f(x)\n  ⟦⟧\nend\n", "return f(x)"),
        ("lua", "M = {\n  f = function(x)\n    ⟦⟧\n  end,\n}\n", "return f(x)"),
        ("rust", RUST, "self.error"),  # a field
        ("java", JAVA, "return f;"),
        ("csharp", "class A : I {\n  int I.f(int x) {\n    ⟦⟧\n  }\n}\n", "return f(x);"),
        ("bash", "f() {\n  ⟦⟧\n}\n", 'command f "$@"'),
        ("bash", "f() {\n  ⟦⟧\n}\n", 'g "$1" || f "$@"'),
        ("javascript", "const f = (f) => ⟦⟧;\n", "f(1)"),
        ("javascript", "const o = {\n  f: (x) => ⟦⟧,\n};\n", "this.f(x)"),
        ("javascript", "const o = {\n  f: (x) => ⟦⟧,\n};\n", "f(x)"),
        ("javascript", "const f = (x) => ⟦⟧;\n", "x ? f(x - 1) : 1"),
        ("javascript", "const f = (x) => ⟦⟧;\n", "() => f(x)"),
        ("typescript", "class A {\n  f = (x: T): U => ⟦⟧;\n}\n", "f(x)"),
        ("tsx", "const F = () => ⟦⟧;\n", "<G f={() => <F />} />"),
        ("csharp", "class A {\n  int F(int x) => ⟦⟧;\n}\n", "F(x, 1)"),
        ("csharp", "class A {\n  int F(T x) => ⟦⟧;\n}\n", "F<int>(x)"),
        ("csharp", "class A {\n  int P { get => ⟦⟧; set { } }\n}\n", "p"),
        ("csharp", "class A {\n  int P { get; set { ⟦⟧ } }\n}\n", "p = value;"),
        ("csharp", "class A : I {\n  int I.P { get; set { ⟦⟧ } }\n}\n", "P = value;"),
        ("csharp", "class A {\n  int P { get; set { ⟦⟧ } }\n}\n", "inner.P = value;"),
        ("csharp", "class A {\n  int P { get; set { ⟦⟧ } }\n}\n", "if (value > 0) { P = 0; }"),
        ("csharp", "class A {\n  int P { get; set { ⟦⟧ } }\n}\n", "Q = P = value;"),
        ("ruby", "class A\n  def f=(x)\n    ⟦⟧\n  end\nend\n", "@f = x"),
        ("ruby", "class A\n  def f=(x)\n    ⟦⟧\n  end\nend\n", "f = x"),  # a local variable
        ("ruby", "class A\n  def f=(x)\n    ⟦⟧\n  end\nend\n", "self.f = x unless x"),
        ("javascript", "class A {\n  set f(x) {\n    ⟦⟧\n  }\n}\n", "this._f = x;"),
        ("javascript", "class A {\n  set f(x) {\n    ⟦⟧\n  }\n}\n", "this.g.f = x;"),
        ("javascript", "class A {\n  set f(x) {\n    ⟦⟧\n  }\n}\n", "delete this.f;\n    this.f = x;"),
        ("javascript", "class A {\n  f(x) {\n    ⟦⟧\n  }\n}\n", "this.f = x;"),
        ("python", SETTER, "self._f = x"),
        ("python", SETTER, "if x:\n            self.f = None"),
        ("python", SETTER.replace(".setter", ".deleter"), "self.f = x"),
        ("python", SPECIAL.replace("NAME", "len"), "return len(self.items)"),
        ("python", SPECIAL.replace("NAME", "len"), "return len(list(self))"),
        ("python", SPECIAL.replace("NAME", "str"), "return repr(self)"),
        ("python", SPECIAL.replace("NAME", "eq"), "return self is other or self == other"),
        ("python", SPECIAL.replace("NAME", "ne"), "return not self == other"),
        ("python", "def __len__(self):\n    ⟦⟧\n", "return len(self)"),
        ("python", "f = lambda x: ⟦⟧\n", "g(lambda: f(x))"),
        ("python", "def f(x):\n    ⟦⟧\n", "sleep(x)\n    f(x)"),
        ("ruby", "def f(x)\n  ⟦⟧\nend\n", "@f ||= f(x)"),
    ],
)
def test_a_function_that_may_end_is_not_unlikely(language: str, text: str, answer: str) -> None:
    check(language, text, answer, "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("int f(const char *x, ...) {\n  ⟦⟧\n}\n", "return f(x, 1);"),
        ("int f(int) {\n  ⟦⟧\n}\n", "return f();"),
        ("int f(int x) {\n  ⟦⟧\n}\n", f"return {'1 + ' * 3_000}1;"),
    ],
)
def test_odd_parameters_and_deep_answers_do_not_fail(text: str, answer: str) -> None:
    check("cpp", text, answer, "")


COLLECTED = (
    "def f(files):\n    names = []\n    for file in files:\n        names.append(file.name)\n        file.save()\n    ⟦⟧\n"
)


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", COLLECTED, "names = []"),
        ("python", COLLECTED, "names = list()\nreturn names"),
        ("python", "def f(xs):\n    n = sum(xs)\n    ⟦⟧\n    return n\n", "n = 0"),
        ("python", "def f(xs):\n    n: int = 0\n    for x in xs:\n        n += x\n    ⟦⟧\n", "n = 0"),
        ("python", "def f(xs):\n    n = {}\n    for x in xs:\n        if x:\n            n[x] = x.y\n    ⟦⟧\n", "n = {}"),
        ("python", "x = f()\n⟦⟧\nprint(x)\n", "x = None"),
        ("javascript", "function f(xs) {\n  let a = [];\n  for (const x of xs) {\n    a.push(x);\n  }\n  ⟦⟧\n}\n", "a = [];"),
        ("typescript", "function f(xs: T[]) {\n  let a: T[] = g(xs);\n  ⟦⟧\n}\n", "a = [];"),
        ("go", "func f(xs []int) {\n\tvar a []int\n\tb := 0\n\tfor range xs {\n\t\tb++\n\t}\n\t⟦⟧\n}\n", "b = 0"),
        ("go", "func f(xs []int) {\n\ta := []int{}\n\ta = append(a, 1)\n\t⟦⟧\n}\n", "a = []int{}"),
        ("go", "func (s *T) f(x int) {\n\ts.a = []int{}\n\ts.a = append(s.a, x)\n\t⟦⟧\n}\n", "s.a = []int{}"),
        ("rust", "fn f(x: T) {\n    let mut a = Vec::new();\n    a.push(x);\n    ⟦⟧\n}\n", "a = Vec::new();"),
        ("rust", "fn f(x: T) {\n    let a = g(x);\n    ⟦⟧\n}\n", "let a: Vec<T> = vec![];"),
        ("java", "class A {\n  void f(T x) {\n    List<T> a = g(x);\n    ⟦⟧\n  }\n}\n", "a = new ArrayList<>();"),
        ("csharp", "class A {\n  void f(T x) {\n    var a = g(x);\n    ⟦⟧\n    h(a);\n  }\n}\n", "a = null;"),
        ("csharp", "class A {\n  void f(T x) {\n    var a = new L();\n    a.Add(x);\n    ⟦⟧\n  }\n}\n", "a = new L();"),
        ("c", "int f(int x) {\n  int a = g(x);\n  ⟦⟧\n  return a;\n}\n", "a = 0;"),
        ("cpp", "int f(T x) {\n  std::vector<T> a = {};\n  a.push_back(x);\n  ⟦⟧\n}\n", "a = {};"),
        ("php", "<?php\nfunction f($xs) {\n  $a = [];\n  foreach ($xs as $x) {\n    $a[] = $x;\n  }\n  ⟦⟧\n}\n", "$a = [];"),
        ("ruby", "def f(xs)\n  a = []\n  xs.each do |x|\n    a << x\n  end\n  ⟦⟧\nend\n", "a = []"),
        ("lua", "function f(x)\n  local a = {}\n  table.insert(a, x)\n  ⟦⟧\nend\n", "a = {}"),
        (
            "python",
            "class A:\n    def f(self, xs):\n        self.a = []\n        for x in xs: self.a.append(x)\n        ⟦⟧\n",
            "self.a = []",
        ),
        ("python", "def f(x):\n    a, b = [], []\n    a.append(x)\n    b.append(x)\n    ⟦⟧\n", "a, b = [], []"),
        ("python", "def f(xs):\n    a, b = g(xs)\n    ⟦⟧\n", "a = None"),
        ("python", "def f(xs):\n    a = b = 0\n    ⟦⟧\n", "a = 0"),
        ("python", "def f(xs):\n    a = sorted(xs)\n    ⟦⟧\n", "a = ''"),
        ("python", "def f(xs):\n    (a, b) = g(xs)\n    ⟦⟧\n", "(a, b) = (0, 0)"),
        ("python", "def f(xs):\n    a = [x for x in xs]\n    a.sort()\n    ⟦⟧\n", "a = []"),
        ("python", "def f(xs):\n    a = g(xs)\n    ⟦⟧\n", "a: list = []"),
        ("python", "def f(o, xs):\n    o.a = []\n    for x in xs:\n        o.a.append(x)\n    ⟦⟧\n", "o.a = []"),
        (
            "javascript",
            "class A {\n  f(xs) {\n    this.a = [];\n    for (const x of xs) {\n      this.a.push(x);\n    }\n    ⟦⟧\n  }\n}\n",
            "this.a = [];",
        ),
        ("javascript", "function f(xs) {\n  let [a, b] = g(xs);\n  ⟦⟧\n}\n", "a = null;"),
        ("javascript", "function f(xs) {\n  let [a, b] = g(xs);\n  ⟦⟧\n}\n", "[a, b] = [null, null];"),
        ("javascript", "function f(xs) {\n  let { a } = g(xs);\n  ⟦⟧\n  h(a);\n}\n", "a = null;"),
        ("javascript", "const f = (xs) => {\n  let a = xs.map(g);\n  ⟦⟧\n};\n", "a = [];"),
        (
            "javascript",
            "function f(xs) {\n  let a = new Map();\n  xs.forEach((x) => {\n    a.set(x, 1);\n  });\n  ⟦⟧\n}\n",
            "a = new Map();",
        ),
        ("go", "func f(xs []int) {\n\ta, err := g(xs)\n\t⟦⟧\n}\n", "a = nil"),
        (
            "go",
            "func (s *T) f(xs []int) {\n\ts.a = nil\n\tfor _, x := range xs {\n\t\ts.a = append(s.a, x)\n\t}\n\t⟦⟧\n}\n",
            "s.a = nil",
        ),
        (
            "go",
            "func f(xs []int) {\n\ta := map[string]int{}\n\tfor _, x := range xs {\n\t\ta[x] = 1\n\t}\n\t⟦⟧\n}\n",
            "a = map[string]int{}",
        ),
        ("go", "func f(xs []int) {\n\tvar a []int\n\tfor range xs {\n\t\ta = append(a, 1)\n\t}\n\t⟦⟧\n\th(a)\n}\n", "a = nil"),
        (
            "rust",
            "fn f(&mut self, xs: X) {\n    self.a = Vec::new();\n    self.a.push(x);\n    ⟦⟧\n}\n",
            "self.a = Vec::new();",
        ),
        ("rust", "fn f(xs: &[T]) {\n    let (mut a, b) = g(xs);\n    ⟦⟧\n}\n", "a = 0;"),
        (
            "java",
            "class A {\n  void f(T[] xs) {\n    this.a = new ArrayList<>();\n    this.a.add(xs);\n    ⟦⟧\n  }\n}\n",
            "this.a = new ArrayList<>();",
        ),
        ("csharp", "class A {\n  void F(T[] xs) {\n    var (a, b) = G(xs);\n    ⟦⟧\n  }\n}\n", "a = null;"),
        (
            "csharp",
            "class A {\n  void F(T[] xs) {\n    _a = new List<T>();\n    _a.Add(xs);\n    ⟦⟧\n  }\n}\n",
            "_a = new List<T>();",
        ),
        ("cpp", "void f(T x) {\n  this->a = {};\n  this->a.push_back(x);\n  ⟦⟧\n}\n", "this->a = {};"),
        ("cpp", "void f(T x) {\n  auto [a, b] = g(x);\n  ⟦⟧\n}\n", "a = 0;"),
        (
            "php",
            "<?php\nclass A {\n  function f($xs) {\n    $this->a = [];\n    $this->a[] = $xs;\n    ⟦⟧\n  }\n}\n",
            "$this->a = [];",
        ),
        ("php", "<?php\nfunction f($xs) {\n  [$a, $b] = g($xs);\n  ⟦⟧\n}\n", "$a = null;"),
        ("ruby", "def f(xs)\n  @a = []\n  xs.each do |x|\n    @a << x\n  end\n  ⟦⟧\nend\n", "@a = []"),
        (
            "lua",
            "function M:f(xs)\n  self.a = {}\n  for _, x in ipairs(xs) do\n    table.insert(self.a, x)\n  end\n  ⟦⟧\nend\n",
            "self.a = {}",
        ),
        ("lua", "function f(xs)\n  local a, b = g(xs)\n  ⟦⟧\n  return a\nend\n", "a = nil"),
        ("lua", "function f(xs)\n  local a = {}\n  for i, x in ipairs(xs) do\n    a[#a + 1] = x\n  end\n  ⟦⟧\nend\n", "a = {}"),
    ],
)
def test_a_value_that_is_overwritten_unread_is_unlikely(language: str, text: str, answer: str) -> None:
    check(language, text, answer, OVERWRITES)


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", COLLECTED.replace("    ⟦⟧", "    g(names)\n    ⟦⟧"), "names = []"),
        ("python", COLLECTED, "return names"),
        ("python", COLLECTED, "names = names or []"),
        ("python", COLLECTED, "names = sorted(files)"),
        ("python", COLLECTED, "other = []"),
        ("python", COLLECTED.replace("def f(files):\n", "def f(files):\n    global names\n"), "names = []"),
        ("python", COLLECTED.replace("    ⟦⟧", "    for name in names:\n        g(name)\n    ⟦⟧"), "names = []"),
        ("python", "def f(xs):\n    n = 0\n    for x in xs:\n        n += x\n        print(n)\n    ⟦⟧\n", "n = 0"),
        ("python", "def f(xs):\n    n = None\n    for x in xs:\n        ⟦⟧\n        n.g(x)\n", "n = 0"),
        ("python", "def f(xs):\n    n = g(xs)\n    if xs:\n        ⟦⟧\n    return n\n", "n = 0"),
        ("python", "def f(xs, n):\n    ⟦⟧\n", "n = []"),
        ("python", "def f(xs, n):\n    n.append(xs)\n    ⟦⟧\n", "n = []"),
        ("python", "def f(xs, n):\n    n = xs\n    n.append(1)\n    ⟦⟧\n", "n = []"),
        ("python", "def f(self):\n    self.names = g()\n    ⟦⟧\n", "self.names = []"),
        ("python", "def f(xs):\n    n = g(xs)\n\n    def h():\n        return n\n\n    h()\n    n = 2\n    ⟦⟧\n", "n = 0"),
        ("python", "def f(xs):\n    try:\n        n = g(xs)\n        ⟦⟧\n    except E:\n        h(n)\n", "n = 0"),
        ("python", "x = f()\n\n\ndef g():\n    return x\n\n\ng()\nx = f()\n⟦⟧\n", "x = 0"),
        ("python", "def f(x):\n    n = g(x)\n    h(f'{n}')\n    ⟦⟧\n", "n = 0"),
        ("python", "def f(x):\n    n = g(x)\n    ⟦⟧\n", "m = n = 0"),
        ("javascript", "function f(xs) {\n  let a = [];\n  g(() => a);\n  a.push(1);\n  ⟦⟧\n}\n", "a = [];"),
        ("javascript", "function f(xs) {\n  let a = 1;\n  if (xs) ⟦⟧\n}\n", "a = 0;"),
        ("go", "func f(p *int) {\n\ta := 1\n\tp = &a\n\ta = 2\n\t⟦⟧\n}\n", "a = 0"),
        ("rust", "fn f(x: T) {\n    let mut a = g(x);\n    let b = &mut a;\n    a = h(b);\n    ⟦⟧\n}\n", "a = 0;"),
        (
            "java",
            "class A {\n  void f(T x) {\n    List<T> a = x.all();\n    a.add(x);\n    ⟦⟧\n  }\n}\n",
            "a = new ArrayList<>();",
        ),
        ("c", "int f(int x) {\n  int a = g(x);\n  for (int i = 0; i < a; i++)\n    g(i);\n  ⟦⟧\n}\n", "a = 0;"),
        ("cpp", "int f(T x) {\n  int& a = x.y;\n  a = 3;\n  ⟦⟧\n}\n", "a = 0;"),
        ("php", "<?php\nfunction f($x) {\n  $a = 1;\n  $b = compact('a');\n  ⟦⟧\n}\n", "$a = 0;"),
        ("ruby", "def f(x)\n  a = g(x)\n  a = 1\nrescue E\n  h(a)\nelse\n  a = 1\n  ⟦⟧\nend\n", "a = 0"),
        ("ruby", "a = 1\nbefore do\n  a += 1\nend\n⟦⟧\nget a\n", "a = 0"),
        ("lua", "function f(x)\n  local a = g(x)\n  print(#a)\n  ⟦⟧\nend\n", "a = {}"),
        ("bash", "a=$(g)\n⟦⟧\n", "a=1"),
        ("c", "static int a;\nvoid f(int x) {\n  a = 1;\n  g(x);\n  ⟦⟧\n}\n", "a = 0;"),
        ("javascript", "let a = 1;\nfunction f(x) {\n  a = g;\n  x();\n  ⟦⟧\n}\n", "a = null;"),
        ("python", "def f(self, x):\n    self.a = []\n    self.a.append(x)\n    self.g()\n    ⟦⟧\n", "self.a = []"),
        ("python", "def f(self, x):\n    self.a = []\n    self.a.append(x)\n    g(self)\n    ⟦⟧\n", "self.a = []"),
        ("python", "def f(self, x):\n    self.a = x\n    self.a.append(x)\n    ⟦⟧\n", "self.a = []"),
        ("python", "def f(self, x):\n    self.a = True\n    ⟦⟧\n", "self.a = False"),
        ("python", "def f(x):\n    a, b = 0, 1\n    for _ in x:\n        a, b = b, a + b\n    ⟦⟧\n", "b = 0"),
        ("python", "def f(x):\n    a, b = g(x)\n    h(a)\n    ⟦⟧\n", "a = 0"),
        ("javascript", "function f(x) {\n  x.style.display = 'none';\n  ⟦⟧\n}\n", "x.style.display = '';"),
        ("javascript", "function f(x) {\n  const { b: a } = g(x);\n  h(a);\n  ⟦⟧\n}\n", "a = {};"),
        ("java", "class A {\n  void f(T x) {\n    a = new L();\n    a.add(x);\n    save();\n    ⟦⟧\n  }\n}\n", "a = new L();"),
        ("c", "void f(T *x) {\n  x->a = 1;\n  ⟦⟧\n}\n", "x->a = 0;"),
    ],
)
def test_a_value_that_may_be_read_is_not_unlikely(language: str, text: str, answer: str) -> None:
    check(language, text, answer, "")


# A value that is given to `a`, and the new values: `⟦⟧` of the text is the statement.
NEW_VALUES = [
    ("ruby", "def f(x)\n  a = g(x)\n  ⟦⟧\n  a\nend\n", "a = ", "nil|[]|{}|''|0|Set.new|Hash.new(0)|[].freeze|%w[]|String.new"),
    ("c", "char *f(int x) {\n  char *a = g(x);\n  ⟦⟧\n  return a;\n}\n", "a = ", "NULL;|0;"),
    (
        "cpp",
        "T f(T x) {\n  auto *a = g(x);\n  ⟦⟧\n  return a;\n}\n",
        "a = ",
        "nullptr;|std::nullopt;|std::vector<T>();|std::map<int, std::vector<T>>();|std::make_unique<T>();",
    ),
    (
        "java",
        "class A {\n  T f(T x) {\n    T a = g(x);\n    ⟦⟧\n    return a;\n  }\n}\n",
        "a = ",
        "List.of();|Collections.emptyList();|Optional.empty();|new T[0];|new int[]{};|new HashMap<String, List<T>>();",
    ),
    (
        "csharp",
        "class A {\n  T F(T x) {\n    var a = g(x);\n    ⟦⟧\n    return a;\n  }\n}\n",
        "a = ",
        "new();|default;|default(T);|string.Empty;|Array.Empty<T>();|new T[0];|new List<T> { };|[];",
    ),
    (
        "typescript",
        "function f(x) {\n  let a = g(x);\n  ⟦⟧\n  return a;\n}\n",
        "a = ",
        "NaN;|void 0;|[] as T[];|{} as T;|null!;|new Map<string, T>();|Object.create(null);|new Array(3);",
    ),
    (
        "go",
        "func f(x int) T {\n\ta := g(x)\n\t⟦⟧\n\treturn a\n}\n",
        "a = ",
        "make([]int, 0)|map[string][]int{}|struct{}{}|&T{}|new(T)|[]T(nil)",
    ),
    (
        "rust",
        "fn f(x: T) -> T {\n    let mut a = g(x);\n    ⟦⟧\n    a\n}\n",
        "a = ",
        'vec![];|Vec::<T>::new();|Vec::with_capacity(4);|String::from("");|"".to_string();|&[];|BTreeMap::<K, V>::new();',
    ),
    (
        "python",
        "def f(x):\n    a = g(x)\n    ⟦⟧\n    return a\n",
        "a = ",
        "defaultdict(list)|collections.OrderedDict()|deque()|b''|f''|frozenset()|bytearray()",
    ),
    (
        "php",
        "<?php\nfunction f($x) {\n  $a = g($x);\n  ⟦⟧\n  return $a;\n}\n",
        "$a = ",
        "collect();|new ArrayObject;|new \\\\stdClass();|array();",
    ),
]


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [(language, text, start + value) for language, text, start, values in NEW_VALUES for value in values.split("|")],
)
def test_any_empty_or_constant_value_overwrites(language: str, text: str, answer: str) -> None:
    check(language, text, answer, OVERWRITES)


@pytest.mark.parametrize(
    ("language", "block", "answer"),
    [
        ("python", "with open(p) as h:\n    a = h.read()", "a = []"),
        ("python", "async with p as h:\n    a = await h.read()", "a = []"),
        ("python", "try:\n    a = g(p)\nexcept E:\n    raise", "a = []"),
        ("python", "if p:\n    a = g(p)\nelse:\n    a = h(p)", "a = []"),
        ("python", "a, *b = p", "b = []"),
        ("python", "(a, b), c = p", "a = 0"),
        ("python", "a, b = 1, 2", "a = 0"),
        ("ruby", "begin\n  a = g\nrescue E\n  a = nil\nend", "a = []"),
        ("ruby", "a = nil\nFile.open(p) do |h|\n  a = h.read\nend", "a = nil"),
        ("ruby", "a, b = 1, 2", "a = 0"),
        ("javascript", "let a;\ntry {\n  a = g(p);\n} catch (e) {\n  a = 1;\n}", "a = [];"),
        ("javascript", "let a = [];\ndo {\n  a.push(p);\n} while (p());", "a = [];"),
        ("java", "T a;\ntry {\n  a = p.read();\n} catch (E e) {\n  throw e;\n}", "a = new ArrayList<>();"),
        ("java", "L a = new L();\ntry (R r = p.open()) {\n  a.add(r.read());\n}", "a = new L();"),
        ("csharp", "List<T> a;\nusing (var r = p.Open()) {\n  a = r.Read();\n}", "a = null;"),
        ("csharp", "(int a, int b) = G();", "a = 0;"),
        ("php", "$a = [];\ntry {\n  $a[] = $p->x();\n} catch (E $e) {\n  throw $e;\n}", "$a = [];"),
        ("php", "list($a, $b) = g();", "$a = 0;"),
        ("rust", "let mut a = vec![];\nloop {\n  a.push(1);\n  if p.x() { break; }\n}", "a = vec![];"),
        ("python", "self.a.append(p)", "self.a = []"),
        ("python", "for x in p:\n    self.a.append(x)", "self.a = []"),
        ("javascript", "this.a.push(p);", "this.a = [];"),
        ("ruby", "@a << p", "@a = []"),
        ("php", "$this->a[] = $p;", "$this->a = [];"),
        ("rust", "self.a.push(p);", "self.a = vec![];"),
        ("csharp", "this.a.Add(p);", "this.a = new List<T>();"),
    ],
)
def test_a_value_from_a_block_a_list_or_a_member_is_overwritten(language: str, block: str, answer: str) -> None:
    check(language, in_function(language, block), answer, OVERWRITES)


@pytest.mark.parametrize(
    ("language", "block", "answer"),
    [
        ("python", "with open(p) as h:\n    a = h.read()\n    g(a)", "a = []"),
        ("python", "a = g()\na += 1", "a = list(a)"),
        ("python", "a = 0", "a = 5"),  # declared with a first value
        ("python", "a = 0\nfor x in p:\n    a += 1", "a = 1"),
        ("python", "a, b = p", "c, a.b, a = b, None, None"),
        ("python", "b = lock()", "b = None"),
        ("python", "b = lock()\nwith b:\n    b = p()", "b = None"),
        ("csharp", "var b = lock();", "b = null;"),
        ("python", "class B:\n    a = 1", "a = 2"),
        ("python", "p.append(1)", "p = []"),  # the caller has the list
        ("python", "self.a.append(p)\nself.g()", "self.a = []"),
        ("javascript", "let a = null;\nif (p) {\n  let a = 1;\n  g();\n}", "a = 2;"),
        ("c", "int a = g(p);\nif (p)\n  goto done;", "a = 0;"),
        ("c", "int a = g(p);\nSHOW_IT();", "a = 0;"),
        ("java", "T b = a;\na = g(p);", "a = null;"),  # a field
        ("java", "a.add(p);", "a = new L();"),
    ],
)
def test_a_value_that_code_elsewhere_may_read_is_not_overwritten(language: str, block: str, answer: str) -> None:
    check(language, in_function(language, block), answer, "")


def test_a_value_may_be_read_after_a_loop_that_is_left() -> None:
    text = "def f(p):\n    for x in p:\n        a = x\n        if x:\n            break\n        ⟦⟧\n    return a\n"
    check("python", text, "a = None", "")


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("rust", "#[cfg(a)]\ntype E = B;\n#[cfg(not(a))]\n⟦⟧\n", "type E = ();"),
        ("rust", "fn f() {\n    #[cfg(a)]\n    let a = g();\n    #[cfg(not(a))]\n    ⟦⟧\n}\n", "let a = 1;"),
        ("python", "class A:\n    a = 3\n    b = 2\n    ⟦⟧\n", "a = 4"),
        ("python", "def f():\n    a = False\n    g()\n    ⟦⟧\n", "a = False"),
    ],
)
def test_an_item_with_a_condition_and_a_repeated_value_are_not_overwritten(language: str, text: str, answer: str) -> None:
    check(language, text, answer, "")
