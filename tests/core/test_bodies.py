"""Which bodies are holes, and where they start and end: `bodies/LANGUAGE.txt` draws them for every language of the table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.core import holes, languages
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.syntax import Owner
from dg_lsp.core.values import Document, Hole
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("bodies.txt"))

BODIES = frozenset({"bodies"})
LANGUAGES = [language.name for language in languages.TABLE]


def check(text: str, language: str, *, empty: bool = False, uri: str = "file:///code") -> None:
    document, expected = marked.holes(text, language, uri)
    bodies = holes.in_document(document, marked.parse(document), BODIES | {"empty"} if empty else BODIES)
    expected_bodies = [Hole(span, "body") for span in expected]
    assert marked.draw(document, bodies) == marked.draw(document, expected_bodies)
    assert all(hole.kind == "body" for hole in bodies)


def drawn(language: str) -> dict[str, str]:
    """Return what is drawn in a language's file, by name. TSX has the bodies of TypeScript."""
    name = "typescript" if language == "tsx" else language
    return marked.drawings(Path(__file__).parent / "bodies" / f"{name}.txt")


@pytest.mark.parametrize(
    ("language", "text"),
    [
        pytest.param(language, text, id=f"{language}: {name}")
        for language in LANGUAGES
        for name, text in drawn(language).items()
    ],
)
def test_bodies(language: str, text: str) -> None:
    check(text, language)


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
@pytest.mark.parametrize("language", ["python", "typescript", "rust", "ruby", "bash", "lua"])
def test_line_ends_and_characters_before_a_hole_change_nothing(language: str, end: str) -> None:
    for text in drawn(language).values():
        document, expected = marked.holes(text, language)
        mark = "//" if language in ("typescript", "rust") else "--" if language == "lua" else "#"
        head = f"\ufeff{mark} ein 🦀 é\u2028\n\n"
        changed_text = (head + document.text).replace("\n", end)
        shifted_spans = []
        for span in expected:
            before, inside = document.text[: span.start], document.text[span.start : span.end]
            start = len((head + before).replace("\n", end))
            shifted_spans.append((start, start + len(inside.replace("\n", end))))
        other = Document(document.uri, language, changed_text)
        assert [
            (hole.span.start, hole.span.end) for hole in holes.in_document(other, marked.parse(other), BODIES)
        ] == shifted_spans


def test_the_empty_option_includes_bare_bodies() -> None:
    check("def f():\n    <hole>pass</hole>\n\nclass A:<hole> pass</hole>\n", "python", empty=True)
    check("function f() {<hole></hole>}\ng(() => {<hole></hole>});\n", "javascript", empty=True)
    check("def f():\n    <hole>pass  # nothing to do</hole>\n", "python", empty=True)


def test_the_empty_option_excludes_abstract_bodies() -> None:
    check("class A(Protocol):\n    def f(self): ...\n\nclass E(Exception): pass\n", "python", empty=True)


@pytest.mark.parametrize(
    ("language", "uri", "text"),
    [
        ("python", "file:///a.pyi", "def f() -> int:\n    '''Docs.'''\n    ...\n"),
        ("typescript", "file:///a.d.ts", "/** Docs. */\nexport function f() {}\n"),
    ],
)
def test_stub_files_have_no_body_holes(language: str, uri: str, text: str) -> None:
    check(text, language, uri=uri)
    check(text, language, uri=uri, empty=True)


def test_an_unknown_language_has_no_body_holes() -> None:
    check("function f() {}", "")


@pytest.mark.parametrize(("language", "text", "answer", "expected"), ROWS["filled"])
def test_a_body_is_filled_in_lines_of_its_own(language: str, text: str, answer: str, expected: str) -> None:
    document, _ = marked.holes(text, language)
    (hole,) = holes.in_document(document, marked.parse(document), BODIES)
    assert hole.extent == "block"
    assert marked.filled(document, hole, answer.replace("\n", "\n" + hole.indent)) == expected


def test_a_comment_behind_the_placeholder_becomes_the_instruction() -> None:
    document, _ = marked.holes("def f():\n    pass  # TODO: sort by name\n    # and by age\n")
    (hole,) = holes.in_document(document, marked.parse(document), BODIES)
    assert hole.instruction == "sort by name and by age"


def test_an_inline_placeholder_is_no_block() -> None:
    document, _ = marked.holes("fn f() { let c = |x| todo!(); }", "rust")
    (hole,) = holes.in_document(document, marked.parse(document), BODIES)
    assert hole.extent != "block"
    document, _ = marked.holes("fn f() {\n    a();\n    todo!();\n}", "rust")
    (hole,) = holes.in_document(document, marked.parse(document), BODIES)
    assert hole.extent == "block"
    assert hole.indent == "    "


@pytest.mark.parametrize(
    ("says", "is_hole"),
    [
        ("", True),
        ('"bytes"', True),
        ('"does not yet read bytes"', True),
        ('"unsupported: {x:?}"', False),
        ('"cannot be here"', False),
    ],
)
def test_an_inline_placeholder_that_says_why_it_stays_is_no_hole(says: str, is_hole: bool) -> None:
    document, _ = marked.holes(
        f"fn f(x: X) -> u8 {{\n    match x {{\n        X::A => 1,\n        _ => unimplemented!({says}),\n    }}\n}}", "rust"
    )
    assert bool(holes.in_document(document, marked.parse(document), BODIES)) == is_hole


def test_body_holes_do_not_overlap_in_broken_nested_placeholders() -> None:
    check(
        """
        void h() {
          throw std::runtime_error( l = [](int a) {
            <hole>throw std::logic_error("unimplemented");</hole>
          };
        }
        """,
        "cpp",
    )


class Counted(tuple[Owner, ...]):
    """Owners that count how often they are all iterated."""

    n_looks = 0

    def __iter__(self) -> Iterator[Owner]:
        Counted.n_looks += 1
        return super().__iter__()


def test_a_long_file_is_not_scanned_for_each_hole() -> None:
    text = "".join(f'class A{n}:\n    def f(self):\n        """Return it."""\n        pass\n\n' for n in range(50))
    document = Document("file:///code", "python", text, 1)
    syntax = syntaxes.of(document)
    assert syntax is not None
    syntax.__dict__["facts"] = replace(syntax.facts, owners=Counted(syntax.facts.owners))
    Counted.n_looks = 0
    assert len(holes.in_document(document, syntax, BODIES)) == 50
    assert Counted.n_looks < 10


@pytest.mark.parametrize("lines", ROWS["many"])
def test_twice_as_many_bodies_take_twice_as_many_steps(lines: str) -> None:
    def steps(n: int) -> int:
        """Return how many lines of Python are run to find the holes of so many bodies."""
        document = Document("file:///a.py", "python", "".join(lines.replace("%", str(at)) for at in range(n)))
        tree, n_steps = syntaxes.of(document), 0

        def step(*_: object) -> Any:
            nonlocal n_steps
            n_steps += 1
            return step

        before = sys.gettrace()
        sys.settrace(step)
        try:
            holes.in_document(document, tree, holes.KINDS)
        finally:
            sys.settrace(before)
        return n_steps

    _, few, many = map(steps, (2, 200, 400))  # the first fills caches
    assert many < 2.2 * few
