"""Changes of documents become edits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dg_lsp.core import edits
from dg_lsp.core.edits import Hunk
from dg_lsp.server.history import BURST_S, JOIN_S, MOST_CHARS, History, is_restored

A = "one\ntwo\nthree\nfour\nfive\n"
LONG = "".join(f"x{i} = {i}\n" for i in range(MOST_CHARS))

# A step is the seconds before it, a document and its new text; then the edits, each with its document, old and new lines.
STEPS = [
    ("keys in one line are one edit", [(9, "a", A.replace("two", "tw")), (1, "a", A.replace("two", "too"))], ["a:two>too"]),
    (
        "so is what is typed in the next line",
        [(9, "a", A.replace("two", "2")), (1, "a", A.replace("two", "2\n3")), (1, "a", A.replace("two", "2\n33"))],
        ["a:two>2 33"],
    ),
    (
        "another place is another edit",
        [(9, "a", A.replace("one", "1")), (1, "a", A.replace("one", "1").replace("four", "4"))],
        ["a:one>1", "a:four>4"],
    ),
    (
        "so is the same place after a pause",
        [(9, "a", A.replace("two", "tw")), (JOIN_S + 1, "a", A.replace("two", "t"))],
        ["a:two>tw", "a:tw>t"],
    ),
    (
        "and another document",
        [(9, "a", A.replace("two", "2")), (2, "b", A.replace("one", "1")), (2, "a", A.replace("two", "22"))],
        ["a:two>2", "b:one>1", "a:2>22"],
    ),
    ("an undo takes its edit back", [(9, "a", A.replace("two", "2")), (1, "a", A)], []),
    (
        "also one that was over, and all after it",
        [
            (9, "a", A.replace("one", "1")),
            (9, "b", A.replace("one", "1")),
            (9, "a", A.replace("one", "1").replace("four", "4")),
            (9, "a", A),
        ],
        ["b:one>1"],
    ),
    ("white space alone is none", [(9, "a", A.replace("two", "  two"))], []),
    ("nor is a huge paste", [(9, "a", A + LONG)], []),
    (
        "nor what changes in several files at once",
        [(9, "a", A.replace("one", "1"))] + [(BURST_S / 9, each, A.replace("two", "2")) for each in "abc"],
        [],
    ),
    (
        "the last six are remembered",
        [(JOIN_S + 1, "a", A.replace("two", "2" * n)) for n in range(1, 9)],
        [f"a:{'2' * n}>{'2' * (n + 1)}" for n in range(2, 8)],
    ),
]


@pytest.mark.parametrize(("steps", "made"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS])
def test_changes_are_joined_to_edits(steps: list[tuple[float, str, str]], made: list[str]) -> None:
    history, texts, now = History(), dict[str, str](), 0.0
    for seconds, uri, text in steps:
        now += seconds
        history.change(uri, texts.get(uri, A), text, now)
        texts[uri] = text
    found = history.edits(lambda uri, edit: replace(edit, path=uri))
    assert [f"{each.path}:{' '.join(each.old.split())}>{' '.join(each.new.split())}" for each in found] == made
    assert history.edits(lambda _uri, _edit: None) == ()
    assert history.since_s(now + 5) is not None or not made


def test_a_document_is_as_it_was_before_its_first_edit_until_it_is_closed() -> None:
    history, first, then = History(), A.replace("one", "1"), A.replace("one", "1").replace("five", "5")
    history.change("a", A, first, 0.0)
    history.change("a", first, then, 1.0)
    assert (history.original("a", then), history.original("b", A)) == (A, A)
    assert history.uris() == ("a",)
    history.forget("a")
    assert (history.original("a", then), history.uris(), history.since_s(1.0)) == (then, (), None)


PASTE = ("three", f"{LONG}three")

# Each step replaces a text by another; those that are not remembered are in the second list, and so in the file as it was.
FORGOTTEN: list[tuple[str, list[tuple[str, str]], list[tuple[str, str]]]] = [
    ("nothing", [("one", "1"), ("two\n", ""), ("four", "4\n4"), ("4\n4", "44")], []),
    ("a huge paste", [("one", "1"), PASTE, ("five", "5")], [PASTE]),
    ("white space", [("one", "1"), ("three", "  three"), ("five", "5")], [("three", "  three")]),
    ("equal lines above", [("five", "5"), ("one", "1\n" * 800 + "one"), ("four", "4")], [("one", "1\n" * 800 + "one")]),
    ("more than six edits", [(f"{n}x" if n else "two", f"{n + 1}x") for n in range(8)], [("two", "2x")]),
    ("a paste and its undo", [("one", "1"), PASTE, (LONG, ""), ("five", "5")], []),
    ("a paste after a deletion", [("one\n", ""), PASTE, ("five", "5")], [PASTE]),
    ("white space in an edit", [("one", "1"), ("1", "  1"), ("five", "5")], [("one", "  1")]),
]  # fmt: skip


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(("steps", "forgotten"), [row[1:] for row in FORGOTTEN], ids=[row[0] for row in FORGOTTEN])
def test_what_is_forgotten_is_in_the_file_as_it_was(
    steps: list[tuple[str, str]], forgotten: list[tuple[str, str]], end: str
) -> None:
    history, text, now = History(), A, 0.0
    for old, new in steps:
        before, text, now = text, text.replace(old, new), now + JOIN_S + 1
        assert before != text
        history.change("a", before.replace("\n", end), text.replace("\n", end), now)
    original = A
    for old, new in forgotten:
        original = original.replace(old, new)
    assert history.original("a", text.replace("\n", end)) == original


@pytest.mark.parametrize(
    ("old", "new", "restores"),
    [
        ("too\n", "two\n", True),
        ("too\n", "", True),
        ("", "two\n", True),
        ("one\n", "1\n", False),
        ("", "too\n", False),
        ("too\n", "two\n2\n", False),
        ("three\n", "", False),
    ],
)
def test_a_change_that_brings_back_what_was_removed_is_known(old: str, new: str, restores: bool) -> None:
    text = A.replace("two", "too")
    edit = edits.edit_between("a", A, text)
    assert edit is not None
    start = text.index(old)
    assert is_restored(Hunk(start, start + len(old), new), text, (edit,)) == restores
