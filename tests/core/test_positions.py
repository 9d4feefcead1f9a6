"""Lines end as in the editor protocol, and offsets round-trip between code points, encodings and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import positions
from dg_lsp.core.values import Span
from tests import marked, naive

ROWS = marked.rows(Path(__file__).with_name("positions.txt"))

ENCODINGS: tuple[positions.Encoding, ...] = ("utf-8", "utf-16", "utf-32")
# Any text, with special characters more often than by chance.
TEXTS = st.text(
    alphabet=st.one_of(st.sampled_from("ab\t\n\r\f\v\x1c\x85\u2028\u2029\ufeffé€🦀\ud83e\udd80"), st.characters()), max_size=80
)


@pytest.mark.parametrize(("text", "expected"), ROWS["lines"])
def test_lines_end_at_three_line_ends_only(text: str, expected: str) -> None:
    index = positions.lines(text)
    assert [index.content(line) for line in range(len(index))] == expected.split("|")


def test_indentation_and_blank_lines() -> None:
    index = positions.lines(" \t x\n \t\n\n")
    assert [index.indent(line) for line in range(3)] == [" \t ", " \t", ""]
    assert [index.is_blank(line) for line in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    ("line", "character", "encoding", "offset"),
    [
        (0, 0, "utf-16", 0),
        (0, 3, "utf-16", 2),
        (0, 2, "utf-16", 1),  # inside the surrogate pair
        (0, 5, "utf-8", 2),
        (0, 3, "utf-8", 1),  # inside the four bytes
        (0, 2, "utf-32", 2),
        (0, 99, "utf-8", 3),
        (0, 99, "utf-16", 3),
        (0, 99, "utf-32", 3),
        (1, 2, "utf-8", 6),
        (1, 0, "utf-16", 5),
        (9, 0, "utf-16", 7),
        (-1, 4, "utf-16", 0),
        (0, -1, "utf-32", 0),
    ],
)
def test_positions_are_clamped_as_the_protocol_says(
    line: int, character: int, encoding: positions.Encoding, offset: int
) -> None:
    assert positions.to_offset(positions.lines("a🦀b\r\néb"), line, character, encoding) == offset


def test_an_offset_inside_a_line_end_is_the_end_of_its_line() -> None:
    assert positions.to_position(positions.lines("ab\r\nc"), 3, "utf-16") == (0, 2)
    assert positions.to_position(positions.lines("ab"), 9, "utf-16") == (0, 2)
    assert positions.to_position(positions.lines("ab"), -9, "utf-16") == (0, 0)


def test_tabs_and_a_byte_order_mark_are_one_character() -> None:
    assert positions.to_position(positions.lines("\ufeff\tx"), 2, "utf-16") == (0, 2)
    assert positions.to_position(positions.lines("\ufeff\tx"), 2, "utf-8") == (0, 4)


@given(TEXTS, st.data())
def test_offsets_round_trip_through_positions(text: str, data: st.DataObject) -> None:
    index = positions.lines(text)
    offset = data.draw(st.integers(0, len(text)))
    for encoding in ENCODINGS:
        line, character = positions.to_position(index, offset, encoding)
        back = positions.to_offset(index, line, character, encoding)
        assert back == min(offset, index.end(line))
        assert back == offset or text[back : offset + 1] == "\r\n"


@given(TEXTS, st.integers(-2, 9), st.integers(-2, 99))
def test_any_position_is_an_offset_on_its_line(text: str, line: int, character: int) -> None:
    index = positions.lines(text)
    for encoding in ENCODINGS:
        offset = positions.to_offset(index, line, character, encoding)
        assert 0 <= offset <= len(text)
        if 0 <= line < len(index):
            assert index.start(line) <= offset <= index.end(line)


@given(TEXTS.flatmap(lambda text: st.sampled_from([text, text * 9])))
def test_code_points_round_trip_through_bytes(text: str) -> None:
    offsets = positions.byte_offsets(text)
    at = 0
    for offset, one in enumerate(text):
        assert offsets.to_byte(offset) == at
        width = positions.units(one, "utf-8")
        assert all(offsets.to_point(byte) == offset for byte in range(at, at + width))
        at += width
    assert offsets.to_byte(len(text)) == offsets.to_byte(len(text) + 5) == at == len(offsets.source)
    assert offsets.to_point(at) == offsets.to_point(at + 5) == len(text)
    offsets.source.decode("utf-8")


def test_byte_offsets_are_right_around_checkpoints() -> None:
    for n in (255, 256, 257, 512):
        text = "é" * n
        offsets = positions.byte_offsets(text)
        assert (offsets.to_byte(n), offsets.to_point(2 * n), offsets.to_point(2 * n - 1)) == (2 * n, n, n - 1)


@given(text=TEXTS, new=TEXTS, ends=st.tuples(st.integers(0, 30), st.integers(0, 30)))
def test_editing_the_line_index_equals_indexing_the_edited_text(text: str, new: str, ends: tuple[int, int]) -> None:
    start, end = sorted(min(end, len(text)) for end in ends)
    new_text = text[:start] + new + text[end:]
    assert naive.same_lines(positions.spliced(positions.lines(text), Span(start, end), new), positions.lines(new_text))
