"""Values check themselves when they are created, and edits change only their spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import values
from dg_lsp.core.values import Budget, Edit, Hole, InfillRequest, Span, n_common


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (2, 1)])
def test_a_span_starts_before_it_ends(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a span"):
        Span(start, end)


def test_spans_overlap_where_they_share_a_character() -> None:
    assert Span(0, 2).overlaps(Span(1, 3))
    assert not Span(0, 2).overlaps(Span(2, 3))
    assert not Span(1, 1).overlaps(Span(1, 1))


@pytest.mark.parametrize("budget", [{"ms": -1}, {"steps": -1}, {"candidates": 0}])
def test_a_budget_is_not_negative(budget: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="limits of an answer must be at least 0"):
        Budget(**budget)


def test_a_request_has_a_text_between_any_two_holes() -> None:
    hole = Hole(Span(0, 0), "cursor")
    with pytest.raises(ValueError, match="at least one hole"):
        InfillRequest("", "", ())
    with pytest.raises(ValueError, match="2 holes need 1 texts between them, not 0"):
        InfillRequest("", "", (hole, hole))
    assert InfillRequest("", "", (hole, hole), ("x",)).budget == Budget()


def test_edits_that_overlap_or_lie_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="edits overlap"):
        values.apply("abc", (Edit(Span(1, 3), ""), Edit(Span(0, 2), "")))
    with pytest.raises(ValueError, match="an edit ends at 4, beyond the text's 3 characters"):
        values.apply("abc", (Edit(Span(0, 4), ""),))


@given(st.text(), st.text(), st.data())
def test_edits_change_nothing_outside_their_spans(text: str, new: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=4, max_size=4)))
    edits = (Edit(Span(cuts[2], cuts[3]), new), Edit(Span(cuts[0], cuts[1]), new))
    assert values.apply(text, edits) == f"{text[: cuts[0]]}{new}{text[cuts[1] : cuts[2]]}{new}{text[cuts[3] :]}"


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_a_common_prefix_is_the_longest(left: list[int], right: list[int]) -> None:
    n = n_common(left, right)
    assert left[:n] == right[:n]
    assert n in (len(left), len(right)) or left[n] != right[n]
