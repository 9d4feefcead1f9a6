"""A server that answers nothing is replaced in a real Neovim, and does not outlive it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.editors import machine
from tests.editors.frozen import SCRIPT, Frozen
from tests.editors.neovim import EVERYTHING, Neovim
from tests.editors.texts import INSIDE, SHOP
from tests.editors.waiting import until

OPTIONS = EVERYTHING.replace("{ ", f"{{ cmd = {{ {', '.join(map(json.dumps, SCRIPT))} }}, ", 1)
# Shortens the time without an answer after which a server counts as frozen. A live one still answers in time on a busy machine.
SHORT_TICKS = "require('dg_lsp.watchdog').tick_ms = 100"
CLIENT = "vim.lsp.get_clients({ name = 'dg_lsp' })[1]"
# Counts the answers to requests of a command, which only the watchdog sends here, and the looks at the clock.
COUNT = """
_G.n_statuses, _G.n_looks = 0, 0
vim.api.nvim_create_autocmd("LspRequest", { callback = function(event)
  local request = event.data.request
  if request.type == "complete" and request.method == "workspace/executeCommand" then _G.n_statuses = _G.n_statuses + 1 end
end })
"""
RESTARTED = "dg-lsp: the server stopped answering and was restarted; :Dg log may show why"
ENDED = "dg-lsp: the server stopped answering again and was ended; :Dg restart starts it, :Dg log may show why"


@pytest.fixture
def freeze(nvim: Neovim) -> Iterator[Callable[[], Frozen]]:
    """Yield a function that freezes the running server."""
    all_frozen = list[Frozen]()

    def now() -> Frozen:
        all_frozen.append(Frozen(until(nvim.server_pid, "a server", tell=nvim.picture)))
        return all_frozen[-1]

    yield now
    for frozen in all_frozen:
        frozen.end()


def begin(nvim: Neovim, name: str = "shop.py") -> None:
    nvim.edit(name, SHOP)
    nvim.put(*INSIDE)


def ask(nvim: Neovim, keys: str = "<CR>self.") -> None:
    """Type, and wait until a suggestion is requested."""
    nvim.type(keys)
    nvim.until(f"next({CLIENT}.requests)", "a request")


def told(nvim: Neovim) -> list[str]:
    """Return the messages about servers that answered nothing."""
    return [note for note in nvim.notes() if "stopped answering" in note]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_frozen_server_is_restarted_with_one_message(nvim: Neovim, freeze: Callable[[], Frozen], is_cancelled: bool) -> None:
    nvim.lua(SHORT_TICKS)
    begin(nvim)
    frozen = freeze()
    ask(nvim)
    if is_cancelled:
        nvim.lua(f"local client = {CLIENT} for id in pairs(client.requests) do client:cancel_request(id) end")
    until(lambda: frozen.is_gone, "the end of the frozen server", tell=nvim.picture)
    # The suggestion that was requested comes without another key.
    nvim.until_ghost()
    assert told(nvim) == [RESTARTED]
    # Neovim's own message would make the user press Enter.
    assert "quit with" not in nvim.lua("return vim.fn.execute('messages')") + " ".join(nvim.notes())


def test_a_server_that_freezes_again_is_ended_until_the_user_starts_it(nvim: Neovim, freeze: Callable[[], Frozen]) -> None:
    nvim.lua(SHORT_TICKS)
    begin(nvim)
    for keys, messages in (("<CR>self.", [RESTARTED]), ("x", [RESTARTED, ENDED])):
        frozen = freeze()
        ask(nvim, keys)
        until(lambda: frozen.is_gone, "the end of the frozen server", tell=nvim.picture)  # noqa: B023
        until(lambda: told(nvim) == messages, "the message", tell=nvim.picture)  # noqa: B023
        if len(messages) == 1:
            nvim.until_ghost()
    # Another file starts no server either.
    nvim.edit("other.py", SHOP, wait=False)
    assert ENDED.removeprefix("dg-lsp: ") in nvim.sentences()
    nvim.command("DgFill")
    assert nvim.notes()[-1] == ENDED
    assert nvim.server_pid() == 0
    nvim.command("Dg restart")
    begin(nvim, "other.py")
    nvim.type("<CR>self.")
    nvim.until_ghost()
    assert told(nvim) == [RESTARTED, ENDED, ENDED]


def test_a_server_that_answered_for_long_is_restarted_again(nvim: Neovim, freeze: Callable[[], Frozen]) -> None:
    nvim.lua(SHORT_TICKS)
    begin(nvim)
    for keys, n_messages in (("<CR>self.", 1), ("x", 2)):
        # As if it had started six minutes ago.
        nvim.lua(f"local server = require('dg_lsp.watchdog').process({CLIENT}) server.started_ms = server.started_ms - 360000")
        frozen = freeze()
        ask(nvim, keys)
        until(lambda: frozen.is_gone, "the end of the frozen server", tell=nvim.picture)  # noqa: B023
        nvim.until_ghost()
        assert told(nvim) == [RESTARTED] * n_messages


def test_a_server_that_waits_for_its_engine_is_asked_and_not_ended(nvim: Neovim, environment: Mapping[str, str]) -> None:
    nvim.edit("shop.py", SHOP)
    client_id = nvim.lua(f"return {CLIENT}.id")
    nvim.lua(COUNT + SHORT_TICKS)
    engine = machine.engine_pid(environment)
    os.kill(engine, signal.SIGSTOP)
    try:
        # Not before, because the server has the answers to earlier requests.
        nvim.put(*INSIDE)
        ask(nvim)
        # The second time, the ticks since the request suffice for a server that has answered nothing.
        nvim.until("_G.n_statuses >= 2", "the status, twice")
    finally:
        # The server ends an engine that does not answer it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)
    nvim.until_ghost()
    assert nvim.lua(f"return {CLIENT}.id") == client_id
    assert told(nvim) == []


def test_the_time_that_the_machine_sleeps_is_not_the_servers(nvim: Neovim, freeze: Callable[[], Frozen]) -> None:
    begin(nvim)
    # At each look, an hour has passed.
    nvim.lua(
        f"{COUNT} {SHORT_TICKS} local watchdog = require('dg_lsp.watchdog') _G.true_clock = watchdog.now_ms "
        "watchdog.now_ms = function() _G.n_looks = _G.n_looks + 1 return _G.true_clock() + _G.n_looks * 3600e3 end"
    )
    frozen = freeze()
    ask(nvim)
    # Two looks at each tick.
    nvim.until("_G.n_looks > 60", "more ticks than a frozen server gets")
    assert not frozen.is_gone
    nvim.lua("require('dg_lsp.watchdog').now_ms = _G.true_clock")
    until(lambda: frozen.is_gone, "the end of the frozen server", tell=nvim.picture)
    nvim.until_ghost()


@pytest.mark.parametrize("when", ["starting", "idle", "asked"])
def test_neovim_ends_with_its_frozen_server(nvim: Neovim, freeze: Callable[[], Frozen], when: str) -> None:
    nvim.edit("shop.py", SHOP, wait=when != "starting")
    if when == "asked":
        nvim.put(*INSIDE)
    frozen = freeze()
    if when == "asked":
        ask(nvim)
    nvim.type("<Esc>:qall!<CR>")
    until(lambda: nvim.has_ended, "the end of Neovim")
    until(lambda: frozen.is_gone, "the end of the server")
