"""The real server with the embedded model, driven by pytest-lsp: typed messages, checked against what the client can do.

pytest-lsp warns where an answer is none that this client can take, and a warning fails the test.
"""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest
import pytest_lsp
from lsprotocol import types as lsp
from pytest_lsp import LanguageClient
from pytest_lsp.client import register_lsp_features

from tests.e2e.editor import STUB, command, environment
from tests.engine.engine_kit import home
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.smoke]

SETTINGS = {"completion": {"debounce": 0, "threshold": 0, "deadline": 0, "speculate": False}}
CAPABILITIES = lsp.ClientCapabilities(
    general=lsp.GeneralClientCapabilities(position_encodings=[lsp.PositionEncodingKind.Utf16]),
    text_document=lsp.TextDocumentClientCapabilities(
        inline_completion=lsp.InlineCompletionClientCapabilities(dynamic_registration=True),
        code_action=lsp.CodeActionClientCapabilities(
            code_action_literal_support=lsp.ClientCodeActionLiteralOptions(lsp.ClientCodeActionKindOptions([])),
            data_support=True,
            resolve_support=lsp.ClientCodeActionResolveOptions(["edit"]),
        ),
    ),
    workspace=lsp.WorkspaceClientCapabilities(
        configuration=True,
        apply_edit=True,
        workspace_edit=lsp.WorkspaceEditClientCapabilities(document_changes=True),
        did_change_configuration=lsp.DidChangeConfigurationClientCapabilities(dynamic_registration=True),
    ),
    window=lsp.WindowClientCapabilities(work_done_progress=True),
    experimental={"dgLsp": {"status": True, "draft": True}},
)

# The file shows how its own lines go on, so the small model knows as well.
READERS = """\
def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_lines(path):
    with open(path, $0
"""


class Heard:
    """What only some clients understand: the states of the engine, the drafts of a fill, and what the server registers for."""

    def __init__(self, client: LanguageClient) -> None:
        self.states: list[str] = []
        self.drafts: list[Any] = []
        self.registered: list[str] = []
        self._has_come = asyncio.Condition()

        async def status(params: Any) -> None:
            await self._add(self.states, params.state)

        async def draft(params: Any) -> None:
            await self._add(self.drafts, params)

        async def register(params: lsp.RegistrationParams) -> None:
            await self._add(self.registered, *(each.method for each in params.registrations))

        names = ("dgLsp/status", "dgLsp/draft", lsp.CLIENT_REGISTER_CAPABILITY)
        register_lsp_features(client, dict(zip(names, (status, draft, register), strict=True)))

    async def _add(self, values: list[Any], *new: Any) -> None:
        async with self._has_come:
            values.extend(new)
            self._has_come.notify_all()

    async def until(self, values: list[Any], last: Any) -> None:
        """Wait until the last of the values is so."""
        async with self._has_come:
            await asyncio.wait_for(self._has_come.wait_for(lambda: values and last(values[-1])), PATIENCE_S)


def opened(client: LanguageClient, uri: str, text: str) -> lsp.TextDocumentIdentifier:
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(uri, "python", 1, text)))
    return lsp.TextDocumentIdentifier(uri)


async def suggestion(
    client: LanguageClient, document: lsp.TextDocumentIdentifier, at: lsp.Position
) -> lsp.InlineCompletionItem:
    context = lsp.InlineCompletionContext(lsp.InlineCompletionTriggerKind.Automatic)
    answer = await client.text_document_inline_completion_async(lsp.InlineCompletionParams(context, document, at))
    assert isinstance(answer, lsp.InlineCompletionList)
    (item,) = answer.items
    return item


async def test_a_typed_client_gets_suggestions_and_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with home(monkeypatch):
        client = await pytest_lsp.ClientServerConfig(
            command(), server_env=environment(tmp_path, DG_LSP_SERVE_ENGINE="")
        ).start()
        assert isinstance(client, LanguageClient)
        heard = Heard(client)
        client.set_configuration(SETTINGS, section="dgLsp")
        params = lsp.InitializeParams(CAPABILITIES, client_info=lsp.ClientInfo("pytest-lsp"), workspace_folders=[])
        capabilities = (await client.initialize_session(params)).capabilities
        assert capabilities.position_encoding == lsp.PositionEncodingKind.Utf16
        assert isinstance(capabilities.code_action_provider, lsp.CodeActionOptions)
        assert capabilities.code_action_provider.resolve_provider
        assert capabilities.inline_completion_provider is not None
        await heard.until(heard.states, lambda state: state == "ready")
        assert lsp.WORKSPACE_DID_CHANGE_CONFIGURATION in heard.registered
        assert {"loading", "starting"} & set(heard.states)
        await check_suggestion(client)
        await check_fill(client, heard)
        await client.shutdown_session()
        assert client.error is None
        await client.stop()  # type: ignore[no-untyped-call]


async def check_suggestion(client: LanguageClient) -> None:
    """Ask, type a part of the suggestion, and get the rest of it."""
    document, at = opened(client, "untitled:typed.py", READERS.replace("$0", "")), lsp.Position(6, 20)
    item = await suggestion(client, document, at)
    assert (item.insert_text, item.range) == ('encoding="utf-8") as file:', lsp.Range(at, at))
    changes: list[Any] = [lsp.TextDocumentContentChangePartial(lsp.Range(at, at), "enc")]
    version = lsp.VersionedTextDocumentIdentifier(2, document.uri)
    client.text_document_did_change(lsp.DidChangeTextDocumentParams(version, changes))
    assert (await suggestion(client, document, lsp.Position(6, 23))).insert_text == 'oding="utf-8") as file:'


async def check_fill(client: LanguageClient, heard: Heard) -> None:
    """Resolve an action to an edit that parses, with progress and drafts."""
    document, line = opened(client, "untitled:resolved.py", STUB), STUB[: STUB.index("raise")].count("\n")
    start, end = lsp.Position(line, 4), lsp.Position(line, 29)
    menu = await client.text_document_code_action_async(
        lsp.CodeActionParams(document, lsp.Range(start, start), lsp.CodeActionContext([]))
    )
    assert menu
    assert isinstance(menu[0], lsp.CodeAction)
    assert (menu[0].title, menu[0].edit) == ("Fill function body", None)
    resolved = await client.code_action_resolve_async(menu[0])
    assert resolved.edit is not None
    (change,) = resolved.edit.document_changes or ()
    assert isinstance(change, lsp.TextDocumentEdit)
    (edit,) = change.edits
    assert isinstance(edit, lsp.TextEdit)
    assert change.text_document == lsp.OptionalVersionedTextDocumentIdentifier(document.uri, 1)
    assert edit.range == lsp.Range(start, end)
    ast.parse(STUB.replace("raise NotImplementedError", edit.new_text))
    await heard.until(heard.drafts, lambda draft: draft.done)
    ((begin, *_, last),) = client.progress_reports.values()
    assert isinstance(begin, lsp.WorkDoneProgressBegin)
    assert isinstance(last, lsp.WorkDoneProgressEnd)
    assert {draft.textDocument.uri for draft in heard.drafts} == {document.uri}
    assert [draft.done for draft in heard.drafts] == [False] * (len(heard.drafts) - 1) + [True]
