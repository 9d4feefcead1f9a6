"""Scores of single answers, and their summary."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import scores
from benchmarks.scores import Keys, ResultRow, Trade
from dg_lsp.evaluate import answers
from dg_lsp.evaluate.answers import Measure
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("score.txt"))


def row(n: int, *, exact: bool, method: str = "full", cluster: str = "") -> ResultRow:
    return ResultRow(f"t{n}", cluster or f"c{n}", "span", method, "", exact, float(exact), None, None, float(n), n)


@pytest.mark.parametrize(("text", "answer", "exact"), ROWS["exact"])
def test_trailing_white_space_is_ignored(text: str, answer: str, exact: str) -> None:
    assert answers.is_exact(text, answer) is (exact == "yes")


@pytest.mark.parametrize(
    ("text", "answer", "ratio"),
    [
        ("abc", "abc", 1),
        ("abd", "abc", 2 / 3),
        ("", "abc", 0),
        ("", "", 1),
        ("abc", "xabcx", 3 / 5),
        ("kitten", "sitting", 4 / 7),
    ],
)
def test_similarity_is_the_fraction_that_needs_no_edit(text: str, answer: str, ratio: float) -> None:
    assert scores.similarity(text, answer) == pytest.approx(ratio)


@given(st.text("ab\n", max_size=9), st.text("ab\n", max_size=9))
def test_similarity_is_symmetric_and_bounded(one: str, other: str) -> None:
    assert scores.similarity(one, other) == scores.similarity(other, one)
    assert 0 <= scores.similarity(one, other) <= 1
    assert (scores.similarity(one, other) == 1) == answers.is_exact(one, other)


@pytest.mark.parametrize(("before", "text", "answer", "language", "parses"), ROWS["parses"])
def test_an_answer_parses_when_it_adds_no_error(before: str, text: str, answer: str, language: str, parses: str) -> None:
    assert scores.parses(before, text, "\ny = 2\n", answer, language) is {"yes": True, "no": False, "none": None}[parses]


def test_expected_answers_score_one_with_a_narrow_interval() -> None:
    facts = scores.summary([row(n, exact=True) for n in range(30)])
    assert facts.exact_match == facts.edit_similarity == Measure(1, 1, 1)
    assert (facts.n, facts.parse_rate, facts.pass_at_1) == (30, None, None)
    assert (facts.ms_p50, facts.steps_p50) == (14.5, 14.5)


def test_clustered_tasks_widen_the_interval() -> None:
    apart = [row(n, exact=n % 2 == 0) for n in range(100)]
    together = [row(n, exact=n // 10 % 2 == 0, cluster=f"c{n // 10}") for n in range(100)]
    one, other = (scores.measure(rows, lambda row: row.exact) for rows in (apart, together))
    assert one is not None
    assert other is not None
    assert one.value == other.value == 0.5
    assert other.high - other.low > 2 * (one.high - one.low)


def test_a_gain_is_paired() -> None:
    base = [row(n, exact=n < 10, method="copy") for n in range(40)]
    better = [row(n, exact=n < 20) for n in range(40)]
    gained = scores.gain(better, base)
    assert gained is not None
    assert gained.value == 0.25
    assert gained.low > 0
    assert scores.gain(better, []) is None


@pytest.mark.parametrize(("share", "value"), [(0, 1), (50, 2.5), (95, 3.85), (100, 4)])
def test_percentiles_are_interpolated(share: float, value: float) -> None:
    assert answers.percentile([4, 1, 3, 2], share) == pytest.approx(value)


def test_a_right_answer_saves_its_characters_and_a_wrong_one_is_read_in_vain() -> None:
    assert scores.keys(" abc\n", "abc") == Keys(3, 3, 0)
    # A right answer may end before the expected one does.
    assert scores.keys("ab", "abc") == Keys(3, 2, 0)
    assert scores.keys("abd", "abc") == Keys(3, 0, 3)
    assert scores.keys("abcd", "abc") == Keys(3, 0, 4)
    assert scores.keys("", "abc") == Keys(3, 0, 0)


def test_a_threshold_trades_saved_keystrokes_for_characters_read_in_vain() -> None:
    answers = [(Keys(10, 10, 0), 0.9), (Keys(10, 0, 4), 0.3), (Keys(20, 5, 0), 0.1), (Keys(10, 0, 0), None)]
    assert scores.trade(answers, 0.0) == Trade(0.0, 0.75, 0.3, 0.08)
    assert scores.trade(answers, 0.2) == Trade(0.2, 0.5, 0.2, 0.08)
    assert scores.trade(answers, 0.5) == Trade(0.5, 0.25, 0.2, 0.0)
    assert scores.trade([], 0.5) == Trade(0.5, 0, 0, 0)
