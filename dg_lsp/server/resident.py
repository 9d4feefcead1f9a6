"""The server's connection to the engine: opened in the background, and opened again when the settings change.

The engine's client reports its state (`infill.life`). This module turns that state into the condition in the status line,
and decides whether requests may be sent. It imports the engine's client only when it is first needed, so that the server
answers `initialize` at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.infill import life
from dg_lsp.infill.life import Absent, Failed, Loading, Lost, Ready, Starting, State
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.server.settings import Settings
from dg_lsp.wire.entry import ENGINE_COMMAND
from dg_lsp.wire.model_names import is_remote

log = logging.getLogger(__name__)

StateName = Literal["off", "starting", "loading", "ready", "failed"]
OnDraft = Callable[[tuple[str, ...], int], None]

# After a failure, unprompted requests do not retry the engine for this long.
COOL_DOWN_S = 10.0
# A request gives up when the engine is not connected by then.
JOIN_PATIENCE_S = 600.0


class Warm(Protocol):
    """The interface that the server needs of an engine; the resident engine's client and the tests' engines satisfy it."""

    async def ready(self) -> None:
        """Wait until the model is loaded; raise EngineError when that fails."""

    def bound(self, document: str, on_draft: OnDraft | None = None) -> Engine:
        """Return the engine for one document, whose newer requests replace older ones."""


@dataclass(frozen=True, slots=True)
class Listener:
    """The callbacks for an engine: `on_state` for each state of its life, `on_note` for messages to the user."""

    on_state: Callable[[State], None]
    on_note: Callable[[str], None]


Opener = Callable[[Settings, Listener], AbstractAsyncContextManager[Warm]]


@dataclass(frozen=True, slots=True)
class Condition:
    """The engine's condition for the status line; `fraction` is the share of the model that is loaded."""

    state: StateName = "off"
    message: str = ""
    fraction: float = 0.0


class Resident:
    """The engine that the settings name."""

    def __init__(
        self,
        opener: Opener,
        on_change: Callable[[], None],
        clock: Callable[[], float],
        local_only: Callable[[str], tuple[str, ...]] = lambda _uri: (),
        on_note: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        """Start without an engine; call `on_change` when the condition changes, and `on_note` with messages to the user.

        `local_only` returns, for a document, the patterns of the files that are never sent to a remote model.
        """
        self.condition = Condition()
        self._opener, self._on_change, self._clock, self._local_only = opener, on_change, clock, local_only
        self._on_note = on_note
        self._settings: Settings | None = None
        self._state: State = Absent()
        self._failure: tuple[str, float] | None = None
        self._is_remote = False
        self._warm: Warm | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()

    def start(self, settings: Settings) -> None:
        """Connect to the engine in the background; disconnect from the one before."""
        old = self._task
        self._warm, self._settings = None, settings
        self._is_remote = is_remote(settings.model)
        old_opened, self._opened = self._opened, asyncio.Event()
        # Wake the requests that wait for the old event, so that they wait for the new one.
        old_opened.set()
        self._task = asyncio.ensure_future(self._hold(settings, old))

    async def stop(self) -> None:
        """Disconnect from the engine."""
        self._settings = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task, self._warm = None, None
            self._become(Absent())

    def trouble(self) -> str:
        """Return why no unprompted request should be sent now, as a sentence; "" when one may.

        After a failure this holds only for some seconds, because the next request is what retries the engine. Before the
        engine is started, a request waits in `engine`.
        """
        if self._failure is not None:
            why, until = self._failure
            return why if self._clock() < until else ""
        if life.trouble(self._state, self._clock()):
            return self.condition.message
        return ""

    async def engine(self, uri: str, turn: str = "", on_draft: OnDraft | None = None) -> Engine:
        """Return the engine for a document once it is connected; raise EngineError when that fails or takes too long.

        Newer requests replace older ones for the same document and `turn`. For a remote model, the engine refuses files
        that must stay on this machine, even if an earlier check missed them.
        """
        self._reopen()
        try:
            async with asyncio.timeout(JOIN_PATIENCE_S):
                opened = None
                while opened is not self._opened:
                    opened = self._opened
                    await opened.wait()
        except TimeoutError:
            why = self.condition.message or "it is not ready"
            raise EngineError(f"the engine was not connected within {JOIN_PATIENCE_S / 60:.0f} min: {why}") from None
        if self._warm is None:
            raise EngineError(self.condition.message or "no engine is connected")
        reporting = _ReportingEngine(self, self._opened, self._warm.bound(f"{uri}#{turn}" if turn else uri, on_draft))
        if not self._is_remote:
            return reporting
        from dg_lsp.infill.config import Guarded, Privacy

        return Guarded(reporting, Privacy(self._local_only(uri)))

    def note(self, error: EngineError | None) -> None:
        """Record the outcome of a request: its error, or None."""
        if error is None:
            self._failure = None
            self._become(self._state if isinstance(self._state, Ready) else Ready(0, ""))
        elif isinstance(self._state, Ready):
            # The engine runs, and failed on this request only.
            self._failure = (str(error), self._clock() + COOL_DOWN_S)
            self._become(self._state)

    def is_current(self, opened: asyncio.Event) -> bool:
        """Return whether this event belongs to the current connection, not to a replaced one."""
        return self._opened is opened

    def _reopen(self) -> None:
        """Connect again after a failed attempt, once its pause has passed."""
        is_over = self._task is not None and self._task.done() and self._warm is None
        if is_over and self._settings is not None and not life.trouble(self._state, self._clock()):
            self.start(self._settings)

    async def _hold(self, settings: Settings, old: asyncio.Task[None] | None) -> None:
        opened = self._opened
        if old is not None:
            old.cancel()
            await asyncio.gather(old, return_exceptions=True)

        def on_state(state: State) -> None:
            if self.is_current(opened):
                if not isinstance(state, Ready):
                    self._failure = None
                self._become(state)

        self._failure = None
        self._become(Starting(self._clock()))
        try:
            async with AsyncExitStack() as stack:
                self._warm = await stack.enter_async_context(self._opener(settings, Listener(on_state, self._on_note)))
                try:
                    await self._warm.ready()
                    if not isinstance(self._state, Ready):
                        self._become(Ready(0, ""))
                except EngineError as error:
                    self._fail(opened, str(error), is_over=False)
                opened.set()
                await asyncio.Event().wait()
        except EngineError as error:
            self._fail(opened, str(error), is_over=True)
        except Exception as error:
            # A broken installation may raise anything. The server must stay up and report the error.
            log.exception("can't connect to the engine")
            self._fail(opened, f"can't connect to the engine ({type(error).__name__}); the log says why", is_over=True)
        finally:
            opened.set()

    def _fail(self, opened: asyncio.Event, why: str, *, is_over: bool) -> None:
        if not self.is_current(opened):
            return
        if is_over:
            self._warm = None
        # The client's own reason says more than this one.
        if not isinstance(self._state, Failed | Lost):
            self._become(Failed(why, self._clock() + COOL_DOWN_S))

    def _become(self, state: State) -> None:
        self._state = state
        condition = self._condition()
        if condition != self.condition:
            self.condition = condition
            self._on_change()

    def _condition(self) -> Condition:
        if self._settings is None:
            return Condition()
        if self._failure is not None:
            return Condition("failed", self._failure[0])
        match self._state:
            case Starting():
                return Condition("starting", f"starting the engine with model {self._settings.model}")
            case Loading(share, message):
                return Condition("loading", message, share)
            case Lost(why) | Failed(why):
                return Condition("failed", why)
        # An engine that ended because it was idle counts as ready: the next request starts it.
        return Condition("ready")


@dataclass(frozen=True, slots=True)
class _ReportingEngine:
    """An engine that reports the outcome of each request, unless another engine has replaced it."""

    resident: Resident
    opened: asyncio.Event
    inner: Engine

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return the engine's candidates, and report whether it failed."""
        try:
            candidates = await self.inner.fill(request)
        except EngineError as error:
            self._note(error)
            raise
        self._note(None)
        return candidates

    def _note(self, error: EngineError | None) -> None:
        if self.resident.is_current(self.opened):
            self.resident.note(error)


def resident(settings: Settings, listener: Listener) -> AbstractAsyncContextManager[Warm]:
    """Return the user's resident engine as a context manager; entering it does not connect yet."""
    return _resident(settings, listener)


@contextlib.asynccontextmanager
async def _resident(settings: Settings, listener: Listener) -> AsyncIterator[Warm]:
    # Import in a thread: these modules take a tenth of a second, and the editor would wait.
    client, options = await asyncio.to_thread(_options, settings)
    async with client.connect(options, on_state=listener.on_state, on_note=listener.on_note, wait=False) as engine:
        yield engine


def _options(settings: Settings) -> tuple[Any, Any]:
    """Return the client module and the options to connect: the editor's settings over those of the user's files."""
    client, config = (importlib.import_module(f"dg_lsp.infill.{name}") for name in ("client", "config"))
    configured = config.connect_options(config.read()[0], command=ENGINE_COMMAND, model=settings.model)
    from_editor = {
        "dtype": settings.dtype,
        "device": settings.device,
        "threads": settings.threads,
        "unload_after_s": float(settings.unload_after),
    }
    return client, replace(configured, **from_editor)


def named(name: str) -> Opener:
    """Return the opener `module:function`; raise ValueError when it does not exist."""
    module, _, function = name.partition(":")
    try:
        opener: Opener = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"can't import the engine {name}: {error}") from error
    return opener
