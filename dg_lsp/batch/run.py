"""Ask the engine for everything that the plans hold.

Knows requests and their order; nothing of files on disk, diffs or reports. A few requests are under way at once, so that
an engine always has the next one; results come in the order of the plans, whatever finished first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass

from dg_lsp.batch import plan as planning
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.plan import Fill, Plan
from dg_lsp.core.values import Budget, Hole, Snippet
from dg_lsp.infill import pipeline
from dg_lsp.infill.port import Engine, EngineError

N_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class Options:
    """How to ask: candidates wanted, the run's seed, and milliseconds for one hole (0: as long as it takes)."""

    n_candidates: int = 4
    seed: int = 0
    deadline_ms: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of one hole: ways to fill it, best first, or the reason why there is none."""

    fills: tuple[Fill, ...] = ()
    reason: str = ""
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Around:
    """What goes to the engine besides the file's own text: the file's name below its workspace, and text from other files."""

    path: str
    related: tuple[Snippet, ...] = ()


Look = Callable[[Plan], Around]


async def fill(
    engine: Engine, plans: Sequence[Plan], options: Options, journal: Journal, look: Look, done: Callable[[int], None]
) -> AsyncGenerator[tuple[Plan, Mapping[Hole, Asked]], None]:
    """Yield each plan with what came of its holes, in order; call `done` with the number of holes just finished."""
    slots = asyncio.Semaphore(N_IN_FLIGHT)

    async def answered(plan: Plan, around: Around, group: tuple[Hole, ...]) -> dict[Hole, Asked]:
        async with slots:
            found = await _group(engine, plan, around, group, options, journal)
        done(len(group))
        return found

    # Related text is read before anything is written: with the fills of other files in it, answers would depend on timing.
    seen = [(plan, look(plan)) for plan in plans]
    tasks = [[asyncio.ensure_future(answered(plan, around, group)) for group in plan.groups] for plan, around in seen]
    try:
        for plan, waiting in zip(plans, tasks, strict=True):
            # Not `await task`: that would cancel the first alone, and its place would go to a request that nobody wants.
            await asyncio.wait(waiting)
            yield plan, {hole: asked for task in waiting for hole, asked in task.result().items()}
    finally:
        rest = [task for waiting in tasks for task in waiting if not task.done()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def settings_for(plan: Plan, around: Around, group: Sequence[Hole], options: Options) -> pipeline.Settings:
    """Return how a run asks for the holes of one request."""
    return pipeline.Settings(
        budget=Budget(ms=options.deadline_ms * len(group), candidates=options.n_candidates),
        seed=planning.seed_for(options.seed, plan.source.document, group),
        path=around.path,
    )


async def _group(
    engine: Engine, plan: Plan, around: Around, group: tuple[Hole, ...], options: Options, journal: Journal
) -> dict[Hole, Asked]:
    document = plan.source.document
    known = {hole: Asked(fills) for hole in group if (fills := journal.get(document, hole, around.related))}
    if known.keys() >= set(group):
        return known
    found = await _ask(engine, plan, around, group, options)
    if len(group) > 1 and not all(asked.fills for asked in found.values()):
        # Holes of one request stand or fall together; alone, most of them may still be filled.
        spent = next(iter(found.values())).ms
        for hole in group:
            [asked] = (await _ask(engine, plan, around, (hole,), options)).values()
            found[hole] = Asked(asked.fills, asked.reason, asked.ms + spent)
    for hole, asked in found.items():
        journal.add(document, hole, asked.fills, around.related)
    return found


async def _ask(engine: Engine, plan: Plan, around: Around, group: tuple[Hole, ...], options: Options) -> dict[Hole, Asked]:
    document, settings = plan.source.document, settings_for(plan, around, group, options)
    start = time.perf_counter()
    reason = ""
    try:
        answer = await pipeline.infill(
            engine, document, group, settings, syntax=plan.syntax, related=around.related, is_file=True
        )
    except (EngineError, ValueError) as error:
        answer, reason = pipeline.Answer(), str(error)
    ms = (time.perf_counter() - start) * 1000
    fills = tuple(
        tuple(Fill(edit, found.candidate.score, found.candidate.steps) for edit in found.edits) for found in answer.suggestions
    )
    return {
        hole: Asked(tuple(row[idx] for row in fills), "" if fills else reason or answer.reason, ms)
        for idx, hole in enumerate(group)
    }
