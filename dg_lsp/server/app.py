"""The language server: which messages there are, and who answers them. A handler converts, awaits, converts back.

Nothing heavy is imported before `initialize` is answered; the engine is joined after `initialized`.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams, JsonRpcRequestCancelled
from pygls.lsp.server import LanguageServer

from dg_lsp import __version__
from dg_lsp.core.values import Document
from dg_lsp.infill.port import EngineError
from dg_lsp.server import client, convert, methods, protocol, settings
from dg_lsp.server.client import Client
from dg_lsp.server.methods import BadParamsError, Draft, Status, Wanted
from dg_lsp.server.progress import Progresses
from dg_lsp.server.protocol import CONTENT_MODIFIED, RpcProtocol, Wire
from dg_lsp.server.resident import Opener, Resident
from dg_lsp.server.settings import Settings
from dg_lsp.server.stats import Statistics
from dg_lsp.server.status import Reporter
from dg_lsp.server.sync import Documents, Open

if TYPE_CHECKING:
    # What is needed only after `initialize` was answered is imported then.
    from dg_lsp.server.actions import Action
    from dg_lsp.server.completion import Answer, Ask, Completer
    from dg_lsp.server.filling import Filled
    from dg_lsp.server.nearby import Nearby
    from dg_lsp.server.when import Reason

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_AROUND_S = 2.0
WRITE_STATISTICS_S = 60.0

# Whoever waits for the work tells of these.
_TOLD = (EngineError, JsonRpcException, ValueError)

_TITLES = {
    "body": "Filling the function body",
    "hole": "Filling the hole",
    "all": "Filling all holes",
    "regenerate": "Writing the selection anew",
    "repair": "Repairing the syntax",
    "docstring": "Writing the docstring",
}


class Server(LanguageServer):
    """The server of one connection."""

    protocol: RpcProtocol

    def __init__(self, opener: Opener, *, statistics: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start nothing yet. `opener` gives the engine; statistics are written below their folder, None writes none."""
        self.wire = Wire()
        super().__init__(
            "dg-lsp",
            __version__,
            lsp.TextDocumentSyncKind.Incremental,
            lsp.NotebookDocumentSyncOptions(
                notebook_selector=[
                    lsp.NotebookDocumentFilterWithNotebook(notebook="*", cells=[lsp.NotebookCellLanguage(language="python")])
                ]
            ),
            protocol_cls=RpcProtocol,
            converter_factory=partial(protocol.converter, self.wire),
        )
        self.client = Client()
        self.settings = Settings()
        self.base_settings = Settings()
        self.documents = Documents()
        self.clock = clock
        self.statistics = Statistics(statistics)
        self.reporter = Reporter(self.settings.model, self._send_status)
        self.resident = Resident(opener, self._engine_changed, clock)
        self.progresses = Progresses(self)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.roots: dict[str, None] = {}
        self._registered = False
        self._told = ""
        self._is_ready = False
        self._pulls = 0
        self.protocol.experimental = {"dgLsp": {"version": methods.VERSION}}
        self.protocol.unreadable = self._unreadable
        _add_handlers(self)

    @cached_property
    def nearby(self) -> Nearby:
        """What of the workspace may be read."""
        from dg_lsp.server.nearby import Nearby

        nearby = Nearby(self.clock)
        nearby.set_roots(self.roots)
        return nearby

    @cached_property
    def completer(self) -> Completer:
        """What answers requests for suggestions."""
        from dg_lsp.server.completion import Completer

        return Completer(
            self.documents,
            self.resident,
            self.nearby,
            self.statistics,
            lambda: self.settings,
            self.clock,
            self._noted,
        )

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Write to the log; a popup at each keystroke helps nobody."""
        if isinstance(error, JsonRpcException):
            # Answered with this very sentence.
            log.info("%s", error)
        else:
            log.error("%s", error, exc_info=error)

    async def serve(self, reader: BinaryIO, writer: BinaryIO) -> int:
        """Serve one client over two streams until it ends; return the exit code."""
        try:
            return await protocol.run(self.protocol, reader, writer, self._look_around)
        finally:
            await self.close()

    async def close(self) -> None:
        """End everything that is under way, and give the engine back."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        # Neither is made just to be closed.
        if "completer" in self.__dict__:
            await self.completer.close()
        if "nearby" in self.__dict__:
            await self.nearby.close()
        await self.resident.stop()
        self._write_statistics()

    # Life

    def begin(self, params: lsp.InitializeParams) -> None:
        """Take note of the client before its capabilities are answered."""
        self.client = client.read(params)
        self.wire.is_old = self.client.old_wire
        # The choice of the encoding is pygls' own; this is how it will be made.
        offered = params.capabilities.general.position_encodings if params.capabilities.general else None
        known = [str(getattr(kind, "value", kind)) for kind in offered or ()]
        self.documents.encoding = convert.to_encoding(next((kind for kind in known if kind.startswith("utf-")), None))
        self._configure(_section(params.initialization_options), base=Settings())
        self.base_settings = self.settings
        roots = [folder.uri for folder in params.workspace_folders or ()]
        roots += [params.root_uri] if params.root_uri and not roots else []
        self.roots = dict.fromkeys(roots)
        if not self.client.inline or not self.client.registers_inline:
            self.protocol.fm.feature_options[lsp.TEXT_DOCUMENT_INLINE_COMPLETION] = lsp.InlineCompletionOptions()
            self._registered = True
        if self.settings.completion_list if self.settings.completion_list is not None else not self.client.inline:
            self.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions())(partial(_completion, self))

    async def ready(self) -> None:
        """Ask for the settings and join the engine, once; the client is ready for requests."""
        if self._is_ready:
            return
        self._is_ready = True
        await self.pull_settings()
        if self.client.registers_configuration:
            options = lsp.DidChangeConfigurationRegistrationOptions(section=settings.SECTION)
            await self._register("dg-lsp-settings", lsp.WORKSPACE_DID_CHANGE_CONFIGURATION, options)
        self.resident.start(self.settings)

    async def pull_settings(self) -> None:
        """Ask the client for its settings, where it can tell them; the answer to the last question counts."""
        if not self.client.pulls_configuration:
            return
        self._pulls += 1
        mine = self._pulls
        try:
            found = await self.workspace_configuration_async(
                lsp.ConfigurationParams([lsp.ConfigurationItem(section=settings.SECTION)])
            )
        except JsonRpcException as error:
            log.warning("the editor's settings could not be had: %s", error)
            return
        if mine == self._pulls:
            self.configure(found[0] if found else None)

    def configure(self, data: object) -> None:
        """Use these settings from now on, on top of those of `initialize`; another model means another engine."""
        old = self.settings
        self._configure(data, base=self.base_settings)
        if settings.restarts_engine(old, self.settings) and self.resident.condition.state != "off":
            self.restart_engine()

    def restart_engine(self) -> None:
        """Join the engine anew."""
        self.completer.reset()
        self.resident.start(self.settings)

    def _configure(self, data: object, *, base: Settings) -> None:
        self.settings, problems = settings.read(data, base)
        for problem in problems:
            log.warning("%s", problem)
        if problems and self.protocol.initialized:
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, "; ".join(problems)))
        self.reporter.model(self.settings.model)
        if not self.settings.statistics:
            self.statistics.folder = None

    def _engine_changed(self) -> None:
        condition = self.resident.condition
        self.reporter.condition(condition)
        if condition.state == "ready" and not self._registered:
            self._registered = True
            options = lsp.InlineCompletionRegistrationOptions()
            self.spawn(self._register("dg-lsp-inline-completion", lsp.TEXT_DOCUMENT_INLINE_COMPLETION, options))
        if condition.state == "failed":
            log.warning("%s", condition.message)
            self.spawn(self._tell(condition.message))

    async def _tell(self, message: str) -> None:
        """Say it to the user, once: whoever wants it again looks at the status."""
        if message != self._told:
            self._told = message
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, f"dg-lsp: {message}"))

    async def _register(self, name: str, method: str, options: object) -> None:
        try:
            await self.client_register_capability_async(lsp.RegistrationParams([lsp.Registration(name, method, options)]))
        except JsonRpcException as error:
            log.warning("the editor did not take the registration of %s: %s", method, error)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run in the background, until it is done or the server ends."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, _TOLD):
            log.error("something in the background failed", exc_info=error)

    async def _look_around(self) -> None:
        """End when the process that started us is gone, and write statistics now and then."""
        written = self.clock()
        while True:
            await asyncio.sleep(LOOK_AROUND_S)
            if self.process_id is not None and not _alive(self.process_id):
                log.warning("the editor's process is gone")
                self.protocol.ended()
            if self.clock() - written >= WRITE_STATISTICS_S:
                written = self.clock()
                self._write_statistics()

    def _write_statistics(self) -> None:
        today = datetime.datetime.now(datetime.timezone.utc).date()
        self.statistics.write(today)

    # Status

    def _noted(self, reason: Reason | None) -> None:
        self.reporter.suppressed(reason)
        if reason is not None and self.protocol.trace != lsp.TraceValue.Off:
            self.log_trace(lsp.LogTraceParams(f"no suggestion: {reason.message} [{reason.code}]"))

    def _send_status(self, status: Status) -> None:
        if self.client.hears_status and self.protocol.initialized:
            self.protocol.notify(methods.STATUS, status.to_json())

    def _unreadable(self, method: str, params: object) -> None:
        """A change that could not be read leaves us with another text than the editor's."""
        if method == lsp.TEXT_DOCUMENT_DID_CHANGE and isinstance(params, Mapping):
            document = params.get("textDocument")
            if isinstance(document, Mapping) and isinstance(document.get("uri"), str):
                self.documents.lose(document["uri"])

    # Suggestions

    async def answer(self, uri: str, position: lsp.Position, ask: Callable[[Open, int], Ask]) -> tuple[Answer, Open | None]:
        """Return the answer to a request at a position; trouble with the engine is told, not raised."""
        from dg_lsp.core import positions
        from dg_lsp.server.completion import Answer
        from dg_lsp.server.when import Reason

        found = self.documents.get(uri)
        if found is None:
            self._noted(Reason("unknown", "the document is not open"))
            return Answer(positions.lines("")), None
        offset = convert.to_offset(found.index, position, self.documents.encoding)
        try:
            return await self.completer.complete(ask(found, offset)), found
        except EngineError as error:
            self._noted(Reason("engine", str(error)))
            await self._tell(str(error))
            return Answer(found.index), found
        except Exception as error:
            # Editors pop up an error for each keystroke; one failed suggestion is worth a line in the log.
            log.exception("a request for suggestions failed")
            self._noted(Reason("internal", f"dg-lsp failed on this request ({type(error).__name__}); its log says where"))
            return Answer(found.index), found
        finally:
            if latencies := self.completer.rhythm.latencies_ms:
                self.reporter.latency(latencies[-1])

    # Code actions

    def to_action(self, document: Document, found: Open, action: Action) -> lsp.CodeAction:
        """Return an entry of the menu, with what it takes to do it later."""
        ends = convert.to_points(found.index, action.span, self.documents.encoding)
        wanted = Wanted(action.what, document.uri, document.version, *ends).to_json()
        by_command = lsp.Command(action.title, methods.FILL, arguments=[wanted])
        return lsp.CodeAction(
            title=action.title,
            kind=methods.KINDS[action.what],
            data=wanted,
            command=None if self.client.resolves_edits else by_command,
            tags=[lsp.CodeActionTag.LlmGenerated] if self.client.tags_actions else None,
        )

    async def edit(self, wanted: Wanted) -> lsp.WorkspaceEdit | None:
        """Return what an action comes to, None when it comes to nothing, of which the user is told.

        Raises JsonRpcException when the document is another by now, or the work was cancelled.
        """
        found = self._unchanged(wanted)
        index, document, encoding = found.index, found.document, self.documents.encoding
        if refused := self.nearby.refused(wanted.uri):
            self._say(f"this file is not given to a model: it {refused}")
            return None
        self.statistics.counts.add("actions")
        filled = await self._filled(wanted, found)
        if found.index.text is not index.text:
            raise JsonRpcException("the document changed while it was filled", CONTENT_MODIFIED)
        if not filled.edits:
            self._say(f"nothing was filled: {'; '.join(filled.reasons)}")
            return None
        self.statistics.counts.add("actions filled")
        if len(filled.edits) < filled.n_holes:
            self._say(f"{len(filled.edits)} of {filled.n_holes} holes were filled: {'; '.join(filled.reasons)}")
        return convert.to_workspace_edit(
            wanted.uri,
            document.version,
            index,
            filled.edits,
            encoding,
            versioned=self.client.versioned_edits,
            label=_TITLES[wanted.what] if self.client.annotates else "",
        )

    async def _filled(self, wanted: Wanted, found: Open) -> Filled:
        from dg_lsp.server import running

        work: asyncio.Task[Filled] | None = None

        def cancel() -> None:
            if work is not None:
                work.cancel()

        self.reporter.busy(1)
        try:
            async with self.progresses.bar(_TITLES[wanted.what], cancel, wanted=self.client.progress) as bar:
                work = self.spawn(running.run(self, wanted, found, bar))
                try:
                    return await asyncio.shield(work)
                except asyncio.CancelledError:
                    if work.cancelled():
                        raise JsonRpcRequestCancelled("the user cancelled it") from None
                    work.cancel()
                    raise
        except EngineError as error:
            from dg_lsp.server.filling import Filled

            await self._tell(str(error))
            return Filled(reasons=(str(error),))
        except ValueError as error:
            raise JsonRpcInvalidParams(str(error)) from error
        finally:
            self.reporter.busy(-1)

    def _unchanged(self, wanted: Wanted) -> Open:
        found = self.documents.get(wanted.uri)
        if found is None:
            raise JsonRpcException("the document is not open", CONTENT_MODIFIED)
        if found.lost or (wanted.version is not None and wanted.version != found.document.version):
            raise JsonRpcException("the document has changed since the action was offered", CONTENT_MODIFIED)
        return found

    def _say(self, sentence: str) -> None:
        self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Info, f"dg-lsp: {sentence}"))

    def send_draft(self, draft: Draft) -> None:
        """Show the canvas, where the client can."""
        if self.client.hears_drafts:
            self.protocol.notify(methods.DRAFT, draft.to_json())


def _section(data: object) -> object:
    """Return our settings of what a client sends: under our name, or all of it."""
    if isinstance(data, Mapping):
        inner = data.get(settings.SECTION, data.get("dg-lsp"))
        # The same section says which notifications are understood.
        data = inner if isinstance(inner, Mapping) else {} if settings.SECTION in data else data
        return {key: value for key, value in data.items() if key not in ("status", "draft")}
    return data


def _alive(process_id: int) -> bool:
    from dg_lsp.wire import meeting

    return meeting.alive(process_id)


def _add_handlers(server: Server) -> None:
    """Say which message is handled by what."""
    documents = server.documents

    @server.feature(lsp.INITIALIZE)
    def _(params: lsp.InitializeParams) -> None:
        server.begin(params)

    @server.feature(lsp.INITIALIZED)
    def _(params: lsp.InitializedParams) -> None:
        server.spawn(server.ready())

    @server.feature(lsp.SHUTDOWN)
    def _(params: None) -> None:
        for task in list(server.tasks):
            task.cancel()

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def _(params: lsp.DidOpenTextDocumentParams) -> None:
        new = params.text_document
        opened = documents.open(new.uri, new.language_id, new.version, new.text)
        if not server.nearby.refused(new.uri):
            server.nearby.related(opened.document, server.settings.related_chars)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def _(params: lsp.DidChangeTextDocumentParams) -> None:
        old = params.text_document
        if documents.change(old.uri, old.version, convert.to_changes(params.content_changes)) is not None:
            server.completer.typed(old.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def _(params: lsp.DidCloseTextDocumentParams) -> None:
        documents.close(params.text_document.uri)
        server.completer.forget(params.text_document.uri)
        server.nearby.forget(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def _(params: lsp.DidSaveTextDocumentParams) -> None:
        server.nearby.forget(params.text_document.uri)

    _add_notebook_handlers(server)

    @server.feature(lsp.TEXT_DOCUMENT_INLINE_COMPLETION)
    async def _(params: lsp.InlineCompletionParams) -> lsp.InlineCompletionList:
        return await _inline_completion(server, params)

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION,
        lsp.CodeActionOptions(code_action_kinds=sorted(set(methods.KINDS.values())), resolve_provider=True),
    )
    def _(params: lsp.CodeActionParams) -> list[lsp.CodeAction | lsp.Command]:
        return _code_actions(server, params)

    @server.feature(lsp.CODE_ACTION_RESOLVE)
    async def _(params: lsp.CodeAction) -> lsp.CodeAction:
        params.edit = await server.edit(_wanted(params.data))
        return params

    @server.feature(lsp.WORKSPACE_EXECUTE_COMMAND)
    async def _(params: lsp.ExecuteCommandParams) -> Any:
        return await _execute(server, params)

    for name in methods.COMMANDS:
        # Only their names are used, for the capabilities; `_execute` runs them.
        server.protocol.fm.commands[name] = None

    @server.feature(lsp.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def _(params: lsp.DidChangeConfigurationParams) -> None:
        if server.client.pulls_configuration:
            server.spawn(server.pull_settings())
        else:
            server.configure(_section(params.settings))

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def _(params: lsp.DidChangeWorkspaceFoldersParams) -> None:
        for folder in params.event.removed:
            server.roots.pop(folder.uri, None)
        server.roots.update(dict.fromkeys(folder.uri for folder in params.event.added))
        server.nearby.set_roots(server.roots)

    @server.feature(lsp.WINDOW_WORK_DONE_PROGRESS_CANCEL)
    def _(params: lsp.WorkDoneProgressCancelParams) -> None:
        server.progresses.cancel(params.token)

    @server.feature(methods.DID_SHOW)
    def _(params: Any) -> None:
        _heard(params, lambda: methods.to_shown(params))

    @server.feature(methods.DID_PARTIALLY_ACCEPT)
    def _(params: Any) -> None:
        _heard(
            params,
            lambda: server.completer.accepted_in_part(methods.to_shown(params), methods.to_accepted_length(params)),
        )


def _add_notebook_handlers(server: Server) -> None:
    documents = server.documents

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_OPEN)
    def _(params: lsp.DidOpenNotebookDocumentParams) -> None:
        documents.open_notebook(params.notebook_document.uri, [cell.document for cell in params.notebook_document.cells])
        for cell in params.cell_text_documents:
            documents.open(cell.uri, cell.language_id, cell.version, cell.text)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def _(params: lsp.DidChangeNotebookDocumentParams) -> None:
        cells = params.change.cells
        if cells is None:
            return
        if cells.structure is not None:
            array = cells.structure.array
            new = [cell.document for cell in array.cells or ()]
            documents.splice_cells(params.notebook_document.uri, array.start, array.delete_count, new)
            for opened in cells.structure.did_open or ():
                documents.open(opened.uri, opened.language_id, opened.version, opened.text)
            for closed in cells.structure.did_close or ():
                documents.close(closed.uri)
                server.completer.forget(closed.uri)
        for content in cells.text_content or ():
            uri = content.document.uri
            if documents.change(uri, content.document.version, convert.to_changes(content.changes)) is not None:
                server.completer.typed(uri)

    @server.feature(lsp.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def _(params: lsp.DidCloseNotebookDocumentParams) -> None:
        documents.close_notebook(params.notebook_document.uri)
        for cell in params.cell_text_documents:
            documents.close(cell.uri)
            server.completer.forget(cell.uri)


async def _inline_completion(server: Server, params: lsp.InlineCompletionParams) -> lsp.InlineCompletionList:
    from dg_lsp.server.completion import Ask

    encoding, context = server.documents.encoding, params.context
    chosen = context.selected_completion_info

    def ask(found: Open, offset: int) -> Ask:
        return Ask(
            params.text_document.uri,
            offset,
            automatic=context.trigger_kind == lsp.InlineCompletionTriggerKind.Automatic,
            selected=(convert.to_span(found.index, chosen.range, encoding), chosen.text) if chosen else None,
            client_ms=server.client.own_wait_ms,
        )

    answer, _ = await server.answer(params.text_document.uri, params.position, ask)
    items = []
    for offer in answer.offers:
        command = lsp.Command("Accepted", methods.ACCEPTED, arguments=[offer.id])
        if answer.replaced is not None:
            items.append(
                convert.to_replacing_item(answer.index, answer.replaced, offer.text, encoding=encoding, command=command)
            )
        else:
            to_line_end = server.client.to_line_end
            items.append(
                convert.to_item(
                    answer.index, answer.at, offer.text, to_line_end=to_line_end, encoding=encoding, command=command
                )
            )
    return lsp.InlineCompletionList(items)


async def _completion(server: Server, params: lsp.CompletionParams) -> lsp.CompletionList:
    from dg_lsp.server.completion import Ask

    encoding = server.documents.encoding
    invoked = params.context is None or params.context.trigger_kind == lsp.CompletionTriggerKind.Invoked

    def ask(found: Open, offset: int) -> Ask:
        # Editors say "invoked" for each letter typed; only in a place where none was may it have been by hand.
        return Ask(params.text_document.uri, offset, automatic=invoked, client_ms=server.client.own_wait_ms)

    answer, _ = await server.answer(params.text_document.uri, params.position, ask)
    items = [
        convert.to_completion_item(answer.index, answer.at, offer.text, encoding=encoding, detail="dg-lsp")
        for offer in answer.offers
    ]
    return lsp.CompletionList(is_incomplete=True, items=items)


def _code_actions(server: Server, params: lsp.CodeActionParams) -> list[lsp.CodeAction | lsp.Command]:

    from dg_lsp.server import actions

    found = server.documents.get(params.text_document.uri)
    automatic = params.context.trigger_kind == lsp.CodeActionTriggerKind.Automatic
    if found is None or found.lost or not server.settings.enable or server.nearby.refused(params.text_document.uri):
        return []
    if automatic and len(found.index.text) > server.settings.max_file_chars:
        return []
    span = convert.to_span(found.index, params.range, server.documents.encoding)
    only = [str(getattr(kind, "value", kind)) for kind in params.context.only] if params.context.only is not None else None
    offered = actions.offered(found.document, found.syntax(), span, only)
    written = [server.to_action(found.document, found, action) for action in offered]
    if server.client.action_literals:
        return [*written]
    return [lsp.Command(action.title, methods.FILL, arguments=[action.data]) for action in written]


async def _execute(server: Server, params: lsp.ExecuteCommandParams) -> Any:
    arguments = params.arguments or []
    first = arguments[0] if arguments else None
    if params.command == methods.ACCEPTED:
        if isinstance(first, int):
            server.completer.accepted(first)
        return None
    if params.command == methods.GET_STATUS:
        return server.reporter.status.to_json()
    if params.command == methods.RESTART:
        server.restart_engine()
        return None
    if params.command == methods.FILL:
        return await _fill(server, _wanted(first))
    raise JsonRpcInvalidParams(f"there is no command {params.command!r}; there are {', '.join(methods.COMMANDS)}")


async def _fill(server: Server, wanted: Wanted) -> dict[str, Any]:
    edit = await server.edit(wanted)
    if edit is None:
        return {"applied": False}
    if not server.client.applies_edits:
        return {"applied": False, "edit": server.protocol._converter.unstructure(edit)}
    label = _TITLES[wanted.what]
    result = await server.workspace_apply_edit_async(lsp.ApplyWorkspaceEditParams(edit=edit, label=label))
    if not result.applied:
        log.warning("the editor did not apply the edit: %s", result.failure_reason)
    return {"applied": bool(result.applied)}


def _wanted(data: object) -> Wanted:
    try:
        return methods.to_wanted(data)
    except BadParamsError as error:
        raise JsonRpcInvalidParams(str(error)) from error


def _heard(params: object, take: Callable[[], object]) -> None:
    try:
        take()
    except BadParamsError as error:
        log.warning("a notification of the client's says too little: %s", error)
