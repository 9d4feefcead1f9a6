"""Who asks for the engine gets the one that the settings name last, however early they asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from dg_lsp.core.values import Candidate, Hole, InfillRequest, Span
from dg_lsp.infill.port import Engine
from dg_lsp.server.resident import OnDraft, OnLoading, Resident
from dg_lsp.server.settings import Settings


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
        return (Candidate((self.model,), 0.5),)


@contextlib.asynccontextmanager
async def opener(settings: Settings, _on_loading: OnLoading) -> AsyncIterator[NamedEngine]:
    yield NamedEngine(settings.model)


async def answer(resident: Resident) -> tuple[str, ...]:
    engine = await resident.engine("file:///a.py")
    (candidate,) = await engine.fill(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),)))
    return candidate.texts


def test_a_request_may_come_before_the_engine_is_wanted() -> None:
    async def main() -> None:
        resident = Resident(opener, lambda: None, time.monotonic)
        early = asyncio.ensure_future(answer(resident))
        # So that it waits already.
        await asyncio.sleep(0)
        resident.start(Settings(model="one"))
        assert await asyncio.wait_for(early, 30) == ("one",)
        await resident.stop()

    asyncio.run(main())


def test_who_waits_gets_the_engine_that_was_named_last() -> None:
    async def main() -> None:
        resident = Resident(opener, lambda: None, time.monotonic)
        resident.start(Settings(model="slow"))
        early = asyncio.ensure_future(answer(resident))
        await asyncio.sleep(0)
        resident.start(Settings(model="one"))
        assert await asyncio.wait_for(early, 30) == ("one",)
        await resident.stop()

    asyncio.run(main())
