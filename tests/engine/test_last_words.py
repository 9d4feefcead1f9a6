"""Whatever ends an engine, its log says why."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineSettings
from tests.engine.engine_kit import engine_id, running, told_by, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("engines")]


def start(*, exit_after_s: float = 60.0, model: str = "toy") -> tuple[subprocess.Popen[bytes], discovery.EngineFiles]:
    """Start an engine as a client does, and wait until it serves."""
    files = discovery.engine_files(engine_id(model))
    settings = EngineSettings(exit_after_s=exit_after_s)
    process = discovery.start_engine(ENGINE_COMMAND, files, engine_id(model), settings)
    wait_until(lambda: answers(process, files))
    return process, files


def answers(process: subprocess.Popen[bytes], files: discovery.EngineFiles) -> bool:
    """Return whether the engine answers requests: then it also handles signals, which it does after it has told its address."""
    state = told_by(process, files)
    if state is None:
        return False
    with contextlib.suppress(OSError):
        return discovery.call(state, "info").has("state")
    return False


def is_ready(files: discovery.EngineFiles) -> bool:
    """Return whether a serving engine has loaded its model."""
    state = discovery.read_state(files)
    assert state is not None
    return discovery.call(state, "info").text("state") == "ready"


def log_of(files: discovery.EngineFiles) -> str:
    return "\n".join(discovery.log_tail(files, 40))


@contextlib.contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal and block it in this process, whose children inherit both, as those of a shell under nohup do."""
    if number in (signal.SIGKILL, signal.SIGALRM):  # the one can't be ignored, the other ends a test that takes too long
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_stops_the_engine_is_named_even_if_its_starter_ignores_it(number: signal.Signals) -> None:
    with ignored(number):
        process, files = start()
    process.send_signal(number)
    wait_until(lambda: process.poll() is not None)
    assert f"the engine received {number.name}" in log_of(files)
    assert f"process {process.pid} exits" in log_of(files)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGQUIT, signal.SIGUSR1, signal.SIGSEGV, signal.SIGALRM, signal.SIGABRT]
)
def test_a_signal_that_ends_the_engine_at_once_is_named_even_if_its_starter_ignores_it(number: signal.Signals) -> None:
    with ignored(number):
        process, files = start()
    # For SIGABRT, Python lists what its threads run without their lock. It reads freed memory if one of them runs just then.
    wait_until(lambda: is_ready(files))
    process.send_signal(number)
    wait_until(lambda: f"process {process.pid} was ended by signal {number.value} (" in log_of(files))
    assert ("memory ran out" in log_of(files)) == (number == signal.SIGKILL)


def test_the_next_engine_says_that_the_one_before_ended_without_a_word() -> None:
    with running() as engine:
        pid = engine.process.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: engine.process.poll() is not None)
        with contextlib.ExitStack() as stack:
            stack.enter_context(running())
            assert f"process {pid} ended without a word of its own; unless a line near this says why" in log_of(engine.files)
    with running() as third:
        assert log_of(third.files).count("ended without a word") == 1


def test_an_unused_engine_says_so() -> None:
    process, files = start(exit_after_s=0.1)
    wait_until(lambda: process.poll() is not None)
    assert "the engine is not in use" in log_of(files)


@pytest.mark.parametrize("when", ["now", "idle"])
def test_an_engine_that_is_asked_to_end_says_so(when: str) -> None:
    process, files = start()
    state = discovery.read_state(files)
    assert state is not None
    discovery.call(state, "shutdown", {"when": when})
    wait_until(lambda: process.poll() is not None)
    sentence = (
        "the engine received a shutdown request" if when == "now" else "the engine is not in use, and it was asked to end"
    )
    assert sentence in log_of(files)


def test_an_engine_whose_model_can_not_be_loaded_says_so() -> None:
    process, files = start(model="fails")
    wait_until(lambda: process.poll() is not None)
    assert "the model could not be loaded" in log_of(files)


def test_an_engine_that_a_client_kills_is_named_in_its_log() -> None:
    code = "import sys; from dg_lsp.client import link; from dg_lsp.wire import discovery; "
    code += "from tests.engine.engine_kit import engine_id; "
    code += "print(link.kill(discovery.read_state(discovery.engine_files(engine_id()))))"
    process, files = start()
    killer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert killer.stdout == "True\n"
    wait_until(lambda: process.poll() is not None)
    assert f"process {process.pid} does not respond and is killed by process" in log_of(files)
