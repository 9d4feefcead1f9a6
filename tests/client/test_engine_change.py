"""Who asks for the engine gets the one that the settings name last, however early they asked."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from dg_lsp.client.engine import ConnectOptions, EngineClient
from dg_lsp.client.life import LifeState
from dg_lsp.client.link import Link
from dg_lsp.client.port import EngineError, LinkLostError
from dg_lsp.core.values import Calibrated, Candidate, Hole, InfillRequest, Span
from dg_lsp.wire.discovery import EngineId, EngineSettings
from dg_lsp.wire.messages import Status
from tests.fakes import InProcess, ReadyEngine, connecting
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

    async def answer(self, request: InfillRequest, document: str) -> tuple[Candidate, ...]:
        """Return the model's name."""
        return (Candidate((self.model,), Calibrated(0.5)),)


def client(make: Callable[[str], ReadyEngine] = NamedEngine, states: list[LifeState] | None = None) -> EngineClient:
    return EngineClient(None, (states if states is not None else []).append, lambda _: None, connector=connecting(make))


def model(name: str) -> ConnectOptions:
    return ConnectOptions(EngineId(name))


async def answer(client: EngineClient) -> tuple[str, ...]:
    engine = await client.for_document("file:///a.py")
    (candidate,) = await engine.fill(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),)))
    return candidate.texts


async def test_a_request_may_come_before_the_engine_is_chosen() -> None:
    engine = client()
    early = asyncio.ensure_future(answer(engine))
    # So that it waits already.
    await asyncio.sleep(0)
    assert (engine.trouble(), engine.state.name) == ("", "off")
    engine.use(model("one"))
    assert await asyncio.wait_for(early, PATIENCE_S) == ("one",)
    await engine.close()


async def test_a_waiting_request_gets_the_newest_engine() -> None:
    engine = client()
    engine.use(model("slow"))
    early = asyncio.ensure_future(answer(engine))
    await asyncio.sleep(0)
    engine.use(model("one"))
    assert await asyncio.wait_for(early, PATIENCE_S) == ("one",)
    await engine.close()


async def test_an_engine_that_is_refused_answers_nothing_until_another_is_chosen() -> None:
    engine = client()
    engine.refuse("a password")
    assert (engine.state.name, engine.trouble()) == ("failed", "a password")
    with pytest.raises(EngineError, match="a password"):
        await answer(engine)
    engine.use(model("one"))
    assert await asyncio.wait_for(answer(engine), PATIENCE_S) == ("one",)
    await engine.close()


async def test_a_request_to_a_replaced_engine_does_not_change_the_state() -> None:
    class Ending(NamedEngine):
        async def answer(self, request: InfillRequest, document: str) -> tuple[Candidate, ...]:
            was_asked.set()
            await self.closed.wait()
            raise EngineError("the engine was given back before it answered")

    was_asked = asyncio.Event()
    states: list[LifeState] = []
    engine = client(lambda name: Ending(name) if name == "old" else NamedEngine(name), states)
    engine.use(model("old"))
    waiting = asyncio.ensure_future(answer(engine))
    await asyncio.wait_for(was_asked.wait(), PATIENCE_S)
    engine.use(model("one"))
    assert await asyncio.wait_for(answer(engine), PATIENCE_S) == ("one",)
    with pytest.raises(EngineError, match="given back"):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert [state.name for state in states] == ["starting", "loading", "ready", "starting", "loading", "ready"]
    await engine.close()


@pytest.mark.parametrize("end", [Status("failed", "no such model"), None])
async def test_the_settings_of_an_engine_that_is_given_up_at_once_are_not_sent(end: Status | None) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))

    class Ended(InProcess):
        async def load(self) -> None:
            pass

        async def configure(self, fields: Mapping[str, float]) -> Mapping[str, object]:
            errors.append(fields)
            return fields

    async def connect(options: ConnectOptions, version: str, on_change: Callable[[Link], None]) -> Link:
        link = Ended(ReadyEngine(), version, on_change)
        link.status = end or Status("loading")
        return link

    def on_state(state: LifeState) -> None:
        if state.name == "loading":
            engine.refuse("a password")

    engine = EngineClient(None, on_state, lambda _: None, connector=connect)
    engine.use(replace(model("one"), settings=EngineSettings(threads=3)))
    with pytest.raises(EngineError, match="no such model" if end else "a password"):
        await asyncio.wait_for(answer(engine), PATIENCE_S)
    await engine.close()
    gc.collect()  # a task that nobody waits for reports its error when it goes
    assert errors == []


async def test_a_request_that_a_remote_engine_takes_over_is_guarded() -> None:
    class Leaving(NamedEngine):
        async def answer(self, request: InfillRequest, document: str) -> tuple[Candidate, ...]:
            engine.use(model("chat:https://a.example#m"))
            raise LinkLostError("the engine has ended", crashed=False)

    engine = EngineClient(
        None,
        lambda _: None,
        lambda _: None,
        lambda _uri: ("secret/",),
        connector=connecting(lambda name: Leaving(name) if name == "old" else NamedEngine(name)),
    )
    engine.use(model("old"))
    asked = await engine.for_document("file:///a.py")
    with pytest.raises(EngineError, match="local models only"):
        await asked.fill(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),), path="secret/a.py"))
    await engine.close()
