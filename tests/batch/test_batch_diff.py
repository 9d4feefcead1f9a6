"""Diffs that git and patch apply, whatever the text and the file's name."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.batch import report
from dg_lsp.core import values
from dg_lsp.core.values import Edit, Span
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("diff.txt"))

TOOLS = (["git", "apply", "-"], ["patch", "-p1", "--binary"], ["patch", "-p1"])


def unified(name: str, text: str, edits: Sequence[Edit]) -> str:
    return report.unified(name, text, values.apply(text, tuple(edits)))


def check_applies(name: str, text: str, *edits: Edit) -> None:
    """Apply the diff with each tool and compare to the text with the edits."""
    diff_text = unified(name, text, edits)
    expected = values.apply(text, edits).encode()
    if expected == text.encode():
        assert diff_text == ""
        return
    for tool in TOOLS:
        if shutil.which(tool[0]) is None:
            pytest.skip(f"{tool[0]} is not installed")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            completed = subprocess.run(tool, input=diff_text.encode(), cwd=folder, capture_output=True, check=False)
            assert completed.returncode == 0, (tool, diff_text, completed.stdout + completed.stderr)
            assert path.read_bytes() == expected, (tool, diff_text)


def check(text: str, *edits: Edit) -> None:
    check_applies("a.py", text, *edits)


def replacing(text: str, old: str, new: str) -> Edit:
    start = text.index(old)
    return Edit(Span(start, start + len(old)), new)


BODY = "def f():\n    pass\n\n\ndef g():\n    return 1\n"


def test_a_diff_shows_what_changed_and_three_lines_around_it() -> None:
    text = "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
    assert unified("n.txt", text, [replacing(text, "5", "five\nand more")]) == (
        "--- a/n.txt\n+++ b/n.txt\n@@ -2,7 +2,8 @@\n 2\n 3\n 4\n-5\n+five\n+and more\n 6\n 7\n 8\n"
    )


def test_lines_that_an_edit_repeats_are_context() -> None:
    text = "a\nb\nc\n"
    assert unified("n", text, [replacing(text, "a\nb\nc", "a\nx\nc")]) == "--- a/n\n+++ b/n\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n"


def test_an_edit_that_changes_nothing_makes_no_diff() -> None:
    assert unified("n", "a\n", [replacing("a\n", "a", "a")]) == ""
    assert unified("n", "a\n", []) == ""


@pytest.mark.parametrize(
    "name",
    ["a.py", "with space.py", "deep/er/ä ö.py", "日本.py", 'quo"te.py', "back\\slash.py", "tab\there.py", " lead.py"],
)
def test_any_name_is_found(name: str) -> None:
    check_applies(name, BODY, replacing(BODY, "pass", "return 2"))


@pytest.mark.parametrize(("text", "old", "new"), ROWS["texts"])
def test_any_text_survives(text: str, old: str, new: str) -> None:
    check(text, replacing(text, old, new))


def test_an_empty_file_can_be_written_to() -> None:
    diff_text = unified("a", "", [Edit(Span(0, 0), "x\n")])
    assert diff_text == "--- a/a\n+++ b/a\n@@ -0,0 +1 @@\n+x\n"


def test_far_edits_get_hunks_of_their_own_and_near_ones_share() -> None:
    text = "".join(f"line {n}\n" for n in range(40))
    near = [replacing(text, "line 10", "ten\nten"), replacing(text, "line 16", ""), replacing(text, "line 30", "x\ny\nz")]
    assert unified("n", text, near).count("@@ -") == 2
    check(text, *near)


lines = st.text(st.sampled_from("ab \t\r\n\x0cé😀"), max_size=30)


@given(text=lines, data=st.data())
def test_any_edits_of_any_text_apply(text: str, data: st.DataObject) -> None:
    # Only git is tested here: without --binary, patch changes stray `\r` and files without a line, and it deletes a file
    # whose new text is empty.
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=6)))
    edits = tuple(Edit(Span(a, b), data.draw(lines)) for a, b in zip(cuts[::2], cuts[1::2], strict=False))
    expected = values.apply(text, edits)
    diff_text = unified("a.txt", text, edits)
    if expected == text or not text or not expected:
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.txt").write_bytes(text.encode())
        tool = ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", "-"]
        completed = subprocess.run(tool, input=diff_text.encode(), cwd=folder, capture_output=True, check=False)
        assert completed.returncode == 0, (diff_text, completed.stderr)
        assert Path(folder, "a.txt").read_bytes() == expected.encode(), diff_text


@pytest.mark.parametrize("char", ["\x1b", "\x7f", "\x9b", "\u202e", "\u2028", "\u200b", "\udce9"])
def test_a_name_gives_no_orders_to_a_terminal_and_is_found(char: str) -> None:
    """U+009B begins an escape sequence too, and U+202E reverses the text that follows."""
    name = f"a{char}2J.py"
    check_applies(name, BODY, replacing(BODY, "pass", "return 2"))
    assert char not in unified(name, BODY, [replacing(BODY, "pass", "return 2")])
