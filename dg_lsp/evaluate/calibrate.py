"""Measure how often a model's answers are right on holes cut from code, and fit a calibration to that.

Each hole is filled by the model's own backend. The answer is judged after polishing, as an editor would show it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import polish, syntax
from dg_lsp.core.calibration import Calibration
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.task import Filler
from dg_lsp.engine.task import Task as Work
from dg_lsp.evaluate import fit, reliability, score
from dg_lsp.evaluate.fit import Judged, Sample
from dg_lsp.evaluate.reliability import Reliability
from dg_lsp.evaluate.tasks import EvalError, Task

N_AT_ONCE = 4  # concurrent requests to a server
N_CANDIDATES = (1, 4)  # for alternate holes: an editor asks for one while the user types, a batch for several
SMALL_FILE_LINES = (2, 20)  # on each side of a hole
LEAST_OF_EACH = 8  # the least number of right and of wrong answers for a fit


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration, its reliability on holes that it was not fitted on, and how many holes had an answer."""

    calibration: Calibration
    reliability: Reliability
    n_holes: int
    n_answered: int


def fitted(samples: Sequence[Sample], seed: int = 0) -> Fitted:
    """Return the calibration of samples; raise EvalError if too few answers are right or wrong to fit one."""
    answered = enough(samples)
    return Fitted(fit.fit(answered, seed), _measured(fit.cross_judged(answered, seed), seed), len(samples), len(answered))


def checked(samples: Sequence[Sample], used: Calibration, seed: int = 0) -> Fitted:
    """Return a calibration in use, measured on samples that it was not fitted on. Raises EvalError as `fitted` does."""
    answered = enough(samples)
    return Fitted(used, _measured(fit.judge(answered, used), seed), len(samples), len(answered))


def enough(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples that have an answer; raise EvalError if too few of them are right or too few are wrong."""
    answered = [sample for sample in samples if sample.features]
    n_right = sum(any(sample.right) for sample in answered)
    n_wrong = sum(not all(sample.right) for sample in answered)
    if min(n_right, n_wrong) < LEAST_OF_EACH:
        what = "right" if n_right < n_wrong else "wrong"
        raise EvalError(
            f"only {min(n_right, n_wrong)} of {len(samples)} holes had an answer that is {what}, and a calibration "
            f"needs {LEAST_OF_EACH}; increase --holes or use a larger --repo"
        )
    return answered


def _measured(judged: Sequence[Judged], seed: int) -> Reliability:
    try:
        return reliability.measure(judged, seed)
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
            for number, task in _next(waiting, n_at_once - len(under_way)):
                try:
                    under_way[number] = filler.start(_request(task, number, seed))
                except ValueError:  # such as a file that a remote model must not see
                    finished[number] = Sample(task.cluster, (), ())
                    done(1)
            for number, work in list(under_way.items()):
                if not work.step():
                    finished[number] = _sample(tasks[number], work)
                    del under_way[number]
                    work.close()
                    done(1)
    finally:
        for work in under_way.values():
            work.close()
    return [finished[number] for number in range(len(tasks))]


def _next(waiting: Iterator[tuple[int, Task]], n: int) -> Iterator[tuple[int, Task]]:
    for _ in range(n):
        if (item := next(waiting, None)) is not None:
            yield item


def with_small_files(tasks: Sequence[Task], seed: int = 0) -> list[Task]:
    """Return the tasks, with the context of every third cut to a few lines: new files are short, files of a repository long."""
    draw = random.Random(seed)
    return [_shortened(task, draw) if number % 3 == 2 else task for number, task in enumerate(tasks)]


def _shortened(task: Task, draw: random.Random) -> Task:
    before, after = task.prompt.split("\n"), task.suffix.split("\n")
    n_before, n_after = (draw.randint(*SMALL_FILE_LINES) for _ in range(2))
    return replace(task, prompt="\n".join(before[-n_before - 1 :]), suffix="\n".join(after[: n_after + 1]))


def _request(task: Task, number: int, seed: int) -> InfillRequest:
    request = task.request(seed=seed + number)
    return replace(request, budget=replace(request.budget, candidates=N_CANDIDATES[number % len(N_CANDIDATES)]))


def _sample(task: Task, work: Work) -> Sample:
    """Return the distinct answers that survive polishing, with their features and whether they are right."""
    document = task.document
    tree = syntax.of(document)
    judged_by_text: dict[tuple[str, ...], tuple[dict[str, float], bool]] = {}
    # Among equal answers, the one with the best score is shown.
    for item in sorted(work.evidence(), key=lambda item: -item.order):
        if item.candidate.texts in judged_by_text:
            continue
        polished = polish.to_edits(item.candidate, (task.hole,), document, syntax=tree)
        if polished.edits:
            is_right = score.is_exact(polished.edits[0].text, task.answer)
            judged_by_text[item.candidate.texts] = dict(item.features), is_right
    return Sample(
        task.cluster,
        tuple(features for features, _ in judged_by_text.values()),
        tuple(right for _, right in judged_by_text.values()),
    )
