"""The client and an engine's life, with real processes: one stands still, one is of another version, one is killed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from dg_lsp.client import engine as client
from dg_lsp.client import link as links
from dg_lsp.client.engine import ConnectOptions, EngineClient, connect
from dg_lsp.client.port import EngineError
from dg_lsp.wire import discovery, stream
from dg_lsp.wire.discovery import EngineId
from tests.client.test_engine import options
from tests.client.test_engine import text as answer
from tests.engine.engine_kit import FILLER, Running, gate, request, running
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


@pytest.fixture
def folder(engines: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # A ping comes every five seconds; to miss one is enough here. On a busy machine it may be late by as long again.
    monkeypatch.setattr(links, "SILENCE_S", 2 * stream.PING_EVERY_S)
    return engines


async def pid_of(engine: EngineClient) -> int:
    pid = (await engine.info())["pid"]
    assert isinstance(pid, int)
    return pid


def age(files: discovery.EngineFiles) -> None:
    """Make the engine of these files one that came up long ago."""
    os.utime(files.state, (0, 0))


def disguise(files: discovery.EngineFiles, version: str) -> None:
    """Make the engine of these files one of another dg-lsp."""
    data = json.loads(files.state.read_text())
    files.state.write_text(json.dumps({**data, "version": version}))


@pytest.mark.slow
@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_client_whose_event_loop_was_blocked_keeps_its_engine(folder: Path, is_asked: bool) -> None:
    notes: list[str] = []
    async with connect(options(), on_message=notes.append) as engine:
        before = await pid_of(engine)
        # Also while an answer is awaited.
        stop = gate(folder)
        filling = asyncio.ensure_future(answer(engine, gate=str(stop.path), text="x")) if is_asked else None
        while is_asked and not (await engine.info())["running"]:
            await asyncio.sleep(0.01)
        time.sleep(links.SILENCE_S + stream.PING_EVERY_S)
        stop.let(3)
        if filling is not None:
            assert await filling == "x"
        assert await answer(engine, text="y") == "y"
        assert (await pid_of(engine), notes) == (before, [])


def test_only_time_in_which_the_event_loop_runs_counts_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "TICK_S", 0.05)

    async def heard_after_a_block() -> bool:
        heard = asyncio.Event()
        async with links.silence(0.2):
            asyncio.get_running_loop().call_later(0.01, heard.set)
            time.sleep(0.5)
            for _ in range(3):  # as many steps as a message takes through the layers of a connection
                await asyncio.sleep(0)
            await heard.wait()
        return True

    async def silent() -> None:
        async with links.silence(0.2):
            await asyncio.Event().wait()

    async def reset() -> bool:
        async with links.silence(0.2) as reset:
            for _ in range(8):
                await asyncio.sleep(0.1)
                reset(0.2)
        return True

    assert asyncio.run(heard_after_a_block())
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(silent(), PATIENCE_S))
    assert asyncio.run(reset())


def test_a_process_that_only_has_the_number_of_a_stopped_engine_is_not_killed(folder: Path) -> None:
    with running() as stopped_engine:
        state = discovery.State(
            os.getpid(), stopped_engine.state.address, stopped_engine.state.token, discovery.current_build()
        )
        assert links.kill(state) is False
        assert links.kill(discovery.State(os.getpid(), str(folder / "nobody.sock"), "x", discovery.current_build())) is False
        assert stopped_engine.process.poll() is None


async def test_an_overdue_request_is_cancelled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ANSWER_PATIENCE_S", 0.2)

    stop = gate(folder)
    async with connect(options()) as engine:
        # The step hangs, so that not even the request's own deadline ends it. The step must begin before the deadline.
        with pytest.raises(EngineError, match="the engine did not respond within 2 s; the request was cancelled"):
            await engine.fill(request({"gate": str(stop.path)}, ms=2000))
        assert "did not respond" in engine.state.message
        stop.let(9)
        assert await answer(engine, text="y") == "y"
        assert engine.state.name == "ready"


async def test_an_old_engine_in_use_keeps_serving_is_reported_and_ends_when_idle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "OUTDATED_IDLE_S", 0.1)

    async def scenario(old: Running) -> None:
        notes: list[str] = []
        async with connect(options(), on_message=notes.append) as engine:
            assert await answer(engine, text="old") == "old"
            assert await pid_of(engine) == old.process.pid
            assert len(notes) == 1
            assert "the running engine is from dg-lsp 0.0.1" in notes[0]
            other_leaves.set()
            # No process holds the lock now, not even this client, which is still open.
            assert await asyncio.to_thread(old.process.wait, PATIENCE_S) == 0
            assert await answer(engine, text="new") == "new"
            assert await pid_of(engine) != old.process.pid

    async def other(old: Running) -> None:
        async with connect(ConnectOptions(EngineId("toy", filler=FILLER))) as engine:
            await engine.ready()
            disguise(old.files, "0.0.1")
            other_is_there.set()
            await other_leaves.wait()

    other_is_there, other_leaves = asyncio.Event(), asyncio.Event()
    with running() as old:
        first = asyncio.ensure_future(other(old))
        await other_is_there.wait()
        await scenario(old)
        await first
