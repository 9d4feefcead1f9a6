"""The server's text is the editor's: random edits against a model that counts code units in bytes and knows no index."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from dg_lsp.core import languages, positions
from dg_lsp.core.positions import Encoding
from dg_lsp.core.values import Document
from dg_lsp.server.sync import Change, Documents, OpenDocument
from tests import marked, naive

ROWS = marked.rows(Path(__file__).with_name("languages.txt"))

ENCODINGS: tuple[Encoding, ...] = ("utf-8", "utf-16", "utf-32")
# Line ends of the protocol, what Python's splitlines takes for line ends, characters of each width, lone surrogates.
PIECES = [
    "a",
    "b ",
    "\n",
    "\r\n",
    "\r",
    "\t",
    "\f",
    "\v",
    "\x1c",
    "\x1d",
    "\x1e",
    "\x85",
    "\u2028",
    "\u2029",
    "é",
    "漢",
    "𝕏",
    "👩‍💻",
    "\ufeff",
    "\ud800",
    "\0",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


POINTS = st.tuples(st.integers(0, 8), st.integers(0, 12))
CHANGES = st.builds(naive.edit, TEXTS, POINTS, POINTS) | st.builds(naive.edit, TEXTS)


@given(text=TEXTS, changes=st.lists(CHANGES, max_size=25), encoding=st.sampled_from(ENCODINGS))
@example(text="a\r", changes=[naive.edit("\n", (1, 0), (1, 0))], encoding="utf-16")
@example(text="a\r\nb", changes=[naive.edit("x", (0, 9), (0, 9)), naive.edit("", (0, 0), (1, 0))], encoding="utf-8")
def test_edits_give_the_editors_text_and_its_lines(text: str, changes: list[Change], encoding: Encoding) -> None:
    documents = Documents()
    documents.encoding = encoding
    document = documents.open("file:///a.py", "python", 0, text)
    for version, change in enumerate(changes, 1):
        documents.change("file:///a.py", version, [change])
        text = naive.change(text, change, encoding)
        assert document.document.text == text
        assert document.document.version == version
        assert naive.same_lines(document.index, positions.lines(text))


N_SESSIONS, N_EDITS = 400, 250


def random_change(dice: random.Random, text: str) -> Change:
    """Return an edit as editors send them: mostly small, mostly within the text, now and then all of it."""
    new = "".join(dice.choices(PIECES, k=dice.choice((0, 1, 1, 2, 5, 12, 60))))
    if dice.random() < 0.005 or len(text) > 3_000:
        return naive.edit(new)
    line = dice.randrange(text.count("\n") + text.count("\r") + 2)
    start = (line, dice.choice((0, 1, 3, dice.randrange(30), 10**6)))
    end = (line + dice.choice((0, 0, 0, 1, 3)), dice.choice((0, 2, dice.randrange(30), 10**6)))
    return naive.edit(new, *dice.choice(((start, start), (start, start), (start, end), (end, start))))


@settings(max_examples=N_SESSIONS, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**64), text=TEXTS, encoding=st.sampled_from(ENCODINGS))
def replayed_session(n_by_encoding: Counter[str], seed: int, text: str, encoding: Encoding) -> None:
    dice = random.Random(seed)
    documents = Documents()
    documents.encoding = encoding
    document = documents.open("file:///a.py", "python", 0, text)
    for version in range(1, N_EDITS + 1):
        change = random_change(dice, text)
        documents.change("file:///a.py", version, [change])
        text = naive.change(text, change, encoding)
        assert document.index.text == text
        n_by_encoding[encoding] += 1
    assert naive.same_lines(document.index, positions.lines(text))
    assert document.document == Document("file:///a.py", "python", text, N_EDITS, language_id="python")


@pytest.mark.slow
def test_a_hundred_thousand_edits_give_the_editors_text() -> None:
    n_by_encoding: Counter[str] = Counter()
    replayed_session(n_by_encoding)
    assert sum(n_by_encoding.values()) >= 100_000
    assert set(n_by_encoding) == set(ENCODINGS)


def test_a_lost_document_recovers_with_its_whole_text() -> None:
    documents = Documents()
    document = documents.open("file:///a.py", "python", 0, "a")
    documents.lose("file:///a.py")
    documents.change("file:///a.py", 1, [naive.edit("b", (0, 0), (0, 0))])
    assert document.lost
    documents.change("file:///a.py", 2, [naive.edit("c")])
    assert not document.lost


def test_a_change_of_a_document_that_is_not_open_changes_nothing() -> None:
    assert Documents().change("file:///a.py", 1, [naive.edit("b")]) is None


@pytest.mark.parametrize(("uri", "language_id", "language"), ROWS["languages"])
def test_any_uri_opens_and_its_language_is_told_by_the_editor_or_the_name(uri: str, language_id: str, language: str) -> None:
    assert Documents().open(uri, language_id, 1, "x = 1\n").document.language == language


def test_a_header_is_of_the_language_that_its_text_says_now(monkeypatch: pytest.MonkeyPatch) -> None:
    document, for_path = OpenDocument("file:///a.h", "c", 1, "int f();\n"), languages.for_path
    names, searched = list[str](), list[int]()

    def noted(name: str, text: str, lsp_id: str) -> languages.Language | None:
        searched.append(len(text))
        return for_path(name, text, lsp_id)

    monkeypatch.setattr(languages, "for_path", noted)
    changes = [
        naive.edit("int f();\nclass A {\n  int b;\n"),
        naive.edit("int f();\n// class A {\n"),
        naive.edit("/*\nclass B {\n*/\n" + "int b;\n" * 9_000, (1, 0), (1, 0)),
        naive.edit("class C {\n", (0, 0), (0, 0)),
        naive.edit("\n", (0, 0), (0, 0)),
    ]
    for number, change in enumerate(changes):
        searched.clear()
        document.change(2 + number, [change], "utf-16")
        names += [near.language.name for near in [document.near(0)] if near]
    assert names == ["cpp", "c", "c", "cpp", "cpp"]
    assert max(searched) < 100


async def test_syntax_follows_the_text() -> None:
    documents = Documents()
    document = documents.open("file:///a.py", "python", 1, "def f(:\n")
    broken_syntax = await document.syntax()
    assert broken_syntax is not None
    assert broken_syntax.errors
    assert (await document.syntax()) is broken_syntax
    documents.change("file:///a.py", 2, [naive.edit("", (0, 5), (0, 8)), naive.edit("f(): pass", (0, 4), (0, 5))])
    assert document.document.text == "def f(): pass\n"
    fixed_syntax = await document.syntax()
    assert fixed_syntax is not None
    assert not fixed_syntax.errors


def test_cells_know_those_before_them() -> None:
    documents = Documents()
    for cell in "abc":
        documents.open(cell, "python", 1, cell)
    documents.open_notebook("n", ["a", "b"])
    documents.splice_cells("n", 1, 0, ["c"])
    assert [cell.text for cell in documents.cells_before("b") or ()] == ["a", "c"]
    assert documents.cells_before("d") is None
    documents.close_notebook("n")
    assert [documents.get(uri) for uri in "abc"] == [None] * 3
