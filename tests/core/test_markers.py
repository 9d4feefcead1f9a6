"""FILL comments, and all holes of a document together."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.core import holes, languages
from dg_lsp.core.values import Hole
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("markers.txt"))


def found(text: str, language: str) -> tuple[Hole, ...]:
    document, expected = marked.holes(text, language)
    markers = holes.markers(document, marked.parse(document))
    assert marked.draw(document, markers) == marked.draw(document, [Hole(span, "marker") for span in expected])
    assert all(hole.kind == "marker" for hole in markers)
    return markers


LINE = {language.name: language.line_comments[0] for language in languages.TABLE}
BLOCK = {
    **dict.fromkeys(("javascript", "typescript", "tsx", "go", "rust", "java", "c", "cpp", "csharp", "php"), ("/*", "*/")),
    "lua": ("--[[", "]]"),
}


@pytest.mark.parametrize("language", [language.name for language in languages.TABLE])
def test_fill_in_line_comments_is_a_marker(language: str) -> None:
    mark, head = LINE[language], "<?php\n" if language == "php" else ""
    alone, with_instruction, tight, behind = found(
        f"{head}<hole>{mark} FILL</hole>\n  <hole>{mark} FILL: sort by 🦀, then age </hole>\n<hole>{mark}FILL:x</hole>\n"
        f"x = 1 <hole>{mark} FILL: why</hole>\n"
        f"{mark} FILLER\n{mark} fill\n{mark} FILL in\n{mark} a FILL\n{mark} FILL_ME\n",
        language,
    )
    assert (alone.extent, alone.indent, alone.instruction) == ("block", "", "")
    assert (with_instruction.extent, with_instruction.indent, with_instruction.instruction) == (
        "block",
        "  ",
        "sort by 🦀, then age",
    )
    assert tight.instruction == "x"
    assert (behind.extent, behind.instruction) == ("line", "why")


@pytest.mark.parametrize("language", BLOCK)
def test_fill_in_block_comments_is_a_marker(language: str) -> None:
    (opening, closing), head = BLOCK[language], "<?php\n" if language == "php" else ""
    alone, inline = found(
        f"{head}\t<hole>{opening} FILL: sort\n\t * by age {closing}</hole>\nx = <hole>{opening} FILL {closing}</hole>;\n",
        language,
    )
    assert (alone.extent, alone.indent, alone.instruction) == ("block", "\t", "sort by age")
    assert (inline.extent, inline.instruction) == ("line", "")


@pytest.mark.parametrize(("language", "text"), ROWS["no markers"])
def test_fill_in_a_string_is_not_a_marker(language: str, text: str) -> None:
    assert found(text, language) == ()


@pytest.mark.parametrize(("language", "text"), ROWS["markers"])
def test_fill_in_every_form_of_a_comment_is_a_marker(language: str, text: str) -> None:
    assert found(text, language)


def test_in_an_unknown_language_a_marker_is_a_comment_that_begins_its_line() -> None:
    # Elsewhere, what is a comment in one language is text in another.
    lines = found(
        "<hole># FILL</hole>\r\n  <hole>// FILL: a</hole>\r<hole>-- FILL</hole>\n<hole>/* FILL: b */</hole> x\n"
        "<hole><!-- FILL --></hole>\n"
        'x = "# FILL"; y // FILL\n```\n# FILL\n```\n"""\n# FILL\n"""\n# FILLER\n/* FILL\n',
        "",
    )
    assert [hole.instruction for hole in lines] == ["", "a", "", "b", ""]
    assert [hole.extent for hole in lines] == ["block", "block", "block", "line", "block"]


def check(text: str, kinds: set[str], language: str = "python") -> tuple[Hole, ...]:
    document, expected = marked.holes(text, language)
    every = holes.in_document(document, marked.parse(document), frozenset(kinds))
    assert marked.draw(document, every) == marked.draw(document, [Hole(span, "body") for span in expected])
    return every


def test_holes_of_all_kinds_are_in_order() -> None:
    every = check(
        "def f():\n    <hole>...</hole>\n\n<hole># FILL</hole>\n\n"
        "def g():\n    '''Docs.'''\n    <hole>pass</hole>\n\ndef h(): pass\n",
        {"bodies", "markers"},
    )
    assert [hole.kind for hole in every] == ["body", "marker", "body"]


def test_only_the_requested_kinds_are_returned() -> None:
    text = "def f():\n    {}\n\n{}\n\ndef g():\n    {}\n"
    body, marker, bare = ("<hole>...</hole>", "<hole># FILL</hole>", "<hole>pass</hole>")
    check(text.format(body, "# FILL", "pass"), {"bodies"})
    check(text.format("...", marker, "pass"), {"markers"})
    check(text.format("...", "# FILL", bare), {"empty"})
    check(text.format(body, marker, bare), {"bodies", "markers", "empty"})
    check(text.format("...", "# FILL", "pass"), set())


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="unknown kind of hole: stubs; known kinds: bodies, empty, markers"):
        check("", {"stubs", "bodies"})


def test_a_marker_takes_the_place_of_the_body_around_it() -> None:
    (hole,) = check("def f():\n    <hole># FILL: return one\n    pass</hole>\n", {"bodies", "markers"})
    assert (hole.kind, hole.instruction, hole.extent, hole.indent) == ("marker", "return one", "block", "    ")
    (hole,) = check("function f() {\n  <hole>// FILL: return one</hole>\n}\n", {"bodies", "markers"}, "javascript")
    assert (hole.kind, hole.lead, hole.trail) == ("marker", "", "")
    (hole,) = check(
        "function f() {\n  <hole>// FILL\n  throw new Error('TODO');</hole>\n}\n", {"bodies", "markers"}, "javascript"
    )
    assert hole.kind == "marker"


def test_a_marker_on_its_openers_line_moves_below() -> None:
    for text, language, expected in (
        ("def f():  # FILL: one\n    pass\n", "python", "def f():\n    a\n"),
        ("def f():  # FILL\n    raise NotImplementedError\n", "python", "def f():\n    a\n"),
        ("function f() { /* FILL */ }\n", "javascript", "function f() {\n  a\n}\n"),
        ("function f() { // FILL\n}\n", "javascript", "function f() {\n  a\n}\n"),
        ("function f() {\n  /* FILL */ }\n", "javascript", "function f() {\n  a\n}\n"),
        ("function f() {\r\n  /* FILL */ }\n", "javascript", "function f() {\r\n  a\n}\n"),
        ("def f(a) # FILL\nend\n", "ruby", "def f(a)\n  a\nend\n"),
    ):
        document, _ = marked.holes(text, language)
        (hole,) = holes.in_document(document, marked.parse(document), frozenset({"bodies", "markers"}))
        assert (hole.kind, hole.extent) == ("marker", "block")
        assert marked.filled(document, hole, "a") == expected


@pytest.mark.parametrize(("language", "text"), ROWS["markers with a placeholder"])
def test_a_marker_includes_only_the_placeholder_behind_it(language: str, text: str) -> None:
    check(text, {"bodies", "markers"}, language)


def test_a_marker_includes_its_placeholder_when_only_markers_are_requested() -> None:
    check("def f():\n    <hole># FILL\n    raise NotImplementedError</hole>\n\ndef g():\n    ...\n", {"markers"})
