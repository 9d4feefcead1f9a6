"""Send the requests of all plans to the engine.

Several requests run at once, so that the engine always has the next one. Results come in the order of the plans. A request
with predecessors (`order`) waits for them and contains their fills, so its answer never depends on timing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dg_lsp.batch import keep, order, settle
from dg_lsp.batch.copies import Copies
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.order import After
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.rounds import HoleResult, Rounds, RunOptions
from dg_lsp.batch.settle import View
from dg_lsp.core.values import Hole
from dg_lsp.infill.fill import Fill
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.infill.port import Engine

N_IN_FLIGHT = 2

ContextFor = Callable[[FilePlan], FileContext]


@dataclass(slots=True)
class Files:
    """The files of a run: which of their fills are accepted, and what later requests see of them.

    `context_of` returns a file's context with new texts of other files. `result_by_path` has the files that are finished.
    """

    context_of: Callable[[FilePlan, Mapping[Path, str]], FileContext]
    rule: keep.AcceptanceRule = field(default_factory=keep.AcceptanceRule)
    copies: Copies | None = None
    result_by_path: dict[Path, keep.FileResult] = field(default_factory=dict)

    def is_sure(self, hole: Hole, fill: Fill) -> bool:
        """Return whether later requests of the same file see a fill."""
        return not self.rule.reason(hole, fill)

    async def finish(self, plan: FilePlan, by_hole: Mapping[Hole, HoleResult], beside: Mapping[Path, str]) -> str:
        """Decide which of a file's fills are accepted, once all are answered, and return the new text.

        `beside` are the new texts of the preceding files.
        """
        result = await keep.keep(plan, by_hole, self.rule, self.copies, beside)
        self.result_by_path[plan.source.path] = result
        return result.text


async def fill(
    engine: Engine,
    plans: Sequence[FilePlan],
    options: RunOptions,
    journal: Journal,
    files: Files,
    done: Callable[[int], None],
    *,
    n_in_flight: int = N_IN_FLIGHT,
) -> AsyncGenerator[tuple[FilePlan, Mapping[Hole, HoleResult]], None]:
    """Yield each plan with its holes' results, in order; call `done` with the number of holes just finished."""
    # Related text is read before the first request, so that edits during the run do not reach only some requests.
    contexts = [files.context_of(plan, {}) for plan in plans]
    session = _Session(engine, plans, contexts, options, journal, done, order.of(plans), files, asyncio.Semaphore(n_in_flight))
    session.start()
    try:
        for plan, task in zip(plans, session.tasks, strict=True):
            # Not `await task`: a cancellation would cancel only this task, and its slot would go to another request.
            await asyncio.wait([task])
            yield plan, task.result()[0]
    finally:
        await session.end()


@dataclass(slots=True)
class _Session:
    """The tasks of a run: one for each request, and one for each file that ends after its last request.

    All fields but the last three are the input of the run, which every task reads.
    """

    engine: Engine
    plans: Sequence[FilePlan]
    contexts: Sequence[FileContext]
    options: RunOptions
    journal: Journal
    done: Callable[[int], None]
    after: Sequence[Sequence[After]]
    files: Files
    slots: asyncio.Semaphore
    requests: list[list[asyncio.Task[dict[Hole, HoleResult]]]] = field(default_factory=list)
    tasks: list[asyncio.Task[tuple[Mapping[Hole, HoleResult], str]]] = field(default_factory=list)
    _before: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def start(self) -> None:
        self._before = order.paths(self.plans, self.after)
        for idx, plan in enumerate(self.plans):
            self.requests.append([asyncio.ensure_future(self._answered(idx, n)) for n in range(len(plan.groups))])
            self.tasks.append(asyncio.ensure_future(self._finished(idx)))

    async def end(self) -> None:
        tasks = [*self.tasks, *(task for tasks in self.requests for task in tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _finished(self, idx: int) -> tuple[Mapping[Hole, HoleResult], str]:
        waiting = self.requests[idx]
        await asyncio.wait(waiting)
        by_hole = {hole: result for task in waiting for hole, result in task.result().items()}
        return by_hole, await self.files.finish(self.plans[idx], by_hole, await self._texts(self._before[idx]))

    async def _texts(self, files: Sequence[int]) -> dict[Path, str]:
        """Wait for files to finish, and return the new texts of those that changed."""
        if files:
            await asyncio.wait([self.tasks[file] for file in files])
        sources = {file: self.plans[file].source for file in files}
        texts = {file: self.tasks[file].result()[1] for file in files}
        return {source.path: texts[file] for file, source in sources.items() if texts[file] != source.document.text}

    async def _answered(self, idx: int, number: int) -> dict[Hole, HoleResult]:
        plan, after = self.plans[idx], self.after[idx][number]
        view, texts = await self._view(idx, after), await self._texts(after.files)
        context = self.files.context_of(plan, texts) if texts else self.contexts[idx]
        group = plan.groups[number]
        rounds = Rounds(self.engine, plan, context, self.options, self.journal, view)
        async with self.slots:
            by_hole = await rounds.first(group)
        self.done(len(group))
        return by_hole

    async def _view(self, idx: int, after: After) -> View | None:
        """Return the file with the fills of the request's predecessors in this file; None if it is unchanged."""
        if not after.groups:
            return None
        earlier = order.closure(after.groups, lambda group: self.after[idx][group].groups)
        await asyncio.wait([self.requests[idx][group] for group in earlier])
        results = {hole: result for group in earlier for hole, result in self.requests[idx][group].result().items()}
        sure = {hole: result.fills[:1] for hole, result in results.items() if result.fills}
        return settle.view_of(
            self.plans[idx], {hole: fills for hole, fills in sure.items() if self.files.is_sure(hole, fills[0])}
        )
