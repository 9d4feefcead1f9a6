"""Clients that mean harm to the engine: they hold connections, never finish, and make it write its log full."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dg_lsp.engine.serve import daemon, endpoints
from dg_lsp.wire import discovery
from tests.engine.engine_kit import ROOT, engine_id, home, running, wait_until
from tests.patience import PATIENCE_S
from tests.processes import dg_lsp


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with home(monkeypatch) as path:
        yield path


@contextlib.contextmanager
def few_files(n: int) -> Iterator[None]:
    """Processes that are started within may open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (n, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_half_open_connections_reach_no_client_of_the_socket_and_fill_no_log(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        with few_files(256):
            engine = stack.enter_context(running())
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
        host, _, port = str(engine.info()["url"]).removeprefix("http://").partition(":")
        for _ in range(400):
            caller = stack.enter_context(socket.create_connection((host, int(port))))
            with contextlib.suppress(ConnectionError):
                caller.sendall(b"POST /infill HTTP/1.1\r\nHost: localhost\r\n")
        assert discovery.call(engine.state, "info").text("state") == "ready"
        n_open = len(list(Path(f"/proc/{engine.process.pid}/fd").iterdir()))
        assert n_open < 128
        assert engine.files.log.stat().st_size < 64 << 10


async def answer(request: Request) -> Response:
    await request.body()
    return PlainTextResponse("fine")


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """The port of a server with our connections."""
    app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    config = uvicorn.Config(app, port=0, http=endpoints.PortConnection, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([socket.create_server(("127.0.0.1", 0))],))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ANSWERED = b"HTTP/1.1 200 OK"


@pytest.mark.e2e
def test_the_port_has_few_connections_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_PORT_CONNECTIONS", 1)
    with serving() as port:
        with socket.create_connection(("127.0.0.1", port)) as first:
            first.sendall(GET)
            assert first.recv(len(ANSWERED)) == ANSWERED
            with socket.create_connection(("127.0.0.1", port)) as second:
                assert is_closed(second)
        wait_until(lambda: not endpoints.PortConnection.all_open)
        with socket.create_connection(("127.0.0.1", port)) as other:
            other.sendall(GET)
            assert other.recv(len(ANSWERED)) == ANSWERED


def is_closed(caller: socket.socket) -> bool:
    """Wait until the other side closes; fail when that never happens."""
    caller.settimeout(PATIENCE_S)
    with contextlib.suppress(ConnectionResetError):
        while caller.recv(4096):
            pass
    return True


@pytest.mark.parametrize("request_bytes", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", GET, GET + GET[:9]])
def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, request_bytes: bytes) -> None:
    monkeypatch.setattr(endpoints, "HEAD_S", 0.05)
    with serving() as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(request_bytes)
        assert is_closed(caller)


def test_a_byte_now_and_then_wins_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "HEAD_S", 0.3)
    with serving() as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.settimeout(0.02)
        with contextlib.suppress(ConnectionError):
            for _ in range(1_500):
                caller.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    if not caller.recv(9):
                        return
            pytest.fail("it was listened to all the while")


def test_the_time_ends_when_a_request_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "HEAD_S", 0.05)
    with serving() as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx")
        with socket.create_connection(("127.0.0.1", port)) as idle:
            assert is_closed(idle)  # the time of the other has passed too
        caller.sendall(b"12345678")
        assert caller.recv(len(ANSWERED)) == ANSWERED


# --- The log ----------------------------------------------------------------------------------------------------------


def test_lines_that_are_alike_are_written_seldom_and_counted() -> None:
    now = [0.0]
    seldom = daemon.Seldom(lambda: now[0])

    def written(message: str) -> str:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 0, message, (), None)
        return record.getMessage() if seldom.filter(record) else ""

    alike = [written(f"socket.accept() out of system resource for good, number {number}") for number in range(1_000)]
    assert sum(map(bool, alike)) == daemon.MAX_ALIKE
    assert written("something else") == "something else"
    now[0] = daemon.ALIKE_S
    assert written("socket.accept() out of system resource for good") == (
        "socket.accept() out of system resource for good (980 similar lines were omitted)"
    )


@pytest.mark.e2e
def test_the_log_is_bounded_while_it_is_written_and_private(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process of its own, since it gives its standard error away.
    source = """
import logging, os, sys
from dg_lsp.engine.serve import daemon
from dg_lsp.wire import discovery
discovery.MAX_LOG_BYTES = 20_000
os.umask(0)
files = discovery.engine_files(discovery.EngineId(model="toy", filler=""))
daemon.write_to(files, detached=True)
for number in range(2_000):
    logging.getLogger("x").info(f"{number} %s", f"line {number} " + "x" * 90)
sys.stderr.write("last words of the interpreter\\n")
sys.stderr.flush()
"""
    subprocess.run([sys.executable, "-c", source], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
    log = discovery.engine_files(engine_id(filler="")).log
    paths = sorted(path for path in log.parent.iterdir() if ".log" in path.name)
    assert [path.name for path in paths] == [log.name, log.name + ".1"]
    assert all(path.stat().st_size <= 20_200 for path in paths)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
    assert "line 1999" in paths[0].read_text()
    assert "last words of the interpreter" in paths[0].read_text()


# --- The token --------------------------------------------------------------------------------------------------------


def test_a_short_token_is_refused_and_says_how_to_make_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_LSP_ENGINE_TOKEN", "x" * 15)
    assert (
        dg_lsp("engine", "run", "--model=toy", code=2)
        .stderr.strip()
        .endswith(
            "DG_LSP_ENGINE_TOKEN must have at least 16 characters; "
            "create one with `python3 -c 'import secrets; print(secrets.token_hex(32))'`"
        )
    )
