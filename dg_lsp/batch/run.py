"""Ask the engine for everything that the plans hold.

Knows requests and their order; nothing of files on disk, diffs or reports. A few requests are under way at once, so that
an engine always has the next one; results come in the order of the plans, whatever finished first. A request that comes
after others (`order`) is shown what was filled there, and waits for it: so its answer never depends on timing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dg_lsp.batch import order, views
from dg_lsp.batch import plan as planning
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.order import After
from dg_lsp.batch.plan import Fill, Plan
from dg_lsp.batch.views import View
from dg_lsp.core.values import Budget, Hole, Snippet
from dg_lsp.infill import pipeline
from dg_lsp.infill.port import Engine, EngineError

N_IN_FLIGHT = 2
# Addresses and times differ from run to run; an instruction with them would give another answer each time.
_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\b\d+\.\d+ ?m?s(ec\w*)?\b")
SEEDS_APART = 1_000_003  # between the seeds of two rounds, so that a round is not the first one of the next seed


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to ask: candidates wanted, the run's seed, and milliseconds for one hole (0: as long as it takes).

    `allow_shrink` lets an answer replace working code by less. `n_retries` is how many further rounds a hole gets that has
    no good fill. It is no part of what an answer depends on.
    """

    n_candidates: int = 4
    seed: int = 0
    deadline_ms: int = 0
    n_retries: int = field(default=0, repr=False)
    allow_shrink: bool = False


@dataclass(frozen=True, slots=True)
class HoleResult:
    """What came of one hole: ways to fill it, best first, or the reason why there is none."""

    fills: tuple[Fill, ...] = ()
    reason: str = ""
    ms: float = 0.0
    is_answered: bool = False  # the engine had an answer, though it may be of no use
    view: View | None = None  # how the hole's file was shown, where earlier fills stood in it


@dataclass(frozen=True, slots=True)
class FileContext:
    """What goes to the engine besides the file's own text: the file's name below its workspace, and text from other files."""

    path: str
    related: tuple[Snippet, ...] = ()


Look = Callable[[Plan], FileContext]


@dataclass(frozen=True, slots=True)
class Following:
    """What later requests are shown of earlier ones.

    `is_sure` says whether a fill is shown to later requests of its file. `finish` decides what stays of a file when all of
    it is answered, and returns its text; it is given the texts of the files that this one comes after. `look` is a file's
    context where other files have these texts.
    """

    is_sure: Callable[[Hole, Fill], bool]
    finish: Callable[[Plan, Mapping[Hole, HoleResult], Mapping[Path, str]], Awaitable[str]]
    look: Callable[[Plan, Mapping[Path, str]], FileContext]


async def fill(
    engine: Engine,
    plans: Sequence[Plan],
    options: RunOptions,
    journal: Journal,
    look: Look,
    done: Callable[[int], None],
    *,
    follow: Following | None = None,
    n_in_flight: int = N_IN_FLIGHT,
) -> AsyncGenerator[tuple[Plan, Mapping[Hole, HoleResult]], None]:
    """Yield each plan with what came of its holes, in order; call `done` with the number of holes just finished.

    Without `follow` no request waits for another.
    """
    # Related text is read before the first request, for all: what is edited meanwhile must not reach some of them alone.
    contexts = [look(plan) for plan in plans]
    after = order.of(plans) if follow else [tuple(After() for _ in plan.groups) for plan in plans]
    session = _Session(engine, plans, contexts, options, journal, done, after, follow, asyncio.Semaphore(n_in_flight))
    session.start()
    try:
        for plan, task in zip(plans, session.files, strict=True):
            # Not `await task`: that would cancel the first alone, and its place would go to a request that nobody wants.
            await asyncio.wait([task])
            yield plan, task.result()[0]
    finally:
        await session.end()


@dataclass(slots=True)
class _Session:
    """The requests of a run, a task for each, and one for each file that ends with its last request."""

    engine: Engine
    plans: Sequence[Plan]
    contexts: Sequence[FileContext]
    options: RunOptions
    journal: Journal
    done: Callable[[int], None]
    after: Sequence[Sequence[After]]
    follow: Following | None
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
        if self.follow:
            text = await self.follow.finish(plan, by_hole, await self._texts(self._before[idx]))
        return by_hole, text

    async def _texts(self, files: Sequence[int]) -> dict[Path, str]:
        """Return what became of files, once that is known, for those that changed."""
        if files:
            await asyncio.wait([self.files[file] for file in files])
        sources = {file: self.plans[file].source for file in files}
        texts = {file: self.files[file].result()[1] for file in files}
        return {source.path: texts[file] for file, source in sources.items() if texts[file] != source.document.text}

    async def _answered(self, idx: int, number: int) -> dict[Hole, HoleResult]:
        plan, after = self.plans[idx], self.after[idx][number]
        view, around = await self._view(idx, after), self.contexts[idx]
        if self.follow and (texts := await self._texts(after.files)):
            around = self.follow.look(plan, texts)
        group = plan.groups[number]
        shown = tuple(map(view.moved, group)) if view else group
        async with self.slots:
            by_hole = await _group(self.engine, view.plan if view else plan, around, shown, self.options, self.journal)
        self.done(len(group))
        if view:
            view = replace(view, related=around.related)
            return {
                hole: replace(by_hole[moved], fills=view.back(by_hole[moved].fills, hole), view=view)
                for hole, moved in zip(group, shown, strict=True)
            }
        return by_hole

    async def _view(self, idx: int, after: After) -> View | None:
        """Return the file as it is shown to a request that comes after others of the file; None where it is unchanged."""
        if not self.follow or not after.groups:
            return None
        earlier = order.closure(after.groups, lambda group: self.after[idx][group].groups)
        await asyncio.wait([self.requests[idx][group] for group in earlier])
        results = {hole: result for group in earlier for hole, result in self.requests[idx][group].result().items()}
        sure = {hole: result.fills[:1] for hole, result in results.items() if result.fills}
        return views.of(self.plans[idx], {hole: fills for hole, fills in sure.items() if self.follow.is_sure(hole, fills[0])})


def settings_for(plan: Plan, around: FileContext, group: Sequence[Hole], options: RunOptions) -> pipeline.RequestOptions:
    """Return how a run asks for the holes of one request."""
    return pipeline.RequestOptions(
        budget=Budget(ms=options.deadline_ms * len(group), candidates=options.n_candidates),
        seed=planning.seed_for(options.seed, plan.source.document, group),
        path=around.path,
    )


async def _group(
    engine: Engine, plan: Plan, around: FileContext, group: tuple[Hole, ...], options: RunOptions, journal: Journal
) -> dict[Hole, HoleResult]:
    document = plan.source.document
    known = {hole: HoleResult(fills) for hole in group if (fills := journal.get(document, hole, around.related))}
    if known.keys() >= set(group):
        return known
    by_hole = await _ask(engine, plan, around, group, options)
    if len(group) > 1 and not all(result.fills for result in by_hole.values()):
        # Holes of one request stand or fall together; alone, most of them may still be filled.
        spent = next(iter(by_hole.values())).ms
        for hole in group:
            [result] = (await _ask(engine, plan, around, (hole,), options)).values()
            by_hole[hole] = replace(result, ms=result.ms + spent)
    for hole, result in by_hole.items():
        if not result.fills and result.is_answered:
            by_hole[hole] = await _retried(engine, plan, around, hole, options, result)
    for hole, result in by_hole.items():
        journal.add(document, hole, result.fills, around.related)
    return by_hole


async def _retried(
    engine: Engine, plan: Plan, around: FileContext, hole: Hole, options: RunOptions, result: HoleResult
) -> HoleResult:
    """Return what further rounds give for a hole without a usable answer."""
    for number in range(1, options.n_retries + 1):
        ms = result.ms
        result = await _round(engine, plan, around, hole, options, number, "")
        result = replace(result, ms=result.ms + ms)
        if result.fills or not result.is_answered:
            break
    return result


async def again(
    engine: Engine,
    plan: Plan,
    around: FileContext,
    hole: Hole,
    options: RunOptions,
    journal: Journal,
    number: int,
    failure: str,
    view: View | None = None,
) -> tuple[Fill, ...]:
    """Return the fills of round `number` (from 1), asked for with what the last failure said; () after the last round.

    `view` is how the file was shown in the first round.
    """
    if number > options.n_retries:
        return ()
    if view:
        around = replace(around, related=view.related)
        fills = await again(engine, view.plan, around, view.moved(hole), options, journal, number, failure)
        return view.back(fills, hole)
    asked = _with_failure(hole, failure)
    key = replace(asked, instruction=f"round {number}: {asked.instruction}")
    if fills := journal.get(plan.source.document, key, around.related):
        return fills
    result = await _round(engine, plan, around, hole, options, number, failure)
    journal.add(plan.source.document, key, result.fills, around.related)
    return result.fills


async def _round(
    engine: Engine, plan: Plan, around: FileContext, hole: Hole, options: RunOptions, number: int, failure: str
) -> HoleResult:
    other_seed = replace(options, seed=options.seed + number * SEEDS_APART)
    return next(iter((await _ask(engine, plan, around, (_with_failure(hole, failure),), other_seed)).values()))


def _with_failure(hole: Hole, failure: str) -> Hole:
    """Return the hole with an instruction that holds what the last failure said."""
    if not failure:
        return hole
    text = f"The last attempt failed: {_VOLATILE.sub('?', failure)}"
    return replace(hole, instruction=f"{hole.instruction} {text}".strip())


async def _ask(
    engine: Engine, plan: Plan, around: FileContext, group: tuple[Hole, ...], options: RunOptions
) -> dict[Hole, HoleResult]:
    document, settings = plan.source.document, settings_for(plan, around, group, options)
    start = time.perf_counter()
    reason, is_answered = "", True
    try:
        answer = await pipeline.infill(
            engine,
            document,
            group,
            settings,
            syntax=plan.syntax,
            related=around.related,
            is_file=True,
            allow_shrink=options.allow_shrink,
        )
    except (EngineError, ValueError) as error:
        answer, reason, is_answered = pipeline.Answer(), str(error), False
    ms = (time.perf_counter() - start) * 1000
    fills = tuple(
        tuple(Fill(edit, suggestion.candidate.confidence, suggestion.candidate.steps) for edit in suggestion.edits)
        for suggestion in answer.suggestions
    )
    return {
        hole: HoleResult(tuple(row[idx] for row in fills), "" if fills else reason or answer.reason, ms, is_answered)
        for idx, hole in enumerate(group)
    }
