"""Fill a task on the path of an editor's request: its context, its polishing and its thresholds.

Only the process differs: the model runs in this one, without a deadline, so the answer does not depend on other load.

An answer is exact if it equals the expected answer. Trailing white space, of each line and of the whole, is ignored;
leading white space counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dg_lsp.client.port import Engine
from dg_lsp.core import confidence, holes, syntax
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.common.task import Filler
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.wire.settings import DEFAULTS


@dataclass(frozen=True, slots=True)
class Answer:
    """The text that a user would be offered, "" for none, and its cost."""

    text: str = ""
    ms: float = 0.0
    steps: int = 0
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class InProcess:
    """An engine that runs each request to its end in this process."""

    filler: Filler

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return the filler's candidates, best first; raise ValueError if it refuses the request."""
        work = self.filler.start(request)
        try:
            while work.step():
                pass
            return work.candidates()
        finally:
            work.close()


def answer(engine: Engine, task: Task, seed: int = 0) -> Answer:
    """Return the best answer of the engine to the task; raise EvalError if it refuses the task.

    A body is asked for as a code action does, anything else as at a cursor.
    """
    began = time.perf_counter()
    document = task.document
    tree = syntax.of(document)
    is_body = task.kind == "body"
    hole = task.hole if task.hole.extent == "block" else holes.at_cursor(document, len(task.prompt), tree)
    threshold = 0.0 if is_body else DEFAULTS.token_threshold
    context = FileContext(path=task.path, seed=seed)
    try:
        found = asyncio.run(
            pipeline.infill(engine, document, (hole,), context, syntax=tree, is_file=True, token_threshold=threshold)
        )
    except ValueError as error:
        raise EvalError(f"{task.task_id} can't be filled: {error}") from error
    ms = (time.perf_counter() - began) * 1000
    if not found.suggestions:
        return Answer(ms=ms)
    best = found.suggestions[0]
    return Answer(best.text, ms, best.candidate.steps, confidence.probability(best.confidence))


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean and its 95 % interval."""

    value: float
    low: float
    high: float


def trimmed(text: str) -> str:
    """Return the text as it is compared: without trailing white space, of each line and of the whole."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()


def is_exact(text: str, answer: str) -> bool:
    """Return whether the text equals the expected answer."""
    return trimmed(text) == trimmed(answer)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile at `share` per cent, interpolated between neighbours; 0 if there are no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
