"""The form of next-edit prompts, and reading an answer."""

import json

import pytest

from dg_lsp.core import edits
from tests.core.reference_prompts import FIXTURE, N_SESSIONS, digest, sessions

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
        shown = edits.SHORT.of(text, text.index(f"line {line}\n")).splitlines()
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
