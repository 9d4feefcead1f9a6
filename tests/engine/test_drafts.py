"""What the file itself suggests, drawn with the cursor in it."""

from __future__ import annotations

import textwrap

import pytest

from dg_lsp.engine.drafts import copies


def first(text: str, *, block: bool = False, indent: str = "") -> str | None:
    prefix, suffix = textwrap.dedent(text).split("$0")
    found = copies(prefix, suffix, block=block, indent=indent)
    return found[0].text if found else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("self.width = width\nself.wid$0\n", "th = width"),
        ("call(first, second)\ncall(fir$0)\n", "st, second"),
        ("call(first, second)\nother(third)\ncall(fir$0)\n", "st, second"),
        ("x = aaa\ny = 1\nx = $0\n", "aaa"),
        ("nothing like it here: $0\n", None),
        ("ab$0", None),
    ],
)
def test_the_rest_of_a_line_is_copied_from_the_longest_match(text: str, expected: str | None) -> None:
    assert first(text) == expected


def test_a_match_after_the_cursor_counts_as_well() -> None:
    assert first("def f():\n    return comp$0\n\ndef g():\n    return compute(1)\n") == "ute(1)"


def test_a_block_ends_where_the_copied_one_ends() -> None:
    text = """
    def left(self):
        self.x -= 1
        self.draw()

    def right(self):
        $0

    def up(self):
        pass
    """
    assert first(text, block=True, indent="    ") == "self.x -= 1\n    self.draw()"


def test_whole_lines_end_where_the_suffix_begins_again() -> None:
    text = "a = read()\nb = clean(a)\nwrite(b)\nx\na = read()\n$0write(b)\n"
    assert first(text, block=True) == "b = clean(a)\n"


def test_agreement_is_counted_on_both_sides() -> None:
    prefix, suffix = "run(one, two)\nrun(one, ", ")\n"
    (copy, *_) = copies(prefix, suffix, block=False)
    assert (copy.text, copy.left, copy.right) == ("two", len("run(one, "), 1)
