"""The language server of one connection: its parts, its settings and its background work. `handlers` answer messages.

Nothing heavy is imported before `initialize` is answered; the engine is joined after `initialized`.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from lsprotocol import types as lsp
from pygls.capabilities import ServerCapabilitiesBuilder
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from dg_lsp import __version__
from dg_lsp.infill.port import EngineError
from dg_lsp.server import client, convert, methods, protocol, settings
from dg_lsp.server.client import Client
from dg_lsp.server.configuration import Configuration
from dg_lsp.server.methods import DraftParams, StatusParams
from dg_lsp.server.progress import Progresses
from dg_lsp.server.protocol import RpcProtocol, Wire
from dg_lsp.server.resident import Opener, Resident
from dg_lsp.server.settings import Settings
from dg_lsp.server.stats import Statistics
from dg_lsp.server.status import Reporter
from dg_lsp.server.sync import Documents

if TYPE_CHECKING:
    # What is needed only after `initialize` was answered is imported then.
    from dg_lsp.server.completion import Completer
    from dg_lsp.server.nearby import Nearby
    from dg_lsp.server.when import Reason

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_AROUND_S = 2.0
WRITE_STATISTICS_S = 60.0
CLIENT_PATIENCE_S = 10.0

# Which messages change a document or a notebook, where its URI stands in them, and what becomes of it when they can't be read.
_LOSES: dict[str, tuple[str, Callable[[Documents, str], None]]] = {
    lsp.TEXT_DOCUMENT_DID_OPEN: ("textDocument", Documents.lose),
    lsp.TEXT_DOCUMENT_DID_CHANGE: ("textDocument", Documents.lose),
    lsp.NOTEBOOK_DOCUMENT_DID_OPEN: ("notebookDocument", Documents.lose_notebook),
    lsp.NOTEBOOK_DOCUMENT_DID_CHANGE: ("notebookDocument", Documents.lose_notebook),
}

# Whoever waits for the work tells of these.
_TOLD = (EngineError, JsonRpcException, ValueError)


class DgLanguageServer(LanguageServer):
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
        self.configuration = Configuration()
        self.settings = Settings()
        self.documents = Documents()
        self.clock = clock
        self.statistics = Statistics(statistics)
        self.reporter = Reporter(self.settings.model, self._send_status)
        self.resident = Resident(opener, self._engine_changed, clock, self.configuration.local_only, self._on_note)
        self.progresses = Progresses(self)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.roots: dict[str, None] = {}
        self._nearby: Nearby | None = None
        self._completer: Completer | None = None
        self._registered = False
        self._told = ""
        self._problems: tuple[str, ...] = ()
        self._is_ready = False
        self._pulls = 0
        self.protocol.experimental = {"dgLsp": {"version": methods.VERSION}}
        self.protocol.unreadable = self._unreadable

    @property
    def nearby(self) -> Nearby:
        """What of the workspace may be read, made when it is first needed."""
        if self._nearby is None:
            from dg_lsp.server.nearby import Nearby

            self._nearby = Nearby(self.clock, self.configuration.withheld)
            self._nearby.set_roots(self.roots)
        return self._nearby

    @property
    def completer(self) -> Completer:
        """What answers requests for suggestions, made when it is first needed."""
        if self._completer is None:
            from dg_lsp.server.completion import Completer

            self._completer = Completer(
                self.documents,
                self.resident,
                self.nearby,
                self.statistics,
                self.configuration.at,
                self.clock,
                self.noted,
            )
        return self._completer

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
        if self._completer is not None:
            await self._completer.close()
        if self._nearby is not None:
            await self._nearby.close()
        await self.resident.stop()
        self._write_statistics()

    # Life

    def begin(self, params: lsp.InitializeParams) -> None:
        """Take note of the client before its capabilities are answered."""
        self.client = client.read(params)
        self.wire.is_old = self.client.old_wire
        # The choice of the encoding is pygls' own, and is made again for the answer.
        encoding = ServerCapabilitiesBuilder.choose_position_encoding(params.capabilities)
        self.documents.encoding = convert.to_encoding(encoding)
        self.protocol.trace = params.trace or lsp.TraceValue.Off
        roots = [folder.uri for folder in params.workspace_folders or ()]
        roots += [params.root_uri] if params.root_uri and not roots else []
        self.roots = dict.fromkeys(roots)
        self.configuration.options = settings.section(params.initialization_options)
        self.configuration.set_roots(self.roots)
        self._configure()
        if not self.client.inline or not self.client.registers_inline:
            self.protocol.fm.feature_options[lsp.TEXT_DOCUMENT_INLINE_COMPLETION] = lsp.InlineCompletionOptions()
            self._registered = True

    @property
    def has_lists(self) -> bool:
        """Whether suggestions come in ordinary completion lists as well: the user's choice, else what the editor needs."""
        choice = self.settings.completion_list
        return not self.client.inline if choice is None else choice

    async def ready(self) -> None:
        """Ask for the settings and join the engine, once; the client is ready for requests."""
        if self._is_ready:
            return
        self._is_ready = True
        self._tell_problems()
        await self.pull_settings()
        if self.client.registers_configuration:
            options = lsp.DidChangeConfigurationRegistrationOptions(section=settings.SECTION)
            self.spawn(self._register("dg-lsp-settings", lsp.WORKSPACE_DID_CHANGE_CONFIGURATION, options))
        self.resident.start(self.settings)

    async def pull_settings(self) -> None:
        """Ask the client for its settings, where it can tell them; the answer to the last question counts."""
        if not self.client.pulls_configuration:
            return
        self._pulls += 1
        pull = self._pulls
        try:
            items = [lsp.ConfigurationItem(section=settings.SECTION)]
            # One folder's settings are those of the window.
            roots = list(self.roots) if len(self.roots) > 1 else []
            items += [lsp.ConfigurationItem(scope_uri=root, section=settings.SECTION) for root in roots]
            asking = self.workspace_configuration_async(lsp.ConfigurationParams(items))
            sections = await asyncio.wait_for(asking, CLIENT_PATIENCE_S)
        except JsonRpcException as error:
            log.warning("the editor's settings could not be had: %s", error)
            return
        except TimeoutError:
            log.warning("the editor does not tell its settings")
            return
        if pull == self._pulls:
            self.say_settings(
                sections[0] if sections else None, dict(zip(roots, sections[1:] if sections else (), strict=False))
            )

    def say_settings(self, general: object, by_folder: Mapping[str, object] | None = None) -> None:
        """Take note of what the editor says on top of all files."""
        self.configuration.say(general, by_folder)
        self.configure()

    async def look_around_document(self, uri: str) -> None:
        """Look up whether a document's text may be used, and what is related to it, before the first request needs both."""
        refused = await self.nearby.look(uri)
        if not refused and (found := self.documents.get(uri)) is not None:
            self.nearby.related(found.document, self.configuration.at(uri).related_chars)

    def look_at_files(self) -> None:
        """Use what stands in the files with settings, where one has changed."""
        if self.configuration.has_changed():
            self.configuration.forget()
            self.configure()

    def configure(self) -> None:
        """Use what is configured from now on; another model means another engine."""
        old = self.settings
        self._configure()
        self._tell_problems()
        # Each was made for the settings of then.
        if self._completer is not None:
            self._completer.forget_answers()
        if settings.restarts_engine(old, self.settings) and self.resident.condition.state != "off":
            self.restart_engine()

    def restart_engine(self) -> None:
        """Join the engine anew."""
        self.completer.reset()
        self.resident.start(self.settings)

    def _configure(self) -> None:
        self.settings = self.configuration.session
        self.reporter.model(self.settings.model)
        self.reporter.problems(self.configuration.problems)
        self.statistics.writes = self.settings.statistics

    def _tell_problems(self) -> None:
        """Tell what is wrong in the settings, each thing once as long as it stays."""
        problems = self.configuration.problems
        new = [problem for problem in problems if problem not in self._problems]
        self._problems = problems
        for problem in new:
            log.warning("%s", problem)
        if new:
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, " ".join(new)))

    def _engine_changed(self) -> None:
        condition = self.resident.condition
        self.reporter.condition(condition)
        # With an engine that failed as well: a request is what tries it again.
        if condition.state in ("ready", "failed") and not self._registered:
            self._registered = True
            options = lsp.InlineCompletionRegistrationOptions()
            self.spawn(self._register("dg-lsp-inline-completion", lsp.TEXT_DOCUMENT_INLINE_COMPLETION, options))
        if condition.state == "failed":
            log.warning("%s", condition.message)
            self.spawn(self.tell(condition.message))

    def _on_note(self, sentence: str) -> None:
        log.warning("%s", sentence)
        self.spawn(self.tell(sentence))

    async def tell(self, message: str) -> None:
        """Say it to the user, once: whoever wants it again looks at the status."""
        if message != self._told:
            self._told = message
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, f"dg-lsp: {message}"))

    def tell_again(self) -> None:
        """Tell what was told before once more, should it be still so."""
        self._told = ""

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
        last_write = self.clock()
        while True:
            await asyncio.sleep(LOOK_AROUND_S)
            self.look_at_files()
            if self.process_id is not None and not _alive(self.process_id):
                log.warning("the editor's process is gone")
                self.protocol.ended()
            if self.clock() - last_write >= WRITE_STATISTICS_S:
                last_write = self.clock()
                self._write_statistics()

    def _write_statistics(self) -> None:
        today = datetime.datetime.now(datetime.UTC).date()
        self.statistics.write(today)

    # Status

    def noted(self, reason: Reason | None) -> None:
        """A request for suggestions came to nothing for this reason, or to something."""
        self.reporter.suppressed(reason)
        if reason is None:
            return
        sentence = f"no suggestion: {reason.message} [{reason.code}]"
        log.debug("%s", sentence)
        if self.protocol.trace != lsp.TraceValue.Off:
            self.log_trace(lsp.LogTraceParams(sentence))

    def _send_status(self, status: StatusParams) -> None:
        if self.client.hears_status and self.protocol.initialized:
            self.protocol.notify(methods.STATUS, status.to_json())

    def _unreadable(self, method: str, params: object) -> None:
        """What could not be read of a text leaves us with another text than the editor's."""
        key, lose = _LOSES.get(method, ("", None))
        document = params.get(key) if isinstance(params, Mapping) else None
        uri = document.get("uri") if isinstance(document, Mapping) else None
        if lose is not None and isinstance(uri, str):
            lose(self.documents, uri)

    # What others say through the server

    def say(self, sentence: str) -> None:
        """Tell the user something that is no trouble."""
        self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Info, f"dg-lsp: {sentence}"))

    def send_draft(self, draft: DraftParams) -> None:
        """Show the canvas, where the client can."""
        if self.client.hears_drafts:
            self.protocol.notify(methods.DRAFT, draft.to_json())


def _alive(process_id: int) -> bool:
    from dg_lsp.wire import meeting

    try:
        return meeting.alive(process_id)
    except OverflowError:
        # No process has an id like that, so it tells nothing of the editor's; the end of input will.
        return True
