"""The resident engine as the pipeline's `Engine`: connects to the engine, starts it if needed, restarts it after a crash.

The client sends events to the state machine in `life` and carries out the actions that it returns. It does not import
torch, because the model runs in the engine's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.infill import life as lives
from dg_lsp.infill import link as links
from dg_lsp.infill.life import Failed, Life, Lost, Ready, Starting, State
from dg_lsp.infill.link import SILENCE_S, EngineBusyError, Link, LinkLostError, OnDone, OnDraft, SilentError
from dg_lsp.infill.port import EngineError
from dg_lsp.wire import discovery, model_names
from dg_lsp.wire.config import NO_PASSWORD, Config
from dg_lsp.wire.discovery import ENGINE_COMMAND, DiscoveryError, EngineFiles, EngineId, EngineSettings
from dg_lsp.wire.messages import Ask
from dg_lsp.wire.visible import with_log

__all__ = ["ConnectOptions", "EngineBusyError", "EngineError", "ResidentEngine", "connect", "connect_options"]

log = logging.getLogger(__name__)

OnState = Callable[[State], None]
OnMessage = Callable[[str], None]

BUSY_PATIENCE_S = 60.0
LOADING_PATIENCE_S = 3600.0
"""How long a request waits for the model to load. Downloading a model over a slow line takes long."""
BIND_PATIENCE_S = 60.0
END_PATIENCE_S = 15.0
YOUNG_S = 60.0
OUTDATED_IDLE_S = 5.0
"""After this long without a request, disconnect from an engine of another build, so that it can end."""
CLOSED = "the connection to the engine was closed before it answered; try again"


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Which engine to connect to, and how to start it when none runs.

    An interactive client's requests run before all batch work. `command` starts an engine (`ENGINE_COMMAND`). Without it,
    the client only connects to a running engine.
    """

    engine_id: EngineId = field(default_factory=EngineId)
    settings: EngineSettings = field(default_factory=EngineSettings)
    interactive: bool = True
    command: tuple[str, ...] = ()


def connect_options(
    config: Config, *, model: str = "", interactive: bool = True, command: tuple[str, ...] = ENGINE_COMMAND
) -> ConnectOptions:
    """Return the options to connect to the configured engine; `model` replaces the configured model.

    Raises EngineError for a model URL with a password, because other processes could read it.
    """
    settings = config.settings
    model_name = config.model(model)
    if model_names.has_password(model_name):
        raise EngineError(f"the model's URL {NO_PASSWORD}")
    # The engine has its own current folder, so make a relative path absolute here.
    model = str(model_names.folder_of(model_name) or model_name)
    return ConnectOptions(
        EngineId(model, dtype=settings.dtype, device=settings.device),
        EngineSettings(settings.threads, float(settings.unload_after), float(settings.exit_after), settings.rows),
        interactive=interactive,
        command=command,
    )


@contextlib.asynccontextmanager
async def connect(
    options: ConnectOptions | None = None,
    *,
    on_state: OnState = lambda _state: None,
    on_message: OnMessage = lambda _sentence: None,
) -> AsyncIterator[ResidentEngine]:
    """Yield the engine, ready to fill; raise EngineError when it can't be reached or started.

    Connects to the running engine, or starts one. `on_state` is called with each new state, `on_message` with messages for the
    user.
    """
    engine = ResidentEngine(options or ConnectOptions(), on_state, on_message)
    try:
        await engine.ready()
        yield engine
    finally:
        await engine.close()


class ResidentEngine:
    """The client of the resident engine; satisfies `infill.port.Engine`. While connected it holds a lease.

    Besides the options, its attributes are what the state machine's actions start and `close` must end.
    """

    def __init__(self, options: ConnectOptions, on_state: OnState, on_message: OnMessage) -> None:
        """Start unconnected; `ready` or the first `fill` connects, and `close` ends it. `connect` does both."""
        self.options = options
        self._on_state, self._on_message = on_state, on_message
        self._client = secrets.token_hex(4)  # newer requests replace older ones of the same client
        self._life = Life()
        self._changed = asyncio.Event()
        self._link: Link | None = None
        self._joining: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._n_filling = 0
        self._giving_back: asyncio.TimerHandle | None = None

    @property
    def state(self) -> State:
        """The engine's state as far as this client knows."""
        return self._life.state

    async def ready(self) -> None:
        """Connect to the engine or start it, and wait until its model is loaded; raise EngineError when that fails."""
        await self._linked()
        self._let_go()

    async def info(self) -> Mapping[str, object]:
        """Return the engine's description of itself; raise EngineError when it can't be reached."""
        link = await self._linked()
        try:
            return (await link.info()).values
        except LinkLostError as error:
            raise EngineError(str(error)) from error

    async def prepare(self, request: InfillRequest) -> None:
        """Let the engine read the text of a probable request when it has nothing else to do; start and wait for no engine."""
        if self._link is None or self._link.lost or not isinstance(self.state, Ready):
            return
        ask = Ask(request, client=self._client, prepares=True)
        try:
            await self._link.infill(ask)
        except (EngineError, LinkLostError) as error:
            log.debug("could not prepare: %s", error)  # the request itself will tell

    async def fill(
        self,
        request: InfillRequest,
        *,
        document: str = "",
        on_draft: OnDraft | None = None,
        on_done: OnDone | None = None,
    ) -> tuple[Candidate, ...]:
        """Return candidates, best first; an empty tuple when a newer request for the same `document` replaced this one.

        `on_draft` is called with the text of each denoising step, `on_done` with the cost of the answer. Cancelling stops
        the engine's work within one step. After a crash, the engine is restarted once. Raises EngineError.
        """
        ask = Ask(
            request,
            client=self._client,
            document=document,
            priority="interactive" if self.options.interactive else "batch",
            drafts=on_draft is not None,
        )
        self._n_filling += 1
        self._hold_on()
        try:
            for is_last in (False, True):
                link = await self._linked()
                try:
                    candidates = await self._send(link, ask, on_draft, on_done)
                except LinkLostError as error:
                    link.lost = True
                    if link is self._link:  # only the first of several reports counts
                        self._feed(lives.Exited(time.monotonic(), error.crashed))
                    if is_last:
                        raise EngineError(self._with_log(f"{error}, twice")) from error
                else:
                    if self._life.breaker.crashes:  # otherwise an answer changes nothing
                        self._feed(lives.Answered())
                    return candidates
            raise AssertionError  # the last attempt returns or raises
        finally:
            self._n_filling -= 1
            self._let_go()

    async def close(self) -> None:
        """Disconnect from the engine; waiting and later requests raise EngineError."""
        self._is_closed = True
        self._hold_on()
        self._feed(lives.Stopped())
        self._wake()
        while self._closing:
            await asyncio.wait(tuple(self._closing))

    async def _send(self, link: Link, ask: Ask, on_draft: OnDraft | None, on_done: OnDone | None) -> tuple[Candidate, ...]:
        give_up, pause_s = time.monotonic() + BUSY_PATIENCE_S, 0.05
        while True:
            try:
                return await link.infill(ask, on_draft, on_done)
            except EngineBusyError:
                # Batch work may wait; an interactive request fails at once.
                if ask.priority == "interactive" or time.monotonic() >= give_up:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)

    async def _linked(self) -> Link:
        """Return a link to an engine whose model is loaded; raise EngineError when that fails or takes too long.

        Cancelling this does not cancel the connection attempt, because the next request needs the same engine.
        """
        try:
            async with asyncio.timeout(LOADING_PATIENCE_S):
                while True:
                    if self._is_closed:
                        raise EngineError(CLOSED)
                    if isinstance(self._life.state, Ready) and self._link is not None:
                        return self._link
                    self._feed(lives.Asked(time.monotonic()))
                    changed = self._changed
                    match self.state:
                        case Failed(why) | Lost(why):
                            raise EngineError(self._with_log(why) if isinstance(self.state, Lost) else why)
                    await changed.wait()
        except TimeoutError:
            raise EngineError(f"the engine was not ready after {LOADING_PATIENCE_S / 60:.0f} min; try again") from None

    # The engine's life

    def _feed(self, event: lives.Event) -> None:
        """Pass an event to the engine's life, and carry out the actions that it returns."""
        before = self._life.state
        self._life, actions = lives.next(self._life, event)
        for action in actions:
            match action:
                case lives.Join(delay_s):
                    self._joining = self._in_background(self._join(delay_s))
                case lives.Drop():
                    self._drop()
                case lives.Tell(sentence):
                    self._on_message(sentence)
        if self._life.state != before:
            self._wake()
            self._on_state(self._life.state)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _join(self, delay_s: float) -> None:
        """Try once to connect, and pass the outcome to `_feed` as an event."""
        event: lives.Event
        try:
            async with asyncio.timeout(lives.START_PATIENCE_S):
                await asyncio.sleep(delay_s)
                # At each attempt, because dg-lsp may be upgraded while this process runs, and a new engine is of that build.
                own_build = await asyncio.to_thread(discovery.current_build)
                self._life = replace(self._life, own_version=own_build)
                link = await self._connect()
        except TimeoutError:
            event = lives.Tick(time.monotonic() + 1.0)  # the loop's clock may be a tick early
        except SilentError as error:
            event = lives.Silent(time.monotonic(), error.state.pid, links.kill(error.state))
        except EngineError as error:
            event = lives.Refused(time.monotonic(), str(error))
        except Exception as error:
            # A broken installation may raise anything, and waiting requests must get an error.
            log.exception("can't connect to the engine")
            event = lives.Refused(time.monotonic(), f"can't connect to the engine ({type(error).__name__}); the log says why")
        else:
            if link is not None:
                self._joining = None
                self._link = link
                self._on_link(link)
                return
            event = lives.Exited(time.monotonic(), is_crash=True)
        self._joining = None
        self._feed(event)

    async def _connect(self) -> Link | None:
        """Return a link to the engine, which is started if none runs; None when the started process has ended.

        The model may not be loaded yet. Raises EngineError when no engine can be reached or started, and SilentError when
        the running engine does not respond.
        """
        try:
            files = discovery.engine_files(self.options.engine_id)
            while True:
                link = await self._reach(files)
                if link is not None:
                    return link
                if not self.options.command:
                    raise EngineError("no engine is running, and this client may not start one; run: dg-lsp engine start")
                starting = discovery.hold(files.starting)
                if starting is None:
                    await asyncio.sleep(0.05)  # another client is starting it
                    continue
                try:
                    return await self._reach(files) or await self._start(files)
                finally:
                    starting.release()
        except DiscoveryError as error:
            raise EngineError(str(error)) from error

    async def _reach(self, files: EngineFiles) -> Link | None:
        """Return a link to the engine of these files; None when it does not respond.

        An engine of another build is replaced unless it is in use.
        """
        state = discovery.read_state(files)
        if state is None:
            return None
        if state.version == self._life.own_version:
            return await links.reach(state, self._on_link, first_word_s=_first_word_s(files))
        try:
            discovery.check_owner(state.address)
        except OSError:
            return None  # without its socket, the engine has ended
        # Check the lock, which an engine holds as long as it lives. Its process id may belong to another process by now.
        if not discovery.is_held(files.lock):
            return None
        # Ask an engine of another build to end; it does so when no client uses it.
        if self.options.command and await links.ask_to_end(state):
            await _until(lambda: discovery.read_state(files) != state, END_PATIENCE_S)
            return None
        return await links.reach(state, self._on_link, first_word_s=_first_word_s(files))

    async def _start(self, files: EngineFiles) -> Link | None:
        """Return a link to a new engine; None when the new process ended."""
        before = discovery.read_state(files)
        process = discovery.start_engine(self.options.command, files, self.options.engine_id, self.options.settings)
        # A new engine is running, started by any client, or our process has ended.
        await _until(lambda: process.poll() is not None or discovery.read_state(files) not in (None, before), BIND_PATIENCE_S)
        return await self._reach(files)

    def _on_link(self, link: Link) -> None:
        """Turn a link's new status into an event; ignore a link that is not current yet, as `_join` calls this again."""
        if link is not self._link:
            return
        now = time.monotonic()
        if link.is_silent:
            self._feed(lives.Silent(now, link.state.pid, links.kill(link.state)))
        elif link.lost:
            self._feed(lives.Exited(now, is_crash=not link.said_bye))
        elif link.status.state == "failed":
            self._feed(lives.Refused(now, link.status.message))
        elif link.status.state == "ready":
            self._feed(Ready(link.state.pid, link.state.version))
        elif link.status.state == "loading" or isinstance(self.state, Starting):
            self._feed(lives.Loading(link.status.fraction, link.status.message))

    def _drop(self) -> None:
        """Close the link and cancel a connection attempt, in the background."""
        if self._joining is not None and self._joining is not asyncio.current_task():
            self._joining.cancel()
        self._joining = None
        if self._link is not None:
            link, self._link = self._link, None
            self._in_background(link.close())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    # An engine of another build ends when no client holds a lease

    def _hold_on(self) -> None:
        if self._giving_back is not None:
            self._giving_back.cancel()
            self._giving_back = None

    def _let_go(self) -> None:
        link = self._link
        if link is not None and link.state.version != self._life.own_version and not self._n_filling and not self._is_closed:
            self._hold_on()
            self._giving_back = asyncio.get_running_loop().call_later(OUTDATED_IDLE_S, self._give_back, link)

    def _give_back(self, link: Link) -> None:
        if link is self._link and isinstance(self.state, Ready):
            self._feed(lives.Exited(time.monotonic(), is_crash=False))

    def _with_log(self, sentence: str) -> str:
        with contextlib.suppress(DiscoveryError):
            return with_log(sentence, discovery.last_words(discovery.engine_files(self.options.engine_id)))
        return sentence


def _first_word_s(files: EngineFiles) -> float:
    """Return how long the engine may be silent at first; a newly started one may still import its modules."""
    with contextlib.suppress(OSError):
        if time.time() - files.state.stat().st_mtime < YOUNG_S:
            return YOUNG_S
    return SILENCE_S


async def _until(check: Callable[[], bool], patience_s: float) -> None:
    """Wait until the check returns true, or the time is over."""
    give_up, pause_s = time.monotonic() + patience_s, 0.01
    while not check() and time.monotonic() < give_up:
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.2)
