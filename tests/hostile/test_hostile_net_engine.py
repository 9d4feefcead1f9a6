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

from dg_lsp.engine.serve import app as routes
from dg_lsp.engine.serve import daemon
from dg_lsp.engine.serve.app import Budget, Budgets
from dg_lsp.wire import discovery
from tests.engine.engine_kit import ROOT, body, engine_id, home, post, running, wait_until
from tests.patience import PATIENCE_S


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
def test_half_open_connections_lock_nobody_out_and_fill_no_log(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        with few_files(256):
            engine = stack.enter_context(running("--port=0"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
        url = str(engine.info()["url"])
        host, _, port = url.removeprefix("http://").partition(":")
        for _ in range(400):
            caller = stack.enter_context(socket.create_connection((host, int(port))))
            caller.sendall(b"POST /v1/infill HTTP/1.1\r\nHost: localhost\r\n")
        # The front ends' socket has its own budget; the port closes idle connections for clients that send requests.
        assert post(engine.http, body())
        with socket.create_connection((host, int(port))) as other:
            head = f"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {engine.state.token}\r\n\r\n"
            other.sendall(head.encode())
            assert other.recv(15) == b"HTTP/1.1 200 OK"
        n_open = len(list(Path(f"/proc/{engine.process.pid}/fd").iterdir()))
        assert n_open < 128
        assert engine.files.log.stat().st_size < 64 << 10


def test_the_socket_s_own_clients_do_not_lock_each_other_out(folder: Path) -> None:
    with few_files(256), contextlib.ExitStack() as stack:
        engine = stack.enter_context(running())
        for _ in range(150):
            caller = stack.enter_context(socket.socket(socket.AF_UNIX))
            caller.connect(engine.state.address)
        assert post(engine.http, body())


async def answer(request: Request) -> Response:
    await request.body()
    return PlainTextResponse("fine")


@contextlib.contextmanager
def serving(budgets: Budgets, *others: socket.socket) -> Iterator[int]:
    """The port of a server within these budgets, which listens on the other sockets too."""
    app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    config = uvicorn.Config(app, port=0, http=routes.within(budgets), log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([socket.create_server(("127.0.0.1", 0)), *others],))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


def test_busy_connections_of_the_port_take_no_room_from_the_socket(tmp_path: Path) -> None:
    budgets = Budgets(Budget(1), Budget(1))
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as front_end:
        listener.bind(str(tmp_path / "s"))
        with serving(budgets, listener) as port, socket.create_connection(("127.0.0.1", port)) as caller:
            caller.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx")
            wait_until(lambda: any(member.is_busy for member in budgets.port.members))
            front_end.connect(str(tmp_path / "s"))
            front_end.sendall(GET)
            assert front_end.recv(15) == b"HTTP/1.1 200 OK"
            assert [len(budget.members) for budget in (budgets.unix, budgets.port)] == [1, 1]


def test_a_request_has_ten_seconds_for_its_headers_and_thirty_for_its_body() -> None:
    budgets = Budgets(Budget(9), Budget(9))

    def rest_s() -> float | None:
        """Return how many seconds the only connection has left when its timer is set, None without a timer."""
        for member in list(budgets.port.members):
            if timer := member._timer:
                return timer.when() - member.loop.time()
        return None

    with serving(budgets) as port, socket.create_connection(("127.0.0.1", port)) as caller:
        assert 0 < wait_until(rest_s) <= 10
        caller.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx")
        wait_until(lambda: any(member._phase == "body" for member in budgets.port.members))
        assert 0 < wait_until(rest_s) <= 30


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def is_closed(caller: socket.socket) -> bool:
    """Wait until the other side closes; fail when that never happens."""
    caller.settimeout(PATIENCE_S)
    with contextlib.suppress(ConnectionResetError):
        while caller.recv(4096):
            pass
    return True


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        GET + GET[:9],
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx",
    ],
)  # fmt: skip
def test_a_request_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, request_bytes: bytes) -> None:
    monkeypatch.setattr(routes, "HEAD_S", 0.05)
    monkeypatch.setattr(routes, "BODY_S", 0.05)
    with serving(Budgets(Budget(9), Budget(9))) as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(request_bytes)
        assert is_closed(caller)


def test_a_byte_now_and_then_wins_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "HEAD_S", 0.3)
    with serving(Budgets(Budget(9), Budget(9))) as port, socket.create_connection(("127.0.0.1", port)) as caller:
        caller.settimeout(0.02)
        with contextlib.suppress(ConnectionError):
            for _ in range(1_500):
                caller.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    if not caller.recv(9):
                        return
            pytest.fail("it was listened to all the while")


def test_between_requests_a_client_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = Budgets(Budget(9), Budget(1))
    with serving(budgets) as port, socket.create_connection(("127.0.0.1", port)) as caller:
        for _ in range(2):
            caller.sendall(GET)
            reply = b""
            while not reply.endswith(b"fine"):
                reply += caller.recv(4096)
            assert reply.startswith(b"HTTP/1.1 200 OK")
            wait_until(lambda: all(member._timer is None for member in budgets.port.members))
        # It makes room for the next one all the same.
        with socket.create_connection(("127.0.0.1", port)) as other:
            other.sendall(GET)
            assert other.recv(15) == b"HTTP/1.1 200 OK"
        assert is_closed(caller)


def test_a_busy_connection_makes_no_room() -> None:
    class Member:
        def __init__(self, *, is_busy: bool, is_new: bool = False) -> None:
            self.is_busy, self.is_new, self.dropped = is_busy, is_new, ""

        def drop(self, why: str) -> None:
            self.dropped = why

    busy, idle, new = Member(is_busy=True), Member(is_busy=False), Member(is_busy=True)
    budget = Budget(2)
    assert budget.admit(busy)  # type: ignore[arg-type]
    assert budget.admit(idle)  # type: ignore[arg-type]
    assert budget.admit(new)  # type: ignore[arg-type]
    assert idle.dropped
    assert not budget.admit(Member(is_busy=False))  # type: ignore[arg-type]
    assert not busy.dropped
    idle.dropped = ""
    # Who has asked before stays rather than who never did.
    budget = Budget(2, {idle: None, (silent := Member(is_busy=False, is_new=True)): None})  # type: ignore[dict-item]
    assert budget.admit(new)  # type: ignore[arg-type]
    assert silent.dropped
    assert not idle.dropped


def test_budgets_leave_most_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (64, 256, 1024, 1 << 20, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, n=n: (n, n))
        budgets = Budgets.for_process()
        limit = 1024 if n == resource.RLIM_INFINITY else n
        assert 0 < budgets.port.limit + budgets.unix.limit <= limit // 2


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
    run = subprocess.run(
        [sys.executable, "-m", "dg_lsp.engine.commands", "run", "--model=toy"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.strip().endswith(
        "DG_LSP_ENGINE_TOKEN must have at least 16 characters; "
        "create one with `python3 -c 'import secrets; print(secrets.token_hex(32))'`"
    )
