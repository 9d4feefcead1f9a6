"""No text keeps a parser busy for ever: what is left open ends within the limit, and the server lives on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from dg_lsp.core import languages, polish, scope, syntax
from dg_lsp.core.values import Candidate, Document, Hole, Ranked, Span
from dg_lsp.server import sync
from dg_lsp.server.sync import OpenDocument
from tests import naive
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "n_texts"),
    [("all", 15), *(pytest.param(language.name, 300, marks=pytest.mark.slow) for language in languages.TABLE)],
)
def test_texts_with_something_left_open_are_parsed_within_the_limit(name: str, n_texts: int) -> None:
    # In a child that can be ended.
    command = [sys.executable, "-m", "tests.hostile.unclosed", name, str(n_texts)]
    line = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    assert line.startswith(f"{name}: "), line
    assert " 0 over the limit" in line, line


LONG = "describe('a', () => {\n" + "".join(
    f"  it('does {n}', async () => {{\n    const v{n} = fn({{ url: 'u', n: {n} }})\n    expect(v{n}).toBe({n})\n  }})\n"
    for n in range(600)
)


@pytest.mark.parametrize("language", ["javascript", "typescript", "tsx"])
@pytest.mark.parametrize("typed", ["[", "({ a: [", "`${[", "fn(async () => {", "<div a={["])
def test_a_bracket_left_open_in_a_long_test_file_is_parsed(language: str, typed: str) -> None:
    text = LONG.replace("    expect(v9)", "    const a = \n    expect(v9)") + "})\n"
    at = text.index("const a = ") + len("const a = ")
    document, row = OpenDocument("untitled:a", language, 1, text), text.count("\n", 0, at)
    for n, key in enumerate(typed):
        place = (row, len("    const a = ") + n)
        document.change(n + 2, [naive.edit(key, place, place)], "utf-16")
        near = document.near(at + n + 1)
        assert near is not None
        assert near.parts
        assert not document.is_unparsed


# A limit that no parse keeps stands for a text that no parser ends with.

PYTHON = "def f(a):\n    return a\n" * 400


@pytest.mark.parametrize("is_reparse", [False, True])
def test_a_parse_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch, is_reparse: bool) -> None:
    before = syntax.parse(PYTHON, languages.row("python")) if is_reparse else None
    monkeypatch.setattr(syntax, "limit_s", lambda _: -1.0)
    text = "x = [\n" + PYTHON.replace("a", "b")
    with pytest.raises(syntax.ParseLimitError, match=r"parsing python took more than"):
        syntax.parse(text, languages.row("python"), before)
    assert syntax.of(Document("u", "python", text), before) is None


def test_a_document_that_takes_too_long_counts_as_one_without_a_grammar_until_it_parses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = OpenDocument("untitled:a", "python", 1, PYTHON)
    n_tries = []
    parse = syntax.parse

    def slow(*args: object, **options: object) -> syntax.Syntax:
        n_tries.append(1)
        return parse(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(syntax, "limit_s", lambda _: -1.0)
        patch.setattr(syntax, "parse", slow)
        for version in range(2, 400):
            assert document.near(0) is None
            assert asyncio.run(document.syntax()) is None
            assert document.is_unparsed
            document.change(version, [naive.edit("x", (0, 0), (0, 0))], "utf-16")
    # Each try blocks the server, so there are few.
    assert len(n_tries) < 10
    for version in range(400, 400 + sync.MOST_CHANGES_TO_WAIT):
        document.change(version, [naive.edit("", (0, 0), (0, 1))], "utf-16")
    assert document.near(0) is not None
    assert not document.is_unparsed


def test_an_answer_that_takes_too_long_to_parse_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    document = Document("u", "python", PYTHON)
    tree = syntax.of(document)
    monkeypatch.setattr(syntax, "limit_s", lambda _: -1.0)
    hole = Hole(Span(14, 22), "cursor")
    polished = polish.to_edits(Candidate(("return a + 1",), Ranked()), (hole,), document, syntax=tree)
    assert (polished.edits, polished.dropped) == ((), "takes too long to parse")


def test_names_that_take_too_long_to_find_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(a):\n\n    return total\n" + PYTHON
    tree = syntax.parse(text, languages.row("python"))
    place = Span(10, 10)
    assert scope.needed_names(tree, place) == ("total",)
    monkeypatch.setattr(syntax, "limit_s", lambda _: -1.0)
    assert scope.needed_names(tree, place) == ()
