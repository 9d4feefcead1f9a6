"""The hole at the cursor: a block with its surrounding text, or the rest of a line; also selections and errors."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import holes, languages
from dg_lsp.core.values import Document, Hole, Span
from tests import marked


def at(text: str, language: str) -> Hole:
    document, offset = marked.cursor(text, language)
    hole = holes.at_cursor(document, offset, marked.parse(document))
    assert hole.span == Span(offset, offset)
    assert hole.kind == "cursor"
    return hole


# The language, the text, and the block's lead, indent and trail.
BLOCKS = [
    ("python", "def f():\n    $0\n", "", "    ", ""),
    ("python", "def f():$0\n", "\n    ", "    ", ""),
    ("python", "def f():\n$0\n", "    ", "    ", ""),
    ("python", "class A:\n    def f(self):\n  $0\n", "      ", "        ", ""),
    ("python", "def f():\n  $0\n", "", "  ", ""),
    ("python", "class A:\n\tdef f(self):$0\n", "\n\t\t", "\t\t", ""),
    ("python", "class A:\n    def f(self):\n        $0\n\n    def g(self):\n        return 1\n", "", "        ", ""),
    ("python", 'def f():\n    """Docs."""\n    $0', "", "    ", ""),
    ("python", 'def f():\n    """Docs."""$0', "\n    ", "    ", ""),
    ("python", "def f():\n    # why\n    $0", "", "    ", ""),
    ("python", "def f():  # why\n    $0", "", "    ", ""),
    ("python", "def f(\n    a,\n) -> int:\n    $0", "", "    ", ""),
    ("python", "def f(\n    a,\n) -> int:$0", "\n    ", "    ", ""),
    ("python", "if x:\n    pass\nelse:\n    $0", "", "    ", ""),
    ("python", "for x in y:\n    $0\nz = 1\n", "", "    ", ""),
    ("python", "while x:\n    $0", "", "    ", ""),
    ("python", "with open(x) as f:\n    $0", "", "    ", ""),
    ("python", "try:\n    $0\nexcept", "", "    ", ""),
    ("python", "match x:\n    case 1:\n        $0", "", "        ", ""),
    ("python", "s = '🦀'\r\ndef f():\r\n    $0\r\n", "", "    ", ""),
    ("javascript", "function f() {$0}", "\n  ", "  ", "\n"),
    ("javascript", "function f() {\n  $0\n}", "", "  ", ""),
    ("javascript", "if (x) {\n\t$0\n}", "", "\t", ""),
    ("javascript", "foo(() => {$0})", "\n  ", "  ", "\n"),
    ("javascript", "class A {\n  $0\n}", "", "  ", ""),
    ("javascript", "function f() {\n  if (a) {\n    $0\n  return 1;\n}", "", "    ", ""),
    ("javascript", "function f() { /* why */$0\n}", "\n  ", "  ", ""),
    ("typescript", "const f = (x: number) => {\n  $0\n}", "", "  ", ""),
    ("typescript", "abstract class A {\n  m(): void {$0}\n}", "\n    ", "    ", "\n  "),
    ("tsx", "function F() {\n  $0\n}", "", "  ", ""),
    ("go", "func f() {\n\t$0\n}", "", "\t", ""),
    ("go", "func f() {\n\tfor {$0}\n}", "\n\t\t", "\t\t", "\n\t"),
    ("rust", "fn f() {\n    match x {\n        $0\n    }\n}", "", "        ", ""),
    ("rust", "impl A {\n    $0\n}", "", "    ", ""),
    ("java", "class A {\n    void f() {$0}\n}", "\n        ", "        ", "\n    "),
    ("java", "class A {\n    $0\n}", "", "    ", ""),
    ("c", "int f(void) {\n    $0\n}", "", "    ", ""),
    ("c", "int f(void)\n{\n    while (x) {$0\n}", "\n        ", "        ", ""),
    ("cpp", "class A {\n    $0\n};", "", "    ", ""),
    ("cpp", "auto f = [](int a) {$0};", "\n    ", "    ", "\n"),
    ("csharp", "class A\n{\n    void F()\n    {\n        $0\n    }\n}", "", "        ", ""),
    ("csharp", "namespace N\n{\n    $0\n}", "", "    ", ""),
    ("ruby", "def f(a)\n  $0\nend", "", "  ", ""),
    ("ruby", "def f\n  $0\n", "", "  ", ""),
    ("ruby", "foo.each do |x|\n  $0\nend", "", "  ", ""),
    ("ruby", "if x\n  $0\nend", "", "  ", ""),
    ("ruby", "unless x\n  1\nelse\n  $0\nend", "", "  ", ""),
    ("ruby", "class A < B\n  $0\nend", "", "  ", ""),
    ("php", "<?php\nfunction f() {\n    $0\n}", "", "    ", ""),
    ("php", "<?php\nforeach ($a as $b) {$0}", "\n    ", "    ", "\n"),
    ("bash", "f() {\n  $0\n}", "", "  ", ""),
    ("bash", "if x; then\n  $0\nfi", "", "  ", ""),
    ("bash", "for x in y; do\n  $0\ndone", "", "  ", ""),
    ("bash", "if x; then\n  $0", "", "  ", ""),
    ("lua", "function f(a)\n  $0\nend", "", "  ", ""),
    ("lua", "if x then\n  $0\nend", "", "  ", ""),
    ("lua", "repeat\n  $0\nuntil x", "", "  ", ""),
    ("lua", "local f = function()\n  $0", "", "  ", ""),
    ("", "section:\n  $0", "", "  ", ""),
    ("", "server {\n$0\n}", "    ", "    ", ""),
]

LINES = [
    ("python", "$0"),
    ("python", "x = $0\n"),
    ("python", "x = foo($0)\n"),
    ("python", "x = foo(\n    $0\n)\n"),
    ("python", "def f($0):\n    pass\n"),
    ("python", "def f(x:$0"),
    ("python", "x = {\n    'a':$0\n}"),
    ("python", "x = {'a':$0"),
    ("python", "x = y[1:$0"),
    ("python", "key = lambda x:$0"),
    ("python", "def f():\n    x = 1\n    $0\n"),
    ("python", "def f():\n    $0\n    return 1\n"),
    ("python", "s = 'a:$0'"),
    ("python", "# a:$0"),
    ("python", 'def f():\n    """Docs:\n    $0\n    """\n'),
    ("javascript", "const x = {$0}"),
    ("javascript", "const x = {\n  $0\n}"),
    ("javascript", "// {$0"),
    ("javascript", "const x = `${a} {\n  $0`"),
    ("javascript", "function f() {$0 return 1 }"),
    ("typescript", "interface A {$0}"),
    ("tsx", "const f = () => <div>{$0}</div>"),
    ("go", "x := []int{$0}"),
    ("rust", "let a = A {$0};"),
    ("java", "int[] a = {$0};"),
    ("c", "struct s y = {\n    $0\n};"),
    ("cpp", "std::vector<int> v = {$0};"),
    ("csharp", "var a = new A {$0};"),
    ("ruby", "x = {$0}"),
    ("ruby", "x = 1\n$0"),
    ("php", "<?php\n$x = [$0];"),
    ("bash", "echo $0"),
    ("bash", 'x="{\n$0"'),
    ("lua", "local t = {$0}"),
    ("lua", "local x = 1\n$0"),
    ("", "key:$0"),
    ("", "one line\n$0"),
    ("", "a {\n  b\n  $0\n}"),
]


@pytest.mark.parametrize(("language", "text", "lead", "indent", "trail"), BLOCKS)
def test_a_cursor_where_an_empty_block_starts_is_a_block_hole(
    language: str, text: str, lead: str, indent: str, trail: str
) -> None:
    hole = at(text, language)
    assert (hole.extent, hole.lead, hole.indent, hole.trail) == ("block", lead, indent, trail)


@pytest.mark.parametrize(("language", "text"), LINES)
def test_a_cursor_elsewhere_is_a_hole_for_the_rest_of_the_line(language: str, text: str) -> None:
    hole = at(text, language)
    assert (hole.extent == "block", hole.lead, hole.trail) == (False, "", "")


@pytest.mark.parametrize(
    ("language", "text", "extent"),
    [
        # An empty line of code.
        ("python", "x = 1\n$0\ny = 2\n", "lines"),
        ("python", "def f():\n    a()\n    $0\n\n\ndef g():\n    b()\n", "lines"),
        ("python", "def f():\n    a()\n    $0", "lines"),
        ("go", "func f() {\n\ta()\n\t$0\n}\n", "lines"),
        ("typescript", "const a = {\n  b: 1,\n  $0\n}\n", "lines"),
        ("go", "func f() {\n\t$0\n\treturn\n}\n", "lines"),
        # Before a block, in a string, and without a grammar.
        ("python", "$0\n    return 1\n", "line"),
        ("go", "func f() {\n\t$0\n\t\tb()\n\t}\n}\n", "line"),
        ("python", 'x = """\n$0\n"""\n', "line"),
        ("", "a\n$0\nb\n", "line"),
        # A line that may open a block, which is not there yet.
        ("python", "def f():\n    a()\n    i$0\n    b()\n", "lines"),
        ("go", "func f() {\n\ti$0\n\treturn\n}\n", "lines"),
        ("python", "def f():\n    i$0\n        b()\n", "line"),
        ("python", "def f():\n    i$0 x\n", "line"),
        ("python", 'def f():\n    """i$0\n    """\n', "line"),
        ("", "a$0\nb\n", "line"),
    ],
)
def test_an_answer_in_a_line_of_code_may_have_several_lines(language: str, text: str, extent: str) -> None:
    assert at(text, language).extent == extent


# The language, the text, and the text with an answer in a line of its own.
ABOVE = [
    ("python", "def f():\n$0    return 1\n", "def f():\n    ANSWER\n    return 1\n"),
    ("python", "def f():\n  $0  return 1\n", "def f():\n    ANSWER\n    return 1\n"),
    ("python", "def f():\n    $0return 1\n", "def f():\n    ANSWER\n    return 1\n"),
    ("python", "if x:\n    a()\n$0else:\n    b()\n", "if x:\n    a()\n    ANSWER\nelse:\n    b()\n"),
    ("python", "try:\n\ta()\n$0except (A, B):\n\tb()\n", "try:\n\ta()\n\tANSWER\nexcept (A, B):\n\tb()\n"),
    ("python", "x = [\n    1,\n$0]\n", "x = [\n    1,\n    ANSWER\n]\n"),
    ("python", "x = [\n$0]\n", "x = [\n    ANSWER\n]\n"),
    ("python", "x = 1\n$0y = 2\n", "x = 1\nANSWER\ny = 2\n"),
    ("python", "def f():\r\n$0    return 1\r\n", "def f():\r\n    ANSWER\n    return 1\r\n"),
    ("javascript", "f(() => {\n  a();\n$0});\n", "f(() => {\n  a();\n  ANSWER\n});\n"),
    ("javascript", "f(\n  a,\n$0  b,\n);\n", "f(\n  a,\n  ANSWER\n  b,\n);\n"),
    (
        "typescript",
        "interface Item {\n  name: string;\n$0  price: number;\n}\n",
        "interface Item {\n  name: string;\n  ANSWER\n  price: number;\n}\n",
    ),
    ("tsx", "const a = (\n  <ul>\n$0  </ul>\n);\n", "const a = (\n  <ul>\n    ANSWER\n  </ul>\n);\n"),
    ("go", "func f() {\n\ta()\n$0\tb()\n}\n", "func f() {\n\ta()\n\tANSWER\n\tb()\n}\n"),
    ("rust", "fn f() {\n    a();\n    $0}\n", "fn f() {\n    a();\n    ANSWER\n    }\n"),
    ("java", "class A {\n    int a;\n$0    int b;\n}\n", "class A {\n    int a;\n    ANSWER\n    int b;\n}\n"),
    ("c", "int f(void) {\n\ta();\n$0}\n", "int f(void) {\n\ta();\n\tANSWER\n}\n"),
    ("cpp", "struct A {\n  int a;\n $0 int b;\n};\n", "struct A {\n  int a;\n  ANSWER\n  int b;\n};\n"),
    ("csharp", "enum A\n{\n    B,\n$0    C,\n}\n", "enum A\n{\n    B,\n    ANSWER\n    C,\n}\n"),
    (
        "ruby",
        "def total(items)\n  items.each do |item|\n    puts item\n$0  end\nend\n",
        "def total(items)\n  items.each do |item|\n    puts item\n    ANSWER\n  end\nend\n",
    ),
    ("ruby", "begin\n  a\n$0rescue E\n  b\nend\n", "begin\n  a\n  ANSWER\nrescue E\n  b\nend\n"),
    ("php", "<?php\nfunction f() {\n$0    g();\n}\n", "<?php\nfunction f() {\n    ANSWER\n    g();\n}\n"),
    ("bash", 'add() {\n  local price=$1\n$0  echo "$price"\n}\n', 'add() {\n  local price=$1\n  ANSWER\n  echo "$price"\n}\n'),
    ("bash", "if a; then\n  b\n$0fi\n", "if a; then\n  b\n  ANSWER\nfi\n"),
    ("lua", "for i = 1, 3 do\n  a()\n$0end\n", "for i = 1, 3 do\n  a()\n  ANSWER\nend\n"),
    ("", "name: x\non:\n  push:\n$0    branches: [main]\n", "name: x\non:\n  push:\n    ANSWER\n    branches: [main]\n"),
    ("", '{\n  "a": 1,\n$0  "b": 2\n}\n', '{\n  "a": 1,\n  ANSWER\n  "b": 2\n}\n'),
    ("", "<ul>\n  <li>a</li>\n$0</ul>\n", "<ul>\n  <li>a</li>\n  ANSWER\n</ul>\n"),
    ("", "{% if a %}\n  b\n$0{% endif %}\n", "{% if a %}\n  b\n  ANSWER\n{% endif %}\n"),
    ("", "  end = 1\n$0  end = 2\n", "  end = 1\n  ANSWER\n  end = 2\n"),
]


@pytest.mark.parametrize(("language", "text", "expected"), ABOVE)
def test_an_answer_before_the_code_of_a_line_gets_a_line_of_its_own(language: str, text: str, expected: str) -> None:
    document, _ = marked.cursor(text, language)
    hole = at(text, language)
    assert hole.extent != "block"
    assert marked.filled(document, hole, "ANSWER") == expected


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("javascript", "function f() {\n$0}\n", "function f() {\n  ANSWER\n}\n"),
        ("javascript", "function f() {\n    $0}\n", "function f() {\n    ANSWER\n}\n"),
        ("go", "func f() {\n\tfor {\n$0\t}\n}\n", "func f() {\n\tfor {\n\t\tANSWER\n\t}\n}\n"),
        ("ruby", "a.each do |b|\n$0end\n", "a.each do |b|\n  ANSWER\nend\n"),
        ("python", "if a:\n$0else:\n    b()\n", "if a:\n    ANSWER\nelse:\n    b()\n"),
        ("bash", "if a; then\n$0else\n  b\nfi\n", "if a; then\n  ANSWER\nelse\n  b\nfi\n"),
        ("", "server {\n$0}\n", "server {\n    ANSWER\n}\n"),
    ],
)
def test_an_empty_block_is_filled_though_the_cursor_is_before_its_end(language: str, text: str, expected: str) -> None:
    document, _ = marked.cursor(text, language)
    hole = at(text, language)
    assert hole.extent == "block"
    assert marked.filled(document, hole, "ANSWER") == expected


@pytest.mark.parametrize(
    ("language", "text"), [("javascript", "const x = `\n  $0`;\n"), ("python", 'x = """\n$0""")\n'), ("", "x = '''\n$0'''\n")]
)
def test_the_end_of_a_string_of_several_lines_stays_behind_the_answer(language: str, text: str) -> None:
    document, _ = marked.cursor(text, language)
    assert marked.filled(document, at(text, language), "ANSWER") == text.replace("$0", "ANSWER")


@pytest.mark.parametrize(
    ("name", "text", "indent"),
    [
        ("Makefile", "CC = gcc\n\nall:\n$0", "\t"),
        ("src/rules.mk", "SRC = a.c \\\n  b.c\n\nclean:\n$0", "\t"),
        ("GNUmakefile", ".PHONY: all\n$0", ""),
        ("Makefile.am", "all:\n$0\nclean:\n\trm a\n", "\t"),
        ("docs/a.md", "Why:\n$0", ""),
        ("docs/a.md", "---\ntags:\n$0\n---\n", "  "),
        ("docs/a.md", "---\na: b\n---\nWhy:\n$0", ""),
        ("README", "Use it so:\n$0", ""),
        ("notes.txt", "a {\n$0", ""),
        ("a.rst", "So:\n$0", ""),
        ("a.rst", "So::\n$0", "    "),
        ("a.yaml", "on:\n$0", "  "),
        ("a.css", "a {\n$0\n}\n", "  "),
        ("a.kt", "fun f() {\n$0", "    "),
        ("a.kt", "fun f() {\n\tg()\n}\nfun h() {\n$0", "\t"),
    ],
)
def test_a_block_without_a_grammar_is_indented_as_usual_for_its_kind_of_file(name: str, text: str, indent: str) -> None:
    document, spans, _ = marked.read(text, "", f"file:///code/{name}")
    hole = holes.at_cursor(document, spans[0].start, None)
    assert (hole.indent, hole.lead, hole.extent == "block") == (indent, indent, bool(indent))


@pytest.mark.parametrize("language", ["python", "javascript", "go", ""])
def test_a_text_without_indentation_takes_that_of_its_project(language: str) -> None:
    text = "def f():" if language == "python" else "func f() {\n"
    document = Document("file:///code", language, text, indent="   ")
    assert holes.at_cursor(document, len(text), marked.parse(document)).indent == "   "
    document = Document("file:///code", "python", "def f(): pass", indent="   ")
    assert holes.at_placeholder(document, Span(9, 13), marked.parse(document)) == Hole(
        Span(8, 13), "body", indent="   ", extent="block", lead="\n   "
    )


def test_every_language_has_block_and_line_cases() -> None:
    names = {language.name for language in languages.TABLE} | {""}
    assert {case[0] for case in BLOCKS} == names == {case[0] for case in LINES} == {case[0] for case in ABOVE}


def test_a_line_keeps_its_indentation() -> None:
    assert at("def f():\n    x = $0\n", "python").indent == "    "
    assert at("def f():\n    x = 1\n  $0\n", "python").indent == "  "


def test_a_cursor_beyond_the_text_is_at_its_end_and_one_inside_a_line_end_before_it() -> None:
    assert holes.at_cursor(Document("", "", "ab"), 9, None).span == Span(2, 2)
    assert holes.at_cursor(Document("", "", "ab"), -1, None).span == Span(0, 0)
    assert holes.at_cursor(Document("", "", "a\r\nb"), 2, None).span == Span(1, 1)


def check_selection(text: str, *, block: bool, lead: str = "", indent: str = "", language: str = "python") -> None:
    document, span = marked.selection(text, language)
    hole = holes.selection(document, span, marked.parse(document), "shorter")
    assert (hole.kind, hole.instruction) == ("selection", "shorter")
    assert (hole.extent == "block", hole.lead, hole.indent) == (block, lead, indent)
    assert document.text[hole.span.start : hole.span.end] == document.text[span.start : span.end].rstrip("\r\n")


def test_selected_lines_are_a_block() -> None:
    check_selection("def f():\n$0    a = 1\n    b = 2\n$0    c = 3\n", block=True, lead="    ", indent="    ")
    check_selection("def f():\n    $0a = 1\n    b = 2$0\n", block=True, indent="    ")
    check_selection("def f():\n  $0  a = 1\r\n$0\n", block=True, lead="  ", indent="    ")
    check_selection("x\n$0\n    a = 1\n$0", block=True, lead="    ", indent="    ", language="")


def test_a_selected_part_of_a_line_is_not_a_block() -> None:
    check_selection("def f():\n    a = $01$0 + 2\n", block=False, indent="    ")
    check_selection("def f():\n    a = $0$0\n", block=False, indent="    ")
    check_selection("a = $01 +\\\n  2$0\n", block=True)


def test_a_selection_beyond_the_text_ends_with_it() -> None:
    assert holes.selection(Document("", "", "ab\n"), Span(1, 99), None).span == Span(1, 2)


def test_a_selection_inside_a_line_end_is_before_it() -> None:
    assert holes.selection(Document("", "", "a\r\nb\r\n"), Span(2, 3), None).span == Span(1, 1)
    assert holes.selection(Document("", "", "a\r\nb\r\n"), Span(2, 5), None).span == Span(1, 4)


def check_errors(text: str, language: str = "python") -> None:
    document, expected = marked.holes(text, language)
    errors = holes.errors(marked.parse(document))
    assert marked.draw(document, errors) == marked.draw(document, [Hole(span, "error") for span in expected])
    assert all(hole.extent == "block" and hole.kind == "error" for hole in errors)


def test_lines_that_can_not_be_parsed_are_holes() -> None:
    check_errors("x = 1\n<hole>y = = 2</hole>\nz = 3\n")
    check_errors("function f() {\n  <hole>let = = 1;</hole>\n  return 2;\n}\n", "javascript")
    check_errors("int f() {\n  <hole>return 1</hole>\n}\n", "c")
    check_errors("a = 1\n")
    check_errors("a = = b", "")


def test_blank_lines_around_an_error_are_no_part_of_it() -> None:
    check_errors("<hole>async lambda: ...class A:# FILL async  </hole>\n ", "rust")
    check_errors('\r\n <hole>/* a */x if x()=>// b "</hole>\r\n\n', "python")


def test_errors_on_the_same_lines_are_one_hole() -> None:
    check_errors("<hole>f(1, , 2) = = g(, )</hole>\nx = 1\n")


TOKENS = [
    *(
        "def f():", "class A:", "function f()", "fn f()", "match x", "if x:", "lambda: ...", "() =>", "do", "then", "end",
        "else:",
    ),
    *("{", "}", "(", ")", "[", "]", "'", '"', "`", ";", "=", ":", "x", "é", "🦀", "\ud800", "\u2028", "\ufeff"),
    *("pass", "...", "todo!()", "raise NotImplementedError", "throw new Error('todo')", "panic('todo')", "/** d */"),
    *("# TODO", "# FILL", "// FILL: x", "/* FILL */", "-- TODO", "/* TODO */"),
    *("\n", "\n", "\n", "\n", "\r\n", "\r", "    ", "    ", "\t"),
]  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(TOKENS), st.sampled_from(["", " "])).map("".join), max_size=20).map("".join),
    st.sampled_from(["", *(language.name for language in languages.TABLE)]),
    st.integers(-3, 99),
    st.integers(0, 99),
)
def test_any_text_can_be_searched_for_holes(text: str, language: str, offset: int, length: int) -> None:
    document = Document("", language, text)
    syntax = marked.parse(document)
    start = max(offset, 0)
    in_order = holes.in_document(document, syntax, holes.KINDS)
    every = [
        holes.at_cursor(document, offset, syntax),
        holes.selection(document, Span(start, start + length), syntax),
        *holes.errors(syntax),
        *in_order,
    ]
    assert all(hole.span.end <= len(text) for hole in every)
    assert len({hole.span for hole in in_order}) == len(in_order)
    before, after = text[: every[0].span.start], text[every[0].span.end :]
    code = re.split(r"[\r\n]", after)[0].strip()
    # Quotes and closers alone may end a string that began above.
    if code.strip("\"'` \t)]};,") and not re.split(r"[\r\n]", before)[-1].strip():
        lines = re.split(r"[\r\n]", marked.filled(document, every[0], "ANSWER"))
        assert code in [line.strip() for line in lines], "an answer before a line's code is no part of the line"
    assert not any(first.span.end > second.span.start for first, second in itertools.pairwise(in_order))


@pytest.mark.parametrize(
    ("language", "text", "body"),
    [
        ("python", "def f():\n    $0pass\n", "pass"),
        ("python", "def f():\n    pa$0ss\n", "pass"),
        ("python", "def f():\n    pass$0\n", "pass"),
        ("python", "def f():\n    $0pass$0\n", "pass"),
        ("python", "def f():\n$0    pass\n$0", "pass"),
        ("python", "def f(): $0pass\n", " pass"),
        ("python", "def f():\n    raise $0NotImplementedError('f')\n", "raise NotImplementedError('f')"),
        ("python", "class A(Protocol):\n    def f(self):\n        $0...\n", "..."),
        ("python", "class A:\n    $0pass\n", "pass"),
        ("python", "try:\n    f()\nexcept E:\n    $0pass\n", "pass"),
        ("python", "def f():\n    # TO$0DO\n    pass\n", "# TODO\n    pass"),
        ("javascript", 'function f() {\n  throw $0new Error("not implemented");\n}\n', 'throw new Error("not implemented");'),
        ("rust", "fn f() {\n    todo!($0)\n}\n", "todo!()"),
        ("go", 'package a\n\nfunc f() {\n\tpanic("$0not implemented")\n}\n', 'panic("not implemented")'),
    ],
)
def test_pointing_at_a_placeholder_selects_its_body(language: str, text: str, body: str) -> None:
    document, span = marked.selection(text, language)
    hole = holes.at_place(document, span, marked.parse(document), "shorter")
    assert (hole.kind, hole.extent) == ("body", "block")
    assert document.text[hole.span.start : hole.span.end] == body
    assert hole.instruction.startswith("shorter")


def test_pointing_at_a_placeholder_gives_the_same_hole_as_searching_the_file() -> None:
    for text in ('def f():\n    """Docs."""\n    $0pass\n', "def f(a): $0...\n", "fn f() { todo!$0() }\n"):
        document, span = marked.selection(text, "rust" if text.startswith("fn") else "python")
        syntax = marked.parse(document)
        assert (holes.at_place(document, span, syntax),) == holes.in_document(document, syntax, frozenset({"bodies"}))


@pytest.mark.parametrize(
    ("language", "text", "replaced"),
    [
        ("python", "def f():\n    $0# FILL: add one\n", "# FILL: add one"),
        ("python", "def f():\n    # FI$0LL: add one\n", "# FILL: add one"),
        ("python", "def f():\n    # FILL: add one$0\n", "# FILL: add one"),
        ("python", "def f():\n$0    # FILL: add one\n$0", "# FILL: add one"),
        ("python", "def f():\n    # FILL: add one\n    $0pass\n", "# FILL: add one\n    pass"),
        ("python", "x = g(1)\n$0# FILL: add one\ny = 2\n", "# FILL: add one"),
        ("javascript", "const a = $0/* FILL: add one */;\n", "/* FILL: add one */"),
        ("", "a\n// FI$0LL: add one\n", "// FILL: add one"),
    ],
)
def test_pointing_at_a_fill_comment_selects_its_hole(language: str, text: str, replaced: str) -> None:
    document, span = marked.selection(text, language)
    syntax = marked.parse(document)
    hole = holes.at_place(document, span, syntax, "shorter")
    assert document.text[hole.span.start : hole.span.end] == replaced
    assert (hole.kind, hole.instruction) == ("marker", "shorter add one")
    assert holes.at_place(document, span, syntax) in holes.in_document(document, syntax, holes.KINDS)


# The parser takes the broken statement and all that follows, up to the field, for one that throws "not implemented".
SWALLOWED = """\
class A {
    void clear() {
        throw std::$0logic_"not implemented");
    }

private:
    std::vector<int> items;
};
"""


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", 'def f():\n    """Do$0cs."""\n    pass\n'),
        ("python", "def f():\n    $0\n    pass\n"),
        ("python", "def f():\n    x = $01\n"),
        # Such a statement may follow a placeholder, but alone it is code.
        ("python", "def f():\n    return $01\n"),
        ("javascript", "function f() {\n  return null;$0\n}\n"),
        ("javascript", "function f() { $0 }\n"),
        ("", "pas$0s\n"),
        ("python", "def f():\n    x = $01\n    # FILL: add one\n"),
        ("python", "# FILL$0ER text\n"),
        ("cpp", SWALLOWED),
    ],
)
def test_pointing_at_other_text_gives_a_cursor_hole(language: str, text: str) -> None:
    document, offset = marked.cursor(text, language)
    syntax = marked.parse(document)
    assert holes.at_place(document, Span(offset, offset), syntax) == holes.at_cursor(document, offset, syntax)


def test_selecting_more_than_a_placeholder_gives_the_selection() -> None:
    for text in ("$0def f():\n    pass$0\n", "def f():\n    $0x = 1\n    pass$0\n", "x = $01$0\n"):
        document, span = marked.selection(text)
        syntax = marked.parse(document)
        assert holes.at_place(document, span, syntax) == holes.selection(document, span, syntax)
