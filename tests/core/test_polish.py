"""Polishing of answers, as drawings: ⟦…⟧ is a hole with its old text, and the expected text has the answer in its place."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import languages, polish, syntax
from dg_lsp.core.holes import selection
from dg_lsp.core.polish import Polished
from dg_lsp.core.values import Calibrated, Candidate, Document, Edit, Hole, HoleKind, Span, apply
from tests.fakes import drawn


def polished(text: str, *answers: str, grammar: bool = True, **how: Any) -> tuple[Polished, str]:
    """Return the polished answers, one for each hole, and the text with them; "" if they are dropped."""
    document, holes = drawn(text, **{"language": "python", **how})
    tree = syntax.of(document) if grammar else None
    result = polish.to_edits(Candidate(answers, Calibrated(0.5)), holes, document, syntax=tree)
    assert bool(result.edits) != bool(result.dropped)
    return result, apply(document.text, result.edits) if result.edits else ""


def check(text: str, answer: str, expected: str, *, grammar: bool = True, **how: Any) -> None:
    assert polished(text, answer, grammar=grammar, **how)[1] == expected


def check_body(text: str, answer: str, expected: str, *, indent: str = "    ", **how: Any) -> None:
    check(text, answer, expected, **{"extent": "block", "indent": indent, "kind": "body", **how})


def check_dropped(text: str, answer: str, reason: str, **how: Any) -> None:
    result, _ = polished(text, answer, **how)
    assert result.dropped == reason


def test_every_filter_and_check_has_a_row_in_the_table_of_what_they_are_worth() -> None:
    page = Path(__file__).parents[2] / "docs" / "decisions" / "0039-what-rules-are-worth.md"
    assert set(re.findall(r"^\| `(\w+)` \|", page.read_text("utf-8"), re.MULTILINE)) == {
        rule.__name__ for rule in (*polish.FILTERS, *polish.CHECKS)
    }


# --- Golden answers ---------------------------------------------------------------------------------------------------

BODY = {"extent": "block", "indent": "    ", "kind": "body"}
GOLDEN: list[tuple[str, str, str, dict[str, Any]]] = [
    # A good answer is unchanged.
    ("x = ⟦⟧\n", "1", "x = 1\n", {}),
    ("f(⟦⟧)\n", "g(x)", "f(g(x))\n", {}),
    ("x = [⟦a⟧, b]\n", "f(c)[0]", "x = [f(c)[0], b]\n", {}),
    (
        "def f():\n    ⟦...⟧\n\nf()\n",
        "if x:\n        y()\n\n    return 1",
        "def f():\n    if x:\n        y()\n\n    return 1\n\nf()\n",
        BODY,
    ),
    # Lead and trail are written around the answer.
    (
        "function f() {⟦⟧}\r\n",
        "return 1;\n  }",
        "function f() {\r\n  return 1;\r\n}\r\n",
        {**BODY, "language": "javascript", "indent": "  ", "lead": "\n  ", "trail": "\n"},
    ),
    # A file about tokens may hold them.
    ("EOS = '<eos>'\nPAD = ⟦⟧\n", "'<eos>'", "EOS = '<eos>'\nPAD = '<eos>'\n", {}),
    # A string may hold a token.
    ("x = ⟦⟧\n", "'<|im_start|>'", "x = '<|im_start|>'\n", {}),
    # Types and html tags are not control tokens.
    ("let x: ⟦⟧ = y;\n", "Vec<eos>", "let x: Vec<eos> = y;\n", {"language": "rust"}),
    ("const x = ⟦⟧;\n", "<path></path>", "const x = <path></path>;\n", {"language": "tsx"}),
    # An answer is extracted from its fence.
    ("def f():\n    ⟦⟧\n", "```python\nreturn 1\n```\nThis returns one.", "def f():\n    return 1\n", BODY),
    ("x = ⟦⟧\n", "```\n1\n", "x = 1\n", {"extent": "block"}),
    # An answer ends at the fence that closes it.
    ("def f():\n    ⟦⟧\n", "return 1\n```\nThis returns one.", "def f():\n    return 1\n", BODY),
    # A file without a language may hold fences.
    ("⟦⟧\n", "a\n```\nb", "a\n```\nb\n", {"language": "", "extent": "block"}),
    # A single line answer ends at the line end.
    ("x = ⟦⟧\n", "1\ny = 2", "x = 1\n", {}),
    # A repeated rest of the line is cut.
    ("f(⟦⟧)\n", "x)", "f(x)\n", {}),
    ("f(⟦⟧, b)\n", "a, b)", "f(a, b)\n", {}),
    ("x = ⟦⟧ + total\n", "a + total", "x = a + total\n", {}),
    ("x = ⟦⟧ # the sum\n", "a # the sum", "x = a # the sum\n", {"grammar": False}),
    # A needed closing bracket is not cut.
    ("f(⟦⟧)\n", "g(x)", "f(g(x))\n", {}),
    ("f(g(⟦⟧)\n", "x)", "f(g(x))\n", {}),
    ("f(⟦⟧)\n", "g(x)", "f(g(x))\n", {"grammar": False}),
    # A repeated closer is cut without a grammar too.
    ("f(⟦⟧)\n", "x)", "f(x)\n", {"grammar": False}),
    # An operator is not written twice.
    ("a = x.⟦⟧ ?? c;\n", "b ??", "a = x.b ?? c;\n", {"language": "typescript"}),
    ("a = ⟦⟧ or c\n", "b or", "a = b or c\n", {}),
    # The end of a name is not written twice.
    ("x = ⟦⟧value\n", "new_value", "x = new_value\n", {}),
    ("x = ⟦⟧name\n", "filename", "x = filename\n", {}),
    # Nor is the first part of the rest, a semicolon, or a bracket that the answer did not open.
    ("f(⟦⟧, b=c)\n", "a, b=", "f(a, b=c)\n", {}),
    ("a = ⟦⟧;\n", "1;", "a = 1;\n", {"language": "javascript"}),
    ("f(⟦⟧) + g(b)\n", "a) + g(c", "f(a) + g(b)\n", {}),
    # Numbers may repeat what follows them.
    ("x = [1, ⟦⟧ 0, 0]\n", "0, 0,", "x = [1, 0, 0, 0, 0]\n", {}),
    # Repeated following lines are cut.
    (
        "def f():\n    ⟦⟧\n    return total\n\nf()\n",
        "total = 1\n    return total\n\nf()",
        "def f():\n    total = 1\n    return total\n\nf()\n",
        BODY,
    ),
    # Following lines are cut though the last is cut off.
    (
        "def f():\n    ⟦⟧\n    return total\n\ndef g(): pass\n",
        "total = 1\n    return total\n\ndef g",
        "def f():\n    total = 1\n    return total\n\ndef g(): pass\n",
        BODY,
    ),
    # Following lines are cut though others come after.
    (
        "def f():\n    ⟦⟧\n    a = one()\n    b = two()\n",
        "x = 0\n    a = one()\n    b = two()\n    c = three()",
        "def f():\n    x = 0\n    a = one()\n    b = two()\n",
        BODY,
    ),
    # Indentation that is there already is left out.
    ("def f():\n    ⟦⟧\n", "    return 1", "def f():\n    return 1\n", BODY),
    ("def f():\n    ⟦⟧\n", "\n\n    return 1", "def f():\n    return 1\n", BODY),
    ("def f():\n\tif x:\n\t⟦⟧\n", "\t\treturn 1", "def f():\n\tif x:\n\t\treturn 1\n", {**BODY, "indent": "\t\t"}),
    # Missing indentation is kept.
    ("def f():\n  ⟦⟧\n", "  return 1", "def f():\n    return 1\n", BODY),
    (
        "def f():\n    if x:\n⟦⟧\n",
        "        return 1",
        "def f():\n    if x:\n        return 1\n",
        {**BODY, "indent": "        "},
    ),
    # A level that the answer chose is kept.
    (
        "def f():\n    if x:\n        y\n⟦⟧\n",
        "    return 1",
        "def f():\n    if x:\n        y\n    return 1\n",
        {**BODY, "indent": "        "},
    ),
    # An answer behind a colon keeps its newline.
    ("def f():⟦⟧\n", "\n    return 1", "def f():\n    return 1\n", BODY),
    # Spaces become tabs in a file with tabs.
    ("def f():\n\t⟦⟧\n", "if x:\n        y()\n    z()", "def f():\n\tif x:\n\t\ty()\n\tz()\n", {**BODY, "indent": "\t"}),
    ("def f():\n\t⟦⟧\n", "if x:\n    y()\n  z()", "def f():\n\tif x:\n\t\ty()\n\tz()\n", {**BODY, "indent": "\t"}),
    (
        "func f() {\n\t⟦⟧\n}\n",
        "if x {\n\t    y()\n\t}",
        "func f() {\n\tif x {\n\t\ty()\n\t}\n}\n",
        {**BODY, "indent": "\t", "language": "go"},
    ),
    # Tabs become spaces in a file with spaces.
    (
        "def g():\n  pass\ndef f():\n  ⟦⟧\n",
        "if x:\n\t\ty()\n\tz()",
        "def g():\n  pass\ndef f():\n  if x:\n    y()\n  z()\n",
        {**BODY, "indent": "  "},
    ),
    # A first level of tabs becomes spaces though the file has none.
    (
        "{⟦⟧}",
        "a;\n\t\tb;",
        "{\n  a;\n        b;\n}",
        {**BODY, "indent": "  ", "lead": "\n  ", "trail": "\n", "language": "c", "grammar": False},
    ),
    # The first line of an answer is indented like the file too.
    ("func f() {\n\ta()\n⟦⟧\n}\n", "    b()", "func f() {\n\ta()\n\tb()\n}\n", {"language": "go"}),
    ("def f():\n    a()\n⟦⟧\n", "\tb()", "def f():\n    a()\n    b()\n", {}),
    ("/**\n * a\n⟦⟧\n */\nint f() {\n\tg();\n}\n", " * b", "/**\n * a\n * b\n */\nint f() {\n\tg();\n}\n", {"language": "c"}),
    # White space at line ends is trimmed but not in strings.
    ("def f():\n    ⟦⟧\n", "x = 1  \n    y = '''a  \n'''\n  \n", "def f():\n    x = 1\n    y = '''a  \n'''\n", BODY),
    # A space before the rest of the line is kept.
    ("x = ⟦⟧b\n", "a + ", "x = a + b\n", {}),
    # An answer ends where its block does.
    ("def f():\n    ⟦⟧\n\nx = 1\n", "return 1\n\ndef g():\n    return 2", "def f():\n    return 1\n\nx = 1\n", BODY),
    ("def f\n  ⟦⟧\nend\n", "a\nend\n\ndef g\n  b", "def f\n  a\nend\n", {**BODY, "language": "ruby", "indent": "  "}),
    # Without a grammar the first dedent ends the block.
    ("begin\n  ⟦⟧\nend\n", "a\nend\nb", "begin\n  a\nend\n", {**BODY, "language": "", "indent": "  ", "grammar": False}),
    # An answer ends at the bracket that closes its block.
    (
        "function f() { ⟦⟧ }\n",
        "return 1; } function g() { return 2;",
        "function f() { return 1;  }\n",
        {"language": "javascript"},
    ),
    ("{ ⟦⟧\n}\n", "a } b", "{ a\n}\n", {"grammar": False}),
    ("{ ⟦⟧ }\n", "a } b", "{ a }\n", {"grammar": False}),
    # A bracket that the file lacks is kept.
    ("f(⟦⟧\n", "x)", "f(x)\n", {}),
    ("{ ⟦⟧\n", "a } b", "{ a } b\n", {"grammar": False}),
    # A selection that closes brackets may close them again.
    ("f(⟦a) + g(b⟧)\n", "c) + h(d", "f(c) + h(d)\n", {"kind": "selection"}),
    # Brackets in strings and comments close nothing.
    ("f(⟦⟧)\n", "')'", "f(')')\n", {}),
    ("x = f(⟦⟧);\n", "a /* ) */", "x = f(a /* ) */);\n", {"language": "javascript"}),
    ("fn f<'a>(x: &'a str) { ⟦⟧ }\n", "g(')', \"}\")", "fn f<'a>(x: &'a str) { g(')', \"}\") }\n", {"language": "rust"}),
    ("f() { ⟦⟧; }\n", "echo \"${#x}\" $# '\n}'", "f() { echo \"${#x}\" $# '\n}'; }\n", {"language": "bash", "extent": "block"}),
    # An unusual character that the file already has is allowed.
    ("a = '\ufffd'\nx = ⟦⟧\n", "'\ufffd'", "a = '\ufffd'\nx = '\ufffd'\n", {}),
    # Short or partial lines may repeat.
    ("⟦⟧\nend\n", "end", "end\nend\n", {"language": "ruby"}),
    ("if a:\n    x()\n⟦⟧\n", "x()", "if a:\n    x()\nx()\n", {}),
    ("f(value)\nf(⟦⟧)\n", "value", "f(value)\nf(value)\n", {}),
    # A body that ends in a placeholder is an answer.
    (
        "def f():\n    ⟦...⟧\n",
        "if x:\n        return 1\n    raise NotImplementedError",
        "def f():\n    if x:\n        return 1\n    raise NotImplementedError\n",
        BODY,
    ),
    # Errors elsewhere do not drop an answer.
    ("def broken(:\n    pass\n\nx = ⟦⟧\n", "1", "def broken(:\n    pass\n\nx = 1\n", {}),
    # Without a grammar nothing is dropped for its syntax.
    ("x = ⟦⟧\n", "f(", "x = f(\n", {"grammar": False}),
    # Code that python rejected before does not drop an answer.
    ("return 1\nx = ⟦⟧\n", "1", "return 1\nx = 1\n", {}),
    ("return ⟦⟧\n", "1", "return 1\n", {}),
    # Python checks the statement before the hole.
    (
        "async def f():\n    x = 1\n    # why\n    ⟦⟧\n\ny = 1\n",
        "await x",
        "async def f():\n    x = 1\n    # why\n    await x\n\ny = 1\n",
        BODY,
    ),
    ("def f():\n    x = 1\n    ⟦# FILL⟧\n", "return x", "def f():\n    x = 1\n    return x\n", BODY),
    # A marker after another marker on its line can be filled.
    ("a = /* FILL */ + ⟦/* FILL */⟧;\n", "1", "a = /* FILL */ + 1;\n", {"language": "javascript", "kind": "marker"}),
    # An answer that makes a comment a new hole is dropped.
    ("def f():\n    # FILL: ⟦⟧\n", "add one", "def f():\n    # FILL: add one\n", {}),
    ("def f():\n    # ⟦⟧\n    return 1\n", "FILLER text", "def f():\n    # FILLER text\n    return 1\n", {}),
    # A comment before code is an answer.
    ("def f():\n    ⟦pass⟧\n", "# sort them\n    return 1", "def f():\n    # sort them\n    return 1\n", BODY),
]
DROPPED: list[tuple[str, str, str, dict[str, Any]]] = [
    # An answer that only repeats what follows is blank.
    ("def f():\n    ⟦⟧\n    return total\n", "return total", "is blank", {"extent": "block", "indent": "    "}),
    # An answer that changes nothing is dropped.
    ("x = ⟦old⟧\n", "old ", "changes nothing", {"kind": "selection"}),
    ("x =\r\n⟦a\r\nb⟧\r\n", "a\nb", "changes nothing", {"kind": "selection", "extent": "block"}),
    # An answer that repeats its neighbours is dropped.
    ("def f():\n    step(one)\n    ⟦⟧\n", "step(one)", "repeats the lines next to it", {"extent": "block", "indent": "    "}),
    ("if a:\n    ⟦⟧\nstep(one)\n", "step(one)", "repeats the lines next to it", {"extent": "block", "indent": "    "}),
    # The next line alone is dropped.
    ("⟦⟧\n    try:\n", "try:", "repeats the lines next to it", {}),
    # An answer that adds a syntax error is dropped.
    ("x = ⟦⟧\n", "f(", "adds a syntax error", {}),
    ("def f():\n    ⟦pass⟧\n", "return (", "adds a syntax error", {"extent": "block", "indent": "    "}),
    ("int f() { ⟦⟧ }\n", "return (;", "adds a syntax error", {"language": "c"}),
    # An answer that makes a comment a new hole is dropped.
    ("def f():\n    # ⟦⟧\n    return 1\n", "FILL: another hole", "says nothing, or leaves a new hole", {}),
    (
        "function f() {\n  /* ⟦⟧ */\n  return 1;\n}\n",
        "FILL: another hole",
        "says nothing, or leaves a new hole",
        {"language": "javascript"},
    ),
]


@pytest.mark.parametrize(("text", "answer", "expected", "how"), GOLDEN)
def test_an_answer_is_cut_and_formatted(text: str, answer: str, expected: str, how: dict[str, Any]) -> None:
    check(text, answer, expected, **how)


@pytest.mark.parametrize(("text", "answer", "reason", "how"), DROPPED)
def test_a_useless_answer_is_dropped(text: str, answer: str, reason: str, how: dict[str, Any]) -> None:
    check_dropped(text, answer, reason, **how)


# --- Good answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("go", "package a\n\nfunc f() error {\n\terr := g()\n\tif ⟦⟧\n\treturn nil\n}\n", "err != nil {"),
        ("typescript", "function f(xs: number[]) {\n  for (const x of ⟦⟧\n}\n", "xs) {"),
        ("rust", "fn f(x: i32) -> i32 {\n    match ⟦⟧\n}\n", "x {"),
        ("java", "class A {\n    int f(int x) {\n        while ⟦⟧\n        return x;\n    }\n}\n", "(x > 0) {"),
        ("javascript", "function f(a) {\n  if (⟦⟧\n  g(a);\n  return 1;\n}\n", "a > 0) {"),
        ("c", "int f(int a) {\n  while (⟦⟧\n\n  g(a);\n  return 1;\n}\n", "a > 0) {"),
        ("go", "package a\n\nfunc f(x int) {\n\tswitch ⟦⟧\n}\n", "x {"),
        ("go", "package a\n\ntype X ⟦⟧\n\nfunc f() {\n}\n", "struct {"),
        ("typescript", "interface ⟦⟧\n\nconst x = 1;\n", "Card {"),
    ],
)
def test_an_answer_at_the_cursor_may_open_a_block_in_a_line_that_is_not_finished(language: str, text: str, answer: str) -> None:
    check(text, answer, text.replace("⟦⟧", answer), language=language)
    opened = text.replace("⟦⟧", answer)
    assert polished(text, answer, language=language, kind="selection")[1] != opened, "nobody is typing there"


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("javascript", "function f(x) {\n  if (x) ⟦⟧\n  g();\n}\n", "{"),
        ("javascript", "const a = ;\nfunction f(x) {\n  if (x) ⟦⟧\n  g();\n}\n", "{"),
        ("javascript", "function f() {\n  return (⟦⟧\n", "{"),
        ("typescript", "const x: = ⟦⟧\n", "{"),
        ("python", "x = = ⟦⟧\n", "{"),
        ("c", "int a[] = = ⟦⟧\n", "{"),
    ],
)
def test_no_answer_opens_a_block_in_a_line_that_is_whole_or_something_else(language: str, text: str, answer: str) -> None:
    reasons = {"adds a syntax error", "does not compile"}
    assert polished(text, answer, language=language)[0].dropped in reasons


def test_an_answer_that_closes_the_block_around_it_is_still_cut() -> None:
    text = "function f() {\n  ⟦⟧\n"
    check(text, "x(); } function g() {", text.replace("⟦⟧", "x();"), language="javascript")


def test_several_holes_are_filled_together() -> None:
    result, text_after = polished("a(⟦⟧, ⟦⟧)\nb = ⟦⟧\n", "1", "2 + 3", "c")
    assert text_after == "a(1, 2 + 3)\nb = c\n"
    assert [edit.text for edit in result.edits] == ["1", "2 + 3", "c"]


def test_one_bad_text_drops_the_candidate() -> None:
    result, _ = polished("a = ⟦⟧\nb = ⟦⟧\n", "1", " ")
    assert result == Polished(dropped="is blank")


def test_a_candidate_with_another_number_of_texts_is_dropped() -> None:
    document, holes = drawn("⟦⟧⟦⟧")
    assert polish.to_edits(Candidate(("x",), Calibrated(1.0)), holes, document) == Polished(dropped="has 1 texts for 2 holes")


# --- Text that is not part of the answer ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token", ["<eos>", "<pad>", "<|turn>", "<turn|>", "<|endoftext|>", "<end_of_turn>", "<｜end▁of▁sentence｜>"]
)
def test_an_answer_ends_at_a_control_token(token: str) -> None:
    check("x = ⟦⟧\n", f"1{token}2", "x = 1\n")


def test_a_pair_of_fences_is_an_example() -> None:
    answer = '"""Return one.\n\n    ```\n    f()\n    ```\n    """\n    return 1'
    check_body("def f():\n    ⟦⟧\n", answer, f"def f():\n    {answer}\n")


def test_an_answer_that_opens_a_block_ends_with_it() -> None:
    text, block = "func f() {\n\ti⟦⟧\n\ta()\n}\n", "f x {\n\t\tb()\n\t}"
    after = text.replace("⟦⟧", block)
    check(text, f"{block}\n\tc()", after, language="go", indent="\t", extent="lines")
    check("a⟦⟧\nb()\n", "()\nc()", "a()\nb()\n", extent="lines")


# Lines of one depth that go on, and one between them.
CONTINUED = [
    ("", "RUN apk add \\\n    curl \\\n    ⟦⟧\n    make\n", "git \\"),
    ("", "SRC = a.c \\\n    ⟦⟧\n    c.c\n", "b.c \\"),
    ("bash", "apk add \\\n    curl \\\n    ⟦⟧\n    make\n", "git \\"),
    ("bash", "cat x |\n    sort |\n    ⟦⟧\n    wc -l\n", "uniq |"),
    ("bash", "if a &&\n    ⟦⟧\n    c; then\n  d\nfi\n", "b &&"),
    ("javascript", "if (\n    a ||\n    ⟦⟧\n    c\n) {\n  d();\n}\n", "b ||"),
    ("javascript", "const f = () => {\n  return (\n    ⟦⟧\n    c\n  );\n};\n", "a &&"),
    ("c", "#define A(a) \\\n    foo(a); \\\n    ⟦⟧\n    baz(a)\n", "bar(a); \\"),
    ("c", "int f(int a) {\n    if (a &&\n    ⟦⟧\n    c) g();\n}\n", "b == 2 &&"),
    ("python", "x = a + \\\n    ⟦⟧\n    c\n", "b + \\"),
    ("ruby", "x = a ||\n    ⟦⟧\n    c\n", "b ||"),
]


def test_an_answer_may_go_on_in_lines_that_are_there() -> None:
    text = "curl⟦⟧\n  -H a b\n"
    check(text, " -sS \\", text.replace("⟦⟧", " -sS \\"), language="bash")
    for language, lines, answer in CONTINUED:
        check(lines, answer, lines.replace("⟦⟧", answer), language=language, grammar=bool(language), indent="    ")
    text = "xs.each do⟦⟧\n  puts 1\nend\n"
    check(text, " |x|", text.replace("⟦⟧", " |x|"), language="ruby")


def test_a_pattern_of_a_case_closes_nothing() -> None:
    text, answer = "f() {\n  ⟦⟧\n}\n", "case $1 in\n    a) b ;;\n  esac"
    check_body(text, answer, text.replace("⟦⟧", answer), language="bash", indent="  ")
    check_body(text, answer, text.replace("⟦⟧", answer), language="bash", indent="  ", grammar=False)


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("  print('⟦⟧');", "Hello world!');", "  print('Hello world!');"),
        ("  print('⟦⟧');", "it\\'s');", "  print('it\\'s');"),
        ("  print('⟦⟧');", "a'); print('b');", "  print('a'); print('b');"),
        ("import '⟦⟧';", "package:shelf/shelf.dart' as shelf;", "import 'package:shelf/shelf.dart';"),
        ("  <li>⟦⟧</li>", "Three</li>", "  <li>Three</li>"),
        ("  <li>⟦⟧</li>", "Three<", "  <li>Three</li>"),
        ("<p>It's ⟦⟧</p>", "here</p>", "<p>It's here</p>"),
        ('<a href="⟦⟧">x</a>', '/home">', '<a href="/home">x</a>'),
        ('<div id="⟦⟧">', 'app" class="wide">', '<div id="app" class="wide">'),
        ('{"a": "⟦⟧"}', '{\\"b\\": 1}"}\\n', '{"a": "{\\"b\\": 1}"}'),
        ('{"a": "⟦⟧"}', 'b": 1000', '{"a": "b"}'),
        ('serde = "⟦⟧"', '1.0"', 'serde = "1.0"'),
        ("val x = listOf(⟦⟧)", "1, 2)", "val x = listOf(1, 2)"),
        ("  onlyIf {⟦⟧}", " isIDE }", "  onlyIf { isIDE }"),
        ("    a, ⟦⟧)", "b)", "    a, b)"),
        ("let x = ⟦⟧;", "1;", "let x = 1;"),
        ("See [docs](⟦⟧).", "https://docs.example/) and", "See [docs](https://docs.example/)."),
        ("{% if ⟦⟧ %}", "user %}", "{% if user %}"),
    ],
)
def test_what_follows_is_not_repeated_in_a_file_without_a_grammar(text: str, answer: str, expected: str) -> None:
    check(f"{text}\n", answer, f"{expected}\n", grammar=False, language="")


@pytest.mark.parametrize(
    ("name", "text", "answer", "expected"),
    [
        ("a.el", "(setq x '(a b ⟦⟧))", "c))", "c"),  # a quote that opens no string
        ("a.jl", 'println("x: $(⟦⟧)")', "x)", "x"),
        ("a.jl", 'println("x: $(⟦⟧)")', 'f(x))")', "f(x)"),
        ("a.hs", "f' x = (g' (⟦⟧))", "x + 1))", "x + 1"),
        ("a.tex", "It's \\emph{⟦⟧}", "a}", "a"),
        ("a.yml", 'a: "⟦⟧"', 'b"', "b"),
        ("a.sql", "VALUES ('it''s', (⟦⟧));", "1));", "1"),
        ("a.eex", "<%= if ⟦⟧ do %>", "@user do %>", "@user"),
        ("a.tex", "$\\alpha = ⟦⟧$ and", "\\beta$ and", "\\beta"),
        ("a.kt", "g(⟦⟧, id)", "f(a, id)", "f(a, id)"),
        ("a.kt", "g(⟦⟧, b)", "a,", "a"),
        ("a.kt", "g(⟦⟧, b)", "a, c, ", "a, c"),
        ("a.kt", "val ⟦⟧ = 1", "a =", "a"),
        ("a.kt", "if (⟦⟧ == 1)", "a =", "a ="),
        ("a.kt", "val ⟦⟧ = 1", "a >=", "a >="),
        ("a.dart", "a = b.⟦⟧ ?? c;", "d ??", "d"),
        ("a.j2", "{% if a %}⟦⟧{% endif %}", "x{% endif %}", "x"),
        ("a.j2", "{% if ⟦⟧%}x{% endif %}", "a %}x{% endif %}", "a "),
        ("a.j2", "{% if ⟦⟧ %}", "a %}{{ b }}{% elif c", "a %}{{ b }}{% elif c"),
        ("a.liquid", "{{ ⟦⟧ | upcase }}", "x |", "x"),
        ("a.liquid", "{%- for a in ⟦⟧ -%}", "b -%}", "b"),
        ("a.mustache", "{{#a}}⟦⟧{{/a}}", "x{{/a}}", "x"),
        ("a.swift", "let a⟦⟧ = x", ": Int = x", ": Int"),
        ("a.swift", "a ⟦⟧?? c", "b ?? c", "b "),
        ("a.kt", "val a = ⟦⟧ ?: c", "b ?:", "b"),
        ("a.kt", "val a = ⟦⟧ + c", "b + c", "b"),
        ("a.kt", "val a = ⟦⟧ + c", "b + d", "b + d"),
        ("a.kt", "when (x) { ⟦⟧ -> 1 }", "a ->", "a"),
        ("a.ex", "a |> ⟦⟧ |> c", "b |>", "b"),
        ("a.hs", "⟦⟧ <- x", "a <-", "a"),
        ("a.r", "⟦⟧ <- 1", "x <- 1", "x"),
        ("a.scala", "case ⟦⟧ => 1", "a => 1", "a"),
        ("a.sql", "SELECT ⟦⟧ FROM b", "a FROM", "a"),
        ("a.sql", "SELECT ⟦⟧ FROM t;", "a IS DISTINCT FROM b", "a IS DISTINCT FROM b"),
        ("a.sql", "SELECT ⟦⟧ FROM t;", "' FROM ', f(DATE FROM b)", "' FROM ', f(DATE FROM b)"),
        ("a.sql", "x IN (⟦⟧)", "SELECT f(x) FROM y)", "SELECT f(x) FROM y"),
        ("a.sql", "INSERT INTO a (⟦⟧) VALUES (1)", "b) VALUES (2)", "b"),
        ("a.yml", "⟦⟧: b", "a: b", "a"),
        ("a.yml", "uses: a@v1⟦⟧.0", ".0", ".0"),
        ("a.yml", "run: ⟦⟧ && c", "b &&", "b"),
        ("a.css", "⟦⟧: red;", "color:", "color"),
        ("a.tex", "$\\frac{⟦⟧}{2}$", "1}{2}", "1"),
        ("a.tex", "\\frac{⟦⟧}{2}", "x}{3}", "x"),
        ("a.rst", "``⟦⟧``", "a``", "a"),
        ("a.md", "| ⟦⟧ | b |", "a |", "a"),
        ("a.json5", "a: ⟦⟧, // x", "1, // x", "1"),
        ("a.erb", "<% if ⟦⟧ %>x<% end %>", "a %>x<% end %>", "a"),
        ("a.erb", "<p><%= ⟦⟧ %></p>", "@user.name %></p>", "@user.name"),
        ("a.erb", "<%= link_to ⟦⟧ %>", '"a", b_path %>', '"a", b_path'),
        ("a.erb", "<% if ⟦⟧ %>", "user %>", "user"),
        ("a.erb", '<a href="<%= ⟦⟧ %>">x</a>', 'root_path %>">x</a>', "root_path"),
        ("a.erb", "<%= f(⟦⟧) %>", "a, b) %>", "a, b"),
        ("a.erb", "<%= f(⟦⟧) %>", "g(a)) %>\n", "g(a)"),
        ("a.erb", "<li><%= ⟦⟧ %></li>", "item.name %>", "item.name"),
        ("a.tex", "\\section{⟦⟧}", "Intro}", "Intro"),
        ("a.tex", "\\cite{⟦⟧}, and", "a}, and", "a"),
        ("a.tex", "$x = ⟦⟧$", "y + z$", "y + z"),
        ("a.tex", "$x = ⟦⟧$.", "\\frac{a}{b}$", "\\frac{a}{b}"),
        ("a.tex", "\\[ x = ⟦⟧ \\]", "y^2 \\]", "y^2"),
        ("a.tex", "a & ⟦⟧ \\\\", "b \\\\", "b"),
        ("a.tex", "\\begin{⟦⟧}", "itemize}", "itemize"),
        ("a.tex", "\\textbf{⟦⟧} text", "bold} text here", "bold"),
        ("a.tex", "``⟦⟧''", "quoted''", "quoted"),
        ("a.vue", '<p :class="⟦⟧">x</p>', '{ a: b }">', "{ a: b }"),
        ("a.vue", '<p @click="⟦⟧">x</p>', 'go()">', "go()"),
        ("a.vue", '<p @click="f(⟦⟧)">x</p>', 'a)">x</p>', "a"),
        ("a.vue", '<p v-if="⟦⟧" />', 'ok" />', "ok"),
        ("a.vue", "<p>{{ ⟦⟧ }}</p>", "name }}</p>", "name"),
        ("a.vue", '<p v-for="⟦⟧" :key="x">', 'x in xs" :key="x.id">', "x in xs"),
        ("a.vue", "<p :a=\"{ b: '⟦⟧' }\">", "c' }\">", "c"),
        ("a.json5", "a: '⟦⟧',", "b',", "b"),
        ("a.json5", "a: [1, ⟦⟧],", "2],", "2"),
        ("a.json5", "a: {b: ⟦⟧},", "1},", "1"),
        ("a.json5", '"a": "⟦⟧",', 'b",\n  "c": 1', "b"),
        ("a.json5", "{a: ⟦⟧}", "1}", "1"),
        ("a.css", "a { color: ⟦⟧; }", "red; }", "red"),
        ("a.css", "a { color: ⟦⟧; }", "red;", "red"),
        ("a.css", "  color: ⟦⟧;", "var(--a);", "var(--a)"),
        ("a.css", ".a { ⟦⟧ }", "color: red; }", "color: red;"),
        ("a.css", "a:not(⟦⟧) {", ".b) {", ".b"),
        ("a.css", ".⟦⟧ {", "card {", "card"),
        ("a.css", "@media (max-width: ⟦⟧) {", "600px) {", "600px"),
        ("a.css", "  background: url('⟦⟧');", "a.png');", "a.png"),
        ("a.css", "  font: ⟦⟧ !important;", "12px a !important;", "12px a"),
        ("a.css", '  content: "⟦⟧";', '\\201C";', "\\201C"),
        ("a.j2", "{{ ⟦⟧ }}", "user.name }}", "user.name"),
        ("a.j2", "{% for a in ⟦⟧ %}", "items %}", "items"),
        ("a.j2", "{{ a|⟦⟧ }}", "upper }}", "upper"),
        ("a.yaml", "a: [⟦⟧]", "b]", "b"),
        ("a.yaml", "a: {b: ⟦⟧}", "c}", "c"),
        ("a.yaml", "a: '⟦⟧'", "b'", "b"),
        ("a.yaml", "a: ${{ ⟦⟧ }}", "b.c }}", "b.c"),
        ("a.md", "[a](⟦⟧)", "b)", "b"),
        ("a.md", "**⟦⟧**", "bold**", "bold"),
        ("a.md", "`⟦⟧`", "code`", "code"),
        ("a.md", "| a | ⟦⟧ |", "b |", "b"),
        ("Dockerfile", 'CMD ["⟦⟧"]', 'a", "b"]', 'a", "b'),
        ("a.ini", "[⟦⟧]", "a]", "a"),
        ("a.json5", '"dist/**⟦⟧*",', '/*.ts",', "/"),
        ("a.xml", "<a>x⟦⟧-y</a>", "-b-c</a>", "-b"),
        ("a.ex", "a ++ [b⟦⟧+ [c]", "] +", "] +"),
    ],
)
def test_what_follows_is_not_repeated_by_the_rules_of_the_file_s_language(
    name: str, text: str, answer: str, expected: str
) -> None:
    document, holes = drawn(f"{text}\n")
    result = polish.to_edits(Candidate((answer,)), holes, replace(document, uri=f"file:///{name}"))
    assert [edit.text for edit in result.edits] == [expected]


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("", "a:\n  - ⟦⟧\n  - b\n", "b"),
        ("", "a:\n  b: ⟦⟧\n  b: c\n", "c"),
        ("", "a:\n  ⟦⟧: 2\n  b: 2\n", "b"),
        ("", "- a\n⟦⟧\n- b\n", "- b"),
        ("", "[\n⟦⟧\nb,\n]\n", "b,"),
        ("javascript", "f();\n⟦⟧\ng();\n", "g();"),
        ("rust", "fn f() {\n    ⟦⟧\n    g();\n}\n", "g();"),
        ("", "⟦⟧\n\na {\n}\n", "a {"),
        ("javascript", "const a = [\n⟦⟧\n'y',\n];\n", "'y',"),
        ("javascript", "const a = {\n  ⟦⟧,\n  y,\n};\n", "y"),
        ("javascript", "const a = [\n  f(⟦⟧),\n  f(1),\n];\n", "1"),
    ],
)
def test_an_item_that_is_the_next_is_dropped(language: str, text: str, answer: str) -> None:
    check_dropped(text, answer, "repeats the lines next to it", language=language, grammar=bool(language))


@pytest.mark.parametrize(
    ("text", "answer"),
    [("a:\n  - 1\n  - ⟦⟧\n  - 1\n", "1"), ("- 1\n- 1\n⟦⟧\n- 1\n", "- 1"), ("[\n0,\n⟦⟧\n0,\n]\n", "0,")],
)
def test_items_may_repeat_where_those_above_do(text: str, answer: str) -> None:
    check(text, answer, text.replace("⟦⟧", answer), language="", grammar=False)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("val x = listOf(⟦⟧)", "f(1)"),
        ("val x = f(⟦⟧)", "a) + g(b"),
        ("<ul>⟦⟧</ul>", "<li>One</li>"),
        ("<div>⟦⟧</div>", "<div>x</div>"),
        ("<p>⟦⟧</p>", "a <br> b"),
        ('{"a": "⟦⟧"}', 'b", "c": "d'),
        ("print('⟦⟧')", "a' + 'b"),
        ("say(⟦⟧)", '"it\'s"'),
        ("(⟦⟧)", "it's"),
        ("map { it.⟦⟧ }", "let { a -> a }"),
    ],
)
def test_an_answer_with_pairs_of_its_own_is_whole_in_a_file_without_a_grammar(text: str, answer: str) -> None:
    check(f"{text}\n", answer, text.replace("⟦⟧", answer) + "\n", grammar=False, language="")


def test_one_equal_line_in_the_middle_is_not_a_repetition() -> None:
    text, answer = "def f():\n    ⟦⟧\n    step(1)\n    stop()\n", "step(2)\n    step(1)\n    step(3)"
    check_body(text, answer, text.replace("⟦⟧", answer))


def test_equal_closing_words_are_not_a_repetition() -> None:
    text = "def f\n  ⟦⟧\nend\n"
    check_body(text, "if a\n    b\n  end", "def f\n  if a\n    b\n  end\nend\n", language="ruby", indent="  ")


# --- The file's formatting --------------------------------------------------------------------------------------------


def test_spaces_that_align_behind_tabs_are_kept() -> None:
    text, answer = "func f() {\n\t⟦⟧\n}\n", "a(b,\n\t  c)\n\tif d {\n\t\te()\n\t}"
    check_body(text, answer, text.replace("⟦⟧", answer), indent="\t", language="go")


def test_a_file_without_indentation_takes_the_answer_s() -> None:
    text, answer = "⟦⟧\n", "if x:\n\ty()"
    check(text, answer, "if x:\n\ty()\n", extent="block")


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("all:\n⟦⟧", "    gcc a.c", "all:\n\tgcc a.c"),
        ("all: a.o b.o\n⟦⟧", "    gcc a.o\n    strip a", "all: a.o b.o\n\tgcc a.o\n\tstrip a"),
        ("all:\n\tgcc a.c\n⟦⟧", "  strip a", "all:\n\tgcc a.c\n\tstrip a"),
        ("A = 1\n⟦⟧", "clean:\n  rm a\n\nB = 2", "A = 1\nclean:\n\trm a\n\nB = 2"),
        ("%.o: %.c\n⟦⟧", "    gcc \\\n      $<", "%.o: %.c\n\tgcc \\\n      $<"),
        ("all:\n\tgcc a.c\n⟦⟧", "strip a\n  rm a", "all:\n\tgcc a.c\n\tstrip a\n\trm a"),
        ("all:\n\tgcc a.c\n⟦⟧", "clean: all\nrm a", "all:\n\tgcc a.c\nclean: all\n\trm a"),
        ("all:\n\tgcc a.c\n⟦⟧", "endif\nA = 1\n-include b", "all:\n\tgcc a.c\nendif\nA = 1\n-include b"),
        ("⟦⟧", "ifdef A\n  B := 1\nendif", "ifdef A\n  B := 1\nendif"),
        ("⟦⟧", ".PHONY: all\n  A = 1", ".PHONY: all\n  A = 1"),
        ("a:: b \\\n    c\n⟦⟧", "    gcc a.c", "a:: b \\\n    c\n\tgcc a.c"),
        ("a:: b \\\n⟦⟧", "    c\n    gcc a.c", "a:: b \\\n    c\n\tgcc a.c"),
        ("⟦⟧", "a: b \\\n    c \\\n    d\n  gcc a.c", "a: b \\\n    c \\\n    d\n\tgcc a.c"),
        ("A = b \\\n⟦⟧", "    c\nd:\n  e", "A = b \\\n    c\nd:\n\te"),
    ],
)
def test_a_recipe_of_a_makefile_gets_tabs(text: str, answer: str, expected: str) -> None:
    document, holes = drawn(text, extent="block")
    result = polish.to_edits(Candidate((answer,)), holes, replace(document, uri="file:///code/Makefile"))
    assert apply(document.text, result.edits) == expected


@pytest.mark.parametrize(
    ("name", "text", "answer", "expected"),
    [
        ("README.md", "Why:\n⟦⟧", "    because", "because"),
        ("README.md", "Why:\n\n⟦⟧", "  - because", "- because"),
        ("a.rst", "Why:\n⟦⟧", "    because", "because"),
        ("a.rst", "Why::\n\n⟦⟧", "    because", "    because"),
        ("README.md", "- Why:\n⟦⟧", "  - because", "  - because"),
        ("README.md", "    a\n⟦⟧", "    b", "    b"),
        ("README.md", "<ul>\n⟦⟧", "  <li>a</li>", "  <li>a</li>"),
        ("README.md", "```python\ndef f():\n⟦⟧", "    return 1", "    return 1"),
        ("README.md", "```python\nf()\n```\n⟦⟧", "    because", "because"),
        ("README.md", "1 <2\n⟦⟧", "    because", "because"),
        ("README.md", "---\ntags:\n⟦⟧\n---\n", "  - because", "  - because"),
        ("README.md", "---\na: b\n---\nWhy:\n⟦⟧", "    because", "because"),
        ("a.rst", ".. image:: a.png\n⟦⟧", "   :alt: b", "   :alt: b"),
        ("a.tex", "\\begin{itemize}\n⟦⟧", "  \\item a", "  \\item a"),
        ("README.md", "```python\n" + "f(a)\n" * 2_000 + "def f(a):\n⟦⟧\n```\n", "    return a", "    return a"),
        ("README.md", "```\r\na:\r\n⟦⟧\r\n```\r\n", "    b", "    b"),
        ("a.qmd", "```{python}\ndef f(a):\n⟦⟧", "    return a", "    return a"),
        ("a.Rmd", "```{r}\nf <- function(a) {\n⟦⟧\n}\n```\n", "  a", "  a"),
        ("a.org", "#+begin_src python\ndef f(a):\n⟦⟧\n#+end_src\n", "    return a", "    return a"),
        ("a.adoc", "----\ndef f(a):\n⟦⟧\n----\n", "    return a", "    return a"),
        ("a.tex", "\\begin{lstlisting}\ndef f(a):\n⟦⟧\n\\end{lstlisting}\n", "    return a", "    return a"),
        ("a.kt", "a\n⟦⟧", "    b", "    b"),
    ],
)
def test_a_line_of_prose_is_indented_only_below_an_indented_one_or_in_code(
    name: str, text: str, answer: str, expected: str
) -> None:
    document, holes = drawn(text)
    result = polish.to_edits(Candidate((answer,)), holes, replace(document, uri=f"file:///code/{name}"))
    assert [edit.text for edit in result.edits] == [expected]


@pytest.mark.parametrize(
    ("level", "text", "answer", "expected"),
    [
        ("  ", "⟦⟧", "if a:\n    if b:\n        c()", "if a:\n  if b:\n    c()"),
        ("\t", "⟦⟧", "if a:\n    if b:\n        c()", "if a:\n\tif b:\n\t\tc()"),
        ("    ", "⟦⟧", "if a:\n  if b:\n    c()", "if a:\n    if b:\n        c()"),
        ("  ", "⟦⟧", "if a:\n\tb()", "if a:\n  b()"),
        ("", "⟦⟧", "if a:\n   b()", "if a:\n   b()"),
        ("  ", "if d:\n    e()\n⟦⟧", "if a:\n   b()", "if d:\n    e()\nif a:\n   b()"),
    ],
)
def test_an_answer_in_a_text_without_indentation_gets_that_of_its_project(
    level: str, text: str, answer: str, expected: str
) -> None:
    document, holes = drawn(text, extent="block", language="python")
    document = replace(document, indent=level)
    result = polish.to_edits(Candidate((answer,)), holes, document, syntax=syntax.of(document))
    assert apply(document.text, result.edits) == expected


def test_an_answer_below_broken_code_is_not_compared_with_an_error() -> None:
    code = 'x = """W\n"""\ndef f(\n    """W."""\n    return⟦⟧\ndef g(x: A) -> bool:\n    """W."""\ndef h(x: A) -> bool:'
    check(code, " isinstance(x, str)", code.replace("⟦⟧", " isinstance(x, str)"))


def test_text_in_a_string_is_never_reindented() -> None:
    text, answer = "def f():\n\t⟦⟧\n", 'x = """\n    four\n  two\n"""\n\treturn x'
    check_body(text, answer, text.replace("⟦⟧", answer), indent="\t")


def test_a_file_that_mixes_tabs_and_spaces_is_left_alone() -> None:
    text = "{\n  a;\n\tb;\n  ⟦⟧\n}\n"
    check_body(text, "if (c)\n\t  d;\n  e;", "{\n  a;\n\tb;\n  if (c)\n\t  d;\n  e;\n}\n", indent="  ", language="c")


def test_a_hole_that_is_indented_unlike_its_file_is_left_alone() -> None:
    text, answer = "if a:\n    b\n    c\n\td\nif e:\n\t⟦⟧\n", "f\n\tg"
    check_body(text, answer, text.replace("⟦⟧", answer), indent="\t", grammar=False)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_new_lines_end_as_the_file_s_do(end: str) -> None:
    text = "def f():\n    ⟦⟧\n\nf()\n".replace("\n", end)
    check_body(text, "x = 1\n    return x", "def f():\n    x = 1\n    return x\n\nf()\n".replace("\n", end))
    check_body(text, "x = 1\r\n    return x", "def f():\n    x = 1\n    return x\n\nf()\n".replace("\n", end))


def test_a_hole_in_the_last_line_takes_the_line_end_above() -> None:
    for end in ("\r\n", "\r", "\n"):
        check_body(f"def f():{end}    ⟦⟧", "x\n    y", f"def f():{end}    x{end}    y")


# --- The end of the block ---------------------------------------------------------------------------------------------


def test_brackets_and_strings_may_reach_further_left() -> None:
    for answer in ("x = f(\n1,\n)\n    return x", "x = '''\na\n'''\n    return x", "x = 1 \\\n    + 2"):
        check_body("def f():\n    ⟦⟧\n", answer, f"def f():\n    {answer}\n")


@pytest.mark.parametrize(
    ("language", "head", "answer", "foot"),
    [
        ("bash", "f() {\n\t", "cat <<EOF > x\na  \n\tb\nEOF\n\tc", "\n}\n"),
        ("ruby", "def f\n  ", "x = <<~TEXT\na\n  TEXT\n  y", "\nend\n"),
        ("php", "<?php\nfunction f() {\n  ", "$x = <<<'END'\na\nEND;\n  y();", "\n}\n"),
    ],
)
def test_a_here_document_is_a_string(language: str, head: str, answer: str, foot: str) -> None:
    indent = head.rpartition("\n")[2]
    check_body(f"{head}⟦⟧{foot}", answer, head + answer + foot, language=language, indent=indent)
    check_body(f"{head}⟦⟧{foot}", answer, head + answer + foot, language=language, indent=indent, grammar=False)


def test_lines_that_must_stand_left_do_not_end_a_block() -> None:
    answer = "a();\n#ifdef X\n    b();\n#endif\n    c();"
    check_body("void f() {\n    ⟦⟧\n}\n", answer, f"void f() {{\n    {answer}\n}}\n", language="c")


def test_a_selection_may_hold_several_levels() -> None:
    text, answer = "if x:\n    ⟦a\nb⟧\n", "c\nd"
    check(text, answer, "if x:\n    c\nd\n", extent="block", indent="    ", kind="selection")


# --- Useless answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["", " \n\t", "\n\n"])
def test_a_blank_answer_is_dropped(answer: str) -> None:
    check_dropped("x = ⟦⟧\n", answer, "is blank")
    check_dropped("def f():\n    ⟦pass⟧\n", answer, "is blank", extent="block", indent="    ")


def test_documentation_without_a_word_is_blank() -> None:
    text = "def f(a):\n    ⟦⟧return a\n"
    how: dict[str, Any] = {"lead": '"""', "trail": '"""\n    '}
    check_dropped(text, "...", "is blank", **how)
    check(text, "Return it.", 'def f(a):\n    """Return it."""\n    return a\n', **how)


@pytest.mark.parametrize("character", ["\0", "\x1b", "\x7f", "\x80", "\ufffd", chr(0xD800)])
def test_half_characters_and_control_characters_are_dropped(character: str) -> None:
    check_dropped("x = ⟦⟧\n", f"'{character}'", "has characters that are not text")


def test_the_end_of_a_line_that_makes_it_the_next_line_is_dropped() -> None:
    text = "f(\n    x for⟦⟧\n    x for x in xs),\n"
    check_dropped(text, " x in xs),", "repeats the lines next to it")
    check("a = f(⟦⟧)\nb = f(1)\n", "1", "a = f(1)\nb = f(1)\n")
    check("try:\n    f()\n⟦⟧\nelse:\n", "except E:", "try:\n    f()\nexcept E:\nelse:\n")


def test_an_answer_that_repeats_one_neighbour_again_and_again_is_dropped() -> None:
    text = "\n    ".join(["step(one)"] * 7)
    reason = "repeats the lines next to it"
    check_dropped("def f():\n    step(one)\n    ⟦⟧\n", text, reason, extent="block", indent="    ")
    check_dropped("if a:\n    ⟦⟧\nstep(one)\n", text, reason, extent="block", indent="    ")
    check_dropped(
        "def f():\n    '''Do it.'''\n    ⟦pass⟧\n", "'''Do it.'''\n    '''Do it.'''", reason, kind="body", extent="block"
    )


@pytest.mark.parametrize("n_lines", [3, 4, 5, 8])
def test_an_answer_that_repeats_several_neighbours_again_and_again_is_dropped(n_lines: int) -> None:
    text = "\n    ".join((["step(one)", "step(two)"] * 4)[:n_lines])
    reason = "repeats the lines next to it"
    check_dropped("def f():\n    step(one)\n    step(two)\n    ⟦⟧\n", text, reason, extent="block", indent="    ")
    check_dropped("if a:\n    ⟦⟧\nstep(one)\nstep(two)\n", text, reason, extent="block", indent="    ")


@pytest.mark.parametrize("lines", [["size += 1"] * 3, ["a = f(1)", "g(a)"] * 3, ["start()", *["size += 1"] * 4, "end()"]])
def test_an_answer_that_repeats_itself_is_dropped(lines: list[str]) -> None:
    check_dropped("def f():\n    ⟦⟧\n", "\n    ".join(lines), "repeats itself", extent="block", indent="    ")


def test_a_line_may_be_there_twice_or_as_often_as_in_the_text_it_replaces() -> None:
    for lines, old in ((["next(rows)"] * 2, ""), (["next(rows)"] * 3 + ["go()"], "\n    ".join(["next(rows)"] * 3))):
        text, kind = "\n    ".join(lines), "selection" if old else "cursor"
        check(f"def f(rows):\n    ⟦{old}⟧\n", text, f"def f(rows):\n    {text}\n", extent="block", indent="    ", kind=kind)


def test_similar_lines_are_not_a_repetition() -> None:
    for answer in ("step(one)\n    step(two)\n    step(one)\n    step(three)", "step(two)\n    step(one)\n    step(two)"):
        text = "def f():\n    step(one)\n    step(two)\n    ⟦⟧\n"
        check(text, answer, text.replace("⟦⟧", answer), extent="block", indent="    ")


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", "def f():\n    ⟦raise NotImplementedError⟧\n", "pass"),
        ("python", "def f():\n    ⟦pass⟧\n", "raise NotImplementedError('f')"),
        ("python", "def f():\n    ⟦pass⟧\n", "..."),
        ("rust", "fn f() {\n    ⟦todo!()⟧\n}\n", "unimplemented!()"),
        ("javascript", "function f() {\n    ⟦⟧\n}\n", 'throw new Error("not implemented");'),
    ],
)
def test_an_answer_that_is_a_placeholder_is_dropped(language: str, text: str, answer: str) -> None:
    how: dict[str, Any] = {"language": language, "extent": "block", "indent": "    "}
    check_dropped(text, answer, "says nothing, or leaves a new hole", kind="body", **how)
    check_dropped(text, answer, "says nothing, or leaves a new hole", kind="cursor", **how)


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", "try:\n    f()\nexcept E:\n    ⟦⟧\n", "pass"),
        ("python", "def f(x):\n    if x:\n        return 1\n    ⟦⟧\n", "raise NotImplementedError"),
        ("python", "class A(Protocol):\n    def f(self):\n        ⟦⟧\n", "..."),
        ("python", "class A:\n    @abstractmethod\n    def f(self):\n        ⟦⟧\n", "pass"),
        ("rust", "fn f(x: bool) {\n    if x {\n        g();\n    }\n    ⟦⟧\n}\n", "todo!()"),
    ],
)
def test_a_placeholder_may_stand_where_more_is_around_it(language: str, text: str, answer: str) -> None:
    how: dict[str, Any] = {"language": language, "extent": "block", "indent": "    "}
    check(text, answer, text.split("⟦")[0] + answer + text.split("⟧")[1], kind="cursor", **how)


OPENED = [
    ("typescript", "await app.request(⟦⟧\n  method: 'POST',\n});\n", "{"),
    ("typescript", "const a = f(b, ⟦⟧\n  c: 1,\n});\n", "{"),
    ("javascript", "it('works⟦⟧\n  f();\n});\n", "', () => {"),
    ("javascript", "function f(a) {\n  if (a⟦⟧\n    return 1;\n  }\n}\n", " > 1) {"),
    ("tsx", "const a = [⟦⟧\n  b: 1,\n}];\n", "{"),
    ("go", "func f(xs []int) {\n\tfor _, x := range ⟦⟧\n\t\tg(x)\n\t}\n}\n", "xs {"),
    ("go", "func f(xs []int) {\n\t⟦⟧\n\t\tg(x)\n\t}\n}\n", "for _, x := range xs {"),
    ("rust", "fn f(x: u8) {\n    match ⟦⟧\n        1 => g(),\n        _ => h(),\n    }\n}\n", "x {"),
    ("java", "class A {\n    void f⟦⟧\n        g();\n    }\n}\n", "() {"),
    ("c", "int f(int a) {\n    while (⟦⟧\n        a--;\n    }\n    return a;\n}\n", "a > 0) {"),
    ("cpp", "void f() {\n  std::vector<int> a = ⟦⟧\n    1,\n    2,\n  };\n}\n", "{"),
    ("csharp", "class A {\n    void F(int a) {\n        if (⟦⟧\n            G();\n        }\n    }\n}\n", "a > 0) {"),
    ("php", "<?php\n$a = f(⟦⟧\n    'b' => 1,\n]);\n", "["),
    ("python", "def f(a):\n    if ⟦⟧\n        return 1\n", "a > 1:"),
    ("python", "a = f(b, ⟦⟧\n    'c': 1,\n})\n", "{"),
    ("ruby", "a = f(⟦⟧\n  b: 1\n})\n", "{"),
    ("lua", "if a ⟦⟧\n  b()\nend\n", "then"),
    ("bash", "if a; then\n  for b in c⟦⟧\n    d\n  done\nfi\n", "; do"),
]


@pytest.mark.parametrize(("language", "text", "answer"), OPENED)
def test_an_answer_may_open_what_the_lines_below_it_close(language: str, text: str, answer: str) -> None:
    check(text, answer, text.replace("⟦⟧", answer), language=language)


def test_an_answer_need_not_repair_what_was_broken_before() -> None:
    text = "const a = ;\nf(⟦⟧\n    b,\n);\n"
    check(text, "c,", text.replace("⟦⟧", "c,"), language="javascript")


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("javascript", "function f(a, b) {\n  if (a⟦⟧\n    g();\n  }\n}\n", ", b) {"),
        ("c", "int f(int a) {\n  if (a) {\n    g();\n  ⟦⟧\n    h();\n  }\n}\n", "} else {"),
        ("java", "class A {\n  void f() {\n    try {\n      g();\n    ⟦⟧\n      h();\n    }\n  }\n}\n", "} catch (E e) {"),
    ],
)
def test_an_answer_may_close_a_bracket_and_open_a_block(language: str, text: str, answer: str) -> None:
    check(text, answer, text.replace("⟦⟧", answer), language=language)


def test_a_head_is_compiled_with_the_body_below_it() -> None:
    for text, answer in (
        ("class⟦⟧\n    x = 1\n", " A:"),
        ("if⟦⟧\n    x = 1\n", " y:"),
        ("class A:\n    def f(self):\n        g()\n\n    ⟦⟧\n        return 'A'\n", "def __repr__(self) -> str:"),
        ("x = 1\n\n\n⟦⟧\n    return x\n", "def f():"),
        ("x = 1\nd⟦⟧\n    'a': 1,\n}\n", " = {"),
    ):
        check(text, answer, text.replace("⟦⟧", answer))


def test_what_stands_between_two_holes_does_not_keep_them_from_being_compiled() -> None:
    text = "def b(x):\n    ⟦⟧\n\n\nreturn 5\n\n\ndef c():\n    ⟦⟧\n"
    assert polished(text, "x = 1; nonlocal x", "return 1")[0].dropped == "does not compile"
    assert polished(text, "x = 1", "return 1")[1] == text.replace("⟦⟧", "x = 1", 1).replace("⟦⟧", "return 1")


def test_all_texts_of_a_candidate_are_checked_together() -> None:
    result, text_after = polished("a(⟦⟧, ⟦⟧)\n", "f(b)", "c")
    assert text_after == "a(f(b), c)\n"
    result, _ = polished("a(⟦⟧, ⟦⟧)\n", "f(", "c")
    assert result.dropped == "adds a syntax error"


@pytest.mark.parametrize("answer", ["return 1", "f(a=1, 2)", "break", "x = yield", "print 'x'"])
def test_an_answer_that_python_rejects_is_dropped(answer: str) -> None:
    check_dropped("class A:\n    ⟦pass⟧\n", answer, "does not compile", extent="block", indent="    ")


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", "print('x', self.⟦⟧\n\ny = 1\n", '"""'),
        ("python", "print('x', self.⟦⟧\n\ny = 1\n", "f(a, [b"),
        ("python", "f(\n\nclass A:\n    def h(self):\n        return g(⟦⟧\n", "self x"),
        ("python", "def g(:\n    pass\n\n\nx = f(⟦⟧\n", '"a'),
        ("python", "class A(\n    '''Say.'''\n    x⟦⟧\n\nclass B:\n    '''Don't.'''\n    y: int = 1\n", " y.'''"),
        ("javascript", "print('x', self.⟦⟧\n\nlet y = 1\n", "`a"),
        ("javascript", "print('x', ⟦⟧\n\nlet y = 1\n", "'a"),
        ("javascript", "print('x', ⟦⟧\n\nlet y = 1\n", "a /* b"),
    ],
)
def test_an_answer_that_opens_a_string_or_a_bracket_is_dropped_in_broken_code_too(
    language: str, text: str, answer: str
) -> None:
    check_dropped(text, answer, "adds a syntax error", language=language)


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", "print('x', self.⟦⟧\n\ny = 1\n", "name"),
        ("python", "print('x', self.⟦⟧\n\ny = 1\n", 'get("a")'),
        ("python", "print('x', ⟦⟧\n\ny = 1\n", "a,  # it's"),
        ("python", "print('x', \"a⟦⟧\n\ny = 1\n", 'b"'),
        ("python", "def g(:\n    pass\n\n\nx = ⟦⟧\n    1,\n)\n", "f("),
        ("python", 'def f():\n    ⟦⟧\n    Say what it does.\n    """\n\n\ndef g(:\n    pass\n', '"""'),
        ("javascript", "print('x', ⟦⟧\n\nlet y = 1\n", "`a` // it's"),
    ],
)
def test_broken_code_may_stay_broken(language: str, text: str, answer: str) -> None:
    check(text, answer, text.replace("⟦⟧", answer), language=language)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("f(\n\ndef g():\n    x = [y for y ⟦⟧\n\nz = 1\n", "put a"),
        ("try:\n    f(\n⟦⟧\n    pass\n\nz = 1\n", "try:"),
    ],
)
def test_an_answer_that_cannot_begin_a_program_is_dropped(text: str, answer: str) -> None:
    check_dropped(text, answer, "does not compile")


def test_python_checks_each_statement_with_a_hole() -> None:
    result, text_after = polished("def f():\n    return ⟦⟧\n\ndef g():\n    return ⟦⟧ + ⟦⟧\n\nx = ⟦⟧\n", "1", "2", "3", "4")
    assert text_after == "def f():\n    return 1\n\ndef g():\n    return 2 + 3\n\nx = 4\n"
    result, _ = polished("def f():\n    return ⟦⟧\n\ndef g():\n    return ⟦⟧\n", "1", "f(a=1, 2)")
    assert result.dropped == "does not compile"


# --- Random answers ---------------------------------------------------------------------------------------------------

PIECES = [*"ab(){}[]:;=.,#/*'\"`\\<>|\n\r\t \x0c\ufeff\ud800😀é\0", "def ", "if x:\n    ", "```\n"]
CODE = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
KINDS: list[HoleKind] = ["cursor", "body", "marker", "selection", "error"]
LANGUAGES = ["", *(language.name for language in languages.TABLE)]


@st.composite
def places(draw: st.DrawFn) -> tuple[Document, tuple[Hole, ...]]:
    text = draw(CODE)
    ends = sorted(draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=4)))
    spans = [Span(start, end) for start, end in zip(ends[::2], ends[1::2], strict=False)]
    spaces = st.sampled_from(["", "  ", "    ", "\t", "\n  "])
    holes = (
        Hole(
            span,
            draw(st.sampled_from(KINDS)),
            indent=draw(spaces).strip("\n"),
            extent=draw(st.sampled_from(["line", "lines", "block"])),
            lead=draw(spaces),
            trail=draw(spaces),
        )
        for span in spans
    )
    return Document("", draw(st.sampled_from(LANGUAGES)), text), tuple(holes)


@given(place=places(), texts=st.lists(CODE, min_size=1, max_size=2), grammar=st.booleans())
def test_text_outside_the_holes_never_changes(
    place: tuple[Document, tuple[Hole, ...]], texts: list[str], grammar: bool
) -> None:
    document, holes = place
    result = polish.to_edits(
        Candidate(tuple(texts), Calibrated(1.0)), holes, document, syntax=syntax.of(document) if grammar else None
    )
    assert bool(result.edits) != bool(result.dropped)
    text_after = apply(document.text, result.edits)
    at = growth = 0
    for edit, hole in zip(result.edits, holes, strict=False):
        assert edit.span == hole.span
        assert document.text[at : edit.span.start] == text_after[at + growth : edit.span.start + growth]
        at = edit.span.end
        growth += len(edit.text) - (edit.span.end - edit.span.start)
    assert document.text[at:] == text_after[at + growth :]


@given(place=places(), texts=st.lists(CODE, min_size=1, max_size=2))
def test_a_document_never_has_more_syntax_errors_than_before(
    place: tuple[Document, tuple[Hole, ...]], texts: list[str]
) -> None:
    document, holes = place
    before = syntax.of(document)
    result = polish.to_edits(Candidate(tuple(texts), Calibrated(1.0)), holes, document, syntax=before)
    language = languages.get(document.language)
    if result.edits and before is not None and language is not None:
        assert len(syntax.parse(apply(document.text, result.edits), language).errors) <= len(before.errors)


@given(
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    lines=st.lists(st.text("ab \t", max_size=5), min_size=2, max_size=6),
    answer=st.text("ab \t\r\n", max_size=20),
    at=st.integers(0, 5),
)
def test_every_new_line_ends_as_the_file_s_do(end: str, lines: list[str], answer: str, at: int) -> None:
    at = min(at, len(lines) - 1)
    start = len(end.join([*lines[:at], ""])) if at else 0
    document = Document("", "", end.join(lines))
    hole = Hole(Span(start, start + len(lines[at])), "selection", extent="block", lead="\n", trail="\n")
    for edit in polish.to_edits(Candidate((answer,), Calibrated(1.0)), (hole,), document).edits:
        assert not set(edit.text.replace(end, "")) & {"\r", "\n"}


@pytest.mark.parametrize("start", range(15))
@pytest.mark.parametrize("is_selection", [False, True])
def test_any_place_in_a_file_with_two_characters_a_line_end_may_be_filled(start: int, *, is_selection: bool) -> None:
    document = Document("", "python", "x = 1\r\ny = 2\r\n")
    tree = syntax.of(document)
    for end in range(start, 15):
        span = Span(start, end)
        hole = selection(document, span, tree) if is_selection else Hole(span, "selection", extent="block")
        assert hole.span.end <= end
        result = polish.to_edits(Candidate(("z",), Calibrated(1.0)), (hole,), document, syntax=tree)
        assert bool(result.edits) != bool(result.dropped)


def test_an_edit_is_one_for_each_hole() -> None:
    result, _ = polished("x = ⟦⟧\n", "1")
    assert result.edits == (Edit(Span(4, 4), "1"),)


@pytest.mark.parametrize(
    "answer", ["# sort them", "# FILL: like the stack's\n    # FILL: like the stack's", "x = 1\n    # FILL"]
)
def test_an_answer_with_only_comments_or_a_new_hole_is_dropped(answer: str) -> None:
    reason = "says nothing, or leaves a new hole"
    check_dropped("def f():\n    ⟦pass⟧\n", answer, reason, kind="body", extent="block", indent="    ")


def test_an_answer_to_a_marker_contains_no_other_marker() -> None:
    answer = "for each in items:\n        # FILL: another hole\n    return items"
    reason = "says nothing, or leaves a new hole"
    check_dropped("def f(items):\n    ⟦# FILL⟧\n", answer, reason, kind="marker", extent="block", indent="    ")


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", "def f():\n    ⟦...⟧\n", '"""Return the sum."""'),
        ("python", "def f():\n    '''Docs.'''\n    ⟦pass⟧\n", '"""Return\n    the sum."""\n    # of all'),
        ("python", "def f():\r\n    '''Docs.'''\r\n    ⟦pass⟧\r\n", '"one"\n    "two" "three"'),
        ("python", "def f():\n    ⟦...⟧\n", '"""Return the sum."""\n    pass'),
        ("python", "def f():\n    '''Docs.'''\n    ⟦pass⟧\n", '"""Return it."""\n    raise NotImplementedError'),
        ("javascript", "function f() {\n    ⟦⟧\n}\n", '"use strict";'),
    ],
)
def test_an_answer_with_only_words_is_dropped(language: str, text: str, answer: str) -> None:
    how: dict[str, Any] = {"language": language, "extent": "block", "indent": "    "}
    for kind in ("body", "marker"):
        check_dropped(text, answer, "says nothing, or leaves a new hole", kind=kind, **how)
    end = "\r\n" if "\r" in text else "\n"
    check(text, answer, text.split("⟦")[0] + answer.replace("\n", end) + text.split("⟧")[1], kind="cursor", **how)


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("python", "def f():\n    ⟦...⟧\n", '"""Return one."""\n    return 1'),
        ("python", "f = lambda: ⟦...⟧\n", '"one"'),
        ("rust", "fn f() -> &str {\n    ⟦todo!()⟧\n}\n", '"one"'),
        ("ruby", "def f\n    ⟦raise NotImplementedError⟧\nend\n", '"one"'),
        ("bash", "f() {\n    ⟦:⟧\n}\n", '"$command"'),
    ],
)
def test_a_string_that_is_used_is_an_answer(language: str, text: str, answer: str) -> None:
    extent = "line" if "lambda" in text else "block"
    check_body(text, answer, text.split("⟦")[0] + answer + text.split("⟧")[1], language=language, extent=extent)


@pytest.mark.parametrize(
    ("instruction", "drop_reason"), [("write the docstring", ""), ("sort", "says nothing, or leaves a new hole")]
)
def test_a_marker_that_asks_for_words_gets_them(instruction: str, drop_reason: str) -> None:
    document, (drawn_hole,) = drawn("def f():\n    ⟦# FILL⟧\n    return 1\n", language="python", kind="marker", extent="block")
    hole = replace(drawn_hole, instruction=instruction)
    result = polish.to_edits(Candidate(('"""Return one."""',), Calibrated(0.5)), (hole,), document, syntax=syntax.of(document))
    assert result.dropped == drop_reason


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("bash", "curl⟦⟧\nrm -rf build\n", " -sS \\\n  -H a b"),
        ("bash", "cat a⟦⟧\nb\n", " |"),
        ("c", "#define A ⟦⟧\nint x;\n", "f() + \\"),
        ("python", "x = ⟦⟧\nf(1)\n", "a and \\\n    b"),
        ("ruby", "x = ⟦⟧\ny = 1\n", "a ||"),
        ("", "X = ⟦⟧\nall:\n", "a.c \\"),
    ],
)
def test_an_answer_that_makes_the_next_statement_its_own_is_dropped(language: str, text: str, answer: str) -> None:
    check_dropped(text, answer, "makes the next line a part of itself", language=language, grammar=bool(language))


def test_a_backslash_breaks_a_line_of_prose() -> None:
    text = "Roses ⟦⟧\nviolets are blue.\n"
    document, holes = drawn(text)
    result = polish.to_edits(Candidate(("are red,\\",), Calibrated(0.5)), holes, replace(document, uri="file:///a.md"))
    assert [edit.text for edit in result.edits] == ["are red,\\"]
