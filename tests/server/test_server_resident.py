"""Who asks for the engine gets the one that the settings name last, however early they asked."""

from __future__ import annotations

import asyncio
import time

import pytest

from dg_lsp.core.values import Calibrated, Candidate, Hole, InfillRequest, Span
from dg_lsp.infill.port import EngineError
from dg_lsp.server.resident import OnDraft, OnMessage, OnState, Resident
from dg_lsp.wire.settings import Settings
from tests.fakes import ReadyEngine
from tests.patience import PATIENCE_S


class NamedEngine(ReadyEngine):
    """An engine whose one answer is the model that it was opened with; it is ready at once, but "slow" never."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.closed = asyncio.Event()

    async def ready(self) -> None:
        """Return at once, or wait until the engine is closed."""
        if self.model == "slow":
            await self.closed.wait()
            raise EngineError("the engine was closed")

    async def close(self) -> None:
        """End the wait in `ready`."""
        self.closed.set()

    async def fill(
        self, request: InfillRequest, *, document: str = "", on_draft: OnDraft | None = None
    ) -> tuple[Candidate, ...]:
        """Return the model's name."""
        return (Candidate((self.model,), Calibrated(0.5)),)


def opener(settings: Settings, on_state: OnState, on_message: OnMessage) -> NamedEngine:
    return NamedEngine(settings.model)


async def answer(resident: Resident) -> tuple[str, ...]:
    engine = await resident.engine("file:///a.py")
    (candidate,) = await engine.fill(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),)))
    return candidate.texts


async def test_a_request_may_come_before_the_engine_is_started() -> None:
    resident = Resident(opener, lambda: None, time.monotonic)
    early = asyncio.ensure_future(answer(resident))
    # So that it waits already.
    await asyncio.sleep(0)
    assert resident.trouble() == ""
    resident.start(Settings(model="one"))
    assert await asyncio.wait_for(early, PATIENCE_S) == ("one",)
    await resident.stop()


async def test_a_waiting_request_gets_the_newest_engine() -> None:
    resident = Resident(opener, lambda: None, time.monotonic)
    resident.start(Settings(model="slow"))
    early = asyncio.ensure_future(answer(resident))
    await asyncio.sleep(0)
    resident.start(Settings(model="one"))
    assert await asyncio.wait_for(early, PATIENCE_S) == ("one",)
    await resident.stop()


async def test_a_request_to_a_replaced_engine_does_not_change_the_condition() -> None:
    class Ending(NamedEngine):
        async def fill(
            self, request: InfillRequest, *, document: str = "", on_draft: OnDraft | None = None
        ) -> tuple[Candidate, ...]:
            was_asked.set()
            await self.closed.wait()
            raise EngineError("the engine was given back before it answered")

    def opening(settings: Settings, on_state: OnState, on_message: OnMessage) -> NamedEngine:
        return Ending(settings.model) if settings.model == "old" else NamedEngine(settings.model)

    was_asked = asyncio.Event()
    states: list[str] = []
    resident = Resident(opening, lambda: states.append(resident.condition.state), time.monotonic)
    resident.start(Settings(model="old"))
    waiting = asyncio.ensure_future(answer(resident))
    await asyncio.wait_for(was_asked.wait(), PATIENCE_S)
    resident.start(Settings(model="one"))
    assert await asyncio.wait_for(answer(resident), PATIENCE_S) == ("one",)
    with pytest.raises(EngineError, match="given back"):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert "failed" not in states
    assert resident.condition.state == "ready"
    await resident.stop()
