"""The session's engine as the server shows it, and as its requests get it.

The engine's client connects, restarts and waits (`infill.life`), and reports its state. This module turns the state into the
condition in the status line, and opens another client when the settings change. It imports the client only when it is first
needed, so that the server answers `initialize` at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.infill import life
from dg_lsp.infill.life import Absent, Failed, Loading, Lost, Ready, Starting, State
from dg_lsp.infill.port import Engine, EngineError, Guarded
from dg_lsp.wire.model_names import is_remote
from dg_lsp.wire.settings import Settings

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

    async def fill(
        self, request: InfillRequest, *, document: str = "", on_draft: OnDraft | None = None
    ) -> tuple[Candidate, ...]:
        """Return candidates, best first; a newer request for the same document replaces this one. Raises EngineError."""

    async def prepare(self, request: InfillRequest) -> None:
        """Let the engine read the text of a probable request, if it is loaded and has nothing else to do."""

    async def close(self) -> None:
        """Disconnect; waiting requests raise EngineError."""


# The opener's callbacks get each state of the engine's life, and messages for the user.
OnState = Callable[[State], None]
OnMessage = Callable[[str], None]
Opener = Callable[[Settings, OnState, OnMessage], Warm]


@dataclass(frozen=True, slots=True)
class Condition:
    """The engine's condition for the status line; `fraction` is the share of the model that is loaded."""

    state: StateName = "off"
    message: str = ""
    fraction: float = 0.0


class Resident:
    """The engine that the settings name.

    Its attributes are the state of that one engine, and change together when another is started.
    """

    def __init__(
        self,
        opener: Opener,
        on_change: Callable[[], None],
        clock: Callable[[], float],
        local_only: Callable[[str], tuple[str, ...]] = lambda _uri: (),
        on_message: OnMessage = lambda _sentence: None,
    ) -> None:
        """Start without an engine; call `on_change` when the condition changes, and `on_message` with messages to the user.

        `local_only` returns, for a document, the patterns of the files that are never sent to a remote model.
        """
        self.condition = Condition()
        self._opener, self._on_change, self._clock, self._local_only = opener, on_change, clock, local_only
        self._on_message = on_message
        self._settings: Settings | None = None
        self._state: State = Absent()
        self._failure: tuple[str, float] | None = None
        self._is_remote = False
        self._warm: Warm | None = None
        self._loading: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._has_started = asyncio.Event()

    def start(self, settings: Settings) -> None:
        """Connect to the engine in the background; disconnect from the one before."""
        old, self._warm = self._warm, None
        if old is not None:
            closing = asyncio.get_running_loop().create_task(old.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        own = self._settings = replace(settings)  # a new object, which tells the engine's reports from those of later ones
        self._failure, self._is_remote = None, is_remote(settings.model)

        def on_state(state: State) -> None:
            if own is self._settings:
                if not isinstance(state, Ready):
                    self._failure = None
                self._become(state)

        self._become(Starting(self._clock()))
        try:
            self._warm = self._opener(settings, on_state, self._on_message)
        except EngineError as error:
            self._become(Failed(str(error), math.inf))
        except Exception as error:
            # A broken installation may raise anything. The server must stay up and report the error.
            log.exception("can't connect to the engine")
            self._become(Failed(f"can't connect to the engine ({type(error).__name__}); the log says why", math.inf))
        else:
            self._loading = asyncio.ensure_future(self._load())
        self._has_started.set()

    async def stop(self) -> None:
        """Disconnect from the engine."""
        old, self._warm, self._settings = self._warm, None, None
        if old is not None:
            await old.close()
            self._show()
        await asyncio.gather(*self._closing)

    def trouble(self) -> str:
        """Return why no unprompted request should be sent now, as a sentence; "" when one may.

        After a failure this holds only for some seconds, because the next request is what retries the engine. Before the
        engine is started, a request waits in `engine`.
        """
        if self._failure is not None:
            why, until = self._failure
            return why if self._clock() < until else ""
        return life.trouble(self._state, self._clock())

    async def engine(self, uri: str, lane: str = "", on_draft: OnDraft | None = None) -> Engine:
        """Return the engine for a document once its model is loaded; raise EngineError when that fails or takes too long.

        Newer requests replace older ones for the same document and `lane`. For a remote model, the engine refuses files
        that must stay on this machine, even if an earlier check missed them.
        """
        try:
            async with asyncio.timeout(JOIN_PATIENCE_S):
                await self._has_started.wait()
                warm = await self._ready()
        except TimeoutError:
            why = self.condition.message or "it is not ready"
            raise EngineError(f"the engine was not connected within {JOIN_PATIENCE_S / 60:.0f} min: {why}") from None
        engine = _DocumentEngine(self, warm, f"{uri}#{lane}" if lane else uri, on_draft)
        return Guarded(engine, self._local_only(uri)) if self._is_remote else engine

    async def prepare(self, request: InfillRequest) -> None:
        """Let a local engine that is loaded read the text of a probable request; a remote one would be sent it for nothing."""
        if self._warm is not None and not self._is_remote and isinstance(self._state, Ready):
            await self._warm.prepare(request)

    def note(self, warm: Warm, error: EngineError | None) -> None:
        """Record the outcome of a request: its error, or None. Ignore that of an engine which was replaced."""
        if warm is not self._warm or (error is None and self._failure is None):
            return
        if error is None:
            self._failure = None
        elif isinstance(self._state, Ready):
            # The engine runs, and failed on this request only.
            self._failure = (str(error), self._clock() + COOL_DOWN_S)
        self._show()

    async def _ready(self) -> Warm:
        """Return the engine that was started last, once its model is loaded."""
        while (warm := self._warm) is not None:
            try:
                if not isinstance(self._state, Ready):
                    await warm.ready()
            except EngineError as error:
                if warm is self._warm:
                    # The client's own report says more.
                    if not isinstance(self._state, Failed | Lost):
                        self._become(Failed(str(error), self._clock() + COOL_DOWN_S))
                    raise
            if warm is self._warm:
                if not isinstance(self._state, Ready):
                    self._become(Ready(0, ""))
                return warm
        raise EngineError(self.condition.message or "no engine is connected")

    async def _load(self) -> None:
        """Load the model before the first request."""
        with contextlib.suppress(EngineError):
            await self._ready()

    def _become(self, state: State) -> None:
        self._state = state
        self._show()

    def _show(self) -> None:
        match self._state:
            case _ if self._settings is None:
                condition = Condition()
            case _ if self._failure is not None:
                condition = Condition("failed", self._failure[0])
            case Starting():
                condition = Condition("starting", f"starting the engine with model {self._settings.model}")
            case Loading(share, message):
                condition = Condition("loading", message, share)
            case Lost(why) | Failed(why):
                condition = Condition("failed", why)
            case _:
                # An engine that ended because it was idle counts as ready: the next request starts it.
                condition = Condition("ready")
        if condition != self.condition:
            self.condition = condition
            self._on_change()


@dataclass(frozen=True, slots=True)
class _DocumentEngine:
    """The engine for one document, which reports each request's outcome."""

    resident: Resident
    warm: Warm
    document: str
    on_draft: OnDraft | None

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return the engine's candidates; raise EngineError."""
        try:
            candidates = await self.warm.fill(request, document=self.document, on_draft=self.on_draft)
        except EngineError as error:
            self.resident.note(self.warm, error)
            raise
        self.resident.note(self.warm, None)
        return candidates


def resident(settings: Settings, on_state: OnState, on_message: OnMessage) -> Warm:
    """Return the client of the user's resident engine, which connects when it is first used."""
    # Imported here, because the server answers `initialize` first. `preload` has done it before, in a thread.
    from dg_lsp.infill import client
    from dg_lsp.wire import config

    # How long the engine stays and how wide its passes are is the user's to say: a repository's file may not.
    own = config.read()[0].settings
    settings = replace(settings, exit_after=own.exit_after, rows=own.rows)
    options = client.connect_options(config.Config(settings))
    return client.ResidentEngine(options, on_state, on_message)


def preload() -> None:
    """Import the client, for which the editor would wait: a tenth of a second. `resident` reports the errors."""
    with contextlib.suppress(Exception):
        importlib.import_module("dg_lsp.infill.client")


def named(name: str) -> Opener:
    """Return the opener `module:function`; raise ValueError when it does not exist."""
    module, _, function = name.partition(":")
    try:
        opener: Opener = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"can't import the engine {name}: {error}") from error
    return opener
