"""The client against real engine processes around the toy model: joined, started, shared, killed, and told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from dg_lsp import OUT_OF_MEMORY
from dg_lsp.client import link as links
from dg_lsp.client.engine import BUSY_PATIENCE_S, ConnectOptions, EngineClient, connect
from dg_lsp.client.life import LifeState
from dg_lsp.client.port import Engine, EngineBusyError, EngineError
from dg_lsp.core import confidence
from dg_lsp.core.values import Candidate
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId, EngineSettings
from tests.engine.engine_kit import FILLER, gate, request, running, wait_until
from tests.fakes import ReadyEngine, connecting
from tests.patience import PATIENCE_S
from tests.processes import is_gone

pytestmark = pytest.mark.e2e


def options(model: str = "toy", *, interactive: bool = True, autostart: bool = True) -> ConnectOptions:
    command = ENGINE_COMMAND if autostart else ()
    return ConnectOptions(
        EngineId(model, filler=FILLER), EngineSettings(exit_after_s=60), interactive=interactive, command=command
    )


@contextlib.asynccontextmanager
async def unconnected(
    options: ConnectOptions, on_state: Callable[[LifeState], None] = lambda _state: None
) -> AsyncIterator[EngineClient]:
    """Yield a client that its first request connects."""
    engine = EngineClient(options, on_state, lambda _sentence: None)
    try:
        yield engine
    finally:
        await engine.close()


async def until(check: Callable[[], Awaitable[object]]) -> None:
    """Wait until a check holds; fail when patience ends."""
    async with asyncio.timeout(PATIENCE_S):
        while not await check():
            await asyncio.sleep(0.01)


async def info(engine: EngineClient, name: str) -> object:
    return (await engine.info())[name]


async def has(engine: EngineClient, name: str, value: object) -> bool:
    return await info(engine, name) == value


async def text(engine: Engine, **script: object) -> str:
    return (await engine.fill(request(script)))[0].texts[0]


def pids() -> set[int]:
    """Engines that run."""
    states = [discovery.read_state(files) for files in discovery.all_engine_files()]
    return {state.pid for state in states if state is not None and not is_gone(state.pid)}


async def test_the_engine_needs_neither_certificates_nor_proxies(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"):
        monkeypatch.setenv(name, "/nonexistent/keys")
    monkeypatch.setenv("NO_PROXY", "localhost,[::1],fe80::/10")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "gopher://[")
    async with connect(options()) as engine:
        assert await text(engine, text="return 1") == "return 1"
        report = discovery.inspect_engine(discovery.engine_files(options().engine_id))
        assert report.info is not None
        assert report.info.integer("leases", 0) == 1
        assert report.state is not None
        assert await links.ask_to_end(report.state) is False


@pytest.mark.smoke
async def test_an_engine_is_started_watched_while_it_loads_and_left_running(engines: Path) -> None:
    states: list[LifeState] = []
    own = replace(options(), settings=EngineSettings(threads=5, exit_after_s=60))
    async with connect(own, on_state=states.append) as engine:
        assert await text(engine, text="return 1") == "return 1"
        assert [await info(engine, name) for name in ("state", "leases", "threads")] == ["ready", 1, 5]
        assert engine.state == LifeState("ready")
        assert states[0] == LifeState("starting", "starting the engine with model toy")
        assert states[-1] == engine.state
    async with connect(options(autostart=False)) as again:
        assert await text(again, text="x") == "x"
    assert len(pids()) == 1


@pytest.mark.smoke
async def test_a_client_without_a_command_starts_no_engine(engines: Path) -> None:
    with pytest.raises(EngineError, match="no engine is running, and this client may not start one"):
        async with connect(options(autostart=False)):
            pass
    assert pids() == set()


async def test_all_of_a_request_and_its_candidates_pass(engines: Path) -> None:
    async with connect(options()) as engine:
        candidates = await engine.fill(request({"steps": 2, "text": "né\u2028\U0001f40d"}, n=3))
        assert [candidate.texts for candidate in candidates] == [("né\u2028\U0001f40d",)] * 3
        assert [confidence.probability(candidate.confidence) for candidate in candidates] == [0.9, 0.89, 0.88]
        late = await engine.fill(request({"steps": 10_000, "pause_s": 0.005}, ms=50))
        assert [candidate.finished for candidate in late] == [False]


async def test_a_running_engine_prepares_and_none_is_started_for_it(engines: Path) -> None:
    seen = engines / "seen"
    async with unconnected(options()) as engine:
        await engine.prepare(request({"expected": str(seen)}))
        assert pids() == set()
        await engine.ready()
        await engine.prepare(request({"expected": str(seen)}))

        async def is_seen() -> bool:
            return seen.exists()

        await until(is_seen)


async def test_drafts_arrive_before_the_answer(engines: Path) -> None:
    drafts: list[tuple[tuple[str, ...], int]] = []
    async with connect(options()) as engine:
        await engine.fill(request({"steps": 2}), on_draft=lambda texts, step: drafts.append((texts, step)))
    assert drafts == [(("draft 1",), 1)]


async def test_a_cancelled_fill_stops_the_engine(engines: Path) -> None:
    journal = engines / "journal"
    script = {"steps": 10_000_000, "pause_s": 0.002, "journal": str(journal), "name": "x"}
    async with connect(options()) as engine:
        filling = asyncio.ensure_future(engine.fill(request(script)))
        await until(lambda: asyncio.to_thread(journal.exists))
        filling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await filling
        await until(lambda: is_idle(engine))
        n_steps = len(journal.read_text())
        assert await text(engine, text="x") == "x"
        assert len(journal.read_text()) == n_steps


async def is_idle(engine: EngineClient) -> bool:
    engine_info = await engine.info()
    return (engine_info["running"], engine_info["waiting"]) == (0, 0)


def test_two_processes_that_start_at_the_same_moment_share_one_engine(engines: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId\n"
        "from dg_lsp.client.engine import ConnectOptions, connect\n"
        "async def main():\n"
        f"    async with connect(ConnectOptions(EngineId('toy', filler={FILLER!r}), command=ENGINE_COMMAND)) as engine:\n"
        "        print((await engine.info())['pid'])\n"
        "asyncio.run(main())\n"
    )

    async def scenario() -> list[bytes]:
        starters = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE) for _ in range(3)
        ]
        return [(await starter.communicate())[0] for starter in starters]

    results = asyncio.run(scenario())
    assert [int(pid) for pid in results] == [next(iter(pids()))] * 3


async def test_a_kill_under_a_hundred_requests_leaves_all_answered_and_nothing_behind(engines: Path) -> None:
    stop = gate(engines)
    async with connect(options(interactive=False)) as engine:
        killed_pid = await info(engine, "pid")
        assert isinstance(killed_pid, int)
        script: dict[str, object] = {"steps": 2, "gate": str(stop.path)}
        filling = [asyncio.ensure_future(engine.fill(request(script))) for _ in range(100)]
        await until(lambda: info(engine, "waiting"))
        os.kill(killed_pid, signal.SIGKILL)
        stop.let(2)
        answers = await asyncio.gather(*filling, return_exceptions=True)
        assert all(isinstance(answer, tuple | EngineError) for answer in answers)
        assert sum(isinstance(answer, tuple) for answer in answers) >= 90
        assert await text(engine, text="next") == "next"
    (pid,) = pids()
    assert sorted(path.suffix for path in engines.iterdir() if path.name != "gate") == [".json", ".lock", ".log", ".sock"]
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: is_gone(pid))
    assert [path.suffix for path in engines.iterdir() if path.name != "gate"] == [".log"]


def started(engines: Path) -> set[int]:
    """Processes that were started to be engines here, also those that do not respond yet: their working engines is this one."""
    pids = set()
    for cwd in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if cwd.samefile(engines) and not is_gone(int(cwd.parent.name)):
                pids.add(int(cwd.parent.name))
    return pids


async def test_a_start_goes_on_when_the_fill_that_needed_it_is_cancelled(engines: Path) -> None:
    files = discovery.engine_files(options().engine_id)
    async with unconnected(options()) as engine:
        fill = asyncio.ensure_future(engine.fill(request()))
        await until(lambda: asyncio.to_thread(started, engines))
        assert not files.state.exists(), "the engine is up too soon for this test"
        fill.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fill
        assert await text(engine, text="x") == "x"
        assert started(engines) == {await info(engine, "pid")}
    log = files.log.read_text()
    assert (log.count(" serves "), log.count("already running")) == (1, 0)


async def test_a_failed_start_without_a_waiting_request_logs_no_error(engines: Path) -> None:
    complaints: list[object] = []

    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    async with unconnected(options("fails")) as engine:
        fill = asyncio.ensure_future(engine.fill(request()))
        await until(lambda: asyncio.to_thread(started, engines))
        fill.cancel()
        await asyncio.wait([fill])
        # Another one asks once that start has failed, and is told.
        await until(lambda: asyncio.to_thread(lambda: not started(engines)))
        with pytest.raises(EngineError, match="could not be loaded"):
            await engine.fill(request())
    gc.collect()
    assert complaints == []


async def test_a_client_that_was_closed_holds_nothing_and_starts_nothing(engines: Path) -> None:
    stop = gate(engines)
    async with connect(options()) as other:
        async with connect(options()) as engine:
            filling = asyncio.ensure_future(engine.fill(request({"gate": str(stop.path)})))
            await until(lambda: info(other, "running"))
        with pytest.raises(EngineError, match="the connection to the engine was closed"):
            await asyncio.wait_for(filling, PATIENCE_S)
        with pytest.raises(EngineError, match="the connection to the engine was closed"):
            await engine.fill(request())
        # The engine sees a moment later than the client that a connection has ended.
        await until(lambda: has(other, "leases", 1))
        stop.let(9)


async def test_a_cancellation_while_closing_a_link_is_raised(engines: Path) -> None:
    files = discovery.engine_files(options().engine_id)
    async with connect(options()) as engine:
        await engine.ready()
        state = discovery.read_state(files)
        assert state is not None
        link = await links.reach(state, lambda _: None)
        assert link is not None
        closing = asyncio.ensure_future(link.close())
        await asyncio.sleep(0)  # it waits for its lease to end by now
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await link.close()


async def test_a_state_file_of_another_kind_or_user_ends_the_wait_at_once(engines: Path) -> None:
    with running() as other:
        away = other.files.state.rename(engines / "away.json")
        other.files.state.symlink_to(away)  # as one of another user, it is refused
        with pytest.raises(EngineError, match=r"\.json is not a regular file of this user; remove it"):
            async with connect(options()):
                pass
        assert started(engines) == set()


async def test_an_engine_started_by_another_client_is_used(engines: Path) -> None:
    with running() as other:
        meanwhile = other.files.state.rename(engines / "away.json")
        async with unconnected(options()) as engine:
            filling = asyncio.ensure_future(engine.fill(request({"text": "x"})))
            await until(lambda: asyncio.to_thread(started, engines))
            [ours] = started(engines)
            os.kill(ours, signal.SIGSTOP)  # whatever becomes of it, it does not come up
            try:
                meanwhile.rename(other.files.state)
                assert (await asyncio.wait_for(filling, PATIENCE_S))[0].texts == ("x",)
                assert await info(engine, "pid") == other.process.pid
            finally:
                os.kill(ours, signal.SIGCONT)
        await asyncio.to_thread(wait_until, lambda: is_gone(ours))


async def test_a_request_that_kills_each_engine_is_given_up_and_then_the_breaker_opens(engines: Path) -> None:
    async with connect(options()) as engine:
        with pytest.raises(EngineError, match=r"the engine ended while it was answering, twice; the end of its log:\n  "):
            await engine.fill(request({"die": signal.SIGKILL}))
        with pytest.raises(
            EngineError,
            match=r"the engine crashed 3 times; the next request after 5 min starts it again; the end of its log:",
        ):
            await engine.fill(request({"die": signal.SIGKILL}))
        with pytest.raises(EngineError, match="the engine crashed 3 times"):
            await engine.fill(request())
    # A process that was killed takes a moment to be gone.
    wait_until(lambda: pids() == set())
    (files,) = discovery.all_engine_files()
    assert files.log.read_text().count(" serves ") == 3


@pytest.mark.parametrize(
    "words",
    [
        "OpenBLAS error: Memory allocation still failed after 10 retries, giving up.",
        "memory allocation of 1048576 bytes failed",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
    ],
)
async def test_a_library_without_memory_that_ends_the_engine_is_told_as_that(engines: Path, words: str) -> None:
    command = (sys.executable, "-c", f"import sys; sys.exit({words!r})")
    async with unconnected(ConnectOptions(EngineId("toy", filler=FILLER, device="auto"), command=command)) as engine:
        with pytest.raises(EngineError, match=rf"the engine crashed 3 times; [^;]*; {OUT_OF_MEMORY}$"):
            await engine.ready()


async def test_an_engine_that_can_not_even_start_shows_its_log(engines: Path) -> None:
    options = ConnectOptions(EngineId("toy", filler=FILLER, device="auto"), EngineSettings(threads=-1), command=ENGINE_COMMAND)
    async with unconnected(options) as engine:
        with pytest.raises(EngineError, match=r"the engine crashed 3 times(.|\n)*threads"):
            await engine.ready()


async def test_a_bad_request_does_not_affect_others(engines: Path) -> None:
    async with connect(options()) as engine:
        before = await info(engine, "pid")
        with pytest.raises(EngineError, match="the prefix is longer than the model's window"):
            await engine.fill(request({"raise": "ValueError"}))
        with pytest.raises(EngineError, match="the message is larger than 2 MB"):
            await engine.fill(request({"text": "x" * 3_000_000}))
        assert await text(engine, text="x") == "x"
        assert await info(engine, "pid") == before


async def test_a_busy_engine_fails_interactive_requests_and_delays_batch_work(engines: Path) -> None:
    stop = gate(engines)
    async with connect(options()) as typing, connect(options(interactive=False)) as batch:
        script = {"steps": 1, "gate": str(stop.path)}
        filling = [asyncio.ensure_future(batch.fill(request(script))) for _ in range(70)]
        await until(lambda: info(batch, "running"))
        fills = [asyncio.ensure_future(typing.fill(request(script))) for _ in range(70)]
        finished_fills, _ = await asyncio.wait(fills, return_when=asyncio.FIRST_COMPLETED)
        assert all(isinstance(one.exception(), EngineBusyError) for one in finished_fills)
        stop.let(1)
        assert all(await asyncio.gather(*filling))
        await asyncio.wait(fills)
        assert [one.exception() for one in fills].count(None) > 0


async def test_a_server_s_pause_is_kept_and_no_failure(engines: Path) -> None:
    async with connect(options()) as typing:
        with pytest.raises(EngineBusyError, match="no requests until") as raised:
            await typing.fill(request({"raise": "PausedError"}))
        assert raised.value.retry_s == 6.5
        assert (typing.state.name, typing.trouble()) == ("ready", "it gets no requests until 12:00:00")
        assert await text(typing, text="x") == "x"
        assert typing.trouble() == ""


async def test_batch_work_waits_for_the_end_of_a_short_pause() -> None:
    class Pausing(ReadyEngine):
        pauses_s: ClassVar = [0.01, BUSY_PATIENCE_S]

        async def fill(self, *_: object, **__: object) -> tuple[Candidate, ...]:
            if self.pauses_s:
                raise EngineBusyError("no requests", self.pauses_s.pop(0))
            return ()

    engine = EngineClient(
        ConnectOptions(interactive=False), lambda _: None, lambda _: None, connector=connecting(lambda _: Pausing())
    )
    with pytest.raises(EngineBusyError):
        await engine.fill(request())
    assert Pausing.pauses_s == []
    assert await engine.fill(request()) == ()
    await engine.close()


@pytest.mark.parametrize("has_socket", [False, True])
async def test_leftovers_of_another_build_do_not_block_a_start(engines: Path, has_socket: bool) -> None:
    files = discovery.engine_files(options().engine_id)
    # The engine's process id may be another's by now.
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as other:
        address = str(discovery.socket_path(files))
        if has_socket:
            with socket.socket(socket.AF_UNIX) as leftover_socket:
                leftover_socket.bind(address)
        discovery.write_state(files, discovery.State(other.pid, address, "secret", "0", options().engine_id))
        async with connect(options()) as engine:
            assert await text(engine, text="x") == "x"
    assert len(pids()) == 1


@pytest.mark.parametrize("left", [None, "", "{"])
async def test_an_engine_whose_state_file_was_removed_or_damaged_is_found_by_new_clients(
    engines: Path, left: str | None
) -> None:
    async with connect(options()) as engine:
        state = discovery.engine_files(options().engine_id).state
        state.unlink() if left is None else state.write_text(left)
        async with connect(options()) as other:
            assert await text(other, text="x") == "x"
            assert await info(other, "pid") == await info(engine, "pid")


async def test_a_runtime_folder_with_a_path_too_long_for_sockets_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "temporary"):
        (tmp_path / (name * 20)).mkdir(mode=0o700)
    monkeypatch.setenv(discovery.RUNTIME_DIR_VARIABLE, str(tmp_path / ("run" * 20)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("temporary" * 20)))
    with pytest.raises(EngineError) as error:
        async with connect(options()):
            pass
    folders = f"{tmp_path}/{'run' * 20} and {tmp_path}/{'temporary' * 20}"
    assert str(error.value).startswith(f"the paths of {folders} are too long for the engine's socket; set DG_LSP_RUNTIME_DIR")


async def test_a_running_engine_takes_other_settings(engines: Path) -> None:
    async with connect(options()) as engine:
        assert engine.options is not None
        pid = await info(engine, "pid")
        for threads in (3, 0):
            settings = replace(engine.options.settings, threads=threads, unload_after_s=7.0)
            assert not engine.use(replace(engine.options, settings=settings))
            await until(partial(has, engine, "threads", threads))
        assert await has(engine, "unload_after_s", 7.0)
        assert await has(engine, "pid", pid)


async def _said(messages: list[str]) -> bool:
    return bool(messages)


async def test_a_running_engine_takes_what_an_editor_has_chosen_and_a_command_is_told_what_it_keeps(engines: Path) -> None:
    messages: list[str] = []
    async with connect(options()):
        for is_interactive, threads in ((False, 0), (True, 3), (False, 3)):
            chosen = options(interactive=is_interactive)
            chosen = replace(chosen, settings=replace(chosen.settings, threads=3))
            async with connect(chosen, on_message=messages.append) as other:
                await until(partial(has, other, "threads", threads))
                await until(partial(_said, messages))
        assert messages == [
            "the running engine keeps its settings (threads = 0, not 3); to change them: dg-lsp engine start --model toy"
        ]
        async with connect(options()) as other:
            assert await has(other, "threads", 3)


async def test_a_restart_ends_the_process_and_other_clients_go_on_with_the_new_one(engines: Path) -> None:
    async with connect(options()) as engine, connect(options()) as other:
        pid = await info(engine, "pid")
        assert isinstance(pid, int)
        await engine.restart()
        assert await text(engine, text="x") == "x"
        assert await text(other, text="y") == "y"
        assert await info(engine, "pid") == await info(other, "pid") != pid
        await asyncio.to_thread(wait_until, partial(is_gone, pid))


async def test_a_planned_end_does_not_count_as_a_crash(engines: Path) -> None:
    async with connect(options()) as engine:
        for _ in range(4):
            pid = await info(engine, "pid")
            assert isinstance(pid, int)
            os.kill(pid, signal.SIGTERM)
            await asyncio.to_thread(wait_until, partial(is_gone, pid))
            assert await text(engine, text="x") == "x"


async def test_a_thousand_cancelled_fills_leave_the_engine_as_it_was(engines: Path) -> None:
    rng = random.Random(3)

    async def one(engine: EngineClient) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            # Many end while they are sent.
            await asyncio.wait_for(engine.fill(request({"steps": 50, "pause_s": 0.001})), 0.05 * rng.random() ** 2)

    async with connect(options(interactive=False)) as engine:
        for n_left in range(1000, 0, -20):
            await asyncio.gather(*(one(engine) for _ in range(20)))
            if n_left == 800:  # warm
                await until(lambda: is_idle(engine))
                pid = int(str(await info(engine, "pid")))
                memory_before, kept_before, own_before = await memory(engine), kept(pid), kept(os.getpid())
        await until(lambda: is_idle(engine))
        assert await memory(engine) <= 1.05 * memory_before
        await until(lambda: is_at_most(pid, kept_before))
        await until(lambda: is_at_most(os.getpid(), own_before))
        assert await text(engine, text="x") == "x"


def kept(pid: int) -> tuple[int, int]:
    """The open files and the threads of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), len(list(Path(f"/proc/{pid}/task").iterdir()))


async def is_at_most(pid: int, files_and_threads: tuple[int, int]) -> bool:
    return all(now <= before for now, before in zip(kept(pid), files_and_threads, strict=True))


async def memory(engine: EngineClient) -> int:
    engine_info = await info(engine, "memory")
    assert isinstance(engine_info, dict)
    return int(engine_info["rss_bytes"])
