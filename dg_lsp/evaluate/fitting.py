"""Measure how often a model's answers are right on holes cut from code, and fit a calibration to that.

Each hole is filled by the model's own backend. The answer is judged after polishing, as an editor would show it.

A calibration's reliability is given as figures with intervals. Expected calibration error: the mean distance between the
stated probability and the fraction of right answers, over ten bins with equally many answers. Brier skill: how much smaller
the mean squared error is than with the base rate for each answer. Intervals are 95 % percentile intervals of a bootstrap over
files.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from dg_lsp.core import polish, syntax
from dg_lsp.core.calibration import POSITIONS, Calibration, Evidence, linear, probability
from dg_lsp.engine.common.task import Filler
from dg_lsp.engine.common.task import Task as Work
from dg_lsp.evaluate import answers
from dg_lsp.evaluate.answers import Measure, percentile
from dg_lsp.evaluate.tasks import EvalError, Task

N_AT_ONCE = 4  # concurrent requests to a server
# For alternate holes. Not one: then a sure draft is answered before there is evidence for it.
N_CANDIDATES = (2, 4)
SMALL_FILE_LINES = (2, 20)  # on each side of a hole
LEAST_OF_EACH = 8  # the least number of right and of wrong answers for a fit

Features = dict[str, float]
Floats = npt.NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration, its reliability on holes that it was not fitted on, and how many holes had an answer."""

    calibration: Calibration
    reliability: Reliability
    n_holes: int
    n_answered: int


def fitted(samples: Sequence[Sample], seed: int = 0, used: Calibration | None = None) -> Fitted:
    """Return the calibration of samples, or the one that is `used`, measured on samples that it was not fitted on.

    Raises EvalError if too few answers are right or too few are wrong.
    """
    answered = [sample for sample in samples if sample.features]
    n_right = sum(any(sample.right) for sample in answered)
    n_wrong = sum(not all(sample.right) for sample in answered)
    if min(n_right, n_wrong) < LEAST_OF_EACH:
        what = "right" if n_right < n_wrong else "wrong"
        raise EvalError(
            f"only {min(n_right, n_wrong)} of {len(samples)} holes had an answer that is {what}, and a calibration "
            f"needs {LEAST_OF_EACH}; increase --holes or use a larger --repo"
        )
    calibration = fit(answered, seed) if used is None else used
    judged = cross_judged(answered, seed) if used is None else judge(answered, used)
    try:
        return Fitted(calibration, measure(judged, seed), len(samples), len(answered))
    except ValueError as error:
        raise EvalError(f"these holes can't be used for a calibration: of the best answers, {error}") from error


def samples(
    filler: Filler, tasks: Sequence[Task], seed: int = 0, done: Callable[[int], None] = lambda _n: None
) -> list[Sample]:
    """Return the filler's answers to each task, in order. A task that it refuses has no candidate.

    Raises the errors of the filler's steps, such as UserError if its server can't be reached.
    """
    n_at_once = N_AT_ONCE if filler.concurrency == "independent" else 1
    waiting = iter(enumerate(tasks))
    under_way: dict[int, Work] = {}
    finished: dict[int, Sample] = {}
    try:
        while len(finished) < len(tasks):
            for number, task in islice(waiting, n_at_once - len(under_way)):
                request = task.request(seed=seed + number)
                budget = replace(request.budget, candidates=N_CANDIDATES[number % len(N_CANDIDATES)])
                try:
                    under_way[number] = filler.start(replace(request, budget=budget))
                except ValueError:  # such as a file that a remote model must not see
                    finished[number] = Sample(task.cluster, (), ())
                    done(1)
            for number, work in list(under_way.items()):
                if not work.step():
                    finished[number] = judged_sample(tasks[number], work.evidence())
                    del under_way[number]
                    work.close()
                    done(1)
    finally:
        for work in under_way.values():
            work.close()
    return [finished[number] for number in range(len(tasks))]


def with_small_files(tasks: Sequence[Task], seed: int = 0) -> list[Task]:
    """Return the tasks, with the context of every third cut to a few lines: new files are short, files of a repository long."""
    draw, cut_tasks = random.Random(seed), list(tasks)
    for number in range(2, len(tasks), 3):
        before, after = tasks[number].prompt.split("\n"), tasks[number].suffix.split("\n")
        n_before, n_after = (draw.randint(*SMALL_FILE_LINES) for _ in range(2))
        prompt, suffix = "\n".join(before[-n_before - 1 :]), "\n".join(after[: n_after + 1])
        cut_tasks[number] = replace(tasks[number], prompt=prompt, suffix=suffix)
    return cut_tasks


def judged_sample(task: Task, evidence: Sequence[Evidence]) -> Sample:
    """Return the distinct answers that survive polishing, with their features and whether they are right."""
    document = task.document
    tree = syntax.of(document)
    judged_by_text: dict[tuple[str, ...], tuple[dict[str, float], bool]] = {}
    # Among equal answers, the one with the best score is shown.
    for item in sorted(evidence, key=lambda item: -item.order):
        if item.candidate.texts in judged_by_text:
            continue
        polished = polish.to_edits(item.candidate, (task.hole,), document, syntax=tree)
        if polished.edits:
            is_right = answers.is_exact(polished.edits[0].text, task.answer)
            judged_by_text[item.candidate.texts] = dict(item.features), is_right
    return Sample(
        task.cluster,
        tuple(features for features, _ in judged_by_text.values()),
        tuple(right for _, right in judged_by_text.values()),
    )


# --- How reliable stated probabilities are

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
    brier_skill: Measure
    bins: tuple[Bin, ...]


def measure(judged: Sequence[Judged], seed: int = 0) -> Reliability:
    """Return the figures; raise ValueError if all answers are right, all are wrong, or there are none."""
    if not 0 < sum(each.right for each in judged) < len(judged):
        raise ValueError("all answers are right, or all are wrong")
    pairs = [(each.probability, each.right) for each in judged]
    clusters: dict[str, list[tuple[float, bool]]] = {}
    for each, pair in zip(judged, pairs, strict=True):
        clusters.setdefault(each.cluster, []).append(pair)
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
        interval(brier_skill),
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


def brier_skill(pairs: Sequence[tuple[float, bool]]) -> float:
    """Return the fraction of the mean squared error of always stating the base rate that is saved."""
    base = sum(right for _, right in pairs) / len(pairs)
    return 1 - sum((chance - right) ** 2 for chance, right in pairs) / len(pairs) / (base * (1 - base))


# --- The fit

# The fit has two stages, which combine into one logistic model. The first learns to choose among a hole's candidates, or
# none of them: the conditional logit of McFadden (1974), so candidates of one hole compete with each other and not with those
# of easier holes. The second learns from the best candidate of each hole, scored by a first stage that has not seen that
# hole. It corrects two errors: the best of several candidates has a score that is too high, and a fit is too sure of the data
# that it was made from. Holes of one file are never split between the two.

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
            z = linear(sample.features[at], part)
            unseen.append(({"z": z, **{name: sample.features[at].get(name, 0.0) for name in POSITIONS}}, sample.right[at]))
    outcomes = [right for _, right in unseen]
    second = logistic([features for features, _ in unseen], outcomes)
    slope = second.weights.get("z", 0.0)
    if slope <= 0:  # the features predict nothing: each candidate gets the base rate of its hole's position
        slope = 0.0
        second = logistic([{name: features[name] for name in POSITIONS} for features, _ in unseen], outcomes)
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
    return [Judged(each.cluster, probability(each.features[at], fitted), each.right[at]) for each, at in best_candidates]


def best(sample: Sample, fitted: Calibration) -> int:
    """Return the index of the candidate that ranks first with the calibration."""
    if fitted.reorders:
        chances = [linear(features, fitted) for features in sample.features]
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


def logistic(rows: Sequence[Features], right: Sequence[bool]) -> Calibration:
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
    values = np.array([[row.get(name, 0.0) for name in names] for row in rows]).reshape(len(rows), len(names))
    spreads = values.std(axis=0)
    changing = spreads > LEAST_SPREAD
    scaled = np.column_stack([np.ones(len(rows)), values[:, changing] / spreads[changing]])
    sizes = [len(candidates) for candidates, _ in holes]
    right = np.array([is_right for _, rights in holes for is_right in rights])
    start = np.array([intercept, *[0.0] * int(changing.sum())])
    first, *weights = _minimum(scaled, right, np.array(sizes), start, penalty)
    kept = [(name, spread) for name, spread, changes in zip(names, spreads, changing, strict=True) if changes]
    return Calibration(float(first), {name: float(w / spread) for (name, spread), w in zip(kept, weights, strict=True)})


def _minimum(
    rows: Floats, right: npt.NDArray[np.bool_], sizes: npt.NDArray[np.int_], weights: Floats, penalty: float
) -> Floats:
    """Return the weights of least loss, by Newton's method with shortened steps.

    The loss is the penalised negative log-likelihood of choosing a right candidate, or none if none is right. `rows` are the
    scaled features of all candidates [N, F], `right` says which are right [N], `sizes` how many each hole has [H]. The
    curvature leaves out the part of holes with several right candidates, which would not be positive definite.
    """
    starts, penalties = np.cumsum(sizes) - sizes, np.full(len(weights), penalty)
    penalties[0] = LEAST_SPREAD

    def log_sums(weights: Floats) -> tuple[Floats, Floats, Floats, float]:
        """Return the scores, the log of the sum over all candidates of a hole and none, that over right ones, and the loss."""
        scores = rows @ weights
        most = np.maximum(np.maximum.reduceat(scores, starts), 0.0)
        total = most + np.log(np.exp(-most) + np.add.reduceat(np.exp(scores - np.repeat(most, sizes)), starts))
        right_scores = np.where(right, scores, -np.inf)
        best = np.maximum.reduceat(right_scores, starts)
        has_right = np.isfinite(best)
        best = np.where(has_right, best, 0.0)
        sums = np.add.reduceat(np.exp(right_scores - np.repeat(best, sizes)), starts)
        of_right = np.where(has_right, best + np.log(np.where(has_right, sums, 1.0)), 0.0)
        return scores, total, of_right, float(penalty / 2 * (weights[1:] ** 2).sum() + (total - of_right).sum())

    scores, total, of_right, loss = log_sums(weights)
    for _ in range(ROUNDS):
        chances = np.exp(scores - np.repeat(total, sizes))
        slope = rows.T @ (chances - np.exp(np.where(right, scores - np.repeat(of_right, sizes), -np.inf)))
        slope[1:] += penalty * weights[1:]
        weighted = chances[:, None] * rows
        means = np.add.reduceat(weighted, starts)
        step, size = np.linalg.solve(rows.T @ weighted - means.T @ means + np.diag(penalties), slope), 1.0
        while (new := log_sums(weights - size * step))[3] > loss and size > LEAST_STEP:
            size /= 2
        if loss - new[3] < LEAST_GAIN:
            break
        weights, (scores, total, of_right, loss) = weights - size * step, new
    return weights
