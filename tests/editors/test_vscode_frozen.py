"""A server that answers nothing is replaced in a real VS Code, and does not outlive its window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors.conftest import Watch
from tests.editors.frozen import SCRIPT, Frozen
from tests.editors.test_vscode import begin, server_pid
from tests.editors.waiting import until
from tests.editors.workbench import Workbench, workbench
from tests.processes import is_gone

# Shortens the time without an answer after which a server counts as frozen. A live one still answers in time on a busy machine.
SHORT_TICKS = {"DG_LSP_WATCHDOG_TICK_MS": "100"}
SETTINGS = {"dgLsp.client.command": list(SCRIPT)}


@pytest.fixture
def code(environment: Mapping[str, str], tmp_path: Path, watch: Watch) -> Iterator[Workbench]:
    with workbench(tmp_path, {**environment, **SHORT_TICKS}, SETTINGS) as window:
        watch(lambda: window.picture("frozen"))
        yield window


@pytest.fixture
def freeze(code: Workbench, environment: Mapping[str, str]) -> Iterator[Callable[[], Frozen]]:
    """Yield a function that freezes the running server."""
    all_frozen = list[Frozen]()

    def now() -> Frozen:
        all_frozen.append(Frozen(server_pid(environment)))
        return all_frozen[-1]

    yield now
    for frozen in all_frozen:
        frozen.end()


def told(code: Workbench) -> list[str]:
    """Return the messages about servers that answered nothing."""
    return [message for message in code.messages() if "stopped answering" in message]


def test_a_frozen_server_is_restarted_once_and_then_by_the_user(code: Workbench, freeze: Callable[[], Frozen]) -> None:
    begin(code)
    frozen = freeze()
    code.press("Escape", "Enter")
    code.type("value = self.")
    until(lambda: frozen.is_gone, "the end of the frozen server", tell=code.picture)
    # The suggestion that was requested comes without another key.
    code.until_ghost()
    assert told(code) == ["dg-lsp: the server stopped answering and was restarted; the log may show why"]
    code.photograph("frozen-restarted")
    frozen = freeze()
    code.command("notifications.clearAll")
    code.press("Escape", "Enter")
    code.type("other = self.")
    until(lambda: told(code), "the message", tell=code.picture)
    assert frozen.is_gone
    assert told(code) == ["dg-lsp: the server stopped answering again and was ended; the log may show why"]
    assert "Problem: The server stopped answering again" in code.status()
    code.photograph("frozen-ended")
    code.page.locator(".notification-list-item .monaco-button:has-text('Start Again')").click()
    code.until_ready()
    begin(code, name="other.py")


def test_the_window_ends_with_its_frozen_server(code: Workbench, freeze: Callable[[], Frozen]) -> None:
    begin(code)
    host = int(code.run("return process.pid"))
    frozen = freeze()
    code.page.close()
    until(lambda: is_gone(host), "the end of the extensions")
    until(lambda: frozen.is_gone, "the end of the server")
