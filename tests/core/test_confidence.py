"""A threshold means the same for every backend, and a rank never counts as a probability."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import confidence
from dg_lsp.core.confidence import Threshold, is_sure
from dg_lsp.core.values import Calibrated, Confidence, Ranked

PROBABILITIES = st.floats(0, 1)


@pytest.mark.parametrize(
    ("given_confidence", "threshold", "sure"),
    [
        (Calibrated(0.15), Threshold(0.15), True),
        (Calibrated(0.149), Threshold(0.15, n_best=5), False),
        (Ranked(0), Threshold(0.0), False),
        (Ranked(0), Threshold(1.0, n_best=1), True),
        (Ranked(1), Threshold(0.0, n_best=1), False),
        (Ranked(1), Threshold(0.0, n_best=2), True),
        (Ranked(0, doubted=True), Threshold(0.0, n_best=1), False),
    ],
)
def test_a_threshold_has_one_rule_for_probabilities_and_one_for_ranks(
    given_confidence: Confidence, threshold: Threshold, sure: bool
) -> None:
    assert is_sure(given_confidence, threshold) is sure


@given(PROBABILITIES, PROBABILITIES, st.integers(0, 9))
def test_a_higher_probability_is_never_less_sure(one: float, other: float, n_best: int) -> None:
    low, high = sorted((one, other))
    threshold = Threshold(0.5, n_best)
    assert is_sure(Calibrated(low), threshold) <= is_sure(Calibrated(high), threshold)
    assert confidence.order(Calibrated(low)) <= confidence.order(Calibrated(high))


@given(st.integers(0, 9), st.booleans(), st.integers(0, 9), PROBABILITIES)
def test_a_probability_threshold_does_not_affect_ranked_candidates(
    position: int, doubted: bool, n_best: int, probability: float
) -> None:
    confidence = Ranked(position, doubted)
    assert is_sure(confidence, Threshold(probability, n_best)) == is_sure(confidence, Threshold(0.0, n_best))


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_probability_is_between_zero_and_one(wrong: float) -> None:
    with pytest.raises(ValueError, match="not a probability"):
        Calibrated(wrong)


def test_a_rank_is_not_negative() -> None:
    with pytest.raises(ValueError, match="not a position"):
        Ranked(-1)


def test_order_puts_measured_before_ranked_before_doubted() -> None:
    unsorted: list[Confidence] = [Ranked(0, doubted=True), Ranked(1), Calibrated(0.0), Ranked(0), Calibrated(0.4)]
    assert sorted(unsorted, key=confidence.order, reverse=True) == [
        Calibrated(0.4), Calibrated(0.0), Ranked(0), Ranked(1), Ranked(0, doubted=True),
    ]  # fmt: skip


def test_a_joint_probability_needs_a_probability_for_every_part() -> None:
    assert confidence.joint([Calibrated(0.5), Calibrated(0.5)]) == Calibrated(0.25)
    assert confidence.joint([Calibrated(0.5), Ranked(1)]) == Ranked(1)
    assert confidence.joint([Ranked(0, doubted=True), Ranked(2)]) == Ranked(2, doubted=True)


@pytest.mark.parametrize(
    ("stated", "text"),
    [
        (Calibrated(0.04), "4 %"),
        (Calibrated(0.9), "90 %"),
        (Calibrated(0.004), "under 1 %"),
        (Ranked(), "not calibrated"),
        (Ranked(0, doubted=True), "doubted"),
    ],
)
def test_words_describe_a_confidence(stated: Confidence, text: str) -> None:
    assert confidence.words(stated) == text
