"""The hole at the cursor: a block with its surrounding text, or the rest of a line; also selections and errors."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import holes, languages
from dg_lsp.core.values import Document, Hole, Span
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("cursor.txt"))


def at(text: str, language: str) -> Hole:
    document, offset = marked.cursor(text, language)
    hole = holes.at_cursor(document, offset, marked.parse(document))
    assert hole.span == Span(offset, offset)
    assert hole.kind == "cursor"
    return hole


@pytest.mark.parametrize(("language", "text", "expected"), ROWS["blocks"])
def test_a_cursor_where_an_empty_block_starts_is_a_block_hole(language: str, text: str, expected: str) -> None:
    hole = at(text, language)
    assert hole.extent == "block"
    assert marked.filled(marked.cursor(text, language)[0], hole, f"A\n{hole.indent}B") == expected


@pytest.mark.parametrize(("language", "text"), ROWS["rests of lines"])
def test_a_cursor_elsewhere_is_a_hole_for_the_rest_of_the_line(language: str, text: str) -> None:
    hole = at(text, language)
    assert (hole.extent == "block", hole.lead, hole.trail) == (False, "", "")


@pytest.mark.parametrize(("language", "text", "extent"), ROWS["extents"])
def test_an_answer_in_a_line_of_code_may_have_several_lines(language: str, text: str, extent: str) -> None:
    assert at(text, language).extent == extent


@pytest.mark.parametrize(("language", "text", "expected"), ROWS["answers in lines of their own"])
def test_an_answer_before_the_code_of_a_line_gets_a_line_of_its_own(language: str, text: str, expected: str) -> None:
    document, _ = marked.cursor(text, language)
    hole = at(text, language)
    assert hole.extent != "block"
    assert marked.filled(document, hole, "ANSWER") == expected


@pytest.mark.parametrize(("language", "text", "expected"), ROWS["answers in empty blocks"])
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


@pytest.mark.parametrize(("name", "text", "indent"), ROWS["blocks without a grammar"])
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
    for table in ("blocks", "rests of lines", "answers in lines of their own"):
        assert {row.values[0] for row in ROWS[table]} == names, table


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


@pytest.mark.parametrize(("language", "text", "body"), ROWS["placeholders"])
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


@pytest.mark.parametrize(("language", "text", "replaced"), ROWS["FILL comments"])
def test_pointing_at_a_fill_comment_selects_its_hole(language: str, text: str, replaced: str) -> None:
    document, span = marked.selection(text, language)
    syntax = marked.parse(document)
    hole = holes.at_place(document, span, syntax, "shorter")
    assert document.text[hole.span.start : hole.span.end] == replaced
    assert (hole.kind, hole.instruction) == ("marker", "shorter add one")
    assert holes.at_place(document, span, syntax) in holes.in_document(document, syntax, holes.KINDS)


@pytest.mark.parametrize(("language", "text"), ROWS["other text"])
def test_pointing_at_other_text_gives_a_cursor_hole(language: str, text: str) -> None:
    document, offset = marked.cursor(text, language)
    syntax = marked.parse(document)
    assert holes.at_place(document, Span(offset, offset), syntax) == holes.at_cursor(document, offset, syntax)


def test_selecting_more_than_a_placeholder_gives_the_selection() -> None:
    for text in ("$0def f():\n    pass$0\n", "def f():\n    $0x = 1\n    pass$0\n", "x = $01$0\n"):
        document, span = marked.selection(text)
        syntax = marked.parse(document)
        assert holes.at_place(document, span, syntax) == holes.selection(document, span, syntax)
