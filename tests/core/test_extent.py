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


def bounds(
    head: str = "", tail: str = "", language: str = "python", how_far: Extent = "lines", *, knows_end: bool = False
) -> Bounds:
    """Return what ends an answer in a line with these parts before and after it, which has its indentation."""
    here = place.between(head, tail)
    return extent.of(Hole(Span(0, 0), "cursor", indent=here.indent, extent=how_far), here, language, knows_end=knows_end)


# --- The lines of an answer


@pytest.mark.parametrize(("head", "how_far", "written", "is_over"), ROWS["the end of an answer"])
def test_an_answer_is_over_with_its_line_or_before_a_line_that_is_indented_less(
    head: str, how_far: Extent, written: str, is_over: str
) -> None:
    assert bounds(head, how_far=how_far, knows_end=True).is_over(written) == (is_over == "yes")


def test_in_an_empty_line_an_answer_has_several_lines_only_of_who_knows_its_end() -> None:
    assert bounds("    ", knows_end=True).takes_lines
    assert not bounds("    ").takes_lines
    assert not bounds("    x", knows_end=True).takes_lines


def test_a_server_stops_at_the_end_of_a_line_unless_the_answer_has_several() -> None:
    assert (bounds().stops, bounds(how_far="block").stops) == (("\n",), ())
    assert [bounds(how_far="line").of_server(text) for text in ("a\r\nb", "a\nb", "a", "")] == ["a", "a", "a", ""]
    assert bounds(how_far="block").of_server("a\nb") == "a\nb"


@pytest.mark.parametrize(
    ("head", "how_far", "text", "answer"),
    [
        ("x = ", "line", "1\ny = 2", "1"),
        ("i", "line", "f x:\n    a()\nb()", "f x:"),
        ("i", "lines", "f x:\n    a()\nb()", "f x:\n    a()"),
        ("", "lines", "a()\nb()", "a()\nb()"),
    ],
)
def test_a_written_answer_is_cut_after_its_line_or_the_block_that_the_line_opens(
    head: str, how_far: Extent, text: str, answer: str
) -> None:
    assert bounds(head, how_far=how_far, knows_end=True).cut(text) == answer


# --- The block that an answer opens

BLOCKS = ROWS["blocks that an answer opens"]


@pytest.mark.parametrize(("language", "head", "text", "n"), BLOCKS)
def test_block_goes_on_to_its_end(language: str, head: str, text: str, n: str) -> None:
    block = "\n".join(text.split("\n")[: int(n)])
    assert bounds(head, language=language).block(text) == (block, True)


@pytest.mark.parametrize(("language", "head", "text", "n"), BLOCKS)
def test_line_that_may_go_on_belongs_to_the_block(language: str, head: str, text: str, n: str) -> None:
    own, lines = bounds(head, language=language), text.split("\n")[: int(n)]
    block = "\n".join(lines)
    assert all(own.may_go_on(block[:end]) for end in range(len(lines[0]) + 1, len(block)))


@pytest.mark.parametrize("line", ["    return x", "    x.y", "    elements = 1", "    else_ = 1", "y", "  )", "    end[0]"])
def test_line_that_starts_otherwise_does_not_belong_to_it(line: str) -> None:
    assert not bounds("    if ").may_go_on(f"x:\n{line}")


@pytest.mark.parametrize(
    ("language", "head", "text"),
    [("python", "x = ", "1\n    y"), ("typescript", "const x = ", "{\n  a: 1,\n}"), ("typescript", "return ", "{\n  a: 1\n}")],
)
def test_other_lines_open_no_block(language: str, head: str, text: str) -> None:
    assert bounds(head, language=language).block(text) is None


@pytest.mark.parametrize(("text", "is_whole"), ROWS["whole blocks"])
def test_block_is_whole_with_all_of_its_brackets(text: str, is_whole: str) -> None:
    assert bounds("if ", language="typescript").is_whole(text) == (is_whole == "yes")


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
