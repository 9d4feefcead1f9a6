"""Measure how reliable stated probabilities are: figures with intervals.

Expected calibration error: the mean distance between the stated probability and the fraction of right answers, over ten
bins with equally many answers. Brier score: the mean squared error. Brier skill: its improvement over always stating
the base rate. AUC: how often a right answer has a higher probability than a wrong one. Intervals are 95 % percentile
intervals of a bootstrap over files.

This module is pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dg_lsp.evaluate.fit import Judged
from dg_lsp.evaluate.score import Measure, percentile

N_BINS = 10
RESAMPLES = 500


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers with similar stated probabilities: their number, the mean probability, and the fraction that is right."""

    n: int
    stated: float
    right: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """The figures of one model's stated probabilities."""

    n: int
    base_rate: float
    calibration_error: Measure
    brier: Measure
    brier_skill: Measure
    auc: Measure
    bins: tuple[Bin, ...]


def measure(judged: Sequence[Judged], seed: int = 0) -> Reliability:
    """Return the figures; raise ValueError if all answers are right, all are wrong, or there are none."""
    if not 0 < sum(each.right for each in judged) < len(judged):
        raise ValueError("all answers are right, or all are wrong")
    pairs = [(each.probability, each.right) for each in judged]
    clusters: dict[str, list[tuple[float, bool]]] = {}
    for each in judged:
        clusters.setdefault(each.cluster, []).append((each.probability, each.right))
    draw, groups = random.Random(seed), list(clusters.values())
    resamples = []
    for _ in range(RESAMPLES):
        resample = [pair for group in draw.choices(groups, k=len(groups)) for pair in group]
        if 0 < sum(right for _, right in resample) < len(resample):
            resamples.append(resample)

    def interval(figure: Callable[[Sequence[tuple[float, bool]]], float]) -> Measure:
        value = figure(pairs)
        values = [figure(resample) for resample in resamples] or [value]
        # A resample repeats answers, which moves every bin away from its true fraction and makes the calibration error
        # too large.
        bias = sum(values) / len(values) - value
        low, high = (percentile(values, share) - bias for share in (2.5, 97.5))
        return Measure(round(value, 4), round(low, 4), round(high, 4))

    error = interval(calibration_error)
    return Reliability(
        len(pairs),
        round(sum(right for _, right in pairs) / len(pairs), 4),
        replace(error, low=max(error.low, 0.0)),
        interval(brier),
        interval(brier_skill),
        interval(auc),
        bins(pairs),
    )


def bins(pairs: Sequence[tuple[float, bool]]) -> tuple[Bin, ...]:
    """Return ten bins with equally many answers, ordered by stated probability.

    Answers with equal probabilities all count with their common fraction of right answers.
    """
    equals: dict[float, list[bool]] = {}
    for chance, right in pairs:
        equals.setdefault(chance, []).append(right)
    ordered = [(chance, sum(rights) / len(rights)) for chance, rights in sorted(equals.items()) for _ in rights]
    n_bins, parts = min(N_BINS, len(ordered)), []
    for number in range(n_bins):
        part = ordered[number * len(ordered) // n_bins : (number + 1) * len(ordered) // n_bins]
        chance_sum, n_right = sum(chance for chance, _ in part), sum(share for _, share in part)
        parts.append(Bin(len(part), chance_sum / len(part), n_right / len(part)))
    return tuple(parts)


def calibration_error(pairs: Sequence[tuple[float, bool]]) -> float:
    """Return the expected calibration error."""
    return sum(each.n * abs(each.stated - each.right) for each in bins(pairs)) / len(pairs)


def brier(pairs: Sequence[tuple[float, bool]]) -> float:
    """Return the Brier score."""
    return sum((chance - right) ** 2 for chance, right in pairs) / len(pairs)


def brier_skill(pairs: Sequence[tuple[float, bool]]) -> float:
    """Return the Brier skill: the fraction of the base rate's Brier score that is saved."""
    base = sum(right for _, right in pairs) / len(pairs)
    return 1 - brier(pairs) / (base * (1 - base))


def auc(pairs: Sequence[tuple[float, bool]]) -> float:
    """Return how often a right answer has a higher probability than a wrong one; a tie counts half."""
    ordered = sorted(pairs)
    n_right = sum(right for _, right in ordered)
    total, start = 0.0, 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end][0] == ordered[start][0]:
            end += 1
        total += sum(right for _, right in ordered[start:end]) * (start + end + 1) / 2
        start = end
    return (total - n_right * (n_right + 1) / 2) / (n_right * (len(ordered) - n_right))
