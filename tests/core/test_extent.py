"""Where an answer ends: while it is written, and once after."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.core import extent, place
from dg_lsp.core.extent import Bounds
from dg_lsp.core.values import Extent, Hole, Span
from tests import marked
from tests.engine import reference

ROWS = marked.rows(Path(__file__).with_name("extent.txt"))


def bounds(head: str = "", tail: str = "", how_far: Extent = "lines", *, knows_end: bool = False) -> Bounds:
    """Return what ends an answer in a line with these parts before and after it, which has its indentation."""
    here = place.between(head, tail)
    return extent.of(Hole(Span(0, 0), "cursor", indent=here.indent, extent=how_far), here, knows_end=knows_end)


# --- The lines of an answer


@pytest.mark.parametrize(("head", "how_far", "written", "is_over"), ROWS["the end of an answer"])
def test_an_answer_is_over_with_its_line_or_before_a_line_that_is_indented_less(
    head: str, how_far: Extent, written: str, is_over: str
) -> None:
    assert bounds(head, how_far=how_far, knows_end=True).is_over(written) == (is_over == "yes")


def test_in_an_empty_line_an_answer_has_several_lines_only_of_who_knows_its_end() -> None:
    assert bounds("    ", knows_end=True).takes_lines
    assert not bounds("    ").takes_lines


def test_a_server_stops_at_the_end_of_a_line_unless_the_answer_has_several() -> None:
    assert (bounds().stops, bounds(how_far="block").stops) == (("\n",), ())
    assert [bounds(how_far="line").of_server(text) for text in ("a\r\nb", "a\nb", "a", "")] == ["a", "a", "a", ""]
    assert bounds(how_far="block").of_server("a\nb") == "a\nb"


@pytest.mark.parametrize(
    ("head", "how_far", "text", "answer"),
    [
        ("x = ", "line", "1\ny = 2", "1"),
        ("i", "line", "f x:\n    a()\nb()", "f x:"),
        ("", "lines", "a()\nb()", "a()\nb()"),
    ],
)
def test_a_written_answer_is_cut_after_its_line_unless_it_has_several(
    head: str, how_far: Extent, text: str, answer: str
) -> None:
    assert bounds(head, how_far=how_far, knows_end=True).cut(text) == answer


# --- Where an answer repeats what follows it


@pytest.mark.parametrize(("draft", "suffix", "answer"), ROWS["drafts that repeat the suffix"])
def test_a_draft_ends_before_the_suffix(draft: str, suffix: str, answer: str) -> None:
    assert extent.before_suffix(draft, suffix) == answer


@given(st.text("ab}\n", max_size=14), st.text("ab}\n", max_size=7), st.integers(1, 5))
@example("a}\nb}\nab", "}\nab", 3)
def test_the_end_of_a_draft_equals_the_reference(draft: str, suffix: str, solid: int) -> None:
    assert extent.before_suffix(draft, suffix, solid) == reference.before_suffix(draft, suffix, solid)


@pytest.mark.parametrize(("draft", "suffix", "line"), ROWS["drafts of a line"])
def test_a_draft_of_a_line_ends_with_the_line(draft: str, suffix: str, line: str) -> None:
    assert bounds("f(", suffix, how_far="line").of_canvas(draft, is_held=True) == line
