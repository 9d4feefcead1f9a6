"""Send the requests of all plans to the engine.

This module knows requests and their order; it knows nothing of files on disk, diffs or reports. Several requests run at once,
so that the engine always has the next one. Results come in the order of the plans. A request with predecessors (`order`)
waits for them and contains their fills, so its answer never depends on timing.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dg_lsp.batch import order, views
from dg_lsp.batch import plan as planning
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.order import After
from dg_lsp.batch.plan import Plan
from dg_lsp.batch.views import View
from dg_lsp.core.values import Budget, Hole, InfillRequest
from dg_lsp.infill import pipeline
from dg_lsp.infill.file_context import FileContext
from dg_lsp.infill.fill import Fill, fills_of, in_turn
from dg_lsp.infill.port import Engine, EngineError

N_IN_FLIGHT = 2
# Addresses and times differ between runs. In an instruction they would change the answer each time.
_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\b\d+\.\d+ ?m?s(ec\w*)?\b")
SEED_STEP = 1_000_003  # between the seeds of two rounds, so that a retry does not equal the first round of the next seed


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of each request: the number of candidates, the run's seed, and milliseconds for one hole (0: no limit).

    `allow_shrink` lets an answer shorten working code. `n_retries` is the number of further rounds for a hole without an
    acceptable fill; it is not part of `repr`, because answers do not depend on it.
    """

    n_candidates: int = 4
    seed: int = 0
    deadline_ms: int = 0
    n_retries: int = field(default=0, repr=False)
    allow_shrink: bool = False


@dataclass(frozen=True, slots=True)
class HoleResult:
    """One hole's fills, best first, or the reason why there are none.

    `view` is the file as the request saw it, if earlier fills were in it, and `texts` the new texts of other files.
    """

    fills: tuple[Fill, ...] = ()
    reason: str = ""
    ms: float = 0.0
    is_answered: bool = False  # the engine answered, though every answer may be dropped
    is_lost: bool = False  # the engine or the network failed
    view: View | None = None
    texts: Mapping[Path, str] = field(default_factory=dict)


ContextFor = Callable[[Plan], FileContext]


@dataclass(frozen=True, slots=True)
class Dependencies:
    """How later requests depend on earlier ones.

    `is_sure` returns whether later requests of the same file see a fill. `finish` decides which of a file's fills are accepted
    once all are answered, and returns the new text; it gets the new texts of the preceding files. `context_for` returns a
    file's context with new texts of other files.
    """

    is_sure: Callable[[Hole, Fill], bool]
    finish: Callable[[Plan, Mapping[Hole, HoleResult], Mapping[Path, str]], Awaitable[str]]
    context_for: Callable[[Plan, Mapping[Path, str]], FileContext]


async def fill(
    engine: Engine,
    plans: Sequence[Plan],
    options: RunOptions,
    journal: Journal,
    context_for: ContextFor,
    done: Callable[[int], None],
    *,
    dependencies: Dependencies | None = None,
    n_in_flight: int = N_IN_FLIGHT,
) -> AsyncGenerator[tuple[Plan, Mapping[Hole, HoleResult]], None]:
    """Yield each plan with its holes' results, in order; call `done` with the number of holes just finished.

    Without `dependencies`, no request waits for another.
    """
    # Related text is read before the first request, so that edits during the run do not reach only some requests.
    contexts = [context_for(plan) for plan in plans]
    after = order.of(plans) if dependencies else [tuple(After() for _ in plan.groups) for plan in plans]
    session = _Session(engine, plans, contexts, options, journal, done, after, dependencies, asyncio.Semaphore(n_in_flight))
    session.start()
    try:
        for plan, task in zip(plans, session.files, strict=True):
            # Not `await task`: a cancellation would cancel only this task, and its slot would go to another request.
            await asyncio.wait([task])
            yield plan, task.result()[0]
    finally:
        await session.end()


@dataclass(slots=True)
class _Session:
    """The tasks of a run: one for each request, and one for each file that ends after its last request."""

    engine: Engine
    plans: Sequence[Plan]
    contexts: Sequence[FileContext]
    options: RunOptions
    journal: Journal
    done: Callable[[int], None]
    after: Sequence[Sequence[After]]
    dependencies: Dependencies | None
    slots: asyncio.Semaphore
    requests: list[list[asyncio.Task[dict[Hole, HoleResult]]]] = field(default_factory=list)
    files: list[asyncio.Task[tuple[Mapping[Hole, HoleResult], str]]] = field(default_factory=list)
    _before: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def start(self) -> None:
        self._before = order.paths(self.plans, self.after)
        for idx, plan in enumerate(self.plans):
            self.requests.append([asyncio.ensure_future(self._answered(idx, n)) for n in range(len(plan.groups))])
            self.files.append(asyncio.ensure_future(self._finished(idx)))

    async def end(self) -> None:
        tasks = [*self.files, *(task for tasks in self.requests for task in tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _finished(self, idx: int) -> tuple[Mapping[Hole, HoleResult], str]:
        waiting = self.requests[idx]
        await asyncio.wait(waiting)
        by_hole = {hole: result for task in waiting for hole, result in task.result().items()}
        plan, text = self.plans[idx], ""
        if self.dependencies:
            text = await self.dependencies.finish(plan, by_hole, await self._texts(self._before[idx]))
        return by_hole, text

    async def _texts(self, files: Sequence[int]) -> dict[Path, str]:
        """Wait for files to finish, and return the new texts of those that changed."""
        if files:
            await asyncio.wait([self.files[file] for file in files])
        sources = {file: self.plans[file].source for file in files}
        texts = {file: self.files[file].result()[1] for file in files}
        return {source.path: texts[file] for file, source in sources.items() if texts[file] != source.document.text}

    async def _answered(self, idx: int, number: int) -> dict[Hole, HoleResult]:
        plan, after = self.plans[idx], self.after[idx][number]
        view, texts = await self._view(idx, after), await self._texts(after.files) if self.dependencies else {}
        context = self.dependencies.context_for(plan, texts) if self.dependencies and texts else self.contexts[idx]
        group = plan.groups[number]
        shown = tuple(map(view.moved, group)) if view else group
        async with self.slots:
            by_hole = await _group(self.engine, view.plan if view else plan, context, shown, self.options, self.journal)
        self.done(len(group))
        return {
            hole: replace(
                by_hole[moved],
                fills=view.back(by_hole[moved].fills, hole) if view else by_hole[moved].fills,
                view=view,
                texts=texts,
            )
            for hole, moved in zip(group, shown, strict=True)
        }

    async def _view(self, idx: int, after: After) -> View | None:
        """Return the file with the fills of the request's predecessors in this file; None if it is unchanged."""
        if not self.dependencies or not after.groups:
            return None
        earlier = order.closure(after.groups, lambda group: self.after[idx][group].groups)
        await asyncio.wait([self.requests[idx][group] for group in earlier])
        results = {hole: result for group in earlier for hole, result in self.requests[idx][group].result().items()}
        sure = {hole: result.fills[:1] for hole, result in results.items() if result.fills}
        return views.of(
            self.plans[idx], {hole: fills for hole, fills in sure.items() if self.dependencies.is_sure(hole, fills[0])}
        )


def request_for(plan: Plan, context: FileContext, group: Sequence[Hole], options: RunOptions) -> InfillRequest:
    """Return the request for a group of holes; raise ValueError as `pipeline.infill` does."""
    document = plan.source.document
    budget = Budget(ms=options.deadline_ms * len(group), candidates=options.n_candidates)
    seed = planning.seed_for(options.seed, document, group)
    return pipeline.to_request(
        document,
        group,
        context.options(budget, seed),
        syntax=plan.syntax,
        related=context.related,
        files=context.files,
    )


RequestOf = Callable[[tuple[Hole, ...]], InfillRequest | str]
"""Returns the request for a group of holes, or why it can't be built."""


def _request_of(plan: Plan, context: FileContext, options: RunOptions) -> RequestOf:
    """Return a function that builds each request once, because a journal needs the request before the engine does."""

    @functools.cache
    def request_of(group: tuple[Hole, ...]) -> InfillRequest | str:
        try:
            return request_for(plan, context, group, options)
        except ValueError as error:
            return str(error)

    return request_of


async def _group(
    engine: Engine, plan: Plan, context: FileContext, group: tuple[Hole, ...], options: RunOptions, journal: Journal
) -> dict[Hole, HoleResult]:
    document, request_of = plan.source.document, _request_of(plan, context, options)
    # A hole's answer depends on the request of its group, and on the one for the hole alone.
    requests = {hole: _behind(request_of, group, (hole,)) if journal.is_stored else () for hole in group}
    stored = {hole: HoleResult(fills) for hole in group if (fills := journal.get(document, hole, requests[hole]))}
    if stored.keys() >= set(group):
        return stored
    by_hole: dict[Hole, HoleResult] = {}

    async def ask(asked: tuple[Hole, ...]) -> dict[Hole, HoleResult]:
        return await _ask(engine, plan, context, asked, request_of, options)

    def accepts(_asked: tuple[Hole, ...], results: dict[Hole, HoleResult]) -> bool:
        for hole, result in results.items():
            by_hole[hole] = replace(result, ms=result.ms + (by_hole[hole].ms if hole in by_hole else 0.0))
        return all(result.fills for result in results.values())

    await in_turn(group, ask, accepts)
    for hole, result in by_hole.items():
        if not result.fills and result.is_answered:
            by_hole[hole] = await _retried(engine, plan, context, hole, options, result)
    for hole, result in by_hole.items():
        journal.add(document, hole, result.fills, requests[hole])
    return by_hole


def _behind(request_of: RequestOf, *groups: tuple[Hole, ...]) -> tuple[InfillRequest, ...]:
    """Return the requests for these groups, without those that can't be built and so are never sent."""
    requests = [request_of(group) for group in dict.fromkeys(groups)]
    return tuple(request for request in requests if isinstance(request, InfillRequest))


async def _retried(
    engine: Engine, plan: Plan, context: FileContext, hole: Hole, options: RunOptions, result: HoleResult
) -> HoleResult:
    """Return the result of further rounds for a hole without a usable answer."""
    for number in range(1, options.n_retries + 1):
        ms = result.ms
        result = await _round(engine, plan, context, hole, options, number, "")
        result = replace(result, ms=result.ms + ms)
        if result.fills or not result.is_answered:
            break
    return result


async def retry(
    engine: Engine,
    plan: Plan,
    context: FileContext,
    hole: Hole,
    options: RunOptions,
    journal: Journal,
    number: int,
    failure: str,
    view: View | None = None,
) -> tuple[Fill, ...]:
    """Return the fills of round `number` (from 1), requested with the last failure's message; () after the last round.

    `context` and `view` are those of the first round.
    """
    if number > options.n_retries:
        return ()
    if view:
        fills = await retry(engine, view.plan, context, view.moved(hole), options, journal, number, failure)
        return view.back(fills, hole)
    hole_with_failure = _with_failure(hole, failure)
    key = replace(hole_with_failure, instruction=f"round {number}: {hole_with_failure.instruction}")
    requests = _behind(_request_of(plan, context, options), (hole_with_failure,)) if journal.is_stored else ()
    if fills := journal.get(plan.source.document, key, requests):
        return fills
    result = await _round(engine, plan, context, hole, options, number, failure)
    journal.add(plan.source.document, key, result.fills, requests)
    return result.fills


async def _round(
    engine: Engine, plan: Plan, context: FileContext, hole: Hole, options: RunOptions, number: int, failure: str
) -> HoleResult:
    other_seed = replace(options, seed=options.seed + number * SEED_STEP)
    request_of = _request_of(plan, context, other_seed)
    return next(iter((await _ask(engine, plan, context, (_with_failure(hole, failure),), request_of, other_seed)).values()))


def _with_failure(hole: Hole, failure: str) -> Hole:
    """Return the hole with the last failure's message in its instruction."""
    if not failure:
        return hole
    text = f"The last attempt failed: {_VOLATILE.sub('?', failure)}"
    return replace(hole, instruction=f"{hole.instruction} {text}".strip())


async def _ask(
    engine: Engine,
    plan: Plan,
    context: FileContext,
    group: tuple[Hole, ...],
    request_of: RequestOf,
    options: RunOptions,
) -> dict[Hole, HoleResult]:
    start = time.perf_counter()
    answer, reason, is_answered, is_lost = pipeline.Answer(), "", False, False
    request = request_of(group)
    if isinstance(request, str):
        reason = request
    else:
        try:
            candidates = await engine.fill(request)
            answer = pipeline.to_answer(
                request,
                candidates,
                plan.source.document,
                syntax=plan.syntax,
                is_file=True,
                allow_shrink=options.allow_shrink,
                sources=context.sources,
            )
            is_answered = True
        except (EngineError, ValueError) as error:
            reason, is_lost = str(error), isinstance(error, EngineError)
    ms = (time.perf_counter() - start) * 1000
    fills = tuple(map(fills_of, answer.suggestions))
    return {
        hole: HoleResult(tuple(row[idx] for row in fills), "" if fills else reason or answer.reason, ms, is_answered, is_lost)
        for idx, hole in enumerate(group)
    }
