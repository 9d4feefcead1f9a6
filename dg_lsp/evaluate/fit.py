"""Fit the probability that an answer is right from the features that its backend reports.

The fit has two stages, which combine into one logistic model. The first learns from every candidate. The second learns
from the best candidate of each hole, scored by a first stage that has not seen that hole. It corrects two errors: the
best of several candidates has a score that is too high, and a fit is too sure of the data that it was made from. Holes
of one file are never split between the two.

This module is pure Python, so that calibrating a remote model needs no numerical library. It knows features and
outcomes, and nothing of models or files.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from dg_lsp.engine import calibration
from dg_lsp.engine.calibration import POSITIONS, Calibration

FOLDS = 5
PENALTY = 2.0  # on the squared weights of features with unit spread; as strong as a handful of holes
ROUNDS = 30
LEAST_GAIN = 1e-4
LEAST_STEP = 1e-3
LEAST_SPREAD = 1e-9

Features = dict[str, float]
Row = list[tuple[int, float]]  # the nonzero values of a row with their columns


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
    first = _logistic(*_candidates(samples))
    unseen: list[tuple[Features, bool]] = []
    for rest, held_out in _folds(samples, seed):
        part = _logistic(*_candidates(rest))
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
    return Calibration(round(slope * first.intercept + second.intercept, 6), rounded)


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
    """Return the index of the candidate that the calibration ranks first."""
    chances = [calibration.linear(features, fitted) for features in sample.features]
    return chances.index(max(chances))


def _candidates(samples: Sequence[Sample]) -> tuple[list[Features], list[bool]]:
    rows = [features for sample in samples for features in sample.features]
    return rows, [right for sample in samples for right in sample.right]


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
    """Return the weights of a logistic regression with an L2 penalty, fitted by Newton's method."""
    n = len(rows)
    if not n:
        return Calibration(0.0)
    spreads = {name: _spread([row.get(name, 0.0) for row in rows]) for name in sorted({name for row in rows for name in row})}
    # A feature that never changes is left out. The others are scaled to unit spread, so that the penalty is the same for all.
    names = [name for name, spread in spreads.items() if spread > 0]
    inputs = [
        [(0, 1.0), *((at, row[name] / spreads[name]) for at, name in enumerate(names, 1) if row.get(name))] for row in rows
    ]
    share = (sum(right) + 0.5) / (n + 1)
    weights = [math.log(share / (1 - share)), *([0.0] * len(names))]
    loss = _loss(inputs, right, weights)
    for _ in range(ROUNDS):
        step, size = _newton_step(inputs, right, weights), 1.0
        tried = [weight - change for weight, change in zip(weights, step, strict=True)]
        while (new_loss := _loss(inputs, right, tried)) > loss and size > LEAST_STEP:
            size /= 2
            tried = [weight - size * change for weight, change in zip(weights, step, strict=True)]
        if loss - new_loss < LEAST_GAIN:
            break
        weights, loss = tried, new_loss
    plain = {name: weight / spreads[name] for name, weight in zip(names, weights[1:], strict=True)}
    return Calibration(weights[0], plain)


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation, or 0 if the values hardly differ."""
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return spread if spread > LEAST_SPREAD else 0.0


def _loss(inputs: Sequence[Row], right: Sequence[bool], weights: Sequence[float]) -> float:
    total = PENALTY / 2 * sum(weight * weight for weight in weights[1:])
    for row, is_right in zip(inputs, right, strict=True):
        z = sum([weights[at] * value for at, value in row])
        z = -z if is_right else z
        total += z + math.log1p(math.exp(-z)) if z > 0 else math.log1p(math.exp(z))
    return total


def _newton_step(inputs: Sequence[Row], right: Sequence[bool], weights: Sequence[float]) -> list[float]:
    """Return the step that Newton's method subtracts from the weights."""
    size = len(weights)
    slope = [0.0, *(PENALTY * weight for weight in weights[1:])]
    curve = [[0.0] * size for _ in range(size)]
    for row, is_right in zip(inputs, right, strict=True):
        z = sum([weights[at] * value for at, value in row])
        chance = 1 / (1 + math.exp(-max(-40.0, min(40.0, z))))
        error, bend = chance - is_right, chance * (1 - chance)
        for number, (at, value) in enumerate(row):
            slope[at] += error * value
            scaled, line = bend * value, curve[at]
            for other, other_value in row[: number + 1]:
                line[other] += scaled * other_value
    for at in range(size):
        curve[at][at] += PENALTY if at else LEAST_SPREAD
    return _solved(curve, slope)


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
