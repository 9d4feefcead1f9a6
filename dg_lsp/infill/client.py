"""The resident engine as the pipeline's `Engine`: joined when it runs, started when it does not, joined again after a crash.

Knows the meeting place and links to engines; imports no torch, as the model runs in the engine's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.infill import link as links
from dg_lsp.infill.link import EngineBusyError, Link, LinkLostError, OnDone, OnDraft, OnStatus
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.wire import meeting, messages
from dg_lsp.wire.meeting import MeetingError, Place, Settings, State, Which
from dg_lsp.wire.messages import Ask, Status
from dg_lsp.wire.settings import DEFAULTS

__all__ = ["ConnectOptions", "EngineBusyError", "EngineError", "ResidentEngine", "connect"]

OnLoading = Callable[[str, float], None]

BIND_PATIENCE_S = 60.0
END_PATIENCE_S = 15.0
BUSY_PATIENCE_S = 60.0
CLOSED = "the engine was given back before it answered; ask again"


@dataclass(frozen=True, slots=True)
class Breaker:
    """How often the engine crashed lately, and whether it may be started again.

    After `most` crashes within the window it may not, until the oldest of them is past. A start after n of them waits for
    the nth of the pauses, or for the last.
    """

    crashes: tuple[float, ...] = ()
    window_s: float = 300.0
    most: int = 3
    pauses_s: tuple[float, ...] = (0.0, 0.0, 1.0)

    def crashed(self, now: float) -> Breaker:
        """Return the breaker after one more crash."""
        return replace(self, crashes=(*self._recent(now), now)[-self.most :])

    def closed_for_s(self, now: float) -> float:
        """Return for how many seconds the engine must not be started; 0.0 when it may."""
        recent = self._recent(now)
        return recent[0] + self.window_s - now if len(recent) >= self.most else 0.0

    def pause_s(self, now: float) -> float:
        """Return how long to wait before the next start."""
        return self.pauses_s[min(len(self._recent(now)), len(self.pauses_s) - 1)]

    def _recent(self, now: float) -> tuple[float, ...]:
        return tuple(at for at in self.crashes if now - at < self.window_s)


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Which engine, for whom, and how to start it when there is none.

    An interactive client's requests go before all batch work. `client` names who asks, so that its newer requests
    replace its older ones; "" makes a name. `command` runs an engine (`dg_lsp.engine.entry`); without one the client only
    joins an engine that runs already. Seconds; 0 means never.
    """

    model: str = DEFAULTS.model
    revision: str = ""
    dtype: str = "auto"
    device: str = DEFAULTS.device
    filler: str = ""
    client: str = ""
    interactive: bool = True
    command: tuple[str, ...] = ()
    threads: int = DEFAULTS.threads
    unload_after_s: float = DEFAULTS.unload_after
    exit_after_s: float = DEFAULTS.exit_after
    rows: int = DEFAULTS.rows
    breaker: Breaker = field(default_factory=Breaker)

    @property
    def which(self) -> Which:
        """The engine that these options mean."""
        return Which(self.model, self.revision, self.dtype, self.device, self.filler)

    @property
    def settings(self) -> Settings:
        """How that engine is run when we start it."""
        return Settings(self.threads, self.unload_after_s, self.exit_after_s, self.rows)


@contextlib.asynccontextmanager
async def connect(
    options: ConnectOptions | None = None,
    *,
    on_loading: OnLoading = lambda _text, _share: None,
    on_status: OnStatus = lambda _status: None,
    wait: bool = True,
) -> AsyncIterator[ResidentEngine]:
    """Yield the engine, ready to fill; raise EngineError when none can be had.

    Joins the one that runs, or starts one. `on_loading` hears how far the loading is that we wait for, `on_status` each
    change of the model's state. Without `wait` the engine is joined by `ready` or the first `fill`.
    """
    engine = ResidentEngine(options or ConnectOptions(), on_loading, on_status)
    try:
        if wait:
            await engine.ready()
        yield engine
    finally:
        await engine.close()


class ResidentEngine:
    """Satisfies `infill.port.Engine`. Holds a lease while it is open."""

    def __init__(self, options: ConnectOptions, on_loading: OnLoading, on_status: OnStatus) -> None:
        """Hold nothing yet; `connect` makes these."""
        self.options = options
        self._on_status = on_status
        self._client = options.client or secrets.token_hex(4)
        self._on_loading = on_loading
        self._link: Link | None = None
        self._joining: asyncio.Task[Link] | None = None
        self._is_closed = False
        self._breaker = options.breaker

    @property
    def status(self) -> Status | None:
        """What the engine last told of its model; None while we are not connected."""
        return None if self._link is None or self._link.lost else self._link.status

    async def ready(self) -> None:
        """Join or start the engine, and wait until its model is loaded; raise EngineError when that fails."""
        await self._linked()

    async def info(self) -> Mapping[str, object]:
        """Return what the engine tells about itself; raise EngineError when there is none."""
        link = await self._linked()
        try:
            return (await link.info()).values
        except LinkLostError as error:
            raise EngineError(str(error)) from error

    async def fill(
        self,
        request: InfillRequest,
        *,
        document: str = "",
        on_draft: OnDraft | None = None,
        on_done: OnDone | None = None,
    ) -> tuple[Candidate, ...]:
        """Return candidates, best first; none when a newer request for the same `document` replaced this one.

        `on_draft` hears the canvas as it reads while it is denoised, `on_done` what the answer took. Raises EngineError.
        Cancelled, it stops the engine's work within one step. An engine that crashes is started again, once.
        """
        ask = Ask(
            request,
            client=self._client,
            document=document,
            priority="interactive" if self.options.interactive else "batch",
            drafts=on_draft is not None,
        )
        for is_last in (False, True):
            link = await self._linked()
            try:
                return await self._patiently(link, replace(ask, protocol=link.protocol), on_draft, on_done)
            except LinkLostError as error:
                self._note(link, crashed=error.crashed)
                if is_last:
                    raise EngineError(self._with_log(f"{error}, twice")) from error
        raise AssertionError  # the last attempt returns or raises

    def bound(self, document: str, on_draft: OnDraft | None = None) -> Engine:
        """Return the engine for one document: its `fill` replaces older requests for that document."""
        return _Bound(self, document, on_draft)

    async def close(self) -> None:
        """Give the lease back; whoever still waits for the engine or for its answer, or asks later, gets an EngineError."""
        self._is_closed = True
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.wait((self._joining,))
        await self._drop_link()

    async def _drop_link(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None

    async def _patiently(self, link: Link, ask: Ask, on_draft: OnDraft | None, on_done: OnDone | None) -> tuple[Candidate, ...]:
        give_up, pause_s = time.monotonic() + BUSY_PATIENCE_S, 0.05
        while True:
            try:
                return await link.infill(ask, on_draft, on_done)
            except EngineBusyError:
                # Nobody waits at a keyboard for batch work, so it may queue up here too.
                if ask.priority == "interactive" or time.monotonic() >= give_up:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)

    async def _linked(self) -> Link:
        """Return a link to an engine whose model is loaded.

        Joining is one task for all who wait, and goes on when they do not: typing cancels a request that started the
        engine, and the next request wants that engine, not another start.
        """
        if self._is_closed:
            raise EngineError(CLOSED)
        if self._link is not None and self._is_usable(self._link):
            return self._link
        if self._joining is None or self._joining.done():
            self._joining = asyncio.ensure_future(self._joined())
            self._joining.add_done_callback(_take_notice)
        joining = self._joining
        await asyncio.wait((joining,))
        if joining.cancelled():
            raise EngineError(CLOSED)
        return joining.result()

    def _is_usable(self, link: Link) -> bool:
        return not link.lost and link.status.state != "failed"

    async def _joined(self) -> Link:
        """Return a link to an engine whose model is loaded, after as many starts as the breaker allows."""
        while self._link is None or not self._is_usable(self._link):
            await self._drop_unusable()
            link = await self._join()
            try:
                await link.ready(self._on_loading)
            except LinkLostError as error:
                self._note(link, crashed=error.crashed)
                await link.close()
            except BaseException as error:
                if isinstance(error, EngineError):
                    # The same model will not load the next moment either: not to be tried at each keystroke.
                    self._crashed()
                await link.close()
                raise
            else:
                self._link = link
        return self._link

    async def _drop_unusable(self) -> None:
        if self._link is not None:
            self._note(self._link, crashed=not self._link.said_bye)
            await self._drop_link()

    async def _join(self) -> Link:
        try:
            place = meeting.place(self.options.which)
            while True:
                link = await self._reach(place)
                if link is not None:
                    return link
                if not self.options.command:
                    raise EngineError("no engine is running, and this client may not start one: dg-lsp engine start")
                starting = meeting.hold(place.starting)
                if starting is None:
                    await asyncio.sleep(0.05)  # somebody else is starting it
                    continue
                try:
                    link = await self._reach(place) or await self._start(place)
                finally:
                    starting.release()
                if link is not None:
                    return link
        except MeetingError as error:
            raise EngineError(str(error)) from error

    async def _reach(self, place: Place) -> Link | None:
        """Return a link to the engine of this place; None when none answers. Raises EngineError when it speaks otherwise."""
        state = meeting.read_state(place)
        if state is None:
            return None
        if messages.common_protocol(state.protocol_min, state.protocol_max) is not None:
            return await links.reach(state, self._on_status)
        try:
            meeting.check_owner(state.address)
        except OSError:
            return None  # its socket is gone, and so is it
        # Not by the process's id, which may be another's by now: an engine has its lock for as long as it lives.
        if not meeting.is_held(place.lock):
            return None
        if not await links.ask_to_end(state):
            raise EngineError(
                f"the engine that runs (dg-lsp {state.version}) speaks another protocol than this dg-lsp and is in use; "
                "close what uses it, or stop it with: dg-lsp engine stop --now"
            )
        await _until(lambda: meeting.read_state(place) != state, END_PATIENCE_S)
        return None

    async def _start(self, place: Place) -> Link | None:
        """Return a link to a new engine; None when the new process ended, to be tried again."""
        now = time.monotonic()
        if closed_for_s := self._breaker.closed_for_s(now):
            minutes = max(1, round(closed_for_s / 60))
            raise EngineError(
                self._with_log(f"the engine failed {self._breaker.most} times; this client starts it again in {minutes} min")
            )
        await asyncio.sleep(self._breaker.pause_s(now))
        before = meeting.read_state(place)
        process = meeting.start_engine(self.options.command, place, self.options.which, self.options.settings)
        await _until(partial(self._is_decided, place, before, process), BIND_PATIENCE_S)
        link = await self._reach(place)
        if link is None:
            self._crashed()
        return link

    def _is_decided(self, place: Place, before: State | None, process: subprocess.Popen[bytes]) -> bool:
        """Return whether an engine has come up, be it one that somebody else started, or ours has ended."""
        return process.poll() is not None or meeting.read_state(place) not in (None, before)

    def _note(self, link: Link, *, crashed: bool) -> None:
        """Count the end of a link, once, however many requests it ended."""
        if crashed and not link.counted:
            link.counted = True
            self._crashed()
        link.lost = True

    def _crashed(self) -> None:
        self._breaker = self._breaker.crashed(time.monotonic())

    def _with_log(self, sentence: str) -> str:
        with contextlib.suppress(MeetingError):
            tail = meeting.log_tail(meeting.place(self.options.which))
            return sentence + ("; the end of its log:\n  " + "\n  ".join(tail) if tail else "")
        return sentence


@dataclass(frozen=True, slots=True)
class _Bound:
    engine: ResidentEngine
    document: str
    on_draft: OnDraft | None

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        return await self.engine.fill(request, document=self.document, on_draft=self.on_draft)


def _take_notice(joining: asyncio.Task[Link]) -> None:
    """Look at how joining ended: asyncio complains of an error that nobody looked at, and all who waited may have gone."""
    if not joining.cancelled():
        joining.exception()


async def _until(check: Callable[[], bool], patience_s: float) -> None:
    """Wait until a check holds, or patience ends."""
    give_up, pause_s = time.monotonic() + patience_s, 0.01
    while not check() and time.monotonic() < give_up:
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.2)
