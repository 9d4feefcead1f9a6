"""The engine's socket: what our clients may send on it, and what becomes of those that send something else or read nothing."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dg_lsp.client import link as links
from dg_lsp.client.engine import ConnectOptions, connect
from dg_lsp.client.port import EngineError
from dg_lsp.wire import discovery, stream
from dg_lsp.wire.discovery import EngineId
from dg_lsp.wire.messages import MAX_BODY_BYTES, PROTOCOL, Ask, WireError
from dg_lsp.wire.stream import Message
from tests.engine.engine_kit import FILLER, Running, home, request, running, wait_until
from tests.patience import PATIENCE_S
from tests.processes import dg_lsp

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as monkeypatch, home(monkeypatch), running() as process:
        yield process


@contextlib.contextmanager
def connected(engine: Running) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(engine.state.address)  # without a timeout, this waits for its turn
        caller.settimeout(PATIENCE_S)
        yield caller


def answer(engine: Running, *lines: bytes) -> list[tuple[str, str]]:
    """Send lines, and return the name of each message that comes until the engine closes, and an error's sentence."""
    received = b""
    with connected(engine) as caller:
        with contextlib.suppress(ConnectionError):  # it may close before all was sent
            caller.sendall(b"".join(lines))
        with contextlib.suppress(ConnectionError):
            while part := caller.recv(65536):
                received += part
    messages = [stream.decode(line) for line in received.splitlines(keepends=True)]
    return [(each.name, each.fields.get("error", {}).get("message", "")) for each in messages]


NOT_OURS = "the other side of the socket does not send messages of dg-lsp"
NO_TOKEN = "the first message must be `hello` with this engine's token"
TOO_LONG = "the message is larger than 2 MB"
BAD_STARTS = {
    "a request of HTTP": (b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n", NOT_OURS),
    "no text": (b"\xff\xfe\n", NOT_OURS),
    "another value": (b"[]\n", NOT_OURS),
    "fields of another kind": (b'{"name": "hello", "fields": 3}\n', "fields must be an object, but is a number"),
    "deep": (b"[" * 100_000 + b"\n", NOT_OURS),
    "another token": (stream.hello("wrong", uses=True), NO_TOKEN),
    "a token outside ASCII": (stream.hello("é", uses=True), NO_TOKEN),
    "no token": (b'{"name": "hello"}\n', NO_TOKEN),
    "a request first": (stream.encode(Message("shutdown", {"when": "now"}, 1)), NO_TOKEN),
    "no end": (b"x" * (2 * MAX_BODY_BYTES + 1), TOO_LONG),
}


@pytest.mark.parametrize("start", BAD_STARTS)
def test_what_is_no_greeting_of_ours_is_refused_and_has_no_effect(engine: Running, start: str) -> None:
    sent, sentence = BAD_STARTS[start]
    assert answer(engine, sent) == [("error", sentence)]
    assert engine.info()["leases"] == 0


def test_info_describes_the_running_engine(engine: Running) -> None:
    info = engine.info()
    assert {name: info[name] for name in ("pid", "state", "model", "device", "dtype", "leases", "protocol")} == {
        "pid": engine.process.pid,
        "state": "ready",
        "model": "toy",
        "device": "toy",
        "dtype": "int8",
        "leases": 0,
        "protocol": PROTOCOL,
    }
    assert info["memory"]["rss_bytes"] > 0  # type: ignore[index]


def test_settings_apply_to_a_running_engine(engine: Running) -> None:
    before = {name: engine.info()[name] for name in ("threads", "unload_after_s", "exit_after_s")}
    changed = {"threads": 3, "unload_after_s": 1234.0, "exit_after_s": 4321.0}
    for settings in ({**changed, "exit_after_s": before["exit_after_s"]}, {"exit_after_s": 4321}, changed, before):
        answer = discovery.call(engine.state, "settings", settings).values
        assert {name: engine.info()[name] for name in settings} == settings
        assert settings.items() <= answer.items()


def test_a_malformed_line_after_the_greeting_ends_the_connection(engine: Running) -> None:
    assert answer(engine, stream.hello(engine.state.token, uses=True), b"{\n") == [("state", ""), ("error", NOT_OURS)]
    wait_until(lambda: engine.info()["leases"] == 0)


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("nothing", {}, "there is no request 'nothing'"),
        ("infill", {"request": "x"}, "request must be an object"),
        ("settings", {"threads": -1}, "threads must be at least 0"),
        ("shutdown", {"when": 3}, "when must be a string"),
    ],
)
def test_a_wrong_request_is_refused_alone(engine: Running, name: str, fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        discovery.call(engine.state, name, fields)
    assert engine.info()["state"] == "ready"


def test_two_thousand_damaged_requests_do_no_harm(engine: Running) -> None:
    rng = random.Random(7)
    whole = stream.encode(Message("infill", Ask(request()), 1))
    for _ in range(200):
        lines = []
        for _ in range(10):
            content = bytearray(whole[:-1])
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(content))
                content[at : at + rng.randint(0, 9)] = rng.randbytes(rng.randint(0, 6))
            lines.append(bytes(content) + b"\n")
        with connected(engine) as caller, contextlib.suppress(ConnectionError):
            caller.sendall(stream.hello(engine.state.token, uses=False) + b"".join(lines))
    wait_until(lambda: engine.info()["running"] == engine.info()["waiting"] == 0)


def test_a_client_that_reads_nothing_holds_only_itself_up(engine: Running) -> None:
    call = stream.encode(Message("info", {}, 1))
    with connected(engine) as caller:
        caller.sendall(stream.hello(engine.state.token, uses=True))
        caller.setblocking(False)
        n_sent = 0
        with contextlib.suppress(BlockingIOError):
            while n_sent < 100 * MAX_BODY_BYTES:
                n_sent += caller.send(call * 1000)
        assert engine.info()["leases"] == 1
    assert n_sent < 100 * MAX_BODY_BYTES, "the engine reads on though its answers are not read"
    wait_until(lambda: engine.info()["leases"] == 0)


def test_a_look_at_the_engine_is_no_use_of_it(engines: Path) -> None:
    with running("--exit-after=1") as looked_at, contextlib.suppress(OSError):
        while looked_at.process.poll() is None:
            looked_at.info()
    assert "the engine is not in use" in "\n".join(discovery.log_tail(looked_at.files, 9))


async def test_a_listener_that_is_no_engine_is_one_sentence(engines: Path) -> None:
    """As one of an older protocol would be, which speaks HTTP; its name differs, so that clients don't meet it."""
    files = discovery.engine_files(EngineId("toy", filler=FILLER))
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True)\n"
        "while True: c = s.accept()[0]; c.recv(99); c.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n'); c.close()\n"
    )
    address = str(discovery.socket_path(files))
    with subprocess.Popen([sys.executable, "-c", code, address], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        lock = discovery.hold(files.lock)
        assert lock is not None
        state = discovery.State(other.pid, address, "secret", "0.0.1", files_id := EngineId("toy", filler=FILLER))
        discovery.write_state(files, state)
        try:
            assert await links.reach(state, lambda _link: None) is None
            assert await links.ask_to_end(state) is False
            with pytest.raises(EngineError, match="no engine is running"):
                async with connect(ConnectOptions(files_id)):
                    pass
            said = dg_lsp("engine", "status", "--model=toy", f"--filler={FILLER}").stdout
            assert said.startswith(f"toy: process {other.pid} is from dg-lsp 0.0.1 and does not answer ")
            assert said.endswith(f"end it with: kill {other.pid}\n")
        finally:
            lock.release()
            other.kill()


def test_what_no_line_can_hold_is_refused_before_it_is_sent() -> None:
    with pytest.raises(WireError, match="half of a surrogate pair"):
        stream.encode(Message("infill", {"text": "\ud83d"}))
    with pytest.raises(WireError, match="larger than 2 MB"):
        stream.encode(Message("infill", {"text": "x" * MAX_BODY_BYTES}))
    line = stream.encode(Message("infill", {"text": "a\n\u2028b"}, 3))
    assert line.count(b"\n") == 1
    assert json.loads(line)["fields"] == {"text": "a\n\u2028b"}
