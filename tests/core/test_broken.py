"""Answers in files of 14 languages that are broken elsewhere, as files are while people type."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.core import holes, languages, polish, syntax
from dg_lsp.core.polish import frames
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Candidate, Document, Hole, InfillRequest, Span, apply
from tests import marked
from tests.e2e.sources import SOURCES
from tests.server import adversary

UNFINISHED = (
    *("x = [", "foo(", 's = "abc', "{", "if (", "def f(", "return g(a,", "x = {", "for (", "y = a +", "class A(", "obj."),
    *("'''", "/*", "`", "x = y)", "}", "else", "end", "@", "func (", "<div>", "case", "=>", "let x: ="),
)
ROWS = marked.rows(Path(__file__).with_name("broken.txt"))
NAMES = [name for name, _, _ in SOURCES]
TEXTS = {name: text for name, _, text in SOURCES}


def document(name: str, text: str) -> tuple[Document, Syntax]:
    language = languages.for_path(name)
    assert language is not None
    made = Document(f"file:///{name}", language.name, text)
    tree = syntax.of(made)
    assert tree is not None
    return made, tree


def beside(text: str, offset: int, draw: random.Random) -> tuple[str, int]:
    """Return the text with an unfinished line above or below the offset's line, and the offset in it."""
    lines = text.split("\n")
    own = text.count("\n", 0, offset)
    number = draw.choice([at for at in range(1, len(lines) + 1) if at not in (own, own + 1)])
    indent = re.match(r"\s*", lines[min(number, len(lines) - 1)])
    line = f"{indent[0] if indent else ''}{draw.choice(UNFINISHED)}"
    lines.insert(number, line)
    return "\n".join(lines), offset + (len(line) + 1 if number <= own else 0)


def in_brackets(text: str) -> Iterator[tuple[int, int]]:
    """Yield places within brackets of one line, and the ends of these lines."""
    for match in re.finditer(r"[(\[][^()\[\]\n]{2,}[)\]]", text):
        at = (match.start() + match.end()) // 2
        if not (text[at].isalnum() and text[at - 1].isspace() and "#" in text[:at].rpartition("\n")[2]):
            yield at, (text.find("\n", at) + 1 or len(text) + 1) - 1


@pytest.mark.parametrize("name", NAMES)
def test_right_answers_that_close_a_bracket_are_kept_beside_any_unfinished_line(name: str) -> None:
    draw = random.Random(name)
    places, text = list(in_brackets(TEXTS[name])), TEXTS[name]
    lost = []
    for _ in range(60):
        at, end = draw.choice(places)
        broken, offset = beside(text[:at] + text[end:], at, draw)
        code, tree = document(name, broken)
        polished = polish.to_edits(Candidate((text[at:end],)), (holes.at_cursor(code, offset, tree),), code, syntax=tree)
        if [edit.text for edit in polished.edits] != [text[at:end]]:
            lost.append((f"{broken[:offset]}⟦⟧{broken[offset:]}", text[at:end], polished.dropped))
    # A line such as `"abc` may take the answer's own quotes for its end.
    assert len(lost) <= 1, lost


def trials(name: str, n: int) -> Iterator[tuple[Document, Syntax, Hole, str]]:
    """Yield places in a file, whole or with an unfinished line, and bad answers: half of lines, brackets, other lines."""
    draw = random.Random(name)
    for number in range(n):
        text, at = TEXTS[name], draw.randrange(len(TEXTS[name]))
        end = draw.choice((at, at, text.find("\n", at) % (len(text) + 1)))
        text = text[:at] + text[end:]
        if number % 3:
            text, at = beside(text, at, draw)
        code, tree = document(name, text)
        hole = holes.at_cursor(code, at, tree)
        request = InfillRequest(text[:at], text[at:], (hole,), language=code.language)
        yield code, tree, hole, adversary.text(draw, request)


def next_code(lines: Lines, offset: int) -> int:
    """Return the end of the line's or of the next line's code: a parser often sees there what a line lacks."""
    below = (number for number in range(lines.at(offset) + 1, len(lines)) if not lines.is_blank(number))
    return lines.end(next(below, lines.at(offset)))


def n_touching(tree: Syntax, span: Span) -> int:
    return sum(error.touches(span) for error in tree.errors)


@pytest.mark.parametrize("n", [30, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_no_answer_adds_an_error_that_touches_it(name: str, n: int) -> None:
    wrong, n_edits = [], 0
    for code, tree, hole, answer in trials(name, n):
        edits = polish.to_edits(Candidate((answer,)), (hole,), code, syntax=tree).edits
        if edits:
            n_edits += 1
            after, lines = document(name, apply(code.text, edits))[1], tree.lines
            assert tree.errors or not after.errors, (code.text, edits)
            own = Span(lines.start(lines.at(hole.span.start)), next_code(lines, hole.span.end))
            written = Span(own.start, own.end + len(edits[0].text) - (hole.span.end - hole.span.start))
            if n_touching(after, written) > n_touching(tree, own):
                wrong.append((f"{code.text[: hole.span.start]}⟦⟧{code.text[hole.span.end :]}", edits[0].text))
    assert n_edits > n / 10
    # A line such as `}` may end the block around the hole, which its indentation does not show.
    assert len(wrong) <= max(1, n_edits / 40), wrong


@pytest.mark.parametrize("language", ["typescript", "javascript"])
@pytest.mark.parametrize(("text", "right"), ROWS["unclosed"])
def test_wrong_answers_in_a_function_within_a_call_are_dropped_beside_any_unfinished_line(
    language: str, text: str, right: str
) -> None:
    kept, wrong = [], [row.values[0] for row in ROWS["wrong"]]
    for other in (row.values[0] for row in ROWS["others"]):
        for whole in (f"{other}\n\n{text}\n", f"{text}\n\n{other}\n"):
            code = Document("file:///a", language, whole.replace("⟦⟧", ""))
            tree = syntax.of(code)
            assert tree is not None
            hole = holes.at_cursor(code, whole.index("⟦"), tree)
            for answer in (*wrong, right):
                edits = polish.to_edits(Candidate((answer,)), (hole,), code, syntax=tree).edits
                kept += [(whole, answer)] if [edit.text for edit in edits] == [answer] and answer in wrong else []
                assert answer in wrong or edits, (whole, answer)
    assert not kept


JS = "function f(a, b) {\n  const c = a + b;\n  if (c) {\n    return g(c);\n  }\n  return c;\n}\n"
PYTHON = "def f(a, b):\n    c = a + b\n    if c:\n        return g(c)\n    return c\n\n"


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("javascript", "".join(f"{'  ' * depth}if (a) {{\n" for depth in range(60)) + f"{'  ' * 60}foo("),
        ("javascript", "const x = (;\n" + JS * 2_900 + "function last(a) {\n  if (a) {\n    foo("),
        ("python", "x = (\n" + PYTHON * 3_400 + "def last(a):\n    if a:\n        foo("),
    ],
)
def test_a_bad_answer_in_a_broken_file_takes_few_parses(language: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = Document("file:///a", language, text)
    tree = syntax.of(code)
    assert tree is not None
    hole = holes.at_cursor(code, len(text), tree)
    parsed: list[Syntax] = []
    parse = syntax.parse

    def counted(*args: Any, **how: Any) -> Syntax:
        parsed.append(parse(*args, **how))
        return parsed[-1]

    monkeypatch.setattr(syntax, "parse", counted)

    def n_parses(answer: str) -> int:
        parsed.clear()
        polish.to_edits(Candidate((answer,)), (hole,), code, syntax=tree)
        return len(parsed)

    assert n_parses("zz(((") <= 30
    assert n_parses("ww[[[") <= 8
    assert n_parses("vv(((") <= 8


@pytest.mark.parametrize(("name", "head", "row", "end"), ROWS["long statements"])
def test_an_edit_in_a_long_statement_is_parsed_with_few_lines(name: str, head: str, row: str, end: str) -> None:
    made, tree = document(name, f"{head}{row * 1000}{end}x = (\n")
    for line in row.strip("\n").split("\n"):
        at = made.text.index(line, len(head) + 500 * len(row)) + len(line)
        hole = holes.at_cursor(made, at, tree)
        assert all(len(frame.syntax.lines) < 500 for frame in frames._frames(tree, (hole,)))
