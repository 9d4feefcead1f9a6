"""One connection to one engine process: a lease, and concurrent requests.

It does not start engines or retry (`engine` does). Every wait has a deadline here, because a suspended engine keeps its
connections open and sends nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping

from dg_lsp.client.port import EngineBusyError, EngineError, LinkLostError, SilentError
from dg_lsp.core.values import Candidate
from dg_lsp.wire import discovery, messages, stream
from dg_lsp.wire.discovery import State
from dg_lsp.wire.messages import MAX_BODY_BYTES, Ask, Bye, Done, Draft, Event, Fields, Problem, Reply, Status, WireError
from dg_lsp.wire.stream import ANSWERS, Message

OnDraft = Callable[[tuple[str, ...], int], None]
OnDone = Callable[[Done], None]

CONNECT_PATIENCE_S = 5.0
SILENCE_S = 3 * stream.PING_EVERY_S
"""After so long without an event or a ping, the engine counts as not responding."""
LOADING_SILENCE_S = 120.0
"""While the engine imports modules and loads the model, it may be silent for this long."""
ANSWER_PATIENCE_S = 60.0
"""An answer may exceed its request's deadline by this much: the request may queue, and steps are not interrupted."""
UNLIMITED_PATIENCE_S = 3600.0
"""The deadline of a request that has none of its own."""


TICK_S = 0.5
"""How often a limit on silence looks whether the event loop runs."""

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def silence(limit_s: float) -> AsyncIterator[Callable[[float], None]]:
    """Limit how long the engine may be silent; yield what sets the rest of the time when it sends something.

    Only time in which this process listens counts. When the event loop was blocked, or the process suspended, what the engine
    sent has not been read yet. A plain timeout would end before it is read, and a healthy engine would be killed.
    """
    left_s, loop = limit_s, asyncio.get_running_loop()

    def reset(limit_s: float) -> None:
        nonlocal left_s
        left_s = limit_s

    async def count() -> None:
        nonlocal left_s
        while left_s > 0:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            # After a late tick, nothing was read meanwhile, so it does not count, and there is a whole tick to read what came.
            left_s -= TICK_S if loop.time() - due < TICK_S else 0.0
        timeout.reschedule(loop.time())

    async with asyncio.timeout(None) as timeout:
        counting = asyncio.ensure_future(count())
        try:
            yield reset
        finally:
            counting.cancel()


class Link:
    """A connection to one engine process: a lease, the engine's status as it sends it, and concurrent requests."""

    def __init__(
        self,
        state: State,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_change: Callable[[Link], None],
        first_word_s: float,
    ) -> None:
        """Read what the engine sends; use `reach` to create a link. `on_change` is called for a new status and at the end."""
        self.state = state
        self._on_change = on_change
        self.status = Status("unloaded")
        self.said_bye = False
        self.is_silent = False
        """The engine missed its pings."""
        self.lost = False
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._events: dict[int, asyncio.Queue[Message | None]] = {}
        """For each running request, what the engine sends for it; None when the connection ends."""
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.ensure_future(self._read(first_word_s))

    async def infill(self, ask: Ask, on_draft: OnDraft | None = None, on_done: OnDone | None = None) -> tuple[Candidate, ...]:
        """Return the candidates; raise EngineError, or LinkLostError when the engine ends or goes silent first."""
        limit_ms = ask.request.budget.ms
        patience_s = limit_ms / 1000 + ANSWER_PATIENCE_S if limit_ms else UNLIMITED_PATIENCE_S
        candidates: list[Candidate] = []

        def take(event: Event) -> None:
            match event:
                case Draft(texts, step) if on_draft is not None:
                    on_draft(texts, step)
                case Candidate():
                    candidates.append(event)
                case Done() if on_done is not None:
                    on_done(event)

        try:
            async with asyncio.timeout(patience_s):
                await self._ask("infill", ask, take)
        except TimeoutError as error:
            raise EngineError(f"the engine did not respond within {patience_s:.0f} s; the request was cancelled") from error
        return tuple(candidates)

    async def call(self, name: str, fields: Mapping[str, object] | None = None) -> Fields:
        """Return the engine's reply to `info`, `settings` or `shutdown`.

        Raises EngineError when it refuses, and LinkLostError when it ends or goes silent first.
        """
        replies: list[Event] = []
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._ask(name, fields or {}, replies.append)
        except TimeoutError as error:
            raise LinkLostError("the engine does not respond", crashed=not self.said_bye) from error
        return Fields(replies[0].values if isinstance(replies[0], Reply) else {})

    async def configure(self, fields: Mapping[str, float]) -> Mapping[str, object]:
        """Let the engine run with these settings from now on, and return all that it has; {} if it can't be reached."""
        try:
            return (await self.call("settings", fields)).values
        except (EngineError, LinkLostError) as error:
            log.warning("the engine did not take its settings: %s", error)
            return {}

    async def end(self) -> None:
        """End the engine, also if other clients use it, and wait until it has ended, but not for long."""
        with contextlib.suppress(EngineError, LinkLostError):
            await self.call("shutdown", {"when": "now"})
        await asyncio.wait([self._reading], timeout=SILENCE_S)

    async def close(self) -> None:
        """End the connection, which cancels what runs on it."""
        self._on_change = lambda _link: None
        self.lost = True
        self._reading.cancel()
        # Wait without `await self._reading`, so that a cancellation of the caller is not mistaken for the reader's own.
        await asyncio.wait([self._reading])

    async def _ask(self, name: str, fields: object, on_event: Callable[[Event], None]) -> None:
        """Send a request, and pass on its events up to the last one; tell the engine if they are awaited no longer.

        Raises EngineError for a problem, and LinkLostError when the connection ends first.
        """
        if self.lost:
            raise self._gone()
        number = next(self._numbers)
        events = self._events[number] = asyncio.Queue()
        try:
            line = stream.encode(Message(name, fields, number))
            with contextlib.suppress(ConnectionError):  # the end of the connection comes as an answer
                await self._writer.drain()
            self._writer.write(line)
            while (message := await events.get()) is not None:
                event = messages.decode_event(message.name, Fields(message.fields))
                if isinstance(event, Problem):
                    raise self._error(event)
                on_event(event)
                if message.name in ANSWERS:
                    return
            raise self._gone()
        except WireError as error:
            raise EngineError(str(error)) from error
        finally:
            if self._events.pop(number, None) is not None and not self.lost:
                self._writer.write(stream.encode(Message("cancel", number=number)))

    async def _read(self, first_word_s: float) -> None:
        """Take what the engine sends until it ends or goes silent, then end all requests."""
        try:
            async with silence(first_word_s) as reset:
                while line := await stream.read(self._reader):
                    if line != stream.PING:
                        self._take(stream.decode(line))
                    reset(LOADING_SILENCE_S if self.status.state == "loading" else SILENCE_S)
        except TimeoutError:
            self.is_silent = True
        except WireError as error:
            log.warning("%s: %s", self.state.address, error)
        finally:
            self.lost = True
            self._writer.transport.abort()
            for events in self._events.values():
                events.put_nowait(None)
            if not self._opened.done():
                self._opened.set_exception(SilentError(self.state) if self.is_silent else LinkLostError("no engine responds"))
                self._opened.exception()  # asyncio logs exceptions that were never read
            else:
                self._on_change(self)

    def _take(self, message: Message) -> None:
        if message.number:
            # What comes after a request was cancelled has no reader.
            if events := self._events.get(message.number):
                events.put_nowait(message)
                if message.name in ANSWERS:
                    del self._events[message.number]
            return
        event = messages.decode_event(message.name, Fields(message.fields))
        if isinstance(event, Problem):
            raise WireError(event.message)
        if isinstance(event, Bye):
            self.said_bye = True
        if not self._opened.done():
            self._opened.set_result(None)
        if isinstance(event, Status):
            self.status = event
            self._on_change(self)

    def _gone(self) -> LinkLostError:
        if self.is_silent:
            return LinkLostError(f"the engine does not respond (process {self.state.pid})")
        return LinkLostError("the engine ended while it was answering", crashed=not self.said_bye)

    def _error(self, problem: Problem) -> Exception:
        match problem.code:
            case "busy":
                return EngineBusyError(problem.message, problem.retry_s)
            case "stopping":
                return LinkLostError(problem.message, crashed=False)
            case _:
                return EngineError(problem.message)


async def reach(state: State, on_change: Callable[[Link], None], *, first_word_s: float = SILENCE_S) -> Link | None:
    """Return a link to a running engine; None when no engine responds.

    Raises DiscoveryError, and SilentError when the process runs but sends nothing within `first_word_s`.
    """
    try:
        discovery.check_owner(state.address)
        async with asyncio.timeout(CONNECT_PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(state.address, limit=MAX_BODY_BYTES)
    except OSError:
        return None
    writer.write(stream.hello(state.token, uses=True))
    link = Link(state, reader, writer, on_change, first_word_s)
    try:
        await asyncio.shield(link._opened)  # set when the engine has sent its state
    except LinkLostError:
        await link.close()
        return None
    except BaseException:
        await link.close()
        raise
    return link


async def ask_to_end(state: State) -> bool:
    """Ask an engine to end when no client uses it; return whether it is idle already, False if it does not answer."""
    with contextlib.suppress(OSError, WireError, discovery.DiscoveryError):
        before = await asyncio.to_thread(discovery.call, state, "shutdown", {"when": "idle"})
        return not (before.integer("leases", 0) or before.integer("requests", 0))
    return False


def kill(state: State) -> bool:
    """Kill an engine that does not respond, and say so in its log; return whether it was killed.

    The process id in the state file may belong to another process by now. So kill only the process that the kernel reports
    as the listener on the engine's socket.
    """
    if not state.address.startswith("/") or _listener(state.address) != state.pid:
        return False
    with contextlib.suppress(discovery.DiscoveryError):
        files = discovery.engine_files(state.engine_id)
        discovery.write_log(files, f"process {state.pid} does not respond and is killed by process {os.getpid()}")
    try:
        os.kill(state.pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _listener(address: str) -> int | None:
    """Return the id of the process that listens on a Unix socket; None when it is unknown."""
    peer = getattr(socket, "SO_PEERCRED", None)  # Linux: process, user and group
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(address)
            if peer is not None:
                return int(struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, peer, 12))[0])
            # macOS: LOCAL_PEERPID of SOL_LOCAL
            return int(caller.getsockopt(0, 2)) if sys.platform == "darwin" else None
        except OSError:
            return None
