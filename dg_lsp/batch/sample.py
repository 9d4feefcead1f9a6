"""Request a sample fill from the resident engine, and measure its stages.

The sample takes the same path as every request. It is our own text: no file of the user is read or sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from dg_lsp.core.values import Budget, Hole, InfillRequest, Span
from dg_lsp.infill import client
from dg_lsp.infill.client import ConnectOptions
from dg_lsp.infill.port import EngineError
from dg_lsp.wire.messages import Done

PREFIX = '''"""Prices of a shop, in cents."""


def total(prices: list[int]) -> int:
    """Add the prices up."""
    result = 0
    for price in prices:
        result += price
    return result


def mean(prices: list[int]) -> float:
    """Return the prices' mean."""
    result = 0
    for price in prices:
        result += '''
SUFFIX = "\n    return result / len(prices)\n"
DEADLINE_MS = 120_000


@dataclass(frozen=True, slots=True)
class FillTime:
    """The times of one fill: total milliseconds at the client, and the engine's report of each stage."""

    ms: float
    done: Done

    @property
    def stages(self) -> Mapping[str, float]:
        """Milliseconds by stage, and the rest (`elsewhere`): the way to the engine and back."""
        known_ms = {name.removesuffix("_ms"): ms for name, ms in asdict(self.done.timings).items()}
        return {**known_ms, "elsewhere": max(0.0, self.ms - sum(known_ms.values()))}


@dataclass(frozen=True, slots=True)
class Sample:
    """The time to connect, the engine's description of itself, and two fills.

    `fresh` is the first fill in a file. `typed` is a fill after one more character, when the rest of the file is cached.
    """

    join_ms: float
    info: Mapping[str, object]
    fresh: FillTime
    typed: FillTime


async def take(options: ConnectOptions) -> Sample:
    """Return the sample, and start the engine if needed; raise EngineError if there is no engine or no answer."""
    hole = Hole(Span(len(PREFIX), len(PREFIX)), "cursor", indent=" " * 8)
    # The text is new each time, so that the first fill finds nothing in the cache.
    stamp = f"# {time.time_ns()}\n"
    budget = Budget(ms=DEADLINE_MS)
    request = InfillRequest(stamp + PREFIX, SUFFIX, (hole,), language="python", path="sample.py", budget=budget)
    began = time.perf_counter()
    async with client.connect(options) as engine:
        join_ms = 1000 * (time.perf_counter() - began)
        fresh = await _fill(engine, request)
        typed = await _fill(engine, replace(request, prefix=request.prefix + "p"))
        return Sample(join_ms, await engine.info(), fresh, typed)


async def _fill(engine: client.ResidentEngine, request: InfillRequest) -> FillTime:
    ends: list[Done] = []
    began = time.perf_counter()
    candidates = await engine.fill(request, on_done=ends.append)
    ms = 1000 * (time.perf_counter() - began)
    if not candidates:
        raise EngineError("the engine returned no answer to the sample")
    return FillTime(ms, ends[-1])
