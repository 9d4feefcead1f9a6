"""The client of the resident engine: connects to it, starts it if needed, and restarts it after a crash, as `life` decides.

The model runs in the engine's process, so nothing here imports torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace

from dg_lsp import OUT_OF_MEMORY, is_out_of_memory
from dg_lsp.client import link as links
from dg_lsp.client.life import Life, LifeState
from dg_lsp.client.link import Link, OnDone, OnDraft
from dg_lsp.client.port import Engine, EngineBusyError, EngineError, LinkLostError, SilentError, shown
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.wire import discovery, model_names
from dg_lsp.wire.background import Tasks
from dg_lsp.wire.config import Config
from dg_lsp.wire.discovery import ENGINE_COMMAND, DiscoveryError, EngineFiles, EngineId, EngineSettings
from dg_lsp.wire.messages import Ask
from dg_lsp.wire.model_names import NO_PASSWORD
from dg_lsp.wire.visible import with_log

log = logging.getLogger(__name__)

# --- Which engine, and how it is started

START_PATIENCE_S = 150.0
"""A start fails when no connection exists after this long."""
BIND_PATIENCE_S = 60.0
END_PATIENCE_S = 15.0
YOUNG_S = 60.0


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Which engine to connect to, and how to start it when none runs.

    An interactive client is an editor: its requests run before all batch work, and a running engine takes its settings.
    `command` starts an engine (`ENGINE_COMMAND`). Without it, the client only connects to a running engine.
    """

    engine_id: EngineId = field(default_factory=EngineId)
    settings: EngineSettings = field(default_factory=EngineSettings)
    interactive: bool = True
    command: tuple[str, ...] = ()


def connect_options(config: Config, *, model: str = "", interactive: bool = True) -> ConnectOptions:
    """Return the options to connect to the configured engine; `model` replaces the configured model.

    Raises EngineError for a model URL with a password, because other processes could read it.
    """
    settings = config.settings
    model_name = config.model(model)
    if model_names.has_password(model_name):
        raise EngineError(f"the model's URL {NO_PASSWORD}")
    # The engine has its own current folder, so make a relative path absolute here.
    model = model_names.full(model_name)
    return ConnectOptions(
        EngineId(model, dtype=settings.dtype, device=settings.device),
        EngineSettings(settings.threads, float(settings.unload_after), float(settings.exit_after)),
        interactive=interactive,
        command=ENGINE_COMMAND,
    )


OnLink = Callable[[Link], None]
Connector = Callable[[ConnectOptions, str, OnLink], Awaitable[Link | None]]
"""Returns a link to an engine, which reports each new status; None when the started process has ended.

The text is the client's build. The model may not be loaded yet. Raises EngineError when no engine can be reached or started,
and SilentError when the running engine does not respond.
"""


async def join(options: ConnectOptions, own_version: str, on_change: OnLink) -> Link | None:
    """Return a link to the resident engine, which is started if none runs; see `Connector`."""
    try:
        files = discovery.engine_files(options.engine_id)
        while True:
            link = await _reach(files, options, own_version, on_change)
            if link is not None:
                return link
            if not options.command:
                raise EngineError("no engine is running, and this client may not start one; run: dg-lsp engine start")
            starting = discovery.hold(files.starting)
            if starting is None:
                await asyncio.sleep(0.05)  # another client is starting it
                continue
            try:
                if link := await _reach(files, options, own_version, on_change):
                    return link
                await _start(files, options)
                return await _reach(files, options, own_version, on_change)
            finally:
                starting.release()
    except DiscoveryError as error:
        raise EngineError(str(error)) from error


async def _reach(files: EngineFiles, options: ConnectOptions, own_version: str, on_change: OnLink) -> Link | None:
    """Return a link to the engine of these files; None when it does not respond.

    An engine of another build is replaced unless it is in use.
    """
    state = discovery.read_state(files)
    if state is None:
        return None
    first_word_s = links.SILENCE_S
    with contextlib.suppress(OSError):
        if time.time() - files.state.stat().st_mtime < YOUNG_S:
            first_word_s = YOUNG_S  # a newly started engine may still import its modules
    if state.version != own_version:
        try:
            discovery.check_owner(state.address)
        except OSError:
            return None  # without its socket, the engine has ended
        # Check the lock, which an engine holds as long as it lives. Its process id may belong to another process by now.
        if not discovery.is_held(files.lock):
            return None
        # Ask an engine of another build to end; it does so when no client uses it.
        if options.command and await links.ask_to_end(state):
            await _until(lambda: discovery.read_state(files) != state, END_PATIENCE_S)
            return None
    return await links.reach(state, on_change, first_word_s=first_word_s)


async def _start(files: EngineFiles, options: ConnectOptions) -> None:
    """Start an engine, and wait until one runs, started by any client, or our process has ended."""
    before = discovery.read_state(files)
    process = discovery.start_engine(options.command, files, options.engine_id, options.settings)
    await _until(lambda: process.poll() is not None or discovery.read_state(files) not in (None, before), BIND_PATIENCE_S)


async def _until(check: Callable[[], bool], patience_s: float) -> None:
    """Wait until the check returns true, or the time is over."""
    give_up, pause_s = time.monotonic() + patience_s, 0.01
    while not check() and time.monotonic() < give_up:
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.2)


# --- The client

OnState = Callable[[LifeState], None]
OnMessage = Callable[[str], None]

BUSY_PATIENCE_S = 150.0
"""How long batch work waits for a busy engine, or for the pauses that a server asks for, of which a minute is usual."""
LOADING_PATIENCE_S = 600.0
"""How long a request waits while the engine's state stays the same. Downloading a model over a slow line takes longer."""
OUTDATED_IDLE_S = 5.0
"""After this long without a request, disconnect from an engine of another build, so that it can end."""
CLOSED = "the connection to the engine was closed before it answered; try again"


@contextlib.asynccontextmanager
async def connect(
    options: ConnectOptions | None = None,
    *,
    on_state: OnState = lambda _state: None,
    on_message: OnMessage = lambda _sentence: None,
) -> AsyncIterator[EngineClient]:
    """Yield the engine, ready to fill; raise EngineError when it can't be reached or started.

    Connects to the running engine, or starts one. `on_state` is called with each new state, `on_message` with messages for the
    user.
    """
    engine = EngineClient(options or ConnectOptions(), on_state, on_message)
    try:
        await engine.ready()
        yield engine
    finally:
        await engine.close()


class EngineClient:
    """The client of one resident engine at a time; satisfies `port.Engine`. While connected it holds a lease.

    Besides the options and the life, its attributes are what `close` must end.
    """

    def __init__(
        self,
        options: ConnectOptions | None,
        on_state: OnState,
        on_message: OnMessage,
        local_only: Callable[[str], tuple[str, ...]] = lambda _uri: (),
        clock: Callable[[], float] = time.monotonic,
        connector: Connector = join,
    ) -> None:
        """Start unconnected; `ready` or the first `fill` connects, and `close` ends it. `connect` does both.

        Without options, requests wait for `use`. `local_only` returns, for a document, the patterns of the files that are
        never sent to a remote model.
        """
        self.options = options
        self._on_state, self._on_message, self._local_only = on_state, on_message, local_only
        self._clock, self._connector = clock, connector
        self._client = secrets.token_hex(4)  # newer requests replace older ones of the same client
        self._life = Life(model=options.engine_id.model if options else "")
        self._own_version = ""
        self._changed = asyncio.Event()
        self._link: Link | None = None
        self._joining: asyncio.Task[None] | None = None
        self._tasks = Tasks[object]()
        self._is_closed = False
        self._n_filling = 0
        self._giving_back: asyncio.TimerHandle | None = None

    @property
    def state(self) -> LifeState:
        """The engine's state as far as this client knows."""
        return self._life.state

    def trouble(self) -> str:
        """Return why no unprompted request should be sent now, as a sentence; "" when one may."""
        return self.state.trouble(self._clock())

    def use(self, options: ConnectOptions) -> bool:
        """Connect to this engine, which answers waiting requests too; return whether it is another one than before.

        If only its settings are others, the connected engine goes on with them.
        """
        old, self.options = self.options, options
        if old is not None and replace(old, settings=options.settings) == options and self.state.name != "off":
            if self._link is not None and old.settings != options.settings:
                self._tasks.start(object(), self._link.configure(asdict(options.settings)))
            return False
        self._life = replace(self._life, model=options.engine_id.model)
        self._live(self._life.stopped().asked(self._clock()))
        return True

    async def restart(self) -> None:
        """End the engine, also if other clients use it, and start another one."""
        link, options = self._link, self.options
        if link is not None and options is not None:
            await link.end()
            with contextlib.suppress(DiscoveryError):
                lock = discovery.engine_files(options.engine_id).lock
                # Until its process has ended, it may take requests.
                await _until(lambda: not discovery.is_held(lock) or self.options is not options, END_PATIENCE_S)
        if options is not None and self.options is options and not self._is_closed:
            self._live(self._life.stopped().asked(self._clock()))

    def refuse(self, why: str) -> None:
        """Disconnect from the engine and refuse all requests for a reason, until `use`."""
        self.options = None
        self._live(self._life.stopped().refused(math.inf, why))

    async def ready(self) -> None:
        """Connect to the engine or start it, and wait until its model is loaded; raise EngineError when that fails."""
        await self._linked()
        self._let_go()

    async def info(self) -> Mapping[str, object]:
        """Return the engine's description of itself; raise EngineError when it can't be reached."""
        link = await self._linked()
        try:
            return (await link.call("info")).values
        except LinkLostError as error:
            raise EngineError(str(error)) from error

    async def prepare(self, request: InfillRequest) -> None:
        """Let the engine read the text of a probable request when it has nothing else to do; start and wait for no engine.

        A remote model would be sent it for nothing.
        """
        if self._link is None or self._link.lost or self.state.name != "ready" or self._is_remote:
            return
        ask = Ask(request, client=self._client, prepares=True)
        try:
            await self._link.infill(ask)
        except (EngineError, LinkLostError) as error:
            log.debug("could not prepare: %s", error)  # the request itself will tell

    async def for_document(self, uri: str, lane: str = "", on_draft: OnDraft | None = None) -> Engine:
        """Return the engine for a document once its model is loaded; raise EngineError when that fails or takes too long.

        It sends the requests as `fill` does.
        """
        await self._linked()
        return _DocumentEngine(self, uri, lane, on_draft)

    async def fill(
        self,
        request: InfillRequest,
        *,
        document: str = "",
        lane: str = "",
        on_draft: OnDraft | None = None,
        on_done: OnDone | None = None,
    ) -> tuple[Candidate, ...]:
        """Return candidates, best first; an empty tuple when a newer request for the same document and lane replaced this one.

        A remote model is not sent the files that must stay on this machine, even if an earlier check missed them. `on_draft` is
        called with the text of each denoising step, `on_done` with the cost of the answer. Cancelling stops the engine's work
        within one step. After a crash, the engine is restarted once. Raises EngineError.
        """
        self._n_filling += 1
        self._hold_on()
        try:
            for is_last in (False, True):
                link = await self._linked()
                ask = Ask(
                    # Here, because the engine may be another one than at the last try.
                    shown(request, self._local_only(document)) if self._is_remote else request,
                    client=self._client,
                    document=f"{document}#{lane}" if lane else document,
                    priority="interactive" if self.options is None or self.options.interactive else "batch",
                    drafts=on_draft is not None,
                )
                try:
                    candidates = await self._send(link, ask, on_draft, on_done)
                except LinkLostError as error:
                    link.lost = True
                    if link is self._link:  # only the first of several reports counts
                        self._live(self._life.ended(self._clock(), is_crash=error.crashed))
                    if is_last:
                        raise EngineError(self._with_log(f"{error}, twice")) from error
                except EngineError as error:
                    pause_s = error.retry_s if isinstance(error, EngineBusyError) else 0.0
                    if request.question is None or pause_s:  # a model that writes no edits may still write suggestions
                        self._note(link, str(error), pause_s)
                    raise
                else:
                    self._note(link)
                    return candidates
            raise AssertionError  # the last attempt returns or raises
        finally:
            self._n_filling -= 1
            self._let_go()

    async def close(self) -> None:
        """Disconnect from the engine; waiting and later requests raise EngineError."""
        self._is_closed = True
        self._hold_on()
        self._live(self._life.stopped())
        self._wake()
        await self._tasks.finish()

    @property
    def _is_remote(self) -> bool:
        return self.options is not None and model_names.is_remote(self.options.engine_id.model)

    def _note(self, link: Link, problem: str = "", pause_s: float = 0.0) -> None:
        """Record the outcome of a request, unless its engine was replaced or it changes nothing."""
        if link is self._link and (problem or self._life.crashes or self.state.until):
            self._live(self._life.answered(self._clock(), problem, pause_s))

    async def _send(self, link: Link, ask: Ask, on_draft: OnDraft | None, on_done: OnDone | None) -> tuple[Candidate, ...]:
        give_up, pause_s = time.monotonic() + BUSY_PATIENCE_S, 0.05
        while True:
            try:
                return await link.infill(ask, on_draft, on_done)
            except EngineBusyError as error:
                wait_s = max(pause_s, error.retry_s)
                # Batch work may wait; an interactive request fails at once.
                if ask.priority == "interactive" or time.monotonic() + error.retry_s >= give_up:
                    raise
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, 2.0)

    async def _linked(self) -> Link:
        """Return a link to an engine whose model is loaded; raise EngineError when that fails or takes too long.

        Cancelling this does not cancel the connection attempt, because the next request needs the same engine.
        """
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(LOADING_PATIENCE_S) as timeout:
                while True:
                    if self._is_closed:
                        raise EngineError(CLOSED)
                    # One that failed and still has a link failed on a request only.
                    if self._link is not None and self.state.name in ("ready", "failed"):
                        return self._link
                    if self.options is not None:
                        self._live(self._life.asked(self._clock()))
                    changed = self._changed
                    if self.state.name == "failed":
                        why = self.state.message
                        if self.state.is_pause:
                            raise EngineBusyError(why, self.state.until - self._clock())
                        raise EngineError(self._with_log(why) if self._life.closed_for_s(self._clock()) else why)
                    await changed.wait()
                    timeout.reschedule(clock() + LOADING_PATIENCE_S)
        except TimeoutError:
            why = f": {self.state.message}" if self.state.message else ""
            raise EngineError(f"the engine made no progress for {LOADING_PATIENCE_S / 60:.0f} min{why}; try again") from None

    # The engine's life

    def _live(self, life: Life) -> None:
        """Go on with this life: close the connection that it gave up, connect if it starts, and report its state."""
        before, self._life = self._life, life
        if life.epoch != before.epoch:
            self._drop()
        if life.state.name == "starting" and self._joining is None:
            self._joining = self._tasks.start(object(), self._join(life.pause_s(self._clock())))
        if life.state != before.state:
            self._wake()
            self._on_state(life.state)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _join(self, delay_s: float) -> None:
        """Try once to connect."""
        assert self.options is not None
        problem, silent = "", None
        try:
            async with asyncio.timeout(START_PATIENCE_S):
                await asyncio.sleep(delay_s)
                # At each attempt, because dg-lsp may be upgraded while this process runs, and a new engine is of that build.
                self._own_version = await asyncio.to_thread(discovery.current_build)
                self._link = await self._connector(self.options, self._own_version, self._on_link)
        except TimeoutError:
            problem = f"no engine could be started within {START_PATIENCE_S:.0f} s; see: dg-lsp engine logs"
        except SilentError as error:
            silent = error.state
        except EngineError as error:
            problem = str(error)
        except Exception as error:
            # A broken installation may raise anything, and waiting requests must get an error.
            if is_out_of_memory(error):
                problem = OUT_OF_MEMORY
            else:
                log.exception("can't connect to the engine")
                problem = f"can't connect to the engine ({type(error).__name__}); the log says why"
        self._joining = None
        if (link := self._link) is not None:
            self._on_link(link)
            options = self.options
            if link is not self._link or options is None:
                return  # it may be dropped already, as one whose model can't be loaded
            if chosen := options.settings.chosen():  # another client may have started it
                now = await link.configure(chosen if options.interactive else {})
                kept = [f"{name} = {now[name]}, not {value}" for name, value in chosen.items() if now.get(name, value) != value]
                if kept:
                    command = f"dg-lsp engine start --model {options.engine_id.model}"
                    self._on_message(f"the running engine keeps its settings ({'; '.join(kept)}); to change them: {command}")
        elif silent is not None:
            self._end_silent(silent)
        elif problem:
            self._live(self._life.refused(self._clock(), problem))
        else:
            self._live(self._life.ended(self._clock()))

    def _on_link(self, link: Link) -> None:
        """Take over a link's new status; ignore a link that is not current yet, as `_join` calls this again."""
        if link is not self._link:
            return
        now, status = self._clock(), link.status
        if link.is_silent:
            self._end_silent(link.state)
        elif link.lost:
            self._live(self._life.ended(now, is_crash=not link.said_bye))
        elif status.state == "failed":
            self._live(self._life.refused(now, status.message, status.retry_s))
        elif status.state == "ready":
            if link.state.version != self._own_version and self.state.name in ("starting", "loading"):
                self._on_message(
                    f"the running engine is from dg-lsp {link.state.version}, this is dg-lsp {self._own_version}; "
                    "it ends and is replaced when no client uses it"
                )
            self._live(self._life.reported(LifeState("ready")))
        elif status.state == "loading" or self.state.name == "starting":
            self._live(self._life.reported(LifeState("loading", status.message, status.fraction)))

    def _end_silent(self, state: discovery.State) -> None:
        """Kill an engine that missed its pings, so that a new one can start."""
        why = f"the engine does not respond (process {state.pid})"
        if links.kill(state):
            life = self._life.ended(self._clock())
            why += "; it was killed, and a new one is starting" if life.state.name == "starting" else "; it was killed"
        else:
            why += f"; end it with: kill -9 {state.pid}"
            life = self._life.refused(self._clock(), why)
        self._on_message(why)
        self._live(life)

    def _drop(self) -> None:
        """Close the link and cancel a connection attempt, in the background."""
        if self._joining is not None and self._joining is not asyncio.current_task():
            self._joining.cancel()
        self._joining = None
        if self._link is not None:
            link, self._link = self._link, None
            self._tasks.start(object(), link.close())

    # An engine of another build ends when no client holds a lease

    def _hold_on(self) -> None:
        if self._giving_back is not None:
            self._giving_back.cancel()
            self._giving_back = None

    def _let_go(self) -> None:
        link = self._link
        if link is not None and link.state.version != self._own_version and not self._n_filling and not self._is_closed:
            self._hold_on()
            self._giving_back = asyncio.get_running_loop().call_later(OUTDATED_IDLE_S, self._give_back, link)

    def _give_back(self, link: Link) -> None:
        if link is self._link and self.state.name == "ready":
            self._live(self._life.ended(self._clock(), is_crash=False))

    def _with_log(self, sentence: str) -> str:
        with contextlib.suppress(DiscoveryError):
            if self.options is not None:
                words = discovery.last_words(discovery.engine_files(self.options.engine_id))
                if words and is_out_of_memory(EngineError(words[-1])):  # in a library that then ends the process
                    return f"{sentence}; {OUT_OF_MEMORY}"
                return with_log(sentence, words)
        return sentence


@dataclass(frozen=True, slots=True)
class _DocumentEngine:
    """The engine for the requests of one document."""

    client: EngineClient
    uri: str
    lane: str
    on_draft: OnDraft | None

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return the engine's candidates; raise EngineError."""
        return await self.client.fill(request, document=self.uri, lane=self.lane, on_draft=self.on_draft)
