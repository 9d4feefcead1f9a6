"""An engine whose process stands still answers nothing and keeps its sockets open: every front end says so, and goes on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import EngineId
from tests.e2e.test_server_engine import TWO, session
from tests.engine.engine_kit import home
from tests.processes import dg_lsp

# Three missed pings take a quarter of a minute.
pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keep a process from running."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def pid_of(model: str) -> int:
    state = discovery.read_state(discovery.engine_files(EngineId(model=model)))
    assert state is not None
    return state.pid


async def test_a_completion_on_a_stopped_engine_is_answered_by_another_and_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_layout: Path
) -> None:
    async with session(tmp_path, monkeypatch, trained_layout) as client:
        client.open(TWO)
        await client.suggestions(1, 4, trigger=1)
        before = pid_of(str(trained_layout))
        client.change(2, {"text": TWO + "y = 1\n"})
        with stopped(before):
            await client.suggestions(6, 4, trigger=1)
        assert pid_of(str(trained_layout)) != before
        assert (await client.status())["state"] == "ready"
        messages = [message["message"] for message in client.said("window/showMessage")]
        assert any(f"the engine does not respond (process {before})" in sentence for sentence in messages), messages
        assert f"process {before}" in client.stderr.decode()
        client.stderr = b""


def test_infill_meets_a_stopped_engine_and_goes_on_with_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text(TWO)
    with home(monkeypatch):
        assert dg_lsp("infill", tmp_path / "a.py").returncode in (0, 1)
        files = discovery.engine_files(EngineId())
        before = pid_of("embedded")
        # One that came up a moment ago would get more time, as it may still import what it needs.
        os.utime(files.state, (0, 0))
        with stopped(before):
            process = dg_lsp("infill", tmp_path / "a.py")
        assert process.returncode in (0, 1)
        assert f"the engine does not respond (process {before})" in process.stderr
        assert "of 1 hole" in process.stderr
        assert pid_of("embedded") != before
