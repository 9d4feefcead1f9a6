"""Start, watch and stop real engine processes with the toy model, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

import httpx
import pytest

from dg_lsp.core.values import Budget, Hole, InfillRequest, Span
from dg_lsp.engine.common.task import Task
from dg_lsp.wire import discovery, messages, stream
from dg_lsp.wire.discovery import DiscoveryError, EngineFiles, EngineId, State
from dg_lsp.wire.messages import Ask, Event, Fields, Status
from dg_lsp.wire.stream import Message
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
FILLER = "tests.engine.toy_filler:load"
T = TypeVar("T")
Run = TypeVar("Run", bound=Task)


@contextlib.contextmanager
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a private directory for engines; kill the engines that still run in it at the end."""
    # pytest's own directories have names too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="dg"))
    monkeypatch.setenv(discovery.RUNTIME_DIR_VARIABLE, str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    try:
        yield folder
    finally:
        for files in discovery.all_engine_files():
            # A test may leave no process, or a state file that is refused.
            with contextlib.suppress(ProcessLookupError, DiscoveryError):
                if (state := discovery.read_state(files)) is not None:
                    os.kill(state.pid, signal.SIGKILL)
        shutil.rmtree(folder)


def wait_until(check: Callable[[], T | None], patience_s: float = PATIENCE_S) -> T:
    """Return the first true value of a check; fail after the timeout."""
    give_up = time.monotonic() + patience_s
    while not (result := check()):
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.005)
    return result


def finish(task: Run) -> Run:
    """Run a task to its end, and return it."""
    while task.step():
        pass
    return task


def engine_id(model: str = "toy", filler: str = FILLER) -> EngineId:
    return EngineId(model=model, filler=filler)


@dataclass
class Running:
    """An engine process, and an HTTP client of its port with its token."""

    process: subprocess.Popen[bytes]
    files: EngineFiles
    state: State
    http: httpx.Client = field(repr=False)

    def info(self) -> dict[str, object]:
        return dict(discovery.call(self.state, "info").values)


@contextlib.contextmanager
def running(*options: str, model: str = "toy", filler: str = FILLER, wait_for: str = "ready") -> Iterator[Running]:
    """An engine that runs as a child of the test, with a port."""
    files = discovery.engine_files(engine_id(model, filler))
    own = [f"--filler={filler}"] if filler else []
    command = [sys.executable, "-m", "dg_lsp", "engine", "run", f"--model={model}", *own, "--port=0", *options]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            state = wait_until(lambda: told_by(process, files))
            url = wait_until(lambda: url_of(state))
            headers = {"Authorization": f"Bearer {state.token}"}
            with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=False) as http:
                engine = Running(process, files, state, http)
                wait_until(lambda: engine.info()["state"] == wait_for)
                yield engine
        finally:
            process.terminate()
            if process.wait(PATIENCE_S) != 0:
                sys.stderr.write("\n".join(discovery.log_tail(files, 30)))


def url_of(state: State) -> str:
    """Return the URL of an engine's port; "" while it does not answer."""
    with contextlib.suppress(OSError):
        return discovery.call(state, "info").text("url")
    return ""


def told_by(process: subprocess.Popen[bytes], files: EngineFiles) -> State | None:
    """Return the state file of this process, not that of a process killed before it."""
    assert process.poll() is None, "the engine ended while starting"
    state = discovery.read_state(files)
    return state if state is not None and state.pid == process.pid else None


@dataclass
class Gate:
    """A file that permits as many steps as it has bytes."""

    path: Path

    def let(self, n_steps: int) -> None:
        with self.path.open("ab") as file:
            file.write(b"." * n_steps)


def gate(folder: Path, name: str = "gate") -> Gate:
    path = folder / name
    path.touch()
    return Gate(path)


def request(script: Mapping[str, object] | None = None, *, ms: int = 0, n: int = 1) -> InfillRequest:
    """A request with one hole, whose prefix tells the toy how to behave."""
    prefix = json.dumps(script) if script else "def f():\n    "
    return InfillRequest(prefix, "\n", (Hole(Span(0, 0), "cursor"),), budget=Budget(ms=ms, candidates=n))


def body(script: Mapping[str, object] | None = None) -> dict[str, object]:
    """A request in the form of llama.cpp; see `request`."""
    return {"input_prefix": request(script).prefix, "input_suffix": "\n"}


class Caller:
    """A connection to an engine's socket, which is a lease."""

    def __init__(self, caller: socket.socket, lines: BinaryIO) -> None:
        self._socket, self._lines = caller, lines

    def ask(self, infill: InfillRequest) -> None:
        self._socket.sendall(stream.encode(Message("infill", Ask(infill), 1)))

    def events(self) -> Iterator[Event]:
        """Yield events until one that ends a request or the connection."""
        for line in self._lines:
            if line != stream.PING:
                message = stream.decode(line)
                yield messages.decode_event(message.name, Fields(message.fields))
                if message.name in (*stream.ANSWERS, "bye"):
                    return


@contextlib.contextmanager
def lease(state: State) -> Iterator[Caller]:
    """Yield a connection that counts as a client of the engine already."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(PATIENCE_S)
        caller.connect(state.address)
        caller.sendall(stream.hello(state.token, uses=True))
        with caller.makefile("rb") as lines:  # while it is open, so is the connection
            client = Caller(caller, lines)
            assert isinstance(next(client.events()), Status)
            yield client


def ask(state: State, infill: InfillRequest) -> list[Event]:
    """Return the events that answer an infill; none of those of the engine's state."""
    with lease(state) as client:
        client.ask(infill)
        return [event for event in client.events() if not isinstance(event, Status)]
