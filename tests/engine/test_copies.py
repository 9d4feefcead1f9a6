"""What the file itself suggests, drawn with the cursor in it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.core.values import n_common
from dg_lsp.engine.common import copies
from dg_lsp.engine.common.copies import Copy
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("copies.txt"))


def first(text: str, *, block: bool = False, indent: str = "") -> str | None:
    prefix, suffix = textwrap.dedent(text).split("$0")
    all_copies = copies.find(prefix, suffix, takes_lines=block, indent=indent)
    return all_copies[0].text if all_copies else None


@pytest.mark.parametrize(("text", "expected"), ROWS["lines"])
def test_the_rest_of_a_line_is_copied_from_the_longest_match(text: str, expected: str) -> None:
    assert (first(text) or "none") == expected


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


def test_copied_lines_end_at_the_suffixs_first_line() -> None:
    text = "a = read()\nb = clean(a)\nwrite(b)\nx\na = read()\n$0write(b)\n"
    assert first(text, block=True) == "b = clean(a)\n"


def test_agreement_is_counted_on_both_sides() -> None:
    prefix, suffix = "run(one, two)\nrun(one, ", ")\n"
    (copy, *_) = copies.find(prefix, suffix, takes_lines=False)
    assert (copy.text, copy.left, copy.right) == ("two", len("run(one, "), 1)


def every_copy(prefix: str, suffix: str, *, block: bool, indent: str) -> list[Copy]:
    """What `copies` is to find, place by place: the definition that it is faster than."""
    copy_by_text: dict[str, Copy] = {}
    anchor, remainder = suffix.lstrip("\n")[:80].split("\n", 1)[0], suffix.split("\n", 1)[0].rstrip()
    for source in (prefix, suffix):
        for at in range(3, len(source)):
            if len(prefix) < 3 or source[at - 3 : at] != prefix[-3:]:
                continue
            n_before = next((n for n in range(min(at, len(prefix), 240)) if source[at - 1 - n] != prefix[-1 - n]), None)
            n_before = min(at, len(prefix), 240) if n_before is None else n_before
            copy: Copy | None = None
            if not block:
                line = source[at : at + 200].split("\n")[0]
                sizes = [n for n in sorted({len(remainder), 16, 8, 4, 2, 1}, reverse=True) if n <= len(remainder)]
                stops = ((line.find(remainder[:n]), n) for n in sizes)
                shortened = next((Copy(line[:stop], n_before, n) for stop, n in stops if stop >= 0), None)
                copy = shortened if remainder else Copy(line.rstrip(), n_before, 1)
            elif suffix.startswith(("\n", "\r")) or not suffix:
                text_so_far, *lines = source[at : at + 1500].split("\n")
                for line in lines[:11]:
                    if line.strip() and (not line.startswith(indent) or not indent or line == anchor):
                        break
                    text_so_far += "\n" + line
                rest = lines[text_so_far.count("\n") :]
                copy = Copy(text_so_far.rstrip(), n_before, len(anchor) if rest[:1] == [anchor] else 0)
            else:
                text = source[at : at + 1500]
                stop = text.find("\n" + anchor) if anchor.strip() else -1
                if stop >= 0:
                    copy = Copy(text[: stop + 1], n_before, len(anchor))
                elif "\n" in text:
                    copy = Copy(text.split("\n")[0] + "\n", n_before, 0)
            if copy and copy.text.strip() and (copy.text not in copy_by_text or rank(copy) > rank(copy_by_text[copy.text])):
                copy_by_text[copy.text] = copy
    return sorted(copy_by_text.values(), key=rank, reverse=True)


def rank(copy: Copy) -> tuple[int, int, int]:
    return (copy.left + min(copy.right, 24), copy.left, -len(copy.text))


INDENTS = st.sampled_from(["", "  ", "    "])
CODE = st.text("ab)( ", max_size=6)
# Few words, so that much stands again; and white space at the end of the prefix.
LINES = st.lists(st.tuples(INDENTS, st.sampled_from(["if a:", "b = f(a)", "return b, (a)", ""]) | CODE), max_size=24)


@given(LINES, LINES, INDENTS, CODE, st.booleans(), st.integers(1, 4))
@example([("    ", "b = f(a)")] * 24, [("    ", "b = f(a)")] * 24, "    ", "", True, 2)
@example([("  ", "if a:"), ("    ", "aab"), ("    ", "abb"), ("  ", "return b, (a)")], [], "    ", "", False, 2)
def test_skipped_places_change_no_result(
    above: list[tuple[str, str]], below: list[tuple[str, str]], indent: str, rest: str, block: bool, most: int
) -> None:
    prefix = "".join(f"{white}{code}\n" for white, code in above) + indent
    suffix = rest + "".join(f"\n{white}{code}" for white, code in below)
    assert (
        copies.find(prefix, suffix, takes_lines=block, indent=indent, most=most)
        == every_copy(prefix, suffix, block=block, indent=indent)[:most]
    )


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("line", ["        value = 1\n", "    \n", "{0:8}\n"])
def test_few_places_of_a_long_file_are_visited(monkeypatch: pytest.MonkeyPatch, block: bool, line: str) -> None:
    looked: list[int] = []

    def look(before: str, prefix: str) -> int:
        looked.append(len(before))
        return n_common(before, prefix)

    monkeypatch.setattr(copies, "n_common", look)
    text = "".join(line.format(number) for number in range(2000))
    assert len(copies.find(f"{text}    ", f"\n{text}", takes_lines=block, indent="    ")) <= 2
    assert 0 < len(looked) <= copies.MAX_PLACES


def test_related_files_are_copied_from_when_they_agree_longer() -> None:
    prefix, suffix = "x = make(1)\nresult = parser.parse(", "\n"
    [copy] = copies.find(prefix, suffix, takes_lines=False, most=1, related=["result = parser.parse(text, strict=True)\n"])
    assert copy.text == "text, strict=True)"
    [own] = copies.find("result = parser.parse(line)\n" + prefix, suffix, takes_lines=False, most=1, related=["parse(text)\n"])
    assert own.text == "line)"
