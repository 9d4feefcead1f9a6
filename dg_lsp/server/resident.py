"""The engine as the server has it: joined in the background, told of with a state, and joined anew when settings change.

What state it is in is the engine's life (`infill.life`), which its client tells; here is what that means for requests and
for the status line. Imports the engine's client only when it is first needed, so that the server answers `initialize` before.
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
from dg_lsp.engine.entry import ENGINE_COMMAND
from dg_lsp.infill import life
from dg_lsp.infill.life import Absent, Failed, Loading, Lost, Ready, Starting, State
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.server.settings import Settings
from dg_lsp.wire.model_names import is_remote

log = logging.getLogger(__name__)

StateName = Literal["off", "starting", "loading", "ready", "failed"]
OnDraft = Callable[[tuple[str, ...], int], None]

# After a failure, requests that nobody made by hand wait so long before the engine is tried again.
COOL_DOWN_S = 10.0
# A request gives up when the engine could not even be asked by then.
JOIN_PATIENCE_S = 600.0


class Warm(Protocol):
    """What the server needs of an engine: the resident one's client satisfies it, and so does a test's."""

    async def ready(self) -> None:
        """Wait until the model is loaded; raise EngineError when that fails."""

    def bound(self, document: str, on_draft: OnDraft | None = None) -> Engine:
        """Return the engine for one document, whose newer requests replace older ones."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears of an engine: of each state of its life, and of what the user should know besides."""

    on_state: Callable[[State], None]
    on_note: Callable[[str], None]


Opener = Callable[[Settings, Listener], AbstractAsyncContextManager[Warm]]


@dataclass(frozen=True, slots=True)
class Condition:
    """How the engine is, for the status line; `fraction` is of the loading."""

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
        """Hold none yet; `on_change` is called when the condition changes, `on_note` with what the user should know besides.

        `local_only` gives for a document the patterns of files that no remote model sees.
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
        """Join the engine in the background, instead of one joined before."""
        old = self._task
        self._warm, self._settings = None, settings
        self._is_remote = is_remote(settings.model)
        replaced, self._opened = self._opened, asyncio.Event()
        # Whoever waits, be it since before there was anything to wait for, waits for this one from now on.
        replaced.set()
        self._task = asyncio.ensure_future(self._hold(settings, old))

    async def stop(self) -> None:
        """Give the engine back."""
        self._settings = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task, self._warm = None, None
            self._become(Absent())

    def trouble(self) -> str:
        """Return why the engine should not be asked by itself just now, as a sentence; "" when it may be.

        It is never trouble for good: once some time has passed, asking is how we learn that it works again.
        """
        if self._settings is None:
            return "the engine is starting"
        if self._failure is not None:
            why, until = self._failure
            return why if self._clock() < until else ""
        if life.trouble(self._state, self._clock()):
            return self.condition.message
        return ""

    async def engine(self, uri: str, turn: str = "", on_draft: OnDraft | None = None) -> Engine:
        """Return the engine for a document as soon as it is joined; raise EngineError when none can be had in time.

        Newer requests replace older ones for the same document and `turn`. A remote engine is shown nothing that should
        stay here, whatever was looked at before.
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
            raise EngineError(f"the engine could not be asked within {JOIN_PATIENCE_S / 60:.0f} min: {why}") from None
        if self._warm is None:
            raise EngineError(self.condition.message or "there is no engine")
        watched = _Watched(self, self._opened, self._warm.bound(f"{uri}#{turn}" if turn else uri, on_draft))
        if not self._is_remote:
            return watched
        from dg_lsp.infill.config import Guarded, Privacy

        return Guarded(watched, Privacy(self._local_only(uri)))

    def note(self, error: EngineError | None) -> None:
        """Note how a request went."""
        if error is None:
            self._failure = None
            self._become(self._state if isinstance(self._state, Ready) else Ready(0, ""))
        elif isinstance(self._state, Ready):
            # The engine is there, and could not do this.
            self._failure = (str(error), self._clock() + COOL_DOWN_S)
            self._become(self._state)

    def is_current(self, opened: asyncio.Event) -> bool:
        """Return whether the engine of that opening is still the one that is wanted."""
        return self._opened is opened

    def _reopen(self) -> None:
        """Try again what could not even be opened, once some time has passed."""
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
            # Whatever a broken installation raises, the server stays useful for what needs no engine, and says why.
            log.exception("the engine could not be joined")
            self._fail(opened, f"the engine could not be joined ({type(error).__name__}); the log says why", is_over=True)
        finally:
            opened.set()

    def _fail(self, opened: asyncio.Event, why: str, *, is_over: bool) -> None:
        if not self.is_current(opened):
            return
        if is_over:
            self._warm = None
        # What the engine's client told of itself says more.
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
        # One that ended as nobody used it is started by the next request.
        return Condition("ready")


@dataclass(frozen=True, slots=True)
class _Watched:
    """An engine whose requests tell how it is, as long as no other has taken its place."""

    resident: Resident
    opened: asyncio.Event
    inner: Engine

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return what the engine does, and note how it went."""
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
    """Return the user's resident engine, not yet joined."""
    return _resident(settings, listener)


@contextlib.asynccontextmanager
async def _resident(settings: Settings, listener: Listener) -> AsyncIterator[Warm]:
    # Off the loop: these modules take a tenth of a second, in which the editor would wait.
    client, options = await asyncio.to_thread(_options, settings)
    async with client.connect(options, on_state=listener.on_state, on_note=listener.on_note, wait=False) as engine:
        yield engine


def _options(settings: Settings) -> tuple[Any, Any]:
    """Return the engine's client and how to join: what editors have no setting for stands in the user's configuration."""
    client, config = (importlib.import_module(f"dg_lsp.infill.{name}") for name in ("client", "config"))
    configured = config.connect_options(config.read()[0], command=ENGINE_COMMAND, model=settings.model)
    chosen = {"device": settings.device, "threads": settings.threads, "unload_after_s": float(settings.unload_after)}
    return client, replace(configured, **chosen)


def named(name: str) -> Opener:
    """Return the opener called `module:function`; raise ValueError when there is none of that name."""
    module, _, function = name.partition(":")
    try:
        found: Opener = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"there is no engine {name}: {error}") from error
    return found
