"""The requests for the holes of one file: a first round, and further rounds for holes without an acceptable fill."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dg_lsp.batch import plan as planning
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.verify import Retry
from dg_lsp.client.port import Engine, EngineError
from dg_lsp.core.values import Budget, Hole, InfillRequest
from dg_lsp.infill import pipeline
from dg_lsp.infill.fill import Fill, fills_of, in_turn
from dg_lsp.infill.pipeline import FileContext

# Addresses and times differ between runs. In an instruction they would change the answer each time.
_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\b\d+\.\d+ ?m?s(ec\w*)?\b")
SEED_STEP = 1_000_003  # between the seeds of two rounds, so that a retry does not equal the first round of the next seed


@dataclass(frozen=True, slots=True)
class HoleResult:
    """One hole's fills, best first, or the reason why there are none; `further` returns those of a later round."""

    fills: tuple[Fill, ...] = ()
    reason: str = ""
    ms: float = 0.0
    is_answered: bool = False  # the engine answered, though every answer may be dropped
    is_lost: bool = False  # the engine or the network failed
    further: Retry | None = None


ContextOf = Callable[[FilePlan], FileContext]
"""Returns a file's context."""
RequestOf = Callable[[tuple[Hole, ...]], InfillRequest]


def request_for(plan: FilePlan, context: FileContext, group: Sequence[Hole], options: Options) -> InfillRequest:
    """Return the request for a group of holes; raise ValueError as `pipeline.infill` does."""
    document = plan.source.document
    budget = Budget(ms=options.deadline_ms * len(group), candidates=options.n_candidates)
    seed = planning.seed_for(options.seed, document, group)
    return pipeline.to_request(document, group, replace(context, budget=budget, seed=seed), syntax=plan.syntax)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of requests for holes of one file. All of them see the same text and context."""

    engine: Engine
    plan: FilePlan
    context: FileContext
    options: Options
    journal: Journal

    async def further(self, hole: Hole, number: int, failure: str) -> tuple[Fill, ...]:
        """Return the fills of round `number` (from 1), requested with the last failure; () after the last round."""
        if number > self.options.retries:
            return ()
        with_failure = _with_failure(hole, failure)
        key = replace(with_failure, instruction=f"round {number}: {with_failure.instruction}")
        requests = _sent(self._requests(self.options), (with_failure,)) if self.journal.is_stored else ()
        fills = self.journal.get(self.plan.source.document, key, requests)
        if not fills:
            fills = (await self._round(hole, number, failure)).fills
            self.journal.add(self.plan.source.document, key, fills, requests)
        return fills

    async def first(self, group: tuple[Hole, ...]) -> dict[Hole, HoleResult]:
        """Return the result of each hole, after further rounds for holes without a usable answer."""
        document, request_of = self.plan.source.document, self._requests(self.options)
        # A hole's answer depends on the request of its group, and on the one for the hole alone.
        requests = {hole: _sent(request_of, group, (hole,)) if self.journal.is_stored else () for hole in group}
        read = {hole: self.journal.get(document, hole, requests[hole]) for hole in group}
        stored = {hole: HoleResult(fills, further=self.further) for hole, fills in read.items() if fills}
        if stored.keys() >= set(group):
            return stored
        by_hole: dict[Hole, HoleResult] = {}

        async def accepts(_asked: tuple[Hole, ...], results: dict[Hole, HoleResult]) -> bool:
            for hole, result in results.items():
                by_hole[hole] = replace(result, ms=result.ms + (by_hole[hole].ms if hole in by_hole else 0.0))
            return all(result.fills for result in results.values())

        await in_turn(group, functools.partial(self._ask, request_of=request_of), accepts)
        for hole in group:
            for number in range(1, self.options.retries + 1):
                if by_hole[hole].fills or not by_hole[hole].is_answered:
                    break
                again = await self._round(hole, number, "")
                by_hole[hole] = replace(again, ms=again.ms + by_hole[hole].ms)
            self.journal.add(document, hole, by_hole[hole].fills, requests[hole])
        return by_hole

    async def _round(self, hole: Hole, number: int, failure: str) -> HoleResult:
        other_seed = replace(self.options, seed=self.options.seed + number * SEED_STEP)
        return next(iter((await self._ask((_with_failure(hole, failure),), self._requests(other_seed))).values()))

    async def _ask(self, group: tuple[Hole, ...], request_of: RequestOf) -> dict[Hole, HoleResult]:
        start = time.perf_counter()
        answer, reason, is_answered, is_lost = pipeline.InfillAnswer(), "", False, False
        plan = self.plan
        try:
            request = request_of(group)
            candidates = await self.engine.fill(request)
            answer = await pipeline.to_answer(
                request,
                candidates,
                plan.source.document,
                syntax=plan.syntax,
                is_file=True,
                allow_shrink=self.options.allow_shrink,
                sources=self.context.sources,
            )
            is_answered = True
        except (EngineError, ValueError) as error:
            reason, is_lost = str(error), isinstance(error, EngineError)
        ms = (time.perf_counter() - start) * 1000
        fills = tuple(map(fills_of, answer.suggestions))
        reason = "" if fills else reason or answer.reason
        return {
            hole: HoleResult(_distinct(row[idx] for row in fills), reason, ms, is_answered, is_lost, self.further)
            for idx, hole in enumerate(group)
        }

    def _requests(self, options: Options) -> RequestOf:
        """Return a function that builds each request once, because a journal needs the request before the engine does."""
        return functools.cache(lambda group: request_for(self.plan, self.context, group, options))


def _sent(request_of: RequestOf, *groups: tuple[Hole, ...]) -> tuple[InfillRequest, ...]:
    """Return the requests for these groups, without those that can't be built and so are never sent."""
    requests = []
    for group in dict.fromkeys(groups):
        with contextlib.suppress(ValueError):
            requests.append(request_of(group))
    return tuple(requests)


def _distinct(fills: Iterable[Fill]) -> tuple[Fill, ...]:
    """Return the fills of a hole whose texts differ; answers for several holes may repeat the text of one."""
    by_text: dict[str, Fill] = {}
    for fill in fills:
        by_text.setdefault(fill.text, fill)
    return tuple(by_text.values())


def _with_failure(hole: Hole, failure: str) -> Hole:
    """Return the hole with the last failure's message in its instruction."""
    if not failure:
        return hole
    text = f"The last attempt failed: {_VOLATILE.sub('?', failure)}"
    return replace(hole, instruction=f"{hole.instruction} {text}".strip())
