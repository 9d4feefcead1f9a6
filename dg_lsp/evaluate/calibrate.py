"""Measure how often a model's answers are right on holes cut from code, and fit a calibration to that.

Each hole is filled by the model's own backend. The answer is judged after polishing, as an editor would show it.

A calibration's reliability is given as figures with intervals. Expected calibration error: the mean distance between the
stated probability and the fraction of right answers, over ten bins with equally many answers. Brier skill: how much smaller
the mean squared error is than with the base rate for each answer. Intervals are 95 % percentile intervals of a bootstrap over
files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dg_lsp.core import polish, syntax
from dg_lsp.core.calibration import Calibration, Evidence
from dg_lsp.engine.common.task import Filler
from dg_lsp.engine.common.task import Task as Work
from dg_lsp.evaluate import answers, fit
from dg_lsp.evaluate.answers import Measure, percentile
from dg_lsp.evaluate.fit import Judged, Sample
from dg_lsp.evaluate.tasks import EvalError, Task

N_AT_ONCE = 4  # concurrent requests to a server
# For alternate holes. Not one: then a sure draft is answered before there is evidence for it.
N_CANDIDATES = (2, 4)
SMALL_FILE_LINES = (2, 20)  # on each side of a hole
LEAST_OF_EACH = 8  # the least number of right and of wrong answers for a fit


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
    calibration = fit.fit(answered, seed) if used is None else used
    judged = fit.cross_judged(answered, seed) if used is None else fit.judge(answered, used)
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
    n_at_once = N_AT_ONCE if filler.concurrency() == "independent" else 1
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
