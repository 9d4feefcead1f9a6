"""Suggestions as editors get them: shapes, triggers, supersession, cancellation, over the real wire."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.editor import CODE, NEOVIM, PLAIN, URI, Editor, editor, says
from tests.e2e.rpc import RpcError

pytestmark = pytest.mark.e2e


def at(line: int, start: int, end: int) -> dict[str, Any]:
    return {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}


async def test_a_request_before_the_engine_is_ready_is_answered_and_keeps_closed_brackets(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE, until_ready=False) as client:
        # Also a client that could register it later is told at once, so that it asks at the first pause.
        assert client.capabilities["inlineCompletionProvider"] == {}
        client.open(says(text="a)") + "x = f()\n")
        (item,) = await client.suggestions(1, 6)
        assert (item["insertText"], item["range"]) == ("a", at(1, 6, 6))
        states = [status["state"] for status in client.said("dgLsp/status")]
        assert states[:1] == ["starting"]
        assert "ready" in states


@pytest.mark.smoke
async def test_a_block_is_shown_in_the_shape_of_each_editor(tmp_path: Path) -> None:
    text, settings = says(text="a = 1\n    return a") + "def f(): \n\nx = 1\n", {"completion": {"candidates": 1}}
    async with editor(tmp_path / "code", CODE, settings=settings) as client:
        client.open(text)
        (item,) = await client.suggestions(1, 8, trigger=1)
        assert item["insertText"] == "\n    a = 1\n    return a "
        assert item["range"] == at(1, 8, 9)
    async with editor(tmp_path / "neovim", NEOVIM, settings=settings) as client:
        assert client.capabilities["inlineCompletionProvider"] == {}
        client.open(text)
        (item,) = await client.suggestions(1, 8, trigger=1)
        assert item["insertText"] == "\n    a = 1\n    return a"
        assert item["range"] == at(1, 8, 8)


@pytest.mark.parametrize(("encoding", "character"), [("utf-8", 11), ("utf-16", 9), ("utf-32", 8)])
async def test_positions_count_in_the_encoding_that_was_agreed_on(tmp_path: Path, encoding: str, character: int) -> None:
    async with editor(
        tmp_path,
        {"general": {"positionEncodings": [encoding]}, "textDocument": {"inlineCompletion": {}}},
        options={"completion": {"candidates": 1}},
    ) as client:
        assert client.capabilities["positionEncoding"] == encoding
        client.open(says(text="'é'") + 's = "𝕏"\f= \n')
        (item,) = await client.suggestions(1, character, trigger=1)
        assert item["range"] == at(1, character, character)
        assert client.asked[0]["prefix"].endswith('s = "𝕏"\f')


async def test_the_client_is_told_once_of_an_answer_that_came_after_the_deadline(tmp_path: Path) -> None:
    capabilities, settings = {**CODE, "experimental": {"dgLsp": {"refresh": True}}}, {"completion": {"debounce": 0}}
    async with editor(tmp_path, capabilities, settings=settings) as client:
        client.open(says(late="here", text="1") + "x = \n", version=7)
        assert await client.suggestions(1, 4) == []
        await client.until(lambda: client.said("dgLsp/refresh"))
        (item,) = await client.suggestions(1, 4)
        assert item["insertText"] == "1"
        assert client.said("dgLsp/refresh") == [{"version": 1, "textDocument": {"uri": URI, "version": 7}}]
        asked = [entry for entry in client.asked if entry["what"] == "asked" and entry["document"] == URI]
        assert len(asked) == 2


async def test_a_superseded_request_gets_an_empty_list_and_a_cancelled_one_the_cancel_error(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async with editor(tmp_path, NEOVIM) as client:
        client.open(says(gate=str(gate), text="1") + "x = \ny = \n")
        _, first = client.start("textDocument/inlineCompletion", client.inline(1, 4))
        await client.until_asked()
        _, second = client.start("textDocument/inlineCompletion", client.inline(2, 4))
        assert (await first)["items"] == []
        await client.until_asked(2)
        third_id, third = client.start("textDocument/inlineCompletion", client.inline(2, 4))
        assert (await second)["items"] == []
        client.notify("$/cancelRequest", {"id": third_id})
        with pytest.raises(RpcError) as error:
            await third
        assert error.value.code == -32800
        gate.touch()
        (item,) = await client.suggestions(2, 4)
        assert item["insertText"] == "1"
        assert [entry["what"] for entry in client.asked][:3] == ["asked", "cancelled", "asked"]


async def test_a_request_is_about_the_text_as_it_was_when_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with editor(tmp_path, CODE, settings={"completion": {"debounce": 0}}) as client:
        client.open(says(text="oo(a)") + "x = \n")
        assert await client.suggestions(1, 4)
        parts = list[bytes]()
        monkeypatch.setattr(client, "write", parts.append)
        client.change(2, {"range": at(1, 4, 4), "text": "f"})
        _, answer = client.start("textDocument/inlineCompletion", client.inline(1, 5))
        client.change(3, {"range": at(1, 5, 5), "text": "o"})
        monkeypatch.undo()
        client.write(b"".join(parts))
        (item,) = (await answer)["items"]
        assert (item["insertText"], item["range"]) == ("o(a)", at(1, 6, 6))


async def test_an_editor_without_inline_completion_gets_an_item_in_its_list(tmp_path: Path) -> None:
    async with editor(tmp_path, PLAIN, options={"completion": {"debounce": 0}}) as client:
        assert "completionProvider" in client.capabilities
        client.open(says(text="oo(a)") + "x = f\n")
        params = {"textDocument": {"uri": "untitled:a"}, "position": {"line": 1, "character": 5}}
        answer = await client.request("textDocument/completion", {**params, "context": {"triggerKind": 1}})
        (item,) = answer["items"]
        assert item["textEdit"] == {"range": at(1, 4, 5), "newText": "foo(a)"}
        assert item["filterText"] == "foo(a)"
        assert answer["isIncomplete"]


INVOKED, TYPED, INCOMPLETE = 1, 2, 3  # the kinds of a request for a list


@pytest.mark.parametrize(
    ("by_hand", "kind", "line", "is_answered"),
    [
        (True, INVOKED, "x = f", True),
        (True, INVOKED, "# x = f", True),
        (True, TYPED, "x = f", False),
        (True, None, "x = f", False),
        (False, INVOKED, "x = f", False),
    ],
)
async def test_a_list_that_is_opened_by_a_key_is_answered_where_suggestions_come_only_on_request(
    tmp_path: Path, by_hand: bool, kind: int | None, line: str, is_answered: bool
) -> None:
    options = {"completion": {"debounce": 0, "trigger": "manual", "invokedByHand": by_hand}}
    async with editor(tmp_path, PLAIN, options=options) as client:
        client.open(says(text="oo(a)") + f"{line}\n")
        params = {"textDocument": {"uri": URI}, "position": {"line": 1, "character": len(line)}}
        context = {"context": {"triggerKind": kind}} if kind else {}
        answer = await client.request("textDocument/completion", {**params, **context})
        assert bool(answer["items"]) == is_answered
        assert bool(client.asked) == is_answered


async def test_a_list_that_a_key_opened_stays_the_users_while_it_is_typed_on(tmp_path: Path) -> None:
    options = {"completion": {"debounce": 0, "trigger": "manual", "invokedByHand": True}}
    async with editor(tmp_path, PLAIN, options=options) as client:
        client.open(says(text="oo(a)") + "x = f\n")

        async def listed(kind: int, character: int) -> str:
            """Return the first item of the list."""
            params = {"textDocument": {"uri": URI}, "position": {"line": 1, "character": character}}
            answer = await client.request("textDocument/completion", {**params, "context": {"triggerKind": kind}})
            return str(next((item["textEdit"]["newText"] for item in answer["items"]), ""))

        assert await listed(INCOMPLETE, 5) == ""
        assert await listed(INVOKED, 5) == "foo(a)"
        client.change(2, {"text": says(text="oo(a)") + "x = fo\n"}, uri=URI)
        assert await listed(INCOMPLETE, 6) == "foo(a)"
        assert await listed(TYPED, 6) == ""
        assert await listed(INCOMPLETE, 6) == ""


async def test_a_secret_file_gets_nothing_and_the_status_says_why(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE, root=tmp_path) as client:
        uri = (tmp_path / ".env").as_uri()
        client.open("KEY=\n", uri=uri, language="dotenv")
        assert await client.suggestions(0, 4, uri=uri, trigger=1) == []
        assert await client.menu(0, 0, end=(0, 4), uri=uri) == []
        await client.until(lambda: client.said("dgLsp/status")[-1]["suppressed"])
        reason = client.said("dgLsp/status")[-1]["suppressed"]
        assert reason == {"code": "ignored", "message": "this file gets no suggestions: it may hold secrets"}
        assert client.asked == []


async def test_engine_trouble_is_shown_once_without_error_responses(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE) as client:
        client.open(says(fail="the engine has no memory left") + "x = \n")
        assert await client.suggestions(1, 4, trigger=1) == []
        assert await client.suggestions(1, 4, trigger=1) == []
        assert await client.suggestions(1, 4) == []
        assert [message["message"] for message in client.said("window/showMessage")] == [
            "dg-lsp: the engine has no memory left"
        ]
        assert (await client.status())["state"] == "failed"
        client.stderr = b""


async def test_a_server_s_pause_is_said_in_the_status_and_asked_for_by_hand_only_once(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE) as client:
        client.open(says(fail="no requests until 12:00:00", retry_s=3000) + "x = \n")
        for _ in range(3):
            assert await client.suggestions(1, 4) == []
        status = await client.status()
        assert (status["state"], status["message"]) == ("ready", "no requests until 12:00:00")
        assert status["suppressed"] == {"code": "engine", "message": "no requests until 12:00:00"}
        assert (len(client.asked), client.said("window/showMessage")) == (1, [])
        for _ in range(3):
            assert await client.suggestions(1, 4, trigger=1) == []
        assert [message["message"] for message in client.said("window/showMessage")] == ["dg-lsp: no requests until 12:00:00"]
        client.stderr = b""


async def test_cells_of_a_notebook_are_documents_that_know_those_before(tmp_path: Path) -> None:
    async with editor(tmp_path, {**CODE, "notebookDocument": {"synchronization": {}}}) as client:
        cells = {"nb:1": says(text="f(a)") + "first = 1\n", "nb:2": "x = \n"}
        client.open_cells("file:///n.ipynb", cells)
        change = {"range": at(0, 0, 1), "text": "yy"}
        client.notify(
            "notebookDocument/didChange",
            {
                "notebookDocument": {"uri": "file:///n.ipynb", "version": 2},
                "change": {"cells": {"textContent": [{"document": {"uri": "nb:2", "version": 2}, "changes": [change]}]}},
            },
        )
        (item,) = await client.suggestions(0, 5, uri="nb:2")
        assert item["insertText"] == "answer = 1"
        assert client.asked[0]["prefix"] == "yy = "
        assert client.asked[0]["related"] == ["2 (cell)"]
        client.notify(
            "notebookDocument/didClose",
            {"notebookDocument": {"uri": "file:///n.ipynb"}, "cellTextDocuments": [{"uri": uri} for uri in cells]},
        )
        assert await client.suggestions(0, 5, uri="nb:2") == []


async def test_imports_are_judged_by_what_the_editor_has(tmp_path: Path) -> None:
    app = tmp_path / "root" / "app"
    app.mkdir(parents=True)
    (app / "__init__.py").touch()
    (app / "tools.py").write_text("def old(): ...\n")
    (app / "main.py").touch()
    main, tools, never_saved = (path.as_uri() for path in (app / "main.py", app / "tools.py", app / "fresh.py"))
    async with editor(tmp_path, CODE, root=tmp_path / "root") as client:
        client.open("", main)
        n_changes = 0

        def ask_for(name: str, module: str = "tools") -> None:
            nonlocal n_changes
            n_changes += 1
            text = says(text=name) + f"# {n_changes}\nfrom app.{module} import \n"
            client.change(n_changes, {"text": text}, uri=main)

        async def is_shown(module: str = "tools") -> bool:
            return bool(await client.suggestions(2, len(f"from app.{module} import "), uri=main))

        ask_for("missing")
        while await is_shown():  # the folder is not indexed yet
            ask_for("missing")
        ask_for("old")
        assert await is_shown()
        client.open("def old(): ...\n", tools)
        await client.suggestions(0, 0, uri=tools)  # may be read
        ask_for("new")
        assert not await is_shown()
        client.change(2, {"text": "def new(): ...\n"}, uri=tools)
        assert await is_shown()
        ask_for("old")
        assert not await is_shown()
        ask_for("name", "fresh")
        assert not await is_shown("fresh")
        client.open("name = 1\n", never_saved)
        await client.suggestions(0, 0, uri=never_saved)
        ask_for("name", "fresh")
        assert await is_shown("fresh")


# Typed key by key


WHOLE = "total = price(a, b) + price(c, d) + price(e, f)"


def is_asked(client: Editor, reply: asyncio.Future[Any], n: int) -> bool:
    """Return whether the engine has been asked for more than `n` places, or the request is answered without it."""
    return reply.done() or len(client.asked) > n


async def typed(client: Editor, pace: str) -> tuple[str, dict[str, Any]]:
    """Type the whole text, each key as soon as its pace allows; return the text and the reply to its last request."""
    text, new = "", WHOLE[0]
    while True:
        at = {"line": 1, "character": len(text)}
        client.change(len(text) + 2, {"range": {"start": at, "end": at}, "text": new})
        text, n_asked = text + new, len(client.asked)
        _, reply = client.start("textDocument/inlineCompletion", client.inline(1, len(text)))
        if pace == "asked":
            await client.until(partial(is_asked, client, reply, n_asked))
        elif pace == "shown":
            await reply
        elif pace == "accepted":
            items = (await reply)["items"]
            new = items[0]["insertText"] if items else WHOLE[len(text) : len(text) + 1]
        if pace != "accepted":
            new = WHOLE[len(text) : len(text) + 1]
        if not new:
            return text, await reply


@pytest.mark.parametrize("debounce", [100, 300])
@pytest.mark.parametrize("pace", ["at once", "asked", "shown", "accepted"])
async def test_no_place_is_asked_for_twice(tmp_path: Path, debounce: int, pace: str) -> None:
    async with editor(tmp_path, CODE, settings={"completion": {"debounce": debounce}}) as client:
        client.open(says(ms=200, whole=WHOLE) + "\n")
        text, reply = await asyncio.wait_for(typed(client, pace), 240)
        assert (text, reply["items"]) == (WHOLE, [])
        places = Counter(entry["prefix"] for entry in client.asked if entry["what"] == "asked")
        assert places
        assert not [place for place, n in places.items() if n > 1]
        # Keys typed before the engine is asked are one request; what is shown is typed through or accepted.
        assert len(places) <= {"at once": 1, "asked": 4, "shown": 4, "accepted": 4}[pace] + 1
