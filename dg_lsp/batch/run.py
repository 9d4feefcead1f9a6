"""Send the requests of all plans to the engine.

Several requests run at once, so that the engine always has the next one. Results come in the order of the plans. A request
with predecessors (`order`) waits for them and contains their fills, so its answer never depends on timing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dg_lsp.batch import keep, order, settle
from dg_lsp.batch.check import Copies
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.keep import AcceptanceRule, FileResult
from dg_lsp.batch.order import After
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.rounds import ContextOf, HoleResult, Rounds, RunOptions
from dg_lsp.batch.settle import View
from dg_lsp.core.values import Hole
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.infill.port import Engine

N_IN_FLIGHT = 2


@dataclass(slots=True)
class Run:
    """A run: a task for each request, and one for each file, which ends after its last request.

    `rule` and `copies` decide which fills are accepted.
    `done` is called with the number of holes just answered.
    """

    engine: Engine
    plans: Sequence[FilePlan]
    options: RunOptions
    journal: Journal
    context_of: ContextOf
    rule: AcceptanceRule = field(default_factory=AcceptanceRule)
    copies: Copies | None = None
    done: Callable[[int], None] = lambda _n: None
    n_in_flight: int = N_IN_FLIGHT
    _slots: asyncio.Semaphore = field(init=False)
    _contexts: Sequence[FileContext] = field(init=False)
    _after: Sequence[Sequence[After]] = field(init=False)
    _before: Mapping[int, tuple[int, ...]] = field(init=False)
    _requests: list[list[asyncio.Task[dict[Hole, HoleResult]]]] = field(default_factory=list)
    _files: list[asyncio.Task[FileResult]] = field(default_factory=list)

    async def results(self) -> list[FileResult]:
        """Return the result of each plan, in order."""
        self._slots, self._after = asyncio.Semaphore(self.n_in_flight), order.of(self.plans)
        self._before = order.paths(self.plans, self._after)
        # Related text is read before the first request, so that edits during the run do not reach only some requests.
        self._contexts = [self.context_of(plan, {}) for plan in self.plans]
        for idx, plan in enumerate(self.plans):
            self._requests.append([asyncio.ensure_future(self._answered(idx, n)) for n in range(len(plan.groups))])
            self._files.append(asyncio.ensure_future(self._finished(idx)))
        try:
            results = []
            for task in self._files:
                # Not `await task`: a cancellation would cancel only this task, and its slot would go to another request.
                await asyncio.wait([task])
                results.append(task.result())
            return results
        finally:
            tasks = [*self._files, *itertools.chain(*self._requests)]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _finished(self, idx: int) -> FileResult:
        """Decide which of a file's fills are accepted, once all are answered."""
        await asyncio.wait(self._requests[idx])
        by_hole = {hole: result for task in self._requests[idx] for hole, result in task.result().items()}
        beside = await self._texts(self._before[idx])
        return replace(await keep.keep(self.plans[idx], by_hole, self.rule, self.copies, beside), answers=by_hole)

    async def _texts(self, files: Sequence[int]) -> dict[Path, str]:
        """Wait for files to finish, and return the new texts of those that changed."""
        if files:
            await asyncio.wait([self._files[file] for file in files])
        results = [self._files[file].result() for file in files]
        return {each.plan.source.path: each.text for each in results if each.text != each.plan.source.document.text}

    async def _answered(self, idx: int, number: int) -> dict[Hole, HoleResult]:
        plan, after = self.plans[idx], self._after[idx][number]
        view, texts = await self._view(idx, after), await self._texts(after.files)
        context = self.context_of(plan, texts) if texts else self._contexts[idx]
        group = plan.groups[number]
        rounds = Rounds(self.engine, view, context, self.options, self.journal)
        async with self._slots:
            by_hole = await rounds.first(group)
        self.done(len(group))
        return by_hole

    async def _view(self, idx: int, after: After) -> View:
        """Return the file with the sure fills of the request's predecessors in this file."""
        if not after.groups:
            return View(self.plans[idx])
        earlier = order.closure(after.groups, lambda group: self._after[idx][group].groups)
        await asyncio.wait([self._requests[idx][group] for group in earlier])
        results = {hole: result for group in earlier for hole, result in self._requests[idx][group].result().items()}
        best = {hole: result.fills[:1] for hole, result in results.items() if result.fills}
        sure = {hole: fills for hole, fills in best.items() if not self.rule.reason(hole, fills[0])}
        return settle.view_of(self.plans[idx], sure)
