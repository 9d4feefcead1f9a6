"""Ask the engine for everything that the plans hold.

Knows requests and their order; nothing of files on disk, diffs or reports. A few requests are under way at once, so that
an engine always has the next one; results come in the order of the plans, whatever finished first.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dg_lsp.batch import plan as planning
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.plan import Fill, Plan
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

    `n_retries` is how many further rounds a hole gets that has no good fill. It is no part of what an answer depends on.
    """

    n_candidates: int = 4
    seed: int = 0
    deadline_ms: int = 0
    n_retries: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class HoleResult:
    """What came of one hole: ways to fill it, best first, or the reason why there is none."""

    fills: tuple[Fill, ...] = ()
    reason: str = ""
    ms: float = 0.0
    is_answered: bool = False  # the engine had an answer, though it may be of no use


@dataclass(frozen=True, slots=True)
class FileContext:
    """What goes to the engine besides the file's own text: the file's name below its workspace, and text from other files."""

    path: str
    related: tuple[Snippet, ...] = ()


Look = Callable[[Plan], FileContext]


async def fill(
    engine: Engine, plans: Sequence[Plan], options: RunOptions, journal: Journal, look: Look, done: Callable[[int], None]
) -> AsyncGenerator[tuple[Plan, Mapping[Hole, HoleResult]], None]:
    """Yield each plan with what came of its holes, in order; call `done` with the number of holes just finished."""
    slots = asyncio.Semaphore(N_IN_FLIGHT)

    async def answered(plan: Plan, around: FileContext, group: tuple[Hole, ...]) -> dict[Hole, HoleResult]:
        async with slots:
            by_hole = await _group(engine, plan, around, group, options, journal)
        done(len(group))
        return by_hole

    # Related text is read before anything is written: with the fills of other files in it, answers would depend on timing.
    seen = [(plan, look(plan)) for plan in plans]
    tasks = [[asyncio.ensure_future(answered(plan, around, group)) for group in plan.groups] for plan, around in seen]
    try:
        for plan, waiting in zip(plans, tasks, strict=True):
            # Not `await task`: that would cancel the first alone, and its place would go to a request that nobody wants.
            await asyncio.wait(waiting)
            yield plan, {hole: result for task in waiting for hole, result in task.result().items()}
    finally:
        rest = [task for waiting in tasks for task in waiting if not task.done()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


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
) -> tuple[Fill, ...]:
    """Return the fills of round `number` (from 1), asked for with what the last failure said; () after the last round."""
    if number > options.n_retries:
        return ()
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
            engine, document, group, settings, syntax=plan.syntax, related=around.related, is_file=True
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
