"""The server from its first byte to its exit code, and what no message may do to it."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.editor import CODE, NEOVIM, ROOT, URI, Editor, command, editor, environment, says
from tests.e2e.rpc import Rpc, RpcError
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


async def code_of(client: Editor, method: str, params: object = None) -> int:
    with pytest.raises(RpcError) as error:
        await client.request(method, params)
    assert "Traceback" not in error.value.message
    return error.value.code


@pytest.mark.smoke
async def test_the_order_of_life_is_kept(tmp_path: Path) -> None:
    async with editor(tmp_path, None) as client:
        assert await code_of(client, "textDocument/inlineCompletion", client.inline(0, 0)) == -32002
        client.notify("textDocument/didOpen", {"textDocument": {"uri": URI, "languageId": "python", "version": 1, "text": ""}})
        assert await code_of(client, "initialize", {"capabilities": 1}) == -32602
        await client.hello(CODE)
        assert client.capabilities["experimental"] == {"dgLsp": {"version": 1, "nextEdit": True}}
        assert client.capabilities["textDocumentSync"]["change"] == 2
        assert await code_of(client, "initialize", {"capabilities": {}, "processId": None, "rootUri": None}) == -32600
        assert await code_of(client, "no/such", {}) == -32601
        assert await code_of(client, "workspace/executeCommand", {"command": "nope"}) == -32602
        assert await code_of(client, "textDocument/inlineCompletion", {"textDocument": {}}) == -32602
        await client.request("shutdown")
        assert await code_of(client, "textDocument/inlineCompletion", client.inline(0, 0)) == -32600
        client.notify("exit")
        assert await asyncio.wait_for(client.process.wait(), PATIENCE_S) == 0
        client.stderr = b""


@pytest.mark.parametrize("how", ["exit", "eof", "eof at once"])
async def test_an_end_without_shutdown_is_exit_code_1(tmp_path: Path, how: str) -> None:
    async with editor(tmp_path, None) as client:
        if how != "eof at once":
            await client.hello(NEOVIM)
        if how == "exit":
            client.notify("exit")
        else:
            client.process.stdin.close()  # type: ignore[union-attr]
        assert await asyncio.wait_for(client.process.wait(), PATIENCE_S) == 1


async def test_requests_under_way_are_answered_when_the_server_shuts_down(tmp_path: Path) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        client.open(says(gate=str(tmp_path / "never")) + "x = \n")
        _, under_way = client.start("textDocument/inlineCompletion", client.inline(1, 4))
        while not client.asked:
            await client.status()
        assert await client.end() == 0
        with pytest.raises(RpcError) as error:
            await under_way
        assert error.value.code == -32800


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--log", "loud"], "--log must be debug, info, warning or error, not loud"),
        (["--engine", "nowhere:at_all"], "can't import the engine nowhere:at_all: No module named 'nowhere'"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    process = subprocess.run(command(*arguments), env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_S)
    assert (process.returncode, process.stderr, process.stdout) == (2, f"dg-lsp: {sentence}\n", "")


async def test_printed_text_does_not_reach_the_client(tmp_path: Path) -> None:
    script = tmp_path / "printing.py"
    script.write_text(
        "from tests.server.scripted import engine\nimport os\nprint('hello')\nos.system('echo hello from below')\n"
    )
    env = environment(tmp_path, DG_LSP_SERVE_ENGINE="printing:engine", PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")

    async with Rpc(*command(), env=env) as client:
        await client.request("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        assert await client.end() == 0
        assert client.stderr.count(b"hello") == 2


# Settings


async def test_settings_are_pulled_again_and_bad_ones_are_reported(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE) as client:
        client.open(says(text="f(a)", probability=0.4) + "x = \n")
        assert len(await client.suggestions(1, 4)) == 1
        client.answers["workspace/configuration"] = lambda params: [{"completion": {"threshold": 0.5, "debounce": 0, "x": 1}}]
        client.notify("workspace/didChangeConfiguration", {"settings": None})
        await client.until(lambda: client.said("window/showMessage"))
        assert client.said("window/showMessage")[0]["message"].startswith(
            "Unknown key dgLsp.completion.x in the editor's settings. "
        )
        assert await client.suggestions(1, 4) == []
        assert (await client.status())["suppressed"]["code"] == "unsure"
        client.stderr = b""


async def test_settings_are_taken_where_a_client_only_pushes_them(tmp_path: Path) -> None:
    options = {"dgLsp": {"completion": {"debounce": 0}}}
    async with editor(tmp_path, {"textDocument": {"inlineCompletion": {}}}, options=options) as client:

        def push(**completion: object) -> None:
            client.notify("workspace/didChangeConfiguration", {"settings": {"dgLsp": {"completion": completion}}})

        client.open(says(text="f(a)", probability=0.4) + "x = \n")
        assert len(await client.suggestions(1, 4)) == 1
        push(threshold=0.5)
        assert await client.suggestions(1, 4) == []
        push(trigger="manual", debounce=0)
        assert await client.suggestions(1, 4) == []
        assert (await client.status())["suppressed"]["code"] == "manual"
        # A pause leaves the status as soon as the settings end it.
        push(trigger="auto", debounce=0)
        assert (await client.status())["suppressed"] is None


async def test_a_model_whose_server_wants_a_pause_is_told_of_in_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DG_LSP_ALLOW", "paused")
    async with editor(tmp_path, {"textDocument": {"inlineCompletion": {}}}) as client:
        client.notify("workspace/didChangeConfiguration", {"settings": {"dgLsp": {"engine": {"model": "paused"}}}})
        while (await client.status())["state"] != "failed":
            pass
        client.open("x = \n")
        assert await client.suggestions(0, 4) == []
        assert (await client.status())["message"] == "no requests until 12:00:00"
        assert client.said("window/showMessage") == []
        assert await client.suggestions(0, 4, trigger=1) == []
        assert [each["message"] for each in client.said("window/showMessage")] == ["dg-lsp: no requests until 12:00:00"]
        client.stderr = b""


async def test_another_model_needs_no_restart_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_LSP_ALLOW", "broken")
    async with editor(tmp_path, {"textDocument": {"inlineCompletion": {}}}) as client:
        client.notify("workspace/didChangeConfiguration", {"settings": {"dgLsp": {"engine": {"model": "broken"}}}})
        await client.until(lambda: client.said("window/showMessage"))
        assert client.said("window/showMessage")[0]["message"] == "dg-lsp: the model is broken"
        status = await client.status()
        assert (status["state"], status["model"]) == ("failed", "broken")
        client.notify("workspace/didChangeConfiguration", {"settings": {"dgLsp": {"engine": {"model": "embedded"}}}})
        while (await client.status())["state"] != "ready":
            pass
        client.stderr = b""


# Text


async def test_an_unreadable_change_stops_suggestions_until_the_whole_text_arrives(tmp_path: Path) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        client.open("x = \n")
        client.change(2, {"text": "y", "range": {"start": "nowhere"}})
        assert await client.suggestions(0, 4, trigger=1) == []
        assert (await client.status())["suppressed"]["code"] == "lost"
        client.change(3, {"text": "z = \n"})
        assert await client.suggestions(0, 4, trigger=1)
        assert b"could not be parsed" in client.stderr
        client.stderr = b""


# Anything


METHODS = [
    "textDocument/inlineCompletion", "textDocument/codeAction", "codeAction/resolve", "workspace/executeCommand",
    "textDocument/didOpen", "textDocument/didChange", "textDocument/didClose", "textDocument/didSave",
    "notebookDocument/didOpen", "notebookDocument/didChange", "notebookDocument/didClose",
    "workspace/didChangeConfiguration", "workspace/didChangeWorkspaceFolders", "$/cancelRequest", "$/setTrace",
    "window/workDoneProgress/cancel", "dgLsp/didMove",
    "initialize", "initialized", "textDocument/hover", "no/such", "dgLsp/status",
]  # fmt: skip
NAMES = [
    "textDocument", "uri", "position", "line", "character", "range", "start", "end", "context", "triggerKind",
    "version", "contentChanges", "text", "data", "arguments", "command", "event", "settings", "id", "token", "title",
    "do", "item", "notebookDocument", "change", "cells", "languageId", "selectedCompletionInfo", "diagnostics",
    "jsonrpc",
]  # fmt: skip


def junk(dice: random.Random, depth: int = 0) -> Any:
    """Return a value that looks a little like what the protocol has."""
    if depth < 4 and dice.random() < 0.6:
        if dice.random() < 0.2:
            return [junk(dice, depth + 1) for _ in range(dice.randrange(3))]
        return {dice.choice(NAMES): junk(dice, depth + 1) for _ in range(dice.randrange(5))}
    values: list[Any] = [
        None, True, 0, 1, -1, 2**40, 1.5, "", URI, "dgLsp.fill", "dgLsp.status", "é\ud800", [], {}, {"line": 0, "character": 0},
    ]  # fmt: skip
    return dice.choice(values)


def out_of_order(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a message that says everything it must, and comes when it should not."""
    uri = dice.choice([URI, "untitled:b.py", "file:///nowhere.py", ""])
    document: dict[str, Any] = {"uri": uri}
    place = {"line": dice.choice([0, 3, 10**9]), "character": dice.choice([0, 2, 10**9])}
    there = {"start": place, "end": {"line": 0, "character": 1}}
    versioned = {"uri": uri, "version": dice.choice([-1, 0, 1, 10**6])}
    cells = {"textContent": [{"document": versioned, "changes": [{"text": "x", "range": there}]}]}
    text_document = {"uri": uri, "languageId": dice.choice(["python", "", "nothing"]), "version": 1, "text": "x = 1\r\n"}
    messages: list[tuple[str, dict[str, Any]]] = [
        ("textDocument/didOpen", {"textDocument": text_document}),
        ("textDocument/didClose", {"textDocument": document}),
        ("textDocument/didSave", {"textDocument": document}),
        ("textDocument/didChange", {"textDocument": versioned, "contentChanges": [{"text": "y\n", "range": there}] * 2}),
        ("notebookDocument/didChange", {"notebookDocument": versioned, "change": {"cells": cells}}),
        ("notebookDocument/didClose", {"notebookDocument": document, "cellTextDocuments": [document]}),
        ("textDocument/inlineCompletion", {"textDocument": document, "position": place, "context": {"triggerKind": 1}}),
        ("textDocument/codeAction", {"textDocument": document, "range": there, "context": {"diagnostics": []}}),
        ("codeAction/resolve", {"title": "x", "data": {"do": "body", "textDocument": versioned, "range": there}}),
        ("workspace/executeCommand", {"command": "dgLsp.status", "arguments": [dice.randrange(9)]}),
        ("$/cancelRequest", {"id": dice.randrange(5_000)}),
        ("window/workDoneProgress/cancel", {"token": "never begun"}),
        ("initialized", {}),
        ("initialize", {"processId": None, "rootUri": None, "capabilities": {}}),
    ]
    return dice.choice(messages)


NOTES = ("$/", "textDocument/did", "notebookDocument/did", "window/", "initialized")


async def test_no_message_kills_the_server_or_goes_unanswered(tmp_path: Path) -> None:
    """Malformed messages, and as many that come out of order, among them responses without a request."""
    dice = random.Random(5)

    async with editor(tmp_path, NEOVIM) as client:
        client.open("x = 1\n" * 20)
        futures = []
        for n in range(2000):
            kind = dice.random()
            method, params = dice.choice(METHODS), junk(dice)
            if kind < 0.5 and method not in ("shutdown", "exit"):
                futures.append(client.start(method, params)[1])
            elif kind < 0.8:
                client.notify(method, params)
            elif kind < 0.9:
                client.send(
                    dice.choice([[], [{}], 1, "x", None, {"id": -n}, {"jsonrpc": "1.0", "id": -n, "method": "x"}, junk(dice)])
                )
            elif kind < 0.95:
                client.send(
                    {"jsonrpc": "2.0", "id": dice.choice([None, True, [], {}, 1.5]), "method": method, "params": params}
                )
            else:
                client.write(
                    dice.choice([b"Content-Length: x\r\n\r\n", b"Content-Length: 3\r\n\r\n{,}", b"\r\n\r\n", b"Nonsense\r\n"])
                )
            method, params = out_of_order(dice)
            if method.startswith(NOTES):
                client.notify(method, params)
            else:
                futures.append(client.start(method, params)[1])
            if n % 50 == 0:
                client.send({"jsonrpc": "2.0", "id": f"never-{n}", "result": None})
                await client.status()
        answers = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), PATIENCE_S)
        assert all(not isinstance(answer, BaseException) or isinstance(answer, RpcError) for answer in answers)
        # What the server could not blame on a request of ours is answered without an id.
        assert all(stray["id"] is None or not isinstance(stray["id"], dict) for stray in client.strays)
        client.strays.clear()
        client.open("y = \n")
        assert await client.suggestions(0, 4, trigger=1)
        assert b"could not be handled" not in client.stderr
        assert b"a request failed" not in client.stderr
        client.stderr = b""
