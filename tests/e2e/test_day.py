"""An editor's day with the real server and the embedded model: half an hour of recorded edits, as fast as they are taken."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.core import positions
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import EngineId
from tests.e2e import day
from tests.e2e.day import Player
from tests.e2e.editor import CODE, Editor, command, environment
from tests.e2e.rpc import RpcError
from tests.engine.engine_kit import home
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

WATCHED = "tests.server.watched:engine"
# Everything at its default, the wait before asking and looking ahead too, but that more is shown, to be taken or not.
SETTINGS = {"completion": {"threshold": 0.02}}
WARM_UP = 0.4


@pytest.mark.slow
def test_a_day_leaves_the_same_text_nothing_unanswered_and_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def live(session: int) -> int:
        """Play the day, and return the engine's resident memory after it, in KiB."""
        folder = tmp_path / str(session)
        client = Editor(*command(), env=environment(folder, DG_LSP_SERVE_ENGINE=WATCHED))
        client.journal = folder / "journal"
        async with client:
            await client.hello(CODE, settings=SETTINGS)
            while (await client.status())["state"] != "ready":
                await asyncio.sleep(0.05)
            player, acts = Player(client), day.recording()
            warm = int(len(acts) * WARM_UP)
            await player.play(acts[:warm])
            before = resident_kib(client.process.pid)
            await player.play(acts[warm:])
            await everything_answered(player)
            after, engine = resident_kib(client.process.pid), resident_kib(engine_pid())
            print(f"{player.n_keys} keys, {len(player.requests)} requests, {len(client.asked)} of them to the engine,")
            print(f"{player.n_shown} suggestions shown, {player.n_accepted} accepted;")
            print(f"KiB of the server {before} -> {after}, of the engine {engine}")
            assert player.n_shown > player.n_accepted > 0
            assert after <= 1.1 * before
            await same_text(player)
            assert await client.end() == 0
            assert client.stderr.decode() == ""
            assert not client.strays
        return engine

    with home(monkeypatch):
        # The engine's caches fill during the first day. On a busy machine few requests of its beginning reach the engine.
        first, pid = asyncio.run(live(1)), engine_pid()
        assert asyncio.run(live(2)) <= 1.1 * first
        assert engine_pid() == pid


async def everything_answered(player: Player) -> None:
    _, unanswered = await asyncio.wait(player.requests, timeout=PATIENCE_S)
    assert not unanswered
    errors = [error for future in player.requests if (error := future.exception()) is not None]
    # Only what the editor cancelled came to an error.
    assert all(isinstance(error, RpcError) and error.code == day.CANCELLED for error in errors), errors


async def same_text(player: Player) -> None:
    """Ask about each document's very start, with a window that holds all of it, and compare what the engine got to read."""
    client = player.client
    client.answers["workspace/configuration"] = lambda params: [
        {"context": {"windowChars": 1_000_000}} for _ in params["items"]
    ]
    n_asked = len([request for request in client.requests if request["method"] == "workspace/configuration"])
    client.notify("workspace/didChangeConfiguration", {"settings": None})
    await client.until(
        lambda: len([request for request in client.requests if request["method"] == "workspace/configuration"]) > n_asked
    )
    for name, file in player.files.items():
        await client.suggestions(0, 0, uri=file.uri, trigger=1)
        last_request: dict[str, Any] = [entry for entry in client.asked if entry["document"] == file.uri][-1]
        lines = re.sub("\r\n|\r", "\n", file.text)
        # Before code, the answer gets a line of its own.
        own = "\n" if lines.partition("\n")[0].strip() else ""
        assert last_request["prefix"] + last_request["suffix"] == own + lines, name
        # What the engine reads has line feeds alone; where the text ends tells the rest.
        everything = {"start": {"line": 0, "character": 0}, "end": {"line": 10**6, "character": 0}}
        menu_params = {"textDocument": {"uri": file.uri}, "range": everything, "context": {"diagnostics": []}}
        menu = await client.request("textDocument/codeAction", menu_params)
        (regenerate,) = [action for action in menu if action["title"] == "Regenerate selection"]
        end = regenerate["data"]["range"]["end"]
        assert (end["line"], end["character"]) == positions.to_position(positions.lines(file.text), len(file.text), "utf-16")
        assert regenerate["data"]["textDocument"]["version"] == file.version


def engine_pid() -> int:
    state = discovery.read_state(discovery.engine_files(EngineId()))
    assert state is not None
    return state.pid


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
