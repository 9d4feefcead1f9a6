"""Measure how often a model's answers are right on holes cut from code, and fit how to tell.

A hole is filled as the engine fills it, by whatever backend the model has; an answer is judged as the editor would show it,
polished. Knows fillers, tasks and fits. Knows nothing of terminals and of where results are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import polish, syntax
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.calibration import Calibration
from dg_lsp.engine.task import Filler
from dg_lsp.engine.task import Task as Work
from dg_lsp.evaluate import fit, reliability, score
from dg_lsp.evaluate.fit import Judged, Sample
from dg_lsp.evaluate.reliability import Reliability
from dg_lsp.evaluate.tasks import EvalError, Task

N_AT_ONCE = 4  # requests under way to a server
N_CANDIDATES = (1, 4)  # of every other hole each: an editor asks for one while someone types, a batch for several
LEAST_OF_EACH = 8  # right answers and wrong ones that a fit needs


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration, how far it can be trusted on holes that it was not fitted on, and how many holes had an answer."""

    calibration: Calibration
    reliability: Reliability
    n_holes: int
    n_answered: int


def fitted(samples: Sequence[Sample], seed: int = 0) -> Fitted:
    """Return the calibration of samples; raise EvalError where there are too few right or wrong answers to learn from."""
    answered = enough(samples)
    return Fitted(fit.fit(answered, seed), _measured(fit.cross_judged(answered, seed), seed), len(samples), len(answered))


def checked(samples: Sequence[Sample], used: Calibration, seed: int = 0) -> Fitted:
    """Return a calibration that is in use with its figures on samples it was not fitted on. Raises EvalError as `fitted`."""
    answered = enough(samples)
    return Fitted(used, _measured(fit.judge(answered, used), seed), len(samples), len(answered))


def enough(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples that have an answer; raise EvalError where too few of them are right, or wrong."""
    answered = [sample for sample in samples if sample.features]
    n_right = sum(any(sample.right) for sample in answered)
    n_wrong = sum(not all(sample.right) for sample in answered)
    if min(n_right, n_wrong) < LEAST_OF_EACH:
        what = "right" if n_right < n_wrong else "wrong"
        raise EvalError(
            f"only {min(n_right, n_wrong)} of {len(samples)} holes had an answer that is {what}, fewer than the "
            f"{LEAST_OF_EACH} that a calibration needs; give more --holes or a larger --repo"
        )
    return answered


def _measured(judged: Sequence[Judged], seed: int) -> Reliability:
    try:
        return reliability.measure(judged, seed)
    except ValueError as error:
        raise EvalError(f"nothing can be learned from these holes: of the best answers {error}") from error


def samples(
    filler: Filler, tasks: Sequence[Task], seed: int = 0, done: Callable[[int], None] = lambda _n: None
) -> list[Sample]:
    """Return what the filler answers to each task, in their order; a task that it refuses has no candidate.

    Raises what a step of the filler raises, such as UserError when its server is gone.
    """
    n_at_once = N_AT_ONCE if filler.concurrency() == "independent" else 1
    waiting = iter(enumerate(tasks))
    under_way: dict[int, Work] = {}
    made: dict[int, Sample] = {}
    try:
        while len(made) < len(tasks):
            for number, task in _next(waiting, n_at_once - len(under_way)):
                try:
                    under_way[number] = filler.start(_request(task, number, seed))
                except ValueError:  # such as a file that no remote model may see
                    made[number] = Sample(task.cluster, (), ())
                    done(1)
            for number, work in list(under_way.items()):
                if not work.step():
                    made[number] = _sample(tasks[number], work)
                    del under_way[number]
                    work.close()
                    done(1)
    finally:
        for work in under_way.values():
            work.close()
    return [made[number] for number in range(len(tasks))]


def _next(waiting: Iterator[tuple[int, Task]], n: int) -> Iterator[tuple[int, Task]]:
    for _ in range(n):
        if (item := next(waiting, None)) is not None:
            yield item


def _request(task: Task, number: int, seed: int) -> InfillRequest:
    request = task.request(seed=seed + number)
    return replace(request, budget=replace(request.budget, candidates=N_CANDIDATES[number % len(N_CANDIDATES)]))


def _sample(task: Task, work: Work) -> Sample:
    """Return the distinct answers that polishing leaves, with their features and whether they are right."""
    document = task.document
    tree = syntax.of(document)
    seen: dict[tuple[str, ...], tuple[dict[str, float], bool]] = {}
    # Of equal answers the strongest is shown.
    for item in sorted(work.evidence(), key=lambda item: -item.order):
        if item.candidate.texts in seen:
            continue
        polished = polish.to_edits(item.candidate, (task.hole,), document, syntax=tree)
        if polished.edits:
            is_right = score.is_exact(polished.edits[0].text, task.answer)
            seen[item.candidate.texts] = dict(item.features), is_right
    return Sample(task.cluster, tuple(features for features, _ in seen.values()), tuple(right for _, right in seen.values()))
