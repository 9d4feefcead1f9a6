"""Fill tasks with every method, in one process or several, and turn the answers into rows of results.

The methods are the whole engine, parts of it, and baselines without a model.

Each task takes the path of a user's request: a request, all steps of the engine, then the polishing of every front end.
The first candidate that survives polishing counts. If none does, the best one counts unpolished. The prefix cache is
cleared before each fill, so that no result or time depends on the order of tasks.

The engine is imported only when a method needs a model.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dg_lsp.core import confidence, polish, syntax
from dg_lsp.core.values import Candidate, n_common
from dg_lsp.engine.common.propose import copies
from dg_lsp.engine.model.fit import machine
from dg_lsp.evaluate import execute, score
from dg_lsp.evaluate.score import ResultRow
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.wire import programs

if TYPE_CHECKING:
    from dg_lsp.engine.common.loading import Loaded
    from dg_lsp.engine.common.local import LocalFiller
    from dg_lsp.engine.common.task import Filler

SAME_RIGHT = 24  # how many characters after a match are compared at most; the same as for ranking drafts


@dataclass(frozen=True, slots=True)
class Method:
    """One way to fill a task.

    `profile` replaces settings of the checkpoint's profile. `kinds` lists the kinds of task that it can fill; empty means all.
    """

    name: str
    by: Literal["model", "copy", "told copy", "answer", "nothing"] = "model"
    profile: tuple[tuple[str, Any], ...] = ()
    steps: int = 0
    kinds: tuple[str, ...] = ()


FULL = Method(score.FULL)
COPY = Method("copy", "copy")
# The kinds of task whose answer ends in mid-line, where only its length says where to stop.
SPANS = ("span", "RandomSpanInfilling", "RandomSpanInfillingLight")
TOLD_COPY = Method("copy, told the length", "told copy", kinds=SPANS)
AR = Method(
    "ar",
    profile=(
        *(("copy_rows", 0), ("causal_rows", 1), ("branches", 0), ("file_weight", 0.0)),
        *(("line", ("causal",)), ("block", ("causal",))),
    ),
)

BASELINES: dict[str, tuple[Method, ...]] = {
    "copy": (COPY, TOLD_COPY),
    "ar": (AR,),
    "answer": (Method("answer", "answer"),),
    "empty": (Method("empty", "nothing"),),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What to measure: the methods, the model and how it is loaded, and the seed of the noise."""

    methods: tuple[Method, ...]
    model: str = "embedded"
    device: str = "auto"
    threads: int = 0
    seed: int = 0
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """A method's answer: the text, what its canvas started from, and its cost."""

    text: str
    source: str = ""
    ms: float = 0.0
    steps: int = 0
    probability: float | None = None


class Bench:
    """A loaded model that can fill tasks by each of the methods."""

    def __init__(self, setup: Setup, loaded: Loaded[Any, Any] | None) -> None:
        """Raise EvalError if the model's vocabulary does not support its layout."""
        self.setup, self._loaded = setup, loaded
        self.fillers = {method: self._filler(method) for method in setup.methods if method.by == "model"}

    def rows(self, task: Task) -> list[ResultRow]:
        """Return one row for each method that can fill the task. Raises EvalError if the engine rejects the task."""
        able = (method for method in self.setup.methods if not method.kinds or task.kind in method.kinds)
        return [to_row(task, method, self.answer(task, method)) for method in able]

    def answer(self, task: Task, method: Method) -> MethodAnswer:
        """Return the method's answer. Raises EvalError if the engine rejects the task."""
        if method.by == "answer":
            return MethodAnswer(task.answer)
        if method.by == "nothing":
            return MethodAnswer("")
        if method.by != "model":
            began = time.perf_counter()
            if method.by == "copy":
                hole = task.hole
                best = copies.find(task.prompt, task.suffix, block=hole.block, indent=hole.indent, most=1)
                text, _ = settled(task, (Candidate((best[0].text if best else "",), row="copy"),))
            else:  # a text of known length is not cut
                text = copied_to_length(task)
            return MethodAnswer(text, "copy", (time.perf_counter() - began) * 1000)
        filler = self.fillers[method]
        filler.cache.clear()
        return fill(filler, task, method, self.setup.seed)

    def warm_up(self, task: Task) -> None:
        """Fill a task once by each method, because a process is slow the first time and users do not usually wait for that."""
        for method in self.fillers:
            self.answer(task, method)

    def _filler(self, method: Method) -> LocalFiller:
        from dg_lsp.engine.backends.local import filler_of

        if self._loaded is None:
            raise EvalError(f"{method.name} needs a model")
        # A model whose profile lacks a setting has nothing to change there.
        settings: dict[str, Any] = {name: value for name, value in method.profile if hasattr(self._loaded.profile, name)}
        loaded = replace(self._loaded, profile=replace(self._loaded.profile, **settings))
        try:
            return filler_of(loaded)
        except ValueError as error:
            raise EvalError(str(error)) from error


def load_bench(setup: Setup) -> Bench:
    """Return the bench of a setup. The model is loaded only if a method needs it. Raises EvalError."""
    if all(method.by != "model" for method in setup.methods):
        return Bench(setup, None)
    from dg_lsp.engine.backends.local import load_model
    from dg_lsp.engine.common.loading import LoadError

    try:
        return Bench(setup, load_model(setup.model, device=setup.device, threads=setup.threads, dtype=setup.dtype))
    except LoadError as error:
        raise EvalError(str(error)) from error


def fill(filler: Filler, task: Task, method: Method, seed: int = 0) -> MethodAnswer:
    """Return the filler's polished answer to the task. Raises EvalError if it rejects the task."""
    began = time.perf_counter()
    try:
        work = filler.start(task.request(steps=method.steps, seed=seed))
        while work.step():
            pass
    except ValueError as error:
        raise EvalError(f"{task.task_id} can't be filled: {error}") from error
    text, candidate = settled(task, work.candidates())
    ms = (time.perf_counter() - began) * 1000
    if candidate is None:
        return MethodAnswer(text, "", ms)
    return MethodAnswer(text, candidate.row, ms, candidate.steps, confidence.probability(candidate.confidence))


def settled(task: Task, candidates: Sequence[Candidate]) -> tuple[str, Candidate | None]:
    """Return the text of the best candidate that survives polishing, and that candidate; else the best one, unpolished."""
    document = task.document
    tree = syntax.of(document)
    for candidate in candidates:
        polished = polish.to_edits(candidate, (task.hole,), document, syntax=tree)
        if polished.edits:
            return polished.edits[0].text, candidate
    return (candidates[0].texts[0], candidates[0]) if candidates else ("", None)


def copied_to_length(task: Task) -> str:
    """Return as many characters as the answer has, from after the best match; "" if there is no match.

    The best match has the most characters in common with the prompt before it and the suffix after it.
    """
    length, best, text = len(task.answer), (0, 0), ""
    tail = task.prompt[-copies.MIN_MATCH :]
    if len(tail) < copies.MIN_MATCH:
        return ""
    for side in (task.prompt, task.suffix):
        at = side.find(tail)
        while at >= 0:
            start, end = at + len(tail), at + len(tail) + length
            if end <= len(side):
                left = n_common(side[max(start - copies.MAX_MATCH, 0) : start][::-1], task.prompt[: -copies.MAX_MATCH - 1 : -1])
                right = n_common(side[end : end + SAME_RIGHT], task.suffix)
                if (left + right, left) >= best:
                    best, text = (left + right, left), side[start:end]
            at = side.find(tail, at + 1)
    return text


def to_row(task: Task, method: Method, answer: MethodAnswer) -> ResultRow:
    """Return the answer with its scores. `passed` is set later, by `executed`."""
    return ResultRow(
        task.task_id,
        task.cluster,
        task.kind,
        method.name,
        answer.text,
        score.is_exact(answer.text, task.answer),
        round(score.similarity(answer.text, task.answer), 4),
        score.parses(task.prompt, answer.text, task.suffix, task.answer, task.language),
        source=answer.source,
        ms=answer.ms,
        steps=answer.steps,
        keys=score.keys(answer.text, task.answer),
        probability=answer.probability,
    )


def n_workers(most: int) -> int:
    """Return how many processes may be used: those wanted, and never more than the cores that this process may use."""
    return max(1, min(most, machine.n_cores()))


def run(
    tasks: Sequence[Task], setup: Setup, *, workers: int = 1, done: Callable[[int], None] = lambda n: None
) -> list[ResultRow]:
    """Return the rows of every task and method, in the order of the tasks; `done` is called after each task.

    With several workers, each is a process that loads the model. The rows are the same, but times include the load of
    the others. Raises EvalError.
    """
    rows: list[ResultRow] = []
    for task_rows in _in_processes(tasks, setup, workers) if workers > 1 else _here(tasks, setup):
        rows += task_rows
        done(1)
    return rows


def executed(
    rows: Sequence[ResultRow],
    tasks: Iterable[Task],
    *,
    workers: int = 1,
    unprotected: bool = False,
    done: Callable[[int], None] = lambda n: None,
) -> list[ResultRow]:
    """Return the rows with `passed` set, for tasks that have a test and an entry point. Raises EvalError as `run_all` does."""
    tested = {task.task_id: task for task in tasks if task.test and task.entry_point}
    at = [place for place, row in enumerate(rows) if row.task_id in tested]
    programs = [execute.program(tested[rows[place].task_id], rows[place].text) for place in at]
    result = list(rows)
    for place, verdict in zip(at, execute.run_all(programs, workers=workers, unprotected=unprotected), strict=True):
        result[place] = replace(result[place], passed=verdict == "passed")
        done(1)
    return result


def _here(tasks: Sequence[Task], setup: Setup) -> Iterator[list[ResultRow]]:
    bench = load_bench(setup)
    if tasks:
        bench.warm_up(tasks[0])
    for task in tasks:
        yield bench.rows(task)


_bench: Bench | EvalError | None = None  # one for each worker process


def _in_processes(tasks: Sequence[Task], setup: Setup, workers: int) -> Iterator[list[ResultRow]]:
    setup = replace(setup, threads=setup.threads or max(machine.n_cores() // workers, 1))
    os.environ.update(programs.environment())  # the workers inherit it
    # Torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(setup, tasks[0])) as pool:
        waiting: deque[Future[list[ResultRow]]] = deque(pool.submit(_rows, task) for task in tasks)
        try:
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise EvalError("the system ended a worker process; use fewer --workers to save memory") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _start(setup: Setup, task: Task) -> None:
    global _bench  # a process pool offers no other way to keep state in a worker
    try:
        _bench = load_bench(setup)
        _bench.warm_up(task)
    except EvalError as error:
        _bench = error  # raised later, in `_rows`, because an initializer that fails only breaks the pool


def _rows(task: Task) -> list[ResultRow]:
    assert _bench is not None
    if isinstance(_bench, EvalError):
        raise _bench
    return _bench.rows(task)
