"""The client and an engine's life, with real processes: one stands still, one is of another version, one is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dg_lsp.infill import client
from dg_lsp.infill import link as links
from dg_lsp.infill.client import ConnectOptions, EngineError, ResidentEngine, connect
from dg_lsp.infill.life import Ready, Starting, State
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId, EngineSettings
from tests.engine.engine_kit import FILLER, Running, gate, home, request, running, wait_until
from tests.patience import PATIENCE_S
from tests.processes import is_gone


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A ping comes every five seconds; to miss one is enough here. On a busy machine it may be late by as long again.
    monkeypatch.setattr(links, "SILENCE_S", 2 * links.PING_EVERY_S)
    monkeypatch.setattr(client, "SILENCE_S", 2 * links.PING_EVERY_S)
    with home(monkeypatch) as path:
        yield path


def options(*, interactive: bool = True) -> ConnectOptions:
    return ConnectOptions(
        EngineId("toy", filler=FILLER), EngineSettings(exit_after_s=60), interactive=interactive, command=ENGINE_COMMAND
    )


async def pid_of(engine: ResidentEngine) -> int:
    pid = (await engine.info())["pid"]
    assert isinstance(pid, int)
    return pid


async def answer(engine: ResidentEngine, **script: object) -> str:
    return (await engine.fill(request(script)))[0].texts[0]


def age(files: discovery.EngineFiles) -> None:
    """Make the engine of these files one that came up long ago."""
    os.utime(files.state, (0, 0))


def disguise(files: discovery.EngineFiles, version: str) -> None:
    """Make the engine of these files one of another dg-lsp."""
    data = json.loads(files.state.read_text())
    files.state.write_text(json.dumps({**data, "version": version}))


def test_the_engine_pings_as_often_as_the_client_counts_on() -> None:
    from dg_lsp.engine.serve import app

    assert app.PING_EVERY_S == links.PING_EVERY_S


def test_a_fill_on_an_engine_that_stops_is_answered_by_another(folder: Path) -> None:
    async def scenario() -> None:
        notes: list[str] = []
        stop = gate(folder)
        async with connect(options(), on_message=notes.append) as engine:
            before = await pid_of(engine)
            filling = asyncio.ensure_future(answer(engine, gate=str(stop.path), text="x"))
            while not (await engine.info())["running"]:
                await asyncio.sleep(0.01)
            os.kill(before, signal.SIGSTOP)
            stop.let(3)
            assert await filling == "x"
            assert await pid_of(engine) != before
            assert notes == [f"the engine does not respond (process {before}); it was killed, and a new one is starting"]
            await asyncio.to_thread(wait_until, lambda: is_gone(before))

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_client_that_comes_to_a_stopped_engine_starts_another(folder: Path) -> None:
    async def scenario(stopped_engine: Running) -> None:
        notes: list[str] = []
        age(stopped_engine.files)
        os.kill(stopped_engine.process.pid, signal.SIGSTOP)
        async with connect(options(interactive=False), on_message=notes.append) as engine:
            assert await answer(engine, text="x") == "x"
            assert await pid_of(engine) != stopped_engine.process.pid
        assert len(notes) == 1
        assert f"process {stopped_engine.process.pid}" in notes[0]

    with running() as stopped_engine:
        asyncio.run(asyncio.wait_for(scenario(stopped_engine), PATIENCE_S))


@pytest.mark.slow
@pytest.mark.parametrize("is_asked", [False, True])
def test_a_client_whose_event_loop_was_blocked_keeps_its_engine(folder: Path, is_asked: bool) -> None:
    async def scenario() -> None:
        notes: list[str] = []
        async with connect(options(), on_message=notes.append) as engine:
            before = await pid_of(engine)
            # Also while an answer is awaited.
            stop = gate(folder)
            filling = asyncio.ensure_future(answer(engine, gate=str(stop.path), text="x")) if is_asked else None
            while is_asked and not (await engine.info())["running"]:
                await asyncio.sleep(0.01)
            time.sleep(links.SILENCE_S + links.PING_EVERY_S)
            stop.let(3)
            if filling is not None:
                assert await filling == "x"
            assert await answer(engine, text="y") == "y"
            assert (await pid_of(engine), notes) == (before, [])

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.slow
def test_a_client_that_was_blocked_while_it_met_an_older_engine_does_not_kill_it(folder: Path) -> None:
    async def scenario(older: Running) -> None:
        asking = asyncio.ensure_future(links.ask_to_end(older.state))
        await asyncio.sleep(0)  # it has been sent, or is about to be
        time.sleep(links.SILENCE_S + links.PING_EVERY_S)
        assert await asking is True

    with running() as older:
        asyncio.run(asyncio.wait_for(scenario(older), PATIENCE_S))


def test_only_time_in_which_the_event_loop_runs_counts_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "TICK_S", 0.05)

    async def heard_after_a_block() -> bool:
        heard = asyncio.Event()
        async with links.Silence(0.2):
            asyncio.get_running_loop().call_later(0.01, heard.set)
            time.sleep(0.5)
            for _ in range(3):  # as many steps as a message takes through the layers of a connection
                await asyncio.sleep(0)
            await heard.wait()
        return True

    async def silent() -> None:
        async with links.Silence(0.2):
            await asyncio.Event().wait()

    async def reset() -> bool:
        async with links.Silence(0.2) as silence:
            for _ in range(8):
                await asyncio.sleep(0.1)
                silence.reset(0.2)
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


def test_an_overdue_request_is_cancelled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ANSWER_PATIENCE_S", 0.2)

    async def scenario() -> None:
        stop = gate(folder)
        async with connect(options()) as engine:
            # The step hangs, so that not even the request's own deadline ends it. The step must begin before the deadline.
            with pytest.raises(EngineError, match="the engine did not respond within 2 s; the request was cancelled"):
                await engine.fill(request({"gate": str(stop.path)}, ms=2000))
            assert isinstance(engine.state, Ready)
            stop.let(9)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_an_idle_old_engine_is_replaced_at_once(folder: Path) -> None:
    async def scenario(old: Running) -> None:
        async with connect(options()) as engine:
            assert await pid_of(engine) != old.process.pid
            assert engine.state == Ready(await pid_of(engine), discovery.current_build())

    with running() as old:
        disguise(old.files, "0.0.1")
        asyncio.run(asyncio.wait_for(scenario(old), PATIENCE_S))
        assert old.process.wait(PATIENCE_S) == 0


def test_an_old_engine_in_use_keeps_serving_is_reported_and_ends_when_idle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "OUTDATED_IDLE_S", 0.1)

    async def scenario(old: Running) -> None:
        notes: list[str] = []
        async with connect(options(), on_message=notes.append) as engine:
            assert await answer(engine, text="old") == "old"
            assert engine.state == Ready(old.process.pid, "0.0.1")
            assert len(notes) == 1
            assert "the running engine is from dg-lsp 0.0.1" in notes[0]
            other_leaves.set()
            # No process holds the lock now, not even this client, which is still open.
            assert await asyncio.to_thread(old.process.wait, PATIENCE_S) == 0
            assert await answer(engine, text="new") == "new"
            assert engine.state == Ready(await pid_of(engine), discovery.current_build())

    async def other(old: Running) -> None:
        async with connect(ConnectOptions(EngineId("toy", filler=FILLER))) as engine:
            await engine.ready()
            disguise(old.files, "0.0.1")
            other_is_there.set()
            await other_leaves.wait()

    async def both(old: Running) -> None:
        first = asyncio.ensure_future(other(old))
        await other_is_there.wait()
        await scenario(old)
        await first

    other_is_there, other_leaves = asyncio.Event(), asyncio.Event()
    with running() as old:
        asyncio.run(asyncio.wait_for(both(old), PATIENCE_S))


@pytest.mark.slow
def test_keys_that_cancel_each_other_while_a_killed_engine_restarts_do_not_keep_it_from_coming_up(folder: Path) -> None:
    async def scenario() -> None:
        states: list[State] = []
        async with connect(options(), on_state=states.append) as engine:
            for _ in range(3):
                assert await answer(engine, text="x") == "x"
                before = await pid_of(engine)
                os.kill(before, signal.SIGKILL)
                while isinstance(engine.state, Ready) and engine.state.pid == before:
                    await asyncio.sleep(0.001)
                while not isinstance(engine.state, Ready):
                    fill = asyncio.ensure_future(engine.fill(request()))
                    await asyncio.sleep(0.02)
                    fill.cancel()
                    await asyncio.wait((fill,))
            n_starts = sum(isinstance(state, Starting) for state in states)
            assert n_starts == 4
        (files,) = discovery.all_engine_files()
        assert files.log.read_text().count(" serves ") == 4

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
