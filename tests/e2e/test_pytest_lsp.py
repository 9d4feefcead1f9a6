"""The real server with the embedded model, driven by pytest-lsp: typed messages, checked against what the client can do.

pytest-lsp warns where an answer is none that this client can take, and a warning fails the test. Each test has its own
document; all share one server and one engine, as documents of an editor do.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import pytest_lsp
from lsprotocol import types as lsp
from pytest_lsp import LanguageClient
from pytest_lsp.client import register_lsp_features

from dg_lsp.core import positions, values
from dg_lsp.core.values import Edit
from dg_lsp.server import convert
from tests.e2e.editor import STUB, command, environment
from tests.engine.engine_kit import home
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.smoke, pytest.mark.asyncio(loop_scope="module")]

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


class Client:
    """A client's documents, and what the server told and asked for."""

    def __init__(self, lsp_client: LanguageClient) -> None:
        self.lsp = lsp_client
        self.texts: dict[str, tuple[int, str]] = {}
        self.registered: list[str] = []
        self.statuses: list[Any] = []
        self.drafts: list[Any] = []
        self._heard = asyncio.Condition()
        self.server: lsp.InitializeResult

    def listen(self) -> None:
        """Take what only some clients understand."""

        async def status(params: Any) -> None:
            self.statuses.append(params)
            await self._tell()

        async def draft(params: Any) -> None:
            self.drafts.append(params)
            await self._tell()

        async def register(params: lsp.RegistrationParams) -> None:
            self.registered += [each.method for each in params.registrations]
            await self._tell()

        features: dict[str, Any] = {
            "dgLsp/status": status,
            "dgLsp/draft": draft,
            lsp.CLIENT_REGISTER_CAPABILITY: register,
        }
        register_lsp_features(self.lsp, features)

    async def _tell(self) -> None:
        async with self._heard:
            self._heard.notify_all()

    async def until(self, check: Callable[[], object]) -> None:
        async with self._heard:
            await asyncio.wait_for(self._heard.wait_for(lambda: bool(check())), PATIENCE_S)

    async def hello(self) -> None:
        self.lsp.set_configuration(SETTINGS, section="dgLsp")
        params = lsp.InitializeParams(CAPABILITIES, client_info=lsp.ClientInfo("pytest-lsp"), workspace_folders=[])
        self.server = await self.lsp.initialize_session(params)
        await self.until(lambda: self.statuses and self.statuses[-1].state == "ready")

    def open(self, name: str, marked_text: str) -> lsp.TextDocumentPositionParams:
        """Open a text that may be marked with a cursor; return where that is."""
        uri, text = f"untitled:{name}.py", marked_text.replace("$0", "")
        self.texts[uri] = (1, text)
        self.lsp.text_document_did_open(lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(uri, "python", 1, text)))
        return self.at(uri, max(marked_text.find("$0"), 0))

    def at(self, uri: str, offset: int) -> lsp.TextDocumentPositionParams:
        line, character = positions.to_position(positions.lines(self.texts[uri][1]), offset, "utf-16")
        return lsp.TextDocumentPositionParams(lsp.TextDocumentIdentifier(uri), lsp.Position(line, character))

    def change(self, uri: str, range_: lsp.Range, text: str) -> None:
        """Make an edit here and tell it."""
        self.take(uri, [lsp.TextEdit(range_, text)])
        document = lsp.VersionedTextDocumentIdentifier(self.texts[uri][0], uri)
        event = lsp.TextDocumentContentChangePartial(range_, text)
        self.lsp.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [event]))

    def take(self, uri: str, edits: list[lsp.TextEdit]) -> None:
        version, text = self.texts[uri]
        index = positions.lines(text)
        new = tuple(Edit(convert.to_span(index, edit.range, "utf-16"), edit.new_text) for edit in edits)
        self.texts[uri] = (version + 1, values.apply(text, new))

    def apply(self, edit: lsp.WorkspaceEdit) -> bool:
        """Apply an edit whose versions are ours; return whether they are."""
        changes = edit.document_changes or []
        for change in changes:
            assert isinstance(change, lsp.TextDocumentEdit)
            document = change.text_document
            if document.version != self.texts[document.uri][0]:
                return False
            self.take(document.uri, [each for each in change.edits if isinstance(each, lsp.TextEdit)])
        return bool(changes)

    async def inline(self, where: lsp.TextDocumentPositionParams) -> list[lsp.InlineCompletionItem]:
        context = lsp.InlineCompletionContext(lsp.InlineCompletionTriggerKind.Automatic)
        params = lsp.InlineCompletionParams(context, where.text_document, where.position)
        answer = await self.lsp.text_document_inline_completion_async(params)
        return list(answer.items if isinstance(answer, lsp.InlineCompletionList) else answer or ())

    async def menu(self, where: lsp.TextDocumentPositionParams) -> list[lsp.CodeAction]:
        params = lsp.CodeActionParams(where.text_document, lsp.Range(where.position, where.position), lsp.CodeActionContext([]))
        actions = await self.lsp.text_document_code_action_async(params)
        return [action for action in actions or () if isinstance(action, lsp.CodeAction)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home for engines, and a folder for the server's own files."""
    with pytest.MonkeyPatch.context() as patch, home(patch):
        yield tmp_path_factory.mktemp("pytest-lsp")


@contextlib.asynccontextmanager
async def session(folder: Path) -> AsyncIterator[Client]:
    config = pytest_lsp.ClientServerConfig(command(), server_env=environment(folder, DG_LSP_SERVE_ENGINE=""))
    language_client = await config.start()
    assert isinstance(language_client, LanguageClient)
    client = Client(language_client)
    client.listen()
    await client.hello()
    yield client
    await language_client.shutdown_session()
    assert language_client.error is None
    await language_client.stop()  # type: ignore[no-untyped-call]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(folder: Path) -> AsyncIterator[Client]:
    async with session(folder) as actions:
        yield actions


async def test_the_server_says_what_it_can_do_and_registers_for_changed_settings(client: Client) -> None:
    capabilities = client.server.capabilities
    assert capabilities.position_encoding == lsp.PositionEncodingKind.Utf16
    assert isinstance(capabilities.code_action_provider, lsp.CodeActionOptions)
    assert capabilities.code_action_provider.resolve_provider
    assert capabilities.inline_completion_provider is not None
    assert lsp.WORKSPACE_DID_CHANGE_CONFIGURATION in client.registered
    states = [status.state for status in client.statuses]
    assert states[-1] == "ready"
    assert "loading" in states or "starting" in states


async def test_a_suggestion_is_typed_through_without_the_engine(client: Client) -> None:
    where = client.open("typed", READERS)
    (item,) = await client.inline(where)
    assert item.insert_text == 'encoding="utf-8") as file:'
    assert item.range == lsp.Range(where.position, where.position)
    client.change(where.text_document.uri, item.range, "enc")
    line, character = where.position.line, where.position.character + 3
    later = lsp.TextDocumentPositionParams(where.text_document, lsp.Position(line, character))
    (rest,) = await client.inline(later)
    assert rest.insert_text == 'oding="utf-8") as file:'


async def test_an_action_is_resolved_with_progress_and_drafts_to_an_edit_that_parses(client: Client) -> None:
    where = client.open("resolved", STUB)
    uri = where.text_document.uri
    before = len(client.drafts), set(client.lsp.progress_reports)
    menu = await client.menu(client.at(uri, STUB.index("raise")))
    assert menu[0].title == "Fill function body"
    assert menu[0].edit is None
    resolved = await client.lsp.code_action_resolve_async(menu[0])
    assert resolved.edit is not None
    assert client.apply(resolved.edit)
    text = client.texts[uri][1]
    ast.parse(text)
    assert "NotImplementedError" not in text
    assert text.startswith(STUB[: STUB.index("raise")])
    assert text.endswith(STUB[STUB.index("\n\n\nprint") :])
    await client.until(lambda: len(client.drafts) > before[0] and client.drafts[-1].done)
    (token,) = set(client.lsp.progress_reports) - before[1]
    reports: list[Any] = list(client.lsp.progress_reports[token])
    assert isinstance(reports[0], lsp.WorkDoneProgressBegin)
    assert isinstance(reports[-1], lsp.WorkDoneProgressEnd)
    drafts = client.drafts[before[0] :]
    assert {draft.textDocument.uri for draft in drafts} == {uri}
    assert [draft.done for draft in drafts] == [False] * (len(drafts) - 1) + [True]
