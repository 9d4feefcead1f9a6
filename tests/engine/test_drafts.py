"""What the file itself suggests, drawn with the cursor in it."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dg_lsp.engine import drafts
from dg_lsp.engine.drafts import Copy, copies


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


def every_copy(prefix: str, suffix: str, *, block: bool, indent: str) -> list[Copy]:
    """What `copies` is to find, place by place: the definition that it is faster than."""
    found: dict[str, Copy] = {}
    anchor, remainder = suffix.lstrip("\n")[:80].split("\n", 1)[0], suffix.split("\n", 1)[0].rstrip()
    for source in (prefix, suffix):
        for at in range(3, len(source)):
            if len(prefix) < 3 or source[at - 3 : at] != prefix[-3:]:
                continue
            left = next((n for n in range(min(at, len(prefix), 240)) if source[at - 1 - n] != prefix[-1 - n]), None)
            left = min(at, len(prefix), 240) if left is None else left
            copy: Copy | None = None
            if not block:
                line = source[at : at + 200].split("\n")[0]
                sizes = [n for n in sorted({len(remainder), 16, 8, 4, 2, 1}, reverse=True) if n <= len(remainder)]
                stops = ((line.find(remainder[:n]), n) for n in sizes)
                cut = next((Copy(line[:stop], left, n) for stop, n in stops if stop >= 0), None)
                copy = cut if remainder else Copy(line.rstrip(), left, 1)
            elif suffix.startswith(("\n", "\r")) or not suffix:
                taken, *lines = source[at : at + 1500].split("\n")
                for line in lines[:11]:
                    if line.strip() and (not line.startswith(indent) or not indent or line == anchor):
                        break
                    taken += "\n" + line
                rest = lines[taken.count("\n") :]
                copy = Copy(taken.rstrip(), left, len(anchor) if rest[:1] == [anchor] else 0)
            else:
                text = source[at : at + 1500]
                stop = text.find("\n" + anchor) if anchor.strip() else -1
                if stop >= 0:
                    copy = Copy(text[: stop + 1], left, len(anchor))
                elif "\n" in text:
                    copy = Copy(text.split("\n")[0] + "\n", left, 0)
            if copy and copy.text.strip() and (copy.text not in found or rank(copy) > rank(found[copy.text])):
                found[copy.text] = copy
    return sorted(found.values(), key=rank, reverse=True)


def rank(copy: Copy) -> tuple[int, int, int]:
    return (copy.left + min(copy.right, 24), copy.left, -len(copy.text))


INDENTS = st.sampled_from(["", "  ", "    "])
CODE = st.text("ab)( ", max_size=6)
# Few words, so that much stands again; and white space at the end of the prefix.
LINES = st.lists(st.tuples(INDENTS, st.sampled_from(["if a:", "b = f(a)", "return b, (a)", ""]) | CODE), max_size=24)


@settings(max_examples=400, deadline=None)
@given(LINES, LINES, INDENTS, CODE, st.booleans(), st.integers(1, 4))
@example([("    ", "b = f(a)")] * 24, [("    ", "b = f(a)")] * 24, "    ", "", True, 2)
@example([("  ", "if a:"), ("    ", "aab"), ("    ", "abb"), ("  ", "return b, (a)")], [], "    ", "", False, 2)
def test_places_that_are_passed_over_would_have_changed_nothing(
    above: list[tuple[str, str]], below: list[tuple[str, str]], indent: str, rest: str, block: bool, most: int
) -> None:
    prefix = "".join(f"{white}{code}\n" for white, code in above) + indent
    suffix = rest + "".join(f"\n{white}{code}" for white, code in below)
    assert (
        copies(prefix, suffix, block=block, indent=indent, most=most)
        == every_copy(prefix, suffix, block=block, indent=indent)[:most]
    )


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("line", ["        value = 1\n", "    \n", "{0:8}\n"])
def test_in_a_long_file_few_of_the_places_that_end_alike_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, block: bool, line: str
) -> None:
    looked: list[int] = []
    agreement = drafts._agreement

    def look(source: str, at: int, prefix: str, low: int, high: int) -> int:
        looked.append(at)
        return agreement(source, at, prefix, low, high)

    monkeypatch.setattr(drafts, "_agreement", look)
    text = "".join(line.format(number) for number in range(2000))
    assert len(copies(f"{text}    ", f"\n{text}", block=block, indent="    ")) <= 2
    assert 0 < len(looked) <= drafts.MAX_PLACES
