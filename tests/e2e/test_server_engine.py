"""The real server with the real resident engine around a tiny untrained checkpoint, and an editor's day with it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dg_lsp.core import positions
from dg_lsp.server.sync import Change, changed
from dg_lsp.wire import meeting
from dg_lsp.wire.meeting import Which
from tests.e2e.editor import CODE, NEOVIM, Editor, command, environment
from tests.e2e.rpc import PATIENCE_S
from tests.engine.engine_kit import home

pytestmark = pytest.mark.e2e

TWO = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    raise NotImplementedError\n"


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: Path, capabilities: object, test: Callable[[Editor], Awaitable[None]]
) -> None:
    settings = {
        "engine": {"model": str(model), "threads": 1},
        "completion": {"debounce": 0, "threshold": 0, "speculate": False},
    }

    async def main() -> None:
        client = Editor(*command(), env=environment(folder, DG_LSP_SERVE_ENGINE=""))
        async with client:
            await client.hello(capabilities, settings=settings)  # type: ignore[arg-type]  # JSON
            while (await client.status())["state"] != "ready":
                await asyncio.sleep(0.05)
            await test(client)
            assert await client.end() == 0
            assert client.stderr.decode() == ""

    with home(monkeypatch):
        asyncio.run(main())


def test_the_real_engine_answers_suggestions_and_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_layout: Path
) -> None:
    async def test(client: Editor) -> None:
        client.open(TWO + "x = add()\n")
        for column in (4, 8):
            for item in await client.suggestions(6, column, trigger=1):
                assert item["range"]["start"] == {"line": 6, "character": column}
        status = await client.status()
        assert status["latencyMs"] is not None
        assert status["model"] == str(trained_layout)
        (fill, *_) = await client.menu(5, 4)
        assert fill["title"] == "Fill function body"
        resolved = await client.request("codeAction/resolve", fill)
        said = client.said("window/showMessage")
        # An untrained model's answer mostly does not parse, and then the user is told so.
        assert "edit" in resolved or said[-1]["message"].startswith("dg-lsp: nothing was filled: the answer ")
        assert client.said("dgLsp/draft")[-1]["done"]
        loading = [status["message"] for status in client.said("dgLsp/status") if status["state"] == "loading"]
        assert loading

    run(tmp_path, monkeypatch, trained_layout, CODE, test)


def test_an_engine_that_dies_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_layout: Path) -> None:
    async def test(client: Editor) -> None:
        client.open(TWO)
        await client.suggestions(1, 4, trigger=1)
        place = meeting.place(Which(model=str(trained_layout)))
        state = meeting.read_state(place)
        assert state is not None
        os.kill(state.pid, signal.SIGKILL)
        client.change(2, {"text": TWO + "y = 1\n"})
        await client.suggestions(6, 4, trigger=1)
        assert (await client.status())["state"] == "ready"
        again = meeting.read_state(place)
        assert again is not None
        assert again.pid != state.pid

    run(tmp_path, monkeypatch, trained_layout, CODE, test)


def test_a_day_of_editing_leaves_the_same_text_and_no_request_unanswered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_layout: Path
) -> None:
    """Type, undo, paste, accept, reject, save, switch files; a quarter of the day is for warming up."""
    dice = random.Random(1)
    source = Path(positions.__file__).read_text()

    async def test(client: Editor) -> None:
        texts = {f"untitled:{name}.py": source[:2000] for name in "abc"}
        versions = dict.fromkeys(texts, 1)
        for uri, text in texts.items():
            client.open(text, uri=uri)
        waiting: list[asyncio.Future[object]] = []
        warm = 0

        def edit(uri: str, offset: int, end: int, new: str) -> None:
            index = positions.lines(texts[uri])
            start, last = (positions.to_position(index, at, "utf-8") for at in (offset, end))
            change = Change(new, start, last)
            texts[uri] = changed(index, change, "utf-8").text
            versions[uri] += 1
            ends = [{"line": line, "character": character} for line, character in (start, last)]
            client.change(versions[uri], {"text": new, "range": {"start": ends[0], "end": ends[1]}}, uri=uri)

        for step in range(400):
            uri = dice.choice(list(texts))
            at = dice.randrange(len(texts[uri]) + 1)
            for character in dice.choice(["x = ", "foo(", "é𝕏\f", "\n    return ", "# todo", "\r\n", '"']):
                edit(uri, at, at, character)
                at += 1
                position = positions.to_position(positions.lines(texts[uri]), at, "utf-8")
                msg_id, future = client.start("textDocument/inlineCompletion", client.inline(*position, uri=uri))
                waiting.append(future)
                if dice.random() < 0.3:
                    client.notify("$/cancelRequest", {"id": msg_id})
            await asyncio.wait_for(asyncio.wait([waiting[-1]]), PATIENCE_S)
            if waiting[-1].exception() is None and (items := waiting[-1].result()["items"]) and dice.random() < 0.5:  # type: ignore[index]
                edit(uri, at, at, items[0]["insertText"])
                client.notify("workspace/didChangeConfiguration", {"settings": None})
            if dice.random() < 0.3:
                edit(uri, max(0, at - 30), at, "")
            if dice.random() < 0.1:
                client.notify("textDocument/didSave", {"textDocument": {"uri": uri}})
                await client.menu(*positions.to_position(positions.lines(texts[uri]), at, "utf-8"), uri=uri)
            if len(texts[uri]) > 4000:
                client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
                texts[uri] = source[:2000]
                client.open(texts[uri], uri=uri, version=versions[uri])
            if step == 200:
                warm = resident_kib(client)
        _, unanswered = await asyncio.wait(waiting, timeout=PATIENCE_S)
        assert not unanswered
        errors = [error for future in waiting if (error := future.exception()) is not None]
        assert all(getattr(error, "code", None) == -32800 for error in errors)
        assert resident_kib(client) <= 1.1 * warm
        for uri, text in texts.items():
            everything = {"start": {"line": 0, "character": 0}, "end": {"line": 10**6, "character": 0}}
            menu = await client.request(
                "textDocument/codeAction", {"textDocument": {"uri": uri}, "range": everything, "context": {"diagnostics": []}}
            )
            (anew,) = [action for action in menu if action["title"] == "Regenerate selection"]
            ends = anew.get("data", anew)["range"] if "data" in anew else anew["command"]["arguments"][0]["range"]
            assert (ends["end"]["line"], ends["end"]["character"]) == positions.to_position(
                positions.lines(text), len(text), "utf-8"
            )

    run(tmp_path, monkeypatch, trained_layout, NEOVIM, test)


def resident_kib(client: Editor) -> int:
    status = Path(f"/proc/{client.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
