"""Fit the probability that an answer is right from the features that its backend reports.

The fit has two stages, which combine into one logistic model. The first learns to choose among a hole's candidates, or
none of them: the conditional logit of McFadden (1974), so candidates of one hole compete with each other and not with those
of easier holes. The second learns from the best candidate of each hole, scored by a first stage that has not seen that
hole. It corrects two errors: the best of several candidates has a score that is too high, and a fit is too sure of the data
that it was made from. Holes of one file are never split between the two.

This module is pure Python, so that calibrating a remote model needs no numerical library.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import calibration
from dg_lsp.core.calibration import POSITIONS, Calibration

FOLDS = 5
# On the squared weights of features with unit spread. The choice has many features, so its penalty is larger.
PENALTY, CHOICE_PENALTY = 2.0, 16.0
# The feature that ranks candidates without a calibration. A fit changes that order only if this makes so many more of all
# best answers right, on holes that the fit has not seen: fits on some hundred holes of Qwen2.5-Coder made them worse.
ORDER, LEAST_BETTER = "joint", 0.02
ROUNDS = 30
LEAST_GAIN = 1e-4
LEAST_STEP = 1e-3
LEAST_SPREAD = 1e-9

GIVEN = Calibration(0.0, reorders=False)

Features = dict[str, float]
SparseRow = list[tuple[int, float]]  # the nonzero values of a row with their columns
HoleRows = tuple[list[SparseRow], Sequence[bool]]  # the rows of one hole's candidates, and whether each is right


@dataclass(frozen=True, slots=True)
class Sample:
    """The candidates of one hole: their features, and whether each is right. Holes of one file share a `cluster`."""

    cluster: str
    features: tuple[Features, ...]
    right: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """The stated probability of a hole's best candidate, and whether the candidate is right."""

    cluster: str
    probability: float
    right: bool


def fit(samples: Sequence[Sample], seed: int = 0) -> Calibration:
    """Return the calibration fitted on all samples."""
    folds = _folds(samples, seed)
    first, *others = (
        _choice([(sample.features, sample.right) for sample in part], CHOICE_PENALTY)
        for part in (samples, *(rest for rest, _ in folds))
    )
    parts = [(other, held_out) for other, (_, held_out) in zip(others, folds, strict=True)]
    reorders = _reorders(parts)
    unseen: list[tuple[Features, bool]] = []
    for part, held_out in parts:
        part = replace(part, reorders=reorders)
        for sample in held_out:
            at = best(sample, part)
            z = calibration.linear(sample.features[at], part)
            unseen.append(({"z": z, **{name: sample.features[at].get(name, 0.0) for name in POSITIONS}}, sample.right[at]))
    outcomes = [right for _, right in unseen]
    second = _logistic([features for features, _ in unseen], outcomes)
    slope = second.weights.get("z", 0.0)
    if slope <= 0:  # the features predict nothing: each candidate gets the base rate of its hole's position
        slope = 0.0
        second = _logistic([{name: features[name] for name in POSITIONS} for features, _ in unseen], outcomes)
    weights = {name: slope * weight for name, weight in first.weights.items()}
    for name in POSITIONS:
        weights[name] = weights.get(name, 0.0) + second.weights.get(name, 0.0)
    rounded = {name: round(weight, 6) for name, weight in weights.items() if abs(weight) >= 1e-6}
    return Calibration(round(slope * first.intercept + second.intercept, 6), rounded, reorders)


def _reorders(parts: Sequence[tuple[Calibration, Sequence[Sample]]]) -> bool:
    """Return whether fits have clearly more best answers right, on the holes that each has not seen, than the given order."""
    unseen = [(part, sample) for part, held_out in parts for sample in held_out]
    if not any(ORDER in features for _, sample in unseen for features in sample.features):
        return True
    n_more = sum(sample.right[best(sample, part)] - sample.right[best(sample, GIVEN)] for part, sample in unseen)
    return n_more > LEAST_BETTER * len(unseen)


def cross_judged(samples: Sequence[Sample], seed: int = 0) -> list[Judged]:
    """Return each hole's best candidate, with its probability from a fit that has not seen the hole's file."""
    judged: list[Judged] = []
    for rest, held_out in _folds(samples, seed):
        judged += judge(held_out, fit(rest, seed + 1))
    return judged


def judge(samples: Sequence[Sample], fitted: Calibration) -> list[Judged]:
    """Return each hole's best candidate, with its probability from the calibration."""
    best_candidates = [(sample, best(sample, fitted)) for sample in samples]
    return [
        Judged(each.cluster, calibration.probability(each.features[at], fitted), each.right[at]) for each, at in best_candidates
    ]


def best(sample: Sample, fitted: Calibration) -> int:
    """Return the index of the candidate that ranks first with the calibration."""
    if fitted.reorders:
        chances = [calibration.linear(features, fitted) for features in sample.features]
    else:
        chances = [features.get(ORDER, 0.0) for features in sample.features]
    return chances.index(max(chances))


def _folds(samples: Sequence[Sample], seed: int) -> list[tuple[list[Sample], list[Sample]]]:
    """Return the training part and the held-out part of each fold; a file's holes are all in one part."""
    clusters = sorted({sample.cluster for sample in samples})
    random.Random(seed).shuffle(clusters)
    fold_of = {cluster: place % FOLDS for place, cluster in enumerate(clusters)}
    parts = []
    for fold in range(FOLDS):
        rest = [sample for sample in samples if fold_of[sample.cluster] != fold]
        held_out = [sample for sample in samples if fold_of[sample.cluster] == fold]
        if rest and held_out:
            parts.append((rest, held_out))
    return parts


def _logistic(rows: Sequence[Features], right: Sequence[bool]) -> Calibration:
    """Return the weights of a logistic regression with an L2 penalty."""
    if not rows:
        return Calibration(0.0)
    share = (sum(right) + 0.5) / (len(rows) + 1)
    # One candidate or none, each by itself: this is what logistic regression is.
    holes = [((row,), (is_right,)) for row, is_right in zip(rows, right, strict=True)]
    return _choice(holes, PENALTY, math.log(share / (1 - share)))


def _choice(holes: Sequence[tuple[Sequence[Features], Sequence[bool]]], penalty: float, intercept: float = 0.0) -> Calibration:
    """Return the weights with which the softmax over a hole's candidates, and none with a score of 0, chooses a right one.

    Features are scaled to unit spread, so that the penalty is the same for all. Those that never change are left out.
    """
    rows = [features for candidates, _ in holes for features in candidates]
    names = sorted({name for row in rows for name in row})
    spreads = {name: spread for name in names if (spread := _spread([row.get(name, 0.0) for row in rows])) > 0}

    def scaled(features: Features) -> SparseRow:
        """Return the features as a row whose first column is the intercept."""
        named = enumerate(spreads.items(), 1)
        return [(0, 1.0), *((at, features[name] / spread) for at, (name, spread) in named if features.get(name))]

    rows_of_holes = [([scaled(features) for features in candidates], right) for candidates, right in holes]
    first, *weights = _minimum(rows_of_holes, [intercept, *[0.0] * len(spreads)], penalty)
    return Calibration(first, {name: weight / spreads[name] for name, weight in zip(spreads, weights, strict=True)})


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation, or 0 if the values hardly differ."""
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return spread if spread > LEAST_SPREAD else 0.0


def _loss(holes: Sequence[HoleRows], weights: Sequence[float], penalty: float) -> float:
    """Return the penalised negative log-likelihood of choosing a right candidate, or none if none is right."""
    total = penalty / 2 * sum(weight * weight for weight in weights[1:])
    for rows, rights in holes:
        scores = [sum([weights[at] * value for at, value in row]) for row in rows]
        right = [score for score, is_right in zip(scores, rights, strict=True) if is_right]
        total += _log_sum([0.0, *scores]) - (_log_sum(right) if right else 0.0)
    return total


def _step(holes: Sequence[HoleRows], weights: Sequence[float], penalty: float) -> list[float]:
    """Return the step of Newton's method to subtract from the weights.

    The curvature leaves out the part of holes with several right candidates, which would not be positive definite.
    """
    slope = [0.0, *(penalty * weight for weight in weights[1:])]
    curve = [[0.0] * at + [penalty if at else LEAST_SPREAD] for at in range(len(weights))]
    for rows, rights in holes:
        scores = [sum([weights[at] * value for at, value in row]) for row in rows]
        right = [score for score, is_right in zip(scores, rights, strict=True) if is_right]
        total, of_right = _log_sum([0.0, *scores]), _log_sum(right) if right else 0.0
        mean: dict[int, float] = {}
        for row, score, is_right in zip(rows, scores, rights, strict=True):
            chance = math.exp(score - total)
            error = chance - (math.exp(score - of_right) if is_right else 0.0)
            for at, value in row:
                slope[at] += error * value
                mean[at] = mean.get(at, 0.0) + chance * value
            _add_square(curve, row, chance)
        _add_square(curve, sorted(mean.items()), -1.0)
    return _solved(curve, slope)


def _add_square(curve: list[list[float]], row: SparseRow, factor: float) -> None:
    """Add the product of a row with itself, times the factor, to the lower half of a matrix."""
    for number, (at, value) in enumerate(row):
        scaled, line = factor * value, curve[at]
        for other, other_value in row[: number + 1]:
            line[other] += scaled * other_value


def _log_sum(scores: Sequence[float]) -> float:
    most = max(scores)
    return most + math.log(sum([math.exp(score - most) for score in scores]))


def _minimum(holes: Sequence[HoleRows], weights: list[float], penalty: float) -> list[float]:
    """Return the weights of least loss, by Newton's method with shortened steps."""
    loss = _loss(holes, weights, penalty)
    for _ in range(ROUNDS):
        step, size = _step(holes, weights, penalty), 1.0
        tried = [weight - change for weight, change in zip(weights, step, strict=True)]
        while (new_loss := _loss(holes, tried, penalty)) > loss and size > LEAST_STEP:
            size /= 2
            tried = [weight - size * change for weight, change in zip(weights, step, strict=True)]
        if loss - new_loss < LEAST_GAIN:
            break
        weights, loss = tried, new_loss
    return weights


def _solved(lower: list[list[float]], right_side: Sequence[float]) -> list[float]:
    """Return x with A x = right_side for a positive definite A, given by its lower half, by Cholesky decomposition."""
    size = len(right_side)
    root = [line[:] for line in lower]
    for i in range(size):
        for j in range(i + 1):
            value = root[i][j] - sum(map(float.__mul__, root[i][:j], root[j][:j]))
            root[i][j] = math.sqrt(max(value, 1e-12)) if i == j else value / root[j][j]
    middle: list[float] = []
    for i in range(size):
        middle.append((right_side[i] - sum(map(float.__mul__, root[i][:i], middle))) / root[i][i])
    answer = [0.0] * size
    for i in reversed(range(size)):
        answer[i] = (middle[i] - sum(root[k][i] * answer[k] for k in range(i + 1, size))) / root[i][i]
    return answer
