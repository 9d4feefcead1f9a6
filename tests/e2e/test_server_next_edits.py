"""Next edits through the real server: the request that other clients know, what is told, and mishaps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.core import edits
from dg_lsp.engine.model.vocabulary import Vocabulary
from tests import checkpoints
from tests.e2e.editor import CODE, URI, Editor, editor, on_engine, says
from tests.e2e.rpc import RpcError

MODEL = "fim:openai:http://127.0.0.1:1#scripted"
SETTINGS = {
    "completion": {"debounce": 0, "speculate": False},
    "nextEdit": {"trigger": "pause"},
}
TEXT = says(edit=["area", "size"]) + "\ndef area(w, h):\n    return w * h\n\n\na = area(2, 3)\nprint(a)\nb = area(4, 5)\n"
CHANGED = {"range": {"start": {"line": 2, "character": 4}, "end": {"line": 2, "character": 8}}, "text": "size"}
FIRST = {
    "textDocument": {"uri": URI, "version": 2},
    "range": {"start": {"line": 6, "character": 0}, "end": {"line": 6, "character": 14}},
    "text": "a = size(2, 3)",
}


@pytest.fixture(autouse=True)
def _model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the model in the environment, because an editor may not."""
    monkeypatch.setenv("DG_LSP_EDIT_MODEL", MODEL)


async def asked(client: Editor, line: int, version: int = 2, *, kind: int | None = 1, uri: str = URI) -> list[dict[str, Any]]:
    params: dict[str, Any] = {"textDocument": {"uri": uri, "version": version}, "position": {"line": line, "character": 2}}
    if kind is not None:
        params["context"] = {"triggerKind": kind}
    return list((await client.request("textDocument/copilotInlineEdit", params))["edits"])


async def told(client: Editor, edit: dict[str, Any], outcome: str) -> None:
    command = edit["command"]
    await client.request(
        "workspace/executeCommand", {"command": command["command"], "arguments": [command["arguments"][0], outcome]}
    )


async def test_an_edit_is_offered_accepted_and_followed_by_the_next(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE, settings=SETTINGS) as client:
        assert client.capabilities["experimental"]["dgLsp"]["nextEdit"] is True
        assert (await client.status())["nextEdit"] == "pause"
        client.open(TEXT)
        assert await asked(client, 6, version=1, kind=None) == []  # nothing was edited
        client.change(2, CHANGED)
        # What copilot-lsp sends besides the request.
        client.notify("textDocument/didFocus", {"textDocument": {"uri": URI}})
        (first,) = await asked(client, 6, kind=None)
        client.notify("textDocument/didShowInlineEdit", {"item": {"command": first["command"]}})
        assert first.pop("command") == {
            "title": "Accept the next edit",
            "command": "dgLsp.nextEdit",
            "arguments": ["1", "accepted"],
        }
        assert first == FIRST
        client.change(3, {"range": first["range"], "text": first["text"]})
        (second,) = await asked(client, 6, version=3, kind=2)
        assert (second["range"]["start"]["line"], second["text"]) == (8, "b = size(4, 5)")
        await told(client, second, "accepted")
        await told(client, second, "rejected")
        assert await asked(client, 8, version=3) == []
        assert len(client.asked) == 1


async def test_nothing_stale_is_offered(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE, settings=SETTINGS) as client:
        client.open(TEXT)
        client.change(2, CHANGED)
        assert len(await asked(client, 6)) == 1
        assert await asked(client, 6, version=1) == []
        assert await asked(client, 6, uri="untitled:other") == []
        # An undo, the change again, and a paste over all of it.
        client.change(3, {**CHANGED, "text": "area"})
        assert await asked(client, 6, version=3) == []
        client.change(4, CHANGED)
        assert len(await asked(client, 6, version=4)) == 1
        client.change(5, {"text": "x = 1\n" * 2000})
        assert await asked(client, 6, version=5) == []
        # Closed, and opened by another name.
        client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
        assert await asked(client, 6, version=5) == []
        client.open(TEXT, uri="untitled:b")
        assert await asked(client, 6, version=1, uri="untitled:b") == []
        # Another branch.
        for name in "bcde":
            client.open(TEXT, uri=f"untitled:{name}")
        for name in "bcde":
            client.change(2, CHANGED, uri=f"untitled:{name}")
        assert await asked(client, 6, uri="untitled:e") == []


async def test_a_newer_request_or_a_change_ends_an_older_one(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with editor(tmp_path, CODE, settings=SETTINGS) as client:
        client.open(TEXT.replace('{"edit"', f'{{"gate": "{gate}", "edit"'))
        client.change(2, CHANGED)
        older = asyncio.ensure_future(asked(client, 6))
        await client.until_asked(1)
        newer = asyncio.ensure_future(asked(client, 8))
        assert await older == []
        await client.until_asked(2)
        client.change(3, {"range": {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}, "text": "\n"})
        assert await newer == []
        gate.touch()
        await client.until_asked(2, "cancelled")


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}}, "needs the document's version"),
        ({"textDocument": {"uri": URI, "version": 1}}, "position"),
        ([], "can't be read"),
    ],
)
async def test_unreadable_parameters_get_an_error(tmp_path: Path, params: object, sentence: str) -> None:
    async with editor(tmp_path, CODE, settings=SETTINGS, until_ready=False) as client:
        with pytest.raises(RpcError, match=sentence):
            await client.request("textDocument/copilotInlineEdit", params)


async def test_without_a_trigger_nothing_is_offered(tmp_path: Path) -> None:
    async with editor(tmp_path, CODE, settings={"completion": {"debounce": 0}}) as client:
        assert (await client.status())["nextEdit"] == "off"
        client.open(TEXT)
        client.change(2, CHANGED)
        assert await asked(client, 6) == []


async def test_the_edit_model_is_an_engine_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights write no window, so nothing is offered, but they are asked, in a process of their own."""
    folder = tmp_path / "model"
    folder.mkdir()
    checkpoints.qwen(folder)
    vocabulary = Vocabulary.from_file(folder / "tokenizer.json")
    vocabulary.tokenizer.add_special_tokens([edits.SEPARATOR])
    vocabulary.tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"engine": {"model": "embedded"}, "nextEdit": {"trigger": "manual"}}
    async with on_engine(tmp_path, monkeypatch, settings, DG_LSP_EDIT_MODEL=str(folder)) as client:
        client.notify("$/setTrace", {"value": "messages"})
        client.open(TEXT)
        client.change(2, CHANGED)
        assert await asked(client, 6, kind=2) == []
        assert await asked(client, 6) == []
        said = [params["message"] for params in client.said("$/logTrace")]
        assert said == ["no next edit: next_edit.trigger is manual", "no next edit: the model has no answer"]
