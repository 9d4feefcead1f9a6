"""The language server of one connection: its parts, its settings and its background tasks.

`handlers` answers the messages. No heavy module is imported before `initialize` is answered. The server connects to the
engine after `initialized`.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import msgspec
from lsprotocol import types as lsp
from pygls.capabilities import ServerCapabilitiesBuilder
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from dg_lsp import __version__
from dg_lsp.client.engine import ConnectOptions, Connector, EngineClient, connect_options, join
from dg_lsp.client.life import LifeState
from dg_lsp.client.port import EngineError
from dg_lsp.core.values import Document
from dg_lsp.core.wording import size
from dg_lsp.server import configuration, installation, methods, protocol, reasons
from dg_lsp.server.configuration import Client, Configuration
from dg_lsp.server.methods import DraftParams, ModelOffer, RefreshParams, StatusParams, Versioned
from dg_lsp.server.protocol import RpcProtocol
from dg_lsp.server.reasons import Reason
from dg_lsp.server.sync import Documents
from dg_lsp.wire import config, laptop
from dg_lsp.wire.background import Tasks, log_error
from dg_lsp.wire.config import SECTION
from dg_lsp.wire.settings import Settings

if TYPE_CHECKING:
    # These are imported after `initialize` was answered, so that the editor starts fast.
    from dg_lsp.server.completion import Completer
    from dg_lsp.server.next_edit import NextEdits
    from dg_lsp.server.snapshot import Nearby, Snapshots

log = logging.getLogger(__name__)
T = TypeVar("T")

CHECK_EVERY_S = 2.0
BLOCKED_S = 8.0
"""An event loop that is blocked for this long is a fault: the longest parse of a file that gets suggestions takes less."""
CLIENT_PATIENCE_S = 10.0
# An editor that does not confirm a progress bar by then gets its edit without one.
BAR_PATIENCE_S = 2.0

Report = Callable[[str, float], None]
"""Shows a message and the completed share, from 0 to 1."""

# After one of these that can't be parsed, our text differs from the editor's.
_CHANGES = (
    lsp.TEXT_DOCUMENT_DID_OPEN,
    lsp.TEXT_DOCUMENT_DID_CHANGE,
    lsp.NOTEBOOK_DOCUMENT_DID_OPEN,
    lsp.NOTEBOOK_DOCUMENT_DID_CHANGE,
)

# The caller that awaits the task reports these errors.
_REPORTED_ERRORS = (EngineError, JsonRpcException, ValueError)


class DgLanguageServer(LanguageServer):
    """The server of one connection.

    It has all parts of the session as attributes, because pygls gives a handler nothing else than this object.
    """

    protocol: RpcProtocol

    def __init__(self, connector: Connector = join, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start nothing yet. `connector` connects to the engine."""
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
            converter_factory=protocol.converter,
        )
        self.client = Client()
        self.configuration = Configuration()
        self.settings = Settings()
        self.documents = Documents()
        self.clock = clock
        self.reporter = Reporter(laptop.resolve(self.settings.model), self._send_status)
        self.engine = EngineClient(
            None, self._engine_changed, self._on_message, self.configuration.local_only, clock, connector
        )
        self._connector = connector
        self.bars: dict[str | int, Callable[[], None]] = {}
        """What the button of each progress bar calls, by the bar's token."""
        self.tasks = Tasks[object](self._task_failed)
        self.roots: dict[str, None] = {}
        self._last_message = self._change = ""
        self._problems: tuple[str, ...] = ()
        self._pulls = 0
        self.card_bytes = 0
        """The memory of the largest GPU for a laptop model, known after the first seconds; 0 for none."""
        self.is_pulling = False
        """Whether a laptop model is being downloaded."""
        self._edit_engine: EngineClient | None = None
        self.listed_by_hand = ""  # the document in which the last completion list was asked for by hand
        self.protocol.experimental = {"dgLsp": {"version": methods.VERSION, "nextEdit": True}}
        self.protocol.unreadable = self._unreadable
        self.protocol.explain = self.explain

    @cached_property
    def nearby(self) -> Nearby:
        """The reader of workspace files, created when it is first needed."""
        from dg_lsp.server.snapshot import Nearby

        nearby = Nearby(self.clock, self.configuration.withheld, self.documents.files)
        nearby.set_roots(self.roots)
        return nearby

    @cached_property
    def completer(self) -> Completer:
        """The object that answers requests for suggestions, created when it is first needed."""
        from dg_lsp.server.completion import Completer

        on_late = self._send_refresh if self.client.asks_again else None
        return Completer(self.snapshots, self.engine, self.clock, self.note_outcome, on_late)

    @cached_property
    def next_edits(self) -> NextEdits:
        """The object that remembers edits and offers the next one, created when one is first remembered or asked for."""
        from dg_lsp.server.next_edit import NextEdits

        def withheld(uri: str) -> str:
            return self.configuration.withheld(uri, self.settings.edit_model)

        return NextEdits(self.snapshots, self.completer, self._engine_of_edits, withheld, self.clock, self._note_no_edit)

    def _engine_of_edits(self) -> EngineClient:
        """Return the client of the model that writes edits: that of the suggestions, or another one, connected on first use."""
        if laptop.resolve_edits(self.settings.edit_model) == self.reporter.status.model:
            if self._edit_engine is not None:  # of earlier settings; it would keep its model in memory
                self.spawn(self._edit_engine.close())
                self._edit_engine = None
            return self.engine
        if self._edit_engine is None:
            self._edit_engine = EngineClient(
                None, lambda _: None, self._on_message, self.configuration.local_only, self.clock, self._connector
            )
        try:
            self._edit_engine.use(self._options(laptop.resolve_edits(self.settings.edit_model)))
        except EngineError as error:
            self._edit_engine.refuse(str(error))
        return self._edit_engine

    @cached_property
    def snapshots(self) -> Snapshots:
        """What takes the snapshot that a request works on."""
        from dg_lsp.server.snapshot import Snapshots

        return Snapshots(self.documents, self.nearby, self.configuration.at)

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log the error instead of pygls' popup, which would appear at each keystroke."""
        if isinstance(error, JsonRpcException):
            # The client receives this sentence in the response.
            log.info("%s", error)
        else:
            log.error("%s", error, exc_info=error)

    async def serve(self, reader: BinaryIO, writer: BinaryIO) -> int:
        """Serve one client over two streams until it ends; return the exit code."""
        try:
            return await protocol.run(self.protocol, reader, writer, self._check_regularly)
        finally:
            faulthandler.cancel_dump_traceback_later()
            await self.close()

    async def close(self) -> None:
        """Cancel all background tasks, and disconnect from the engine."""
        await self.tasks.close()
        if "completer" in self.__dict__:  # was needed
            await self.completer.close()
        await self._end_edits()
        if "nearby" in self.__dict__:
            await self.nearby.close()
        await self.engine.close()

    async def _end_edits(self) -> None:
        """Forget the edits, and disconnect from the engine that writes them."""
        next_edits, engine = self.__dict__.pop("next_edits", None), self._edit_engine
        self._edit_engine = None
        if next_edits is not None:
            await next_edits.close()
        if engine is not None:
            await engine.close()

    # Life

    def begin(self, params: lsp.InitializeParams) -> None:
        """Read the client's capabilities and settings before `initialize` is answered."""
        self.client = Client(params)
        # pygls makes the same choice again for its response, and keeps neither.
        encoding = lsp.PositionEncodingKind(ServerCapabilitiesBuilder.choose_position_encoding(params.capabilities))
        self.documents.encoding = encoding.value
        self.protocol.trace = params.trace or lsp.TraceValue.Off
        roots = [folder.uri for folder in params.workspace_folders or ()]
        roots += [params.root_uri] if params.root_uri and not roots else []
        self.roots = dict.fromkeys(roots)
        self.configuration.can_hold = self.client.holds
        self.configuration.options = configuration.section(params.initialization_options)
        self.configuration.set_roots(self.roots)
        self._configure()
        # Not registered later, when the engine is ready: an editor sends no request for the keys before that, and does not ask
        # again until the next one. A request waits for the engine instead.
        self.protocol.fm.feature_options[lsp.TEXT_DOCUMENT_INLINE_COMPLETION] = lsp.InlineCompletionOptions()

    @property
    def has_lists(self) -> bool:
        """Whether suggestions also appear in ordinary completion lists.

        The user's setting decides. By default they do in editors without inline completion.
        """
        choice = self.settings.completion_list
        return not self.client.inline if choice is None else choice

    async def ready(self) -> None:
        """Ask the client for its settings and connect to the engine."""
        self._show_problems()
        await self.pull_settings()
        if self.client.registers_configuration:
            options = lsp.DidChangeConfigurationRegistrationOptions(section=SECTION)
            registration = lsp.Registration("dg-lsp-settings", lsp.WORKSPACE_DID_CHANGE_CONFIGURATION, options)
            self.spawn(self._register(registration))
        self._connect()

    async def _register(self, registration: lsp.Registration) -> None:
        try:
            await self.client_register_capability_async(lsp.RegistrationParams([registration]))
        except JsonRpcException as error:
            log.warning("the editor refused to register %s: %s", registration.method, error)

    async def pull_settings(self) -> None:
        """Ask the client for its settings, if it supports that; only the response to the latest call is used."""
        if not self.client.pulls_configuration:
            return
        self._pulls += 1
        pull = self._pulls
        try:
            items = [lsp.ConfigurationItem(section=SECTION)]
            # With one folder, its settings are those of the window.
            roots = list(self.roots) if len(self.roots) > 1 else []
            items += [lsp.ConfigurationItem(scope_uri=root, section=SECTION) for root in roots]
            asking = self.workspace_configuration_async(lsp.ConfigurationParams(items))
            sections = await asyncio.wait_for(asking, CLIENT_PATIENCE_S)
        except JsonRpcException as error:
            log.warning("the editor did not send its settings: %s", error)
            return
        except TimeoutError:
            log.warning("the editor did not send its settings within %.0f s", CLIENT_PATIENCE_S)
            return
        if pull == self._pulls:
            self.set_editor_settings(
                sections[0] if sections else None, dict(zip(roots, sections[1:] if sections else (), strict=False))
            )

    def set_editor_settings(self, general: object, by_folder: Mapping[str, object] | None = None) -> None:
        """Use the editor's settings, which override the files."""
        self.configuration.set_editor_settings(general, by_folder)
        self.configure()

    def look_at_files(self) -> None:
        """Read the configuration files again if one has changed."""
        if self.configuration.has_changed():
            self.configuration.forget()
            self.configure()

    def configure(self) -> None:
        """Apply the current configuration, also to the engine, or connect to another one."""
        self._configure()
        self._show_problems()
        # Cached answers were made with the old settings.
        if "completer" in self.__dict__:
            self.completer.forget_answers()
        if "next_edits" in self.__dict__:
            self.next_edits.forget_answers()
            if self.settings.next_edit == "off":
                self.spawn(self._end_edits())
        if self.engine.state.name != "off":
            self._connect()

    def restart_engine(self) -> None:
        """Forget all answers, and restart the engine's process."""
        if not self._connect():
            self.completer.reset()
            self.spawn(self.engine.restart())
        if self._edit_engine is not None:
            self.spawn(self._edit_engine.restart())

    def look_for_model(self) -> None:
        """Connect to another engine if `auto` means another model now, such as one that was just pulled."""
        if laptop.resolve(self.settings.model) != self.reporter.status.model:
            self._use_model()
            if self.engine.state.name != "off":
                self._connect()

    async def look_for_card(self) -> None:
        """Find the GPU that a laptop model may use, so that the offered model suits it."""
        if not laptop.may_offer(self.settings.model):
            return
        from dg_lsp.engine.model.fit import machine

        # In a thread, because the driver's program may take long.
        self.card_bytes = await asyncio.to_thread(machine.usable_card)
        if self.card_bytes:
            self._use_model()

    def _connect(self) -> bool:
        """Use the engine of the settings; return whether it is another one, whose answers and times are others."""
        self._use_model()
        try:
            is_other = self.engine.use(self._options(self.reporter.status.model))
        except EngineError as error:
            self.engine.refuse(str(error))
            is_other = True
        if is_other and "completer" in self.__dict__:
            self.completer.reset()
        return is_other

    def _options(self, model: str) -> ConnectOptions:
        """Return the options to connect to a model's engine; raise EngineError as `connect_options` does."""
        # How long the engine stays is the user's to say: a repository's file may not.
        own = config.read()[0].settings
        return connect_options(config.Config(replace(self.settings, model=model, exit_after=own.exit_after)))

    def _use_model(self) -> None:
        better = laptop.offered(self.settings.model, self.card_bytes)
        offer = ModelOffer(better.name, size(better.n_bytes), better.promise) if better else None
        self.reporter.update(model=laptop.resolve(self.settings.model), offer=offer)

    def _configure(self) -> None:
        self.settings = self.configuration.session
        self._use_model()
        held, next_edit = self.settings.trigger == "held", self.settings.next_edit
        self.reporter.update(problems=self.configuration.problems, held=held, next_edit=next_edit)
        self.reporter.paused(reasons.paused(self.settings))

    def _show_problems(self) -> None:
        """Show each new problem in the settings to the user, once."""
        problems = self.configuration.problems
        new = [problem for problem in problems if problem not in self._problems]
        self._problems = problems
        for problem in new:
            log.warning("%s", problem)
        if new:
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, " ".join(new)))

    def _engine_changed(self, state: LifeState) -> None:
        self.reporter.update(state=state.name, message=state.message, fraction=round(state.fraction, 3))
        # An engine of another version is no failure of its own.
        if state.name == "failed" and not state.is_pause and not self.explain():
            self._on_message(state.message)

    def _on_message(self, sentence: str) -> None:
        log.warning("%s", sentence)
        self.spawn(self.tell(sentence))

    async def tell(self, message: str) -> None:
        """Show a warning to the user, unless it was the last one shown; the status keeps it."""
        if message != self._last_message:
            self._last_message = message
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, f"dg-lsp: {message}"))

    def explain(self) -> str:
        """Return how the installation has changed since the start, "" if it has not; tell the user of each change once."""
        sentence = installation.change()
        if sentence and sentence != self._change:
            self._change = sentence
            self.spawn(self._offer_restart(sentence))
        return sentence

    async def _offer_restart(self, sentence: str) -> None:
        restart = "Restart"
        if await self.ask(lsp.MessageType.Warning, sentence, restart) == restart:
            # Editors start a server that ends by itself again.
            self.protocol.ended()

    def allow_repeat(self) -> None:
        """Let `tell` show the last warning once more."""
        self._last_message = ""

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Return a background task for the work; it is cancelled when the server ends."""
        return self.tasks.start(object(), work)

    def _task_failed(self, error: BaseException) -> None:
        if not isinstance(error, _REPORTED_ERRORS):
            log_error(error)
            self.explain()

    async def _check_regularly(self) -> None:
        """Reload changed files, and end when the editor's process is gone; runs until cancelled.

        Whenever the event loop is blocked, it is written to the log where.
        """
        from dg_lsp.wire import discovery  # not before `initialize` is answered

        while True:
            # The timer's thread needs no interpreter lock, so it also shows a call into C that never returns.
            faulthandler.dump_traceback_later(BLOCKED_S)
            await asyncio.sleep(CHECK_EVERY_S)
            if self.process_id is not None and not discovery.alive(self.process_id):
                log.warning("the editor's process %s is gone; the server ends", self.process_id)
                self.protocol.ended()
            try:
                self.look_at_files()
                self.look_for_model()
            except Exception:
                # The next look may succeed, and none may keep a server without its editor.
                log.exception("can't look for changed files")

    # Status

    def note_outcome(self, reason: Reason | None) -> None:
        """Report why a request got no suggestion, in the status and the log; None means that it got one."""
        self.reporter.suppressed(reason)
        if reason is None:
            return
        if reason.code == "internal":
            self.explain()
        self._trace(f"no suggestion: {reason.message} [{reason.code}]")

    def _note_no_edit(self, reason: str) -> None:
        self._trace(f"no next edit: {reason}")

    def _trace(self, sentence: str) -> None:
        log.debug("%s", sentence)
        if self.protocol.trace != lsp.TraceValue.Off:
            self.log_trace(lsp.LogTraceParams(sentence))

    def _send_status(self, status: StatusParams) -> None:
        if self.client.hears_status and self.protocol.initialized:
            self.protocol.notify(methods.STATUS, status.to_json())

    def _unreadable(self, method: str, params: object) -> None:
        if method in _CHANGES and isinstance(params, Mapping):
            for document in (params.get("textDocument"), params.get("notebookDocument")):
                if isinstance(document, Mapping) and isinstance(uri := document.get("uri"), str):
                    self.documents.lose(uri)

    # Messages to the editor

    @contextlib.asynccontextmanager
    async def bar(self, title: str, cancel: Callable[[], None]) -> AsyncIterator[Report]:
        """Yield the function that reports progress on a new bar, whose button calls `cancel`; without a bar it does nothing."""
        token, exists = f"dg-lsp-{secrets.token_hex(6)}", False
        if self.client.progress:
            # Without a bar the work goes on, whatever error the editor returned.
            with contextlib.suppress(Exception):
                creating = self.window_work_done_progress_create_async(lsp.WorkDoneProgressCreateParams(token))
                await asyncio.wait_for(creating, BAR_PATIENCE_S)
                exists = True

        def send(value: Any) -> None:
            if exists:
                self.progress(lsp.ProgressParams(token, value))

        def report(message: str, share: float) -> None:
            send(lsp.WorkDoneProgressReport(message=message, percentage=min(100, max(0, round(100 * share)))))

        self.bars[token] = cancel
        send(lsp.WorkDoneProgressBegin(title=title, cancellable=True, percentage=0))
        try:
            yield report
        finally:
            del self.bars[token]
            send(lsp.WorkDoneProgressEnd())

    def show_message(self, sentence: str) -> None:
        self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Info, f"dg-lsp: {sentence}"))

    async def ask(self, kind: lsp.MessageType, question: str, *titles: str) -> str:
        """Return the title that the user chose; "" for none, and for an editor that can't ask."""
        items = [lsp.MessageActionItem(title) for title in titles]
        try:
            answer = await self.window_show_message_request_async(lsp.ShowMessageRequestParams(kind, question, items))
        except JsonRpcException as error:
            log.info("the editor can't ask the user: %s", error)
            return ""
        return answer.title if answer is not None else ""

    def _send_refresh(self, document: Document) -> None:
        """Tell the client that the answer for this version of a document came late, so that it asks again."""
        self.protocol.notify(methods.REFRESH, RefreshParams(Versioned(document.uri, document.version)).to_json())

    def send_draft(self, draft: DraftParams) -> None:
        if self.client.hears_drafts:
            self.protocol.notify(methods.DRAFT, draft.to_json())


# --- The status


# These reasons occur at every keystroke, so they do not replace the last one in the status.
_PASSING = frozenset({"superseded", "moved"})
# These reasons are choices in the settings, not properties of a place.
_OF_SETTINGS = frozenset({"off", "manual", "language"})


class Reporter:
    """Holds the status, and sends it when it changes."""

    def __init__(self, model: str, send: Callable[[StatusParams], None]) -> None:
        """Start with the state `off`; `send` sends a status to the editor."""
        self.status = StatusParams("off", model)
        self._send = send
        self._n_busy = 0

    def update(self, **changes: Any) -> None:
        status = msgspec.structs.replace(self.status, **changes)
        if status != self.status:
            self.status = status
            self._send(status)

    def suppressed(self, reason: Reason | None) -> None:
        """Set the reason why the last request got no suggestion; None when it got one."""
        if reason is None or reason.code not in _PASSING:
            self.update(suppressed=reason)

    def paused(self, reason: Reason | None) -> None:
        """Set why the settings stop unprompted suggestions everywhere.

        None forgets a reason that earlier settings gave, because the next request may be allowed, and keeps any other.
        """
        if reason is not None or (self.status.suppressed and self.status.suppressed.code in _OF_SETTINGS):
            self.suppressed(reason)

    def busy(self, change: int) -> None:
        """Change the number of running code actions by this much."""
        self._n_busy += change
        self.update(busy=self._n_busy > 0)
