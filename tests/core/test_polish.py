"""Polishing of answers. The rows are in polish.txt, which describes them, refusals.txt and again.txt."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import languages, polish, scope, syntax
from dg_lsp.core.holes import selection
from dg_lsp.core.lexing import Token
from dg_lsp.core.polish import Suggestion
from dg_lsp.core.scope import declared
from dg_lsp.core.values import Calibrated, Candidate, Document, Edit, Extent, Hole, HoleKind, Span, apply
from tests import marked
from tests.e2e.sources import SOURCES
from tests.fakes import drawn

KINDS: list[HoleKind] = ["cursor", "body", "marker", "selection", "error"]
EXTENTS: list[Extent] = ["line", "lines", "block"]


def polished(text: str, *answers: str, is_file: bool = False, allow_shrink: bool = False, **how: Any) -> tuple[Suggestion, str]:
    """Return the polished answers, one for each hole, and the text with them; "" if they are dropped."""
    document, holes = drawn(text, **{"language": "python", **how})
    candidate, tree = Candidate(answers, Calibrated(0.5)), syntax.of(document)
    result = polish.to_edits(candidate, holes, document, syntax=tree, is_file=is_file, allow_shrink=allow_shrink)
    assert bool(result.edits) != bool(result.dropped)
    return result, apply(document.text, result.edits) if result.edits else ""


ROWS = [
    row
    for name in ("polish", "refusals", "again")
    for rows in marked.rows(Path(__file__).with_name(f"{name}.txt"), n_options=1).values()
    for row in rows
]


@pytest.mark.parametrize(("options", "text", "answer", "expected"), ROWS)
def test_an_answer_is_polished(options: str, text: str, answer: str, expected: str) -> None:
    language, *words = options.split(" ")
    values = {key: marked.plain(value) for key, _, value in (word.partition("=") for word in words)}
    how: dict[str, Any] = {key: values[key] for key in ("indent", "lead", "trail") if key in values}
    if how.get("indent", "").isdigit():
        how["indent"] = " " * int(how["indent"])
    how |= {key: word for key, known in (("kind", KINDS), ("extent", EXTENTS)) for word in words if word in known}
    document, holes = drawn(text, language=language.strip("-"), **how)
    document = replace(document, uri=f"file:///{values.get('file', 'drawn')}", indent=values.get("level", ""))
    tree = None if "no-grammar" in words else syntax.of(document)
    how = {"syntax": tree, "is_file": "whole" in words}
    result = polish.to_edits(Candidate((answer,), Calibrated(0.5)), holes, document, **how)
    got = [edit.text for edit in result.edits] or f"! {result.dropped}"
    assert got == (expected if expected.startswith("! ") else [answer if expected == "=" else expected])


# Where code may be, the code with a character in it, and a string and a comment with it.
WITH_CHARACTER = {
    "python": ("x = ⟦⟧\n", "a%s + b", "'a%sb'", "1  # a%sb"),
    "javascript": ("x = ⟦⟧;\n", "a%s + b", '"a%sb"', "1; // a%sb"),
    "typescript": ("x = ⟦⟧;\n", "a%s + b", "`a%sb`", "1; // a%sb"),
    "tsx": ("x = ⟦⟧;\n", "a%s + b", "<p>a%sb</p>", "1; // a%sb"),
    "go": ("package m\n\nvar x = ⟦⟧\n", "a%s + b", "`a%sb`", "1 // a%sb"),
    "rust": ("const X: &str = ⟦⟧;\n", "A%s + B", '"a%sb"', "1; // a%sb"),
    "java": ("class A { int x = ⟦⟧; }\n", "a%s + b", '"a%sb"', "1 /* a%sb */"),
    "c": ("int x = ⟦⟧;\n", "a%s + b", '"a%sb"', "1; // a%sb"),
    "cpp": ("int x = ⟦⟧;\n", "a%s + b", 'R"(a%sb)"', "1; // a%sb"),
    "csharp": ("class A { int x = ⟦⟧; }\n", "a%s + b", '$"a%sb"', "1 /* a%sb */"),
    "ruby": ("x = ⟦⟧\n", "a%s + b", "%%q(a%sb)", "1 # a%sb"),
    "php": ("<?php\n$x = ⟦⟧;\n", "$a%s + $b", '"a%sb"', "1; // a%sb"),
    "bash": ("x=⟦⟧\n", "$a%s$b", '"a%sb"', "1 # a%sb"),
    "lua": ("x = ⟦⟧\n", "a%s + b", '"a%sb"', "1 -- a%sb"),
}
NOWHERE = "\u061c\u200e\u200f\u200b\u2060\u202e\u2066\ufeff\u2028\u2029\xad\U000e0041"
NOT_IN_CODE = "\xa0\u3000\u200d“’”‘\u2212–—…，；（«×÷＋≤→✓\u2800\u3164\u115f\ufe0f\u17b4\U000e0100"


@pytest.mark.parametrize("language", WITH_CHARACTER)
def test_no_answer_has_a_character_in_code_that_no_compiler_takes(language: str) -> None:
    assert WITH_CHARACTER.keys() == {each.name for each in languages.TABLE}
    text, code, *words = WITH_CHARACTER[language]
    in_code = {char for char in NOWHERE + NOT_IN_CODE if polished(text, code % char, language=language)[0].edits}
    in_words = {char for char in NOWHERE for each in words if polished(text, each % char, language=language)[0].edits}
    lost = {char for char in NOT_IN_CODE for each in words if not polished(text, each % char, language=language)[0].edits}
    assert not in_code | in_words | lost


def test_every_filter_and_check_has_a_row_in_the_table_of_what_they_are_worth() -> None:
    page = Path(__file__).parents[2] / "docs" / "decisions" / "0039-what-rules-are-worth.md"
    assert set(re.findall(r"^\| `(\w+)` \|", page.read_text("utf-8"), re.MULTILINE)) == {
        rule.__name__ for rule in (*polish.FILTERS, *polish.CHECKS)
    }


def test_several_holes_are_filled_together() -> None:
    result, text_after = polished("a(⟦⟧, ⟦⟧)\nb = ⟦⟧\n", "1", "2 + 3", "c")
    assert text_after == "a(1, 2 + 3)\nb = c\n"
    assert [edit.text for edit in result.edits] == ["1", "2 + 3", "c"]


def test_one_bad_text_drops_the_candidate() -> None:
    result, _ = polished("a = ⟦⟧\nb = ⟦⟧\n", "1", " ")
    assert result.dropped == "is blank"


def test_a_candidate_with_another_number_of_texts_is_dropped() -> None:
    document, holes = drawn("⟦⟧⟦⟧")
    assert polish.to_edits(Candidate(("x",), Calibrated(1.0)), holes, document).dropped == "has 1 texts for 2 holes"


def test_what_stands_between_two_holes_does_not_keep_them_from_being_compiled() -> None:
    text = "def b(x):\n    ⟦⟧\n\n\nreturn 5\n\n\ndef c():\n    ⟦⟧\n"
    assert polished(text, "x = 1; nonlocal x", "return 1")[0].dropped == "does not compile"
    assert polished(text, "x = 1", "return 1")[1] == text.replace("⟦⟧", "x = 1", 1).replace("⟦⟧", "return 1")


def test_all_texts_of_a_candidate_are_checked_together() -> None:
    result, text_after = polished("a(⟦⟧, ⟦⟧)\n", "f(b)", "c")
    assert text_after == "a(f(b), c)\n"
    result, _ = polished("a(⟦⟧, ⟦⟧)\n", "f(", "c")
    assert result.dropped == "adds a syntax error"


def test_python_checks_each_statement_with_a_hole() -> None:
    result, text_after = polished("def f():\n    return ⟦⟧\n\ndef g():\n    return ⟦⟧ + ⟦⟧\n\nx = ⟦⟧\n", "1", "2", "3", "4")
    assert text_after == "def f():\n    return 1\n\ndef g():\n    return 2 + 3\n\nx = 4\n"
    result, _ = polished("def f():\n    return ⟦⟧\n\ndef g():\n    return ⟦⟧\n", "1", "f(a=1, 2)")
    assert result.dropped == "does not compile"


@pytest.mark.parametrize(
    ("instruction", "drop_reason"), [("write the docstring", ""), ("sort", "says nothing, or leaves a new hole")]
)
def test_a_marker_that_asks_for_words_gets_them(instruction: str, drop_reason: str) -> None:
    document, (drawn_hole,) = drawn("def f():\n    ⟦# FILL⟧\n    return 1\n", language="python", kind="marker", extent="block")
    hole = replace(drawn_hole, instruction=instruction)
    result = polish.to_edits(Candidate(('"""Return one."""',), Calibrated(0.5)), (hole,), document, syntax=syntax.of(document))
    assert result.dropped == drop_reason


def test_a_quote_below_a_long_template_is_in_code() -> None:
    text = "s = `" + "a\n" * 9_000 + "`;\nf(\nx = ⟦⟧\n"
    assert polished(text, "“a”", language="javascript")[0].dropped == "has a character that code does not have"


def test_a_character_that_the_tree_places_needs_no_lexer_for_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    lexed, masked = list[int](), languages.masked

    def noted(text: str, tokens: Iterable[Token]) -> str:
        lexed.append(len(text))
        return masked(text, tokens)

    monkeypatch.setattr(languages, "masked", noted)
    for text in ("x = 1\n" * 500 + "y = ⟦⟧\n", "x = (\n" * 500 + "\n\ny = ⟦⟧\n"):
        assert polished(text, "1  # a，b")[0].edits
    assert max(lexed) < 100


def test_a_long_block_of_code_in_prose_is_known() -> None:
    text = "```python\n" + "f(a)\n" * 2_000 + "def f(a):\n⟦⟧\n```\n"
    document, holes = drawn(text)
    result = polish.to_edits(Candidate(("    return a",)), holes, replace(document, uri="file:///README.md"))
    assert result.edits == (Edit(holes[0].span, "    return a"),)


WORKING = "def f(count):\n    ⟦total = count + 1\n    return total⟧\n"


@pytest.mark.parametrize("answer", ["pass", "...", "raise NotImplementedError", "# TODO", '"""Return it."""', "pass\n    pass"])
def test_working_code_is_not_replaced_by_less_without_permission(answer: str) -> None:
    how: dict[str, Any] = {"kind": "selection", "extent": "block", "indent": "    "}
    result, _ = polished(WORKING, answer, **how)
    assert (result.edits, result.dropped, result.shrinks) == ((), "replaces working code by less", True)
    result, text_after = polished(WORKING, answer, allow_shrink=True, **how)
    if answer not in ("# TODO",):  # which leaves the function without a body
        assert result.dropped == ""
        assert result.shrinks
        assert answer in text_after
    result, _ = polished(WORKING, "return count + 1", **how)
    assert (result.dropped, result.shrinks) == ("", False)


def test_a_selection_may_be_deleted_with_permission() -> None:
    text = "x = 1\n⟦y = 2⟧\n"
    assert polished(text, "", kind="selection", extent="block")[0].dropped == "is blank"
    result, text_after = polished(text, "", kind="selection", extent="block", allow_shrink=True)
    assert (text_after, result.shrinks) == ("x = 1\n\n", True)


def test_an_answer_with_a_doubtful_name_is_marked_where_the_language_cannot_tell() -> None:
    text = "function f(x) {\n  ⟦⟧\n}\n"
    for answer, is_file, unbound in (("return y;", True, ("y",)), ("return x;", True, ()), ("return y;", False, ())):
        result, _ = polished(text, answer, language="javascript", is_file=is_file)
        assert result.edits
        assert result.unbound == unbound


@pytest.mark.parametrize(
    ("language", "text", "answer"),
    [
        ("c", "int g(int a);\n⟦⟧\n", f"int f(int {'(' * 2_000}a{')' * 2_000}) {{ return 1; }}"),
        ("java", "class A {\n⟦⟧\n}\n", f"int f({'L<' * 2_000}A{'>' * 2_000} a) {{ return 1; }}"),
    ],
)
def test_deep_types_are_judged(language: str, text: str, answer: str) -> None:
    assert polished(text, answer, language=language, is_file=True)[0].dropped == ""


@pytest.mark.parametrize("path", [*(name for name, _, _ in SOURCES), *map(str, Path(scope.__file__).parents[1].glob("*.py"))])
def test_no_line_of_a_whole_file_is_there_already(path: str) -> None:
    text = next((text for name, _, text in SOURCES if name == path), "") or Path(path).read_text(encoding="utf-8")
    language = languages.for_path(path)
    assert language is not None
    parsed = syntax.parse(text, language)
    spans = (Span(parsed.lines.start(line), parsed.lines.end(line)) for line in range(len(parsed.lines)))
    assert not [text[span.start : span.end] for span in spans if declared.declares_again(parsed, span)]


# --- Random answers ---------------------------------------------------------------------------------------------------

PIECES = [*"ab(){}[]:;=.,#/*'\"`\\<>|\n\r\t \x0c\ufeff\ud800😀é\0", "def ", "if x:\n    ", "```\n"]
PLAIN_PIECES = ["a", "b", " ", "\n", " = ", "1", "(", ")", "f()", ";\n", ";\n", "'", "`"]  # what they make often parses
CODE = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
PLAIN_CODE = st.lists(st.sampled_from(PLAIN_PIECES), max_size=12).map("".join)
LANGUAGES = ["", *(language.name for language in languages.TABLE)]


@st.composite
def places(draw: st.DrawFn, code: st.SearchStrategy[str] = CODE) -> tuple[Document, tuple[Hole, ...]]:
    text = draw(code)
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


@given(place=places(), texts=st.lists(CODE, min_size=1, max_size=2), grammar=st.booleans(), shrinks=st.booleans())
def test_text_outside_the_holes_never_changes(
    place: tuple[Document, tuple[Hole, ...]], texts: list[str], grammar: bool, shrinks: bool
) -> None:
    document, holes = place
    tree = syntax.of(document) if grammar else None
    result = polish.to_edits(Candidate(tuple(texts), Calibrated(1.0)), holes, document, syntax=tree, allow_shrink=shrinks)
    assert bool(result.edits) != bool(result.dropped)
    text_after = apply(document.text, result.edits)
    at = growth = 0
    for edit, hole in zip(result.edits, holes, strict=False):
        assert edit.span == hole.span
        assert document.text[at : edit.span.start] == text_after[at + growth : edit.span.start + growth]
        at = edit.span.end
        growth += len(edit.text) - (edit.span.end - edit.span.start)
    assert document.text[at:] == text_after[at + growth :]


@given(place=places(st.one_of(PLAIN_CODE, CODE)), texts=st.lists(st.one_of(PLAIN_CODE, CODE), min_size=1, max_size=2))
def test_a_document_that_parses_still_parses(place: tuple[Document, tuple[Hole, ...]], texts: list[str]) -> None:
    """In a broken one, an answer may move errors that it does not touch: an odd quote turns strings into code."""
    document, holes = place
    before = syntax.of(document)
    result = polish.to_edits(Candidate(tuple(texts), Calibrated(1.0)), holes, document, syntax=before)
    language = languages.get(document.language)
    if result.edits and before is not None and language is not None and not before.errors:
        assert not syntax.parse(apply(document.text, result.edits), language).errors


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


def test_a_further_candidate_is_compiled_once_however_long_its_class_is() -> None:
    def n_compiled(n_candidates: int) -> int:
        document, holes = drawn(f"class A:\n    n = {n_candidates}\n    def f(self):\n        ⟦⟧\n", language="python")
        tree, calls = syntax.of(document), list[str]()
        sys.setprofile(lambda _frame, event, called: calls.append(event) if called is compile else None)
        try:
            for idx in range(n_candidates):
                result = polish.to_edits(Candidate((f"break  # {idx}",)), holes, document, syntax=tree)
                assert result.dropped == "does not compile"
        finally:
            sys.setprofile(None)
        return calls.count("c_call")

    assert n_compiled(11) - n_compiled(1) == 10
