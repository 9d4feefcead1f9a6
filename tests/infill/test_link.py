"""Cancelled requests close their connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from dg_lsp.infill.client import ConnectOptions, EngineBusyError, ResidentEngine, connect
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId, EngineSettings
from tests.engine.engine_kit import FILLER, home, request
from tests.patience import PATIENCE_S

N_KEPT = 8 + 1
"""Connections that the client keeps open for its next requests, and its lease."""


def n_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing here tells which files are open")
def test_requests_that_are_cancelled_while_they_are_sent_leave_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)

    async def cancelled(engine: ResidentEngine) -> None:
        filling = asyncio.ensure_future(engine.fill(request({"steps": 20, "pause_s": 0.001})))
        await asyncio.sleep(rng.random() ** 2 * 0.02)
        filling.cancel()
        with contextlib.suppress(EngineBusyError, asyncio.CancelledError):
            await filling

    async def is_answered(engine: ResidentEngine) -> bool:
        with contextlib.suppress(EngineBusyError):  # it may not have heard of all that was cancelled
            return (await engine.fill(request({"text": "x"})))[0].texts == ("x",)
        return False

    async def scenario() -> None:
        async with connect(
            ConnectOptions(EngineId("toy", filler=FILLER), EngineSettings(exit_after_s=60), command=ENGINE_COMMAND)
        ) as engine:
            before = n_open()
            for _ in range(40):
                await asyncio.gather(*(cancelled(engine) for _ in range(10)))
            async with asyncio.timeout(PATIENCE_S):
                while not (await is_answered(engine) and n_open() <= before + N_KEPT):
                    await asyncio.sleep(0.01)

    with home(monkeypatch):
        asyncio.run(scenario())
