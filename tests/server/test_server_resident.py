"""Who asks for the engine gets the one that the settings name last, however early they asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from dg_lsp.core.confidence import Calibrated
from dg_lsp.core.values import Candidate, Hole, InfillRequest, Span
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.server.resident import Listener, OnDraft, Resident
from dg_lsp.server.settings import Settings
from tests.patience import PATIENCE_S


class NamedEngine:
    """An engine whose one answer is the model that it was opened with; it is ready at once, but "slow" never."""

    def __init__(self, model: str) -> None:
        self.model = model

    async def ready(self) -> None:
        """Return at once, or never."""
        if self.model == "slow":
            await asyncio.Event().wait()

    def bound(self, _document: str, _on_draft: OnDraft | None = None) -> Engine:
        """Return itself for every document."""
        return self

    async def fill(self, _request: InfillRequest) -> tuple[Candidate, ...]:
        """Return the model's name."""
        return (Candidate((self.model,), Calibrated(0.5)),)


@contextlib.asynccontextmanager
async def opener(settings: Settings, listener: Listener) -> AsyncIterator[NamedEngine]:
    yield NamedEngine(settings.model)


async def answer(resident: Resident) -> tuple[str, ...]:
    engine = await resident.engine("file:///a.py")
    (candidate,) = await engine.fill(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),)))
    return candidate.texts


def test_a_request_may_come_before_the_engine_is_started() -> None:
    async def main() -> None:
        resident = Resident(opener, lambda: None, time.monotonic)
        early = asyncio.ensure_future(answer(resident))
        # So that it waits already.
        await asyncio.sleep(0)
        assert resident.trouble() == ""
        resident.start(Settings(model="one"))
        assert await asyncio.wait_for(early, PATIENCE_S) == ("one",)
        await resident.stop()

    asyncio.run(main())


def test_a_waiting_request_gets_the_newest_engine() -> None:
    async def main() -> None:
        resident = Resident(opener, lambda: None, time.monotonic)
        resident.start(Settings(model="slow"))
        early = asyncio.ensure_future(answer(resident))
        await asyncio.sleep(0)
        resident.start(Settings(model="one"))
        assert await asyncio.wait_for(early, PATIENCE_S) == ("one",)
        await resident.stop()

    asyncio.run(main())


def test_a_request_to_a_replaced_engine_does_not_change_the_condition() -> None:
    class Ending(NamedEngine):
        async def fill(self, _request: InfillRequest) -> tuple[Candidate, ...]:
            was_asked.set()
            await given_back.wait()
            raise EngineError("the engine was given back before it answered")

    @contextlib.asynccontextmanager
    async def opening(settings: Settings, listener: Listener) -> AsyncIterator[NamedEngine]:
        try:
            yield Ending(settings.model) if settings.model == "old" else NamedEngine(settings.model)
        finally:
            given_back.set()

    async def main() -> None:
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

    was_asked, given_back = asyncio.Event(), asyncio.Event()
    asyncio.run(main())
