"""What goes wrong between an editor and the server without ending either: lost bytes, texts out of step, odd greetings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.editor import CODE, NEOVIM, PLAIN, URI, editor, says
from tests.e2e.rpc import RpcError

pytestmark = pytest.mark.e2e

BOOK, FIRST, SECOND = "file:///book.ipynb", "cell:1", "cell:2"


@pytest.mark.parametrize("missing", [3, -5, -200])
@pytest.mark.slow
async def test_a_message_with_a_wrong_length_loses_at_most_the_next(tmp_path: Path, missing: int) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        body = b'{"jsonrpc":"2.0","method":"$/none","params":{"text":"Content-Length: 7\\r\\n"}}'
        client.write(b"Content-Length: %d\r\n\r\n%s" % (len(body) - missing, body))
        for _ in range(10):
            client.start("workspace/executeCommand", {"command": "dgLsp.status"})
        assert (await client.status())["state"] == "ready"
        assert client.strays
        client.strays.clear()
        assert b"a message is not valid JSON" in client.stderr
        client.stderr = b""


async def test_a_length_of_thousands_of_digits_is_one_bad_message(tmp_path: Path) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        client.write(b"Content-Length: %s\r\n\r\n" % (b"9" * 5000))
        assert (await client.status())["state"] == "ready"
        assert [stray["error"]["code"] for stray in client.strays] == [-32700]
        client.strays.clear()
        client.stderr = b""


async def test_an_answer_that_names_no_method_is_an_answer(tmp_path: Path) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        client.send({"jsonrpc": "2.0", "id": 77, "method": None, "result": None})
        assert (await client.status())["state"] == "ready"
        assert not client.strays


@pytest.mark.parametrize("again", [True, False])
async def test_a_document_that_was_closed_meanwhile_gets_no_edit(tmp_path: Path, again: bool) -> None:
    async with editor(tmp_path, CODE) as client:
        gate = tmp_path / "gate"
        client.open(says(text="return 1", gate=str(gate)) + "def f():\n    raise NotImplementedError\n")
        (action, *_) = await client.menu(2, 4)
        _, resolving = client.start("codeAction/resolve", action)
        while not client.asked:
            await client.status()
        client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
        if again:
            # Of the same version as the one that is filled.
            client.open("something = else_\n" * 5)
        await client.status()
        gate.touch()
        with pytest.raises(RpcError) as error:
            await resolving
        assert error.value.code == -32801


async def test_initialize_sets_the_trace_level(tmp_path: Path) -> None:
    async with editor(tmp_path, None) as client:
        greeting = {"processId": None, "rootUri": None, "capabilities": NEOVIM, "trace": "messages"}
        client.answers["workspace/configuration"] = lambda params: [None for _ in params["items"]]
        await client.request("initialize", greeting)
        client.notify("initialized", {})
        await client.until_ready()
        await client.request("textDocument/inlineCompletion", client.inline(0, 0))
        assert [message["message"] for message in client.said("$/logTrace")] == [
            "no suggestion: the document is not open [unknown]"
        ]


@pytest.mark.parametrize("began", [None, {}, {"params": None}, {"params": {}}])
async def test_a_client_that_says_nothing_after_initialize_gets_suggestions(
    tmp_path: Path, began: dict[str, Any] | None
) -> None:
    async with editor(tmp_path, None) as client:
        await client.request("initialize", {"processId": None, "rootUri": None, "capabilities": PLAIN})
        if began is not None:
            client.send({"jsonrpc": "2.0", "method": "initialized", **began})
        client.open(says(text="1") + "x = ")
        params = {"textDocument": {"uri": URI}, "position": {"line": 1, "character": 4}}
        assert (await client.request("textDocument/completion", params))["items"]


@pytest.mark.parametrize("version", [{}, {"version": None}, {"version": 2}])
async def test_a_document_and_a_change_need_no_version(tmp_path: Path, version: dict[str, Any]) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        document: dict[str, Any] = {"uri": URI, **version}
        text = {"languageId": "python", "text": says(text="2") + "x = "}
        client.notify("textDocument/didOpen", {"textDocument": {**document, **text}})
        assert (await client.suggestions(1, 4, trigger=1))[0]["insertText"] == "2"
        changes = [{"text": says(text="1") + "y = "}]
        client.notify("textDocument/didChange", {"textDocument": document, "contentChanges": changes})
        assert (await client.suggestions(1, 4, trigger=1))[0]["insertText"] == "1"


async def test_a_change_of_a_notebook_that_cant_be_read_loses_its_cells(tmp_path: Path) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        client.open_cells(BOOK, dict.fromkeys((FIRST, SECOND), says(text="1") + "x = "))
        params = client.inline(1, 4, uri=SECOND, trigger=1)
        assert (await client.request("textDocument/inlineCompletion", params))["items"]
        changes = [{"range": {"start": {"line": 1}}, "text": "y"}]
        content = [{"document": {"uri": SECOND, "version": 2}, "changes": changes}]
        change_params = {"notebookDocument": {"uri": BOOK, "version": 2}, "change": {"cells": {"textContent": content}}}
        client.notify("notebookDocument/didChange", change_params)
        assert not (await client.request("textDocument/inlineCompletion", params))["items"]
        assert (await client.status())["suppressed"]["code"] == "lost"
        client.stderr = b""


async def test_no_cell_is_context_when_related_chars_is_zero(tmp_path: Path) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        client.answers["workspace/configuration"] = lambda params: [{"context.relatedChars": 0} for _ in params["items"]]
        client.notify("workspace/didChangeConfiguration", {"settings": None})
        await client.until(lambda: [request["method"] for request in client.requests].count("workspace/configuration") > 1)
        await client.status()
        client.open_cells(BOOK, dict.fromkeys((FIRST, SECOND), says(text="1") + "x = "))
        completion_params = client.inline(1, 4, uri=SECOND, trigger=1)
        assert (await client.request("textDocument/inlineCompletion", completion_params))["items"]
        assert client.asked[0]["related"] == []


@pytest.mark.slow
async def test_files_are_reloaded_whatever_process_id_the_editor_sends(tmp_path: Path) -> None:
    async with editor(tmp_path, None) as client:
        root = tmp_path / "root"
        root.mkdir()
        greeting = {"processId": 10**20, "rootUri": root.as_uri(), "capabilities": {}}
        await client.request("initialize", greeting)
        client.notify("initialized", {})
        await client.until_ready()
        for file, problem in (("completion.candidates = 0\n", True), ("\n", False), ("enable = 1\n", True)):
            (root / ".dg-lsp.toml").write_text(file)
            while bool((await client.status())["problems"]) != problem:
                pass
        client.stderr = b""


async def test_an_answer_from_before_a_setting_changed_is_not_shown_again(tmp_path: Path) -> None:
    async with editor(tmp_path, NEOVIM) as client:
        settings: dict[str, int] = {}
        client.answers["workspace/configuration"] = lambda _params: [settings]

        def n_told() -> int:
            return [message["method"] for message in client.requests].count("workspace/configuration")

        client.open(says(text="one(two)") + "x = \n")
        for params in (1, 2):
            settings["context.windowChars"] = 300 * params
            client.notify("workspace/didChangeConfiguration", {"settings": None})
            await client.until(lambda: n_told() > len(settings))
            await client.status()
            for _ in range(2):
                assert (await client.request("textDocument/inlineCompletion", client.inline(1, 4, trigger=1)))["items"]
            assert [entry["what"] for entry in client.asked].count("asked") == params
            settings["context.relatedChars"] = 1000
