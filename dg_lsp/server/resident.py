"""The engine as the server has it: joined in the background, told of with a state, and joined anew when settings change.

Imports the engine's client only when it is first needed, so that the server answers `initialize` before.
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
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.server.settings import Settings
from dg_lsp.wire.model_names import is_remote

log = logging.getLogger(__name__)

State = Literal["off", "starting", "loading", "ready", "failed"]
OnDraft = Callable[[tuple[str, ...], int], None]
OnLoading = Callable[[str, float], None]

# After a failure, requests that nobody made by hand wait so long before the engine is tried again.
COOL_DOWN_S = 10.0


class Warm(Protocol):
    """What the server needs of an engine: the resident one's client satisfies it, and so does a test's."""

    async def ready(self) -> None:
        """Wait until the model is loaded; raise EngineError when that fails."""

    def bound(self, document: str, on_draft: OnDraft | None = None) -> Engine:
        """Return the engine for one document, whose newer requests replace older ones."""


Opener = Callable[[Settings, OnLoading], AbstractAsyncContextManager[Warm]]


@dataclass(frozen=True, slots=True)
class Condition:
    """How the engine is; `fraction` is of the loading."""

    state: State = "off"
    message: str = ""
    fraction: float = 0.0


class Resident:
    """The engine that the settings name."""

    def __init__(
        self,
        opener: Opener,
        heard: Callable[[], None],
        clock: Callable[[], float],
        local_only: Callable[[str], tuple[str, ...]] = lambda _uri: (),
    ) -> None:
        """Hold none yet; `heard` is called when the condition changes.

        `local_only` gives for a document the patterns of files that no remote model sees.
        """
        self.condition = Condition()
        self._opener, self._heard, self._clock, self._local_only = opener, heard, clock, local_only
        self._is_remote = False
        self._warm: Warm | None = None
        self._task: asyncio.Task[None] | None = None
        self._failed_at: float | None = None
        self._opened = asyncio.Event()

    def start(self, settings: Settings) -> None:
        """Join the engine in the background, instead of one joined before."""
        old = self._task
        self._warm, self._failed_at = None, None
        self._is_remote = is_remote(settings.model)
        replaced, self._opened = self._opened, asyncio.Event()
        # Whoever waits, be it since before there was anything to wait for, waits for this one from now on.
        replaced.set()
        self._task = asyncio.ensure_future(self._hold(settings, old))

    async def stop(self) -> None:
        """Give the engine back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task, self._warm = None, None
            self._become(Condition())

    def trouble(self) -> str:
        """Return why the engine should not be asked by itself just now, as a sentence; "" when it may be."""
        if self.condition.state == "ready":
            return ""
        if self.condition.state == "failed":
            at = self._failed_at
            # Trying is how we learn that it works again.
            cooled = at is not None and self._clock() - at >= COOL_DOWN_S and self._warm is not None
            return "" if cooled else self.condition.message
        return self.condition.message or "the engine is starting"

    async def engine(self, uri: str, turn: str = "", on_draft: OnDraft | None = None) -> Engine:
        """Return the engine for a document as soon as it is joined; raise EngineError when none can be had.

        Newer requests replace older ones for the same document and `turn`. A remote engine is shown nothing that should
        stay here, whatever was looked at before.
        """
        opened = None
        while opened is not self._opened:
            opened = self._opened
            await opened.wait()
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
            if self.condition.state != "ready":
                self._become(Condition("ready"))
        else:
            self._failed_at = self._clock()
            self._become(Condition("failed", str(error)))

    def is_current(self, opened: asyncio.Event) -> bool:
        """Return whether the engine of that opening is still the one that is wanted."""
        return self._opened is opened

    async def _hold(self, settings: Settings, old: asyncio.Task[None] | None) -> None:
        opened = self._opened
        if old is not None:
            old.cancel()
            await asyncio.gather(old, return_exceptions=True)
        self._become(Condition("starting", f"starting the engine with model {settings.model}"))
        try:
            async with AsyncExitStack() as stack:
                self._warm = await stack.enter_async_context(self._opener(settings, self._loading))
                try:
                    await self._warm.ready()
                    self._become(Condition("ready"))
                except EngineError as error:
                    self.note(error)
                opened.set()
                await asyncio.Event().wait()
        except EngineError as error:
            self.note(error)
        except Exception as error:
            # Whatever a broken installation raises, the server stays useful for what needs no engine, and says why.
            log.exception("the engine could not be joined")
            self.note(EngineError(f"the engine could not be joined ({type(error).__name__}); the log says why"))
        finally:
            opened.set()

    def _loading(self, message: str, fraction: float) -> None:
        self._become(Condition("loading", message, fraction))

    def _become(self, condition: Condition) -> None:
        if condition != self.condition:
            self.condition = condition
            self._heard()


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


def resident(settings: Settings, on_loading: OnLoading) -> AbstractAsyncContextManager[Warm]:
    """Return the user's resident engine, not yet joined."""
    return _resident(settings, on_loading)


@contextlib.asynccontextmanager
async def _resident(settings: Settings, on_loading: OnLoading) -> AsyncIterator[Warm]:
    # Off the loop: these modules take a tenth of a second, in which the editor would wait.
    client, options = await asyncio.to_thread(_options, settings)
    async with client.connect(options, on_loading=on_loading, wait=False) as engine:
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
