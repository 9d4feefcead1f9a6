"""An editor for tests: it starts the real server, opens texts and keeps its own copy of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rpc import Rpc
from tests.engine.engine_kit import home

ROOT = Path(__file__).parents[2]
ENGINE = "tests.server.scripted:engine"

CODE = {
    "general": {"positionEncodings": ["utf-16"]},
    "textDocument": {
        "inlineCompletion": {"dynamicRegistration": True},
        "codeAction": {
            "codeActionLiteralSupport": {"codeActionKind": {"valueSet": []}},
            "dataSupport": True,
            "resolveSupport": {"properties": ["edit"]},
            "tagSupport": {"valueSet": [1]},
        },
    },
    "workspace": {
        "configuration": True,
        "applyEdit": True,
        "didChangeConfiguration": {"dynamicRegistration": True},
        "workspaceEdit": {"documentChanges": True, "changeAnnotationSupport": {}, "metadataSupport": True},
    },
    "window": {"workDoneProgress": True},
    "experimental": {"dgLsp": {"status": True, "draft": True}},
}
NEOVIM = {
    "general": {"positionEncodings": ["utf-8", "utf-16", "utf-32"]},
    "textDocument": {
        "inlineCompletion": {"dynamicRegistration": False},
        "codeAction": {"codeActionLiteralSupport": {"codeActionKind": {"valueSet": []}}},
    },
    "workspace": {"configuration": True, "applyEdit": True},
}
# The capabilities that Kate announces. It applies edits although it does not announce that.
KATE: dict[str, Any] = {
    "textDocument": {
        "codeAction": {"codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["quickfix", "refactor", "source"]}}}
    },
    "window": {"workDoneProgress": True},
    "workspace": {"workspaceFolders": True},
}
# An editor without any optional capability.
PLAIN: dict[str, Any] = {}
NAMES = {id(CODE): "Visual Studio Code", id(NEOVIM): "Neovim"}

# The name does not end with .py, so that names in the scripted engine's text need not be bound.
URI = "untitled:a"

# A function to fill, followed by wide characters.
STUB = '''\
def read_text(path):
    """Return the text of a file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_name(path):
    """Return the text of a file."""
    raise NotImplementedError


print(read_text("𝕏"), read_name("a"))
'''


def says(**script: Any) -> str:
    """Return a comment that tells the scripted engine what to answer."""
    return f"# engine: {json.dumps(script)}\n"


class Editor(Rpc):
    """A client that has sent `initialize`."""

    capabilities: dict[str, Any]
    journal: Path

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The requests that the engine received."""
        if not self.journal.exists():
            return []
        return [json.loads(line) for line in self.journal.read_text().splitlines()]

    async def hello(
        self,
        capabilities: Mapping[str, Any],
        *,
        settings: object = None,
        options: object = None,
        root: Path | None = None,
        process_id: int | None = None,
    ) -> None:
        self.answers["workspace/configuration"] = lambda params: [settings for _ in params["items"]]
        result = await self.request(
            "initialize",
            {
                "processId": process_id or os.getpid(),
                "rootUri": root.as_uri() if root else None,
                "workspaceFolders": [{"uri": root.as_uri(), "name": "root"}] if root else None,
                "capabilities": capabilities,
                "clientInfo": {"name": NAMES.get(id(capabilities), "test")},
                "initializationOptions": options,
            },
        )
        self.capabilities = result["capabilities"]
        self.notify("initialized", {})

    async def until_ready(self) -> None:
        """Wait until the engine is connected."""
        while (await self.request("workspace/executeCommand", {"command": "dgLsp.status"}))["state"] in (
            "off",
            "starting",
            "loading",
        ):
            await asyncio.sleep(0.01)

    async def until_asked(self, n: int = 1, what: str = "asked") -> None:
        """Wait until the engine has received so many requests, or has seen so many of them cancelled."""
        while len([entry for entry in self.asked if entry["what"] == what]) < n:
            await self.status()

    def open(self, text: str, uri: str = URI, language: str = "python", version: int = 1) -> None:
        document = {"uri": uri, "languageId": language, "version": version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def change(self, version: int, *changes: Mapping[str, Any], uri: str = URI) -> None:
        document = {"uri": uri, "version": version}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": changes})

    def open_cells(self, book: str, cells: Mapping[str, str]) -> None:
        """Open a notebook with the texts of its cells."""
        parts = [{"kind": 2, "document": uri} for uri in cells]
        texts = [{"uri": uri, "languageId": "python", "version": 1, "text": text} for uri, text in cells.items()]
        notebook = {"uri": book, "notebookType": "jupyter-notebook", "version": 1, "cells": parts}
        self.notify("notebookDocument/didOpen", {"notebookDocument": notebook, "cellTextDocuments": texts})

    def inline(self, line: int, character: int, *, uri: str = URI, trigger: int = 2, **context: Any) -> dict[str, Any]:
        return {
            "textDocument": {"uri": uri},
            "position": {"line": line, "character": character},
            "context": {"triggerKind": trigger, **context},
        }

    async def suggestions(self, line: int, character: int, **more: Any) -> list[dict[str, Any]]:
        answer = await self.request("textDocument/inlineCompletion", self.inline(line, character, **more))
        return list(answer["items"])

    async def menu(
        self, line: int, character: int, *, end: tuple[int, int] | None = None, uri: str = URI
    ) -> list[dict[str, Any]]:
        start = {"line": line, "character": character}
        last = {"line": end[0], "character": end[1]} if end else start
        return list(
            await self.request(
                "textDocument/codeAction",
                {"textDocument": {"uri": uri}, "range": {"start": start, "end": last}, "context": {"diagnostics": []}},
            )
        )

    async def status(self) -> dict[str, Any]:
        return dict(await self.request("workspace/executeCommand", {"command": "dgLsp.status"}))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dg_lsp", "serve", *arguments]


def environment(folder: Path, **more: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {
        **os.environ,
        "DG_LSP_SERVE_ENGINE": ENGINE,
        "DG_LSP_TEST_JOURNAL": str(folder / "journal"),
        "PYTHONPATH": str(ROOT),
        **more,
    }


@contextlib.asynccontextmanager
async def editor(
    folder: Path,
    capabilities: Mapping[str, Any] | None = None,
    *,
    settings: object = None,
    options: object = None,
    root: Path | None = None,
    until_ready: bool = True,
) -> AsyncIterator[Editor]:
    """Yield an editor, by default with a connected engine; then check that the server exits with 0 and wrote no error."""
    client = Editor(*command(), env=environment(folder))
    client.journal = folder / "journal"
    async with client:
        if capabilities is not None:
            await client.hello(
                capabilities,
                settings=settings or {"completion": {"debounce": 0, "speculate": False}},
                options=options,
                root=root,
            )
            if until_ready:
                await client.until_ready()
        yield client
        if client.process.returncode is None:
            assert await client.end() == 0
        assert client.stderr == b""
        assert not client.strays


@contextlib.asynccontextmanager
async def on_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, Any], **environ: str
) -> AsyncIterator[Editor]:
    """Yield an editor whose server has started the resident engine, which is stopped at the end."""
    with home(monkeypatch):
        client = Editor(*command(), env=environment(folder, DG_LSP_SERVE_ENGINE="", **environ))
        async with client:
            await client.hello(CODE, settings=settings)
            await client.until_ready()
            yield client
            assert await client.end() == 0
            assert client.stderr.decode() == ""
