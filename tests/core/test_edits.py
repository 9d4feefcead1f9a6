"""The form of next-edit prompts, and reading an answer."""

import json
from pathlib import Path

import pytest

from dg_lsp.core import edits
from tests import marked
from tests.core.reference_prompts import FIXTURE, N_SESSIONS, digest, sessions

ROWS = marked.rows(Path(__file__).with_name("edits.txt"))

CODE = "def area(w, h):\n    return w * h\n\n\nprint(area(2, 3))\nprint(area(4, 5))\n"


def test_prompts_equal_those_of_the_published_models_package() -> None:
    """`python -m tests.core.reference_prompts` recorded the package's own prompts in the same sessions."""
    made = []
    for session in sessions():
        asked = edits.question(session.original, session.text, session.cursor, session.edits)
        assert asked is not None
        blocks = edits.blocks(session.path, asked, edits.PUBLISHED)
        made.append(digest("".join(edits.SEPARATOR + block for block in blocks)))
    assert len(made) == N_SESSIONS
    assert made == json.loads(FIXTURE.read_text())


def test_a_short_part_of_a_file_holds_the_cursors_line() -> None:
    text = "".join(f"line {i}\n" for i in range(500))
    for line in range(500):
        shown = edits.SHORT.around(text, line).splitlines()
        assert f"line {line}" in shown
        assert len(shown) <= 60


@pytest.mark.parametrize(
    ("answer", "changed"),
    [
        ("def area(w, h):\n    return w * h\n\n\nprint(area(2, 3))\nprint(area(4, 5))\n", []),
        (
            "def area(w, h):\n    return h * w\n\n\nprint(area(2, 3))\nprint(area(4, 5))",
            [("    return w * h\n", "    return h * w\n")],
        ),
        (
            "def size(w, h):\n    return w * h\n\n\nprint(size(2, 3))\nprint(area(4, 5))",
            [("print(area(2, 3))\n", "print(size(2, 3))\n"), ("def area(w, h):\n", "def size(w, h):\n")],
        ),
        ("def area(w, h):\n    return w * h\n\n\nprint(area(2, 3))", [("print(area(4, 5))\n", "")]),
        ("def area(w, h):\n    return w * h\n\n\nprint(area(2, 3))\nprint(1)\nprint(area(4, 5))", [("", "print(1)\n")]),
    ],
)
def test_an_answer_is_read_as_hunks_nearest_to_the_cursor_first(answer: str, changed: list[tuple[str, str]]) -> None:
    window = edits.Window(0, CODE, CODE.index("(2, 3)"))
    found = edits.hunks(window, answer)
    assert [(CODE[hunk.start : hunk.end], hunk.text) for hunk in found] == changed


def test_an_edit_is_the_run_of_lines_that_differs() -> None:
    after = CODE.replace("(2, 3)", "(2, 9)")
    edit = edits.edit_between("a.py", CODE, after)
    assert edit is not None
    assert (edit.first, edit.old, edit.new) == (3, "print(area(2, 3))\n", "print(area(2, 9))\n")
    assert edit.undone(after) == CODE
    assert edits.edit_between("a.py", CODE, CODE) is None


def test_a_last_line_without_an_end_gets_one_where_text_follows_now() -> None:
    edit = edits.edit_between("a.py", "a\nb", "a\nb2\n")
    assert edit is not None
    assert edit.undone_in_file("a\nb2\n") == "a\nb"
    assert edit.undone_in_file("a\nb2\nmore\n") == "a\nb\nmore\n"


@pytest.mark.parametrize(("made", "change", "repeats"), ROWS["repeats"])
def test_a_change_repeats_an_edit_that_changed_the_same_parts_of_names(made: str, change: str, repeats: str) -> None:
    pairs = [each.partition(" -> ")[::2] for each in made.split("; " if "; " in made else "\n")]
    last = tuple(edits.Edit("a.py", 0, f"{old}\n", f"{new}\n", "", "") for old, new in pairs)
    old, _, new = change.partition(" -> ")
    window = edits.Window(40, f"head\n{old}\n", 0)
    assert edits.repeats(edits.Question("", 0, last, window), f"head\n{new}\n") == (repeats == "yes")


def test_the_nearest_change_tells_whether_an_answer_repeats_an_edit() -> None:
    window = edits.Window(0, "x = area\n\ny = 1\nz = 3\n", 0)
    asked = edits.Question("", 0, (edits.Edit("a.py", 0, "area\n", "size\n", "", ""),), window)
    assert edits.repeats(asked, "x = size\n\ny = 1\nz = 4\n")
    assert not edits.repeats(asked, "x = other\n\ny = 1\nz = size\n")
    assert edits.repeats(asked, "x =  size\n\ny = 1\nz = 3\n")
    assert not edits.repeats(asked, window.text)
