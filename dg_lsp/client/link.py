"""One connection to one engine process: an open lease, and concurrent requests.

This module knows HTTP and the wire's messages. It does not start engines or retry (`engine` does). Every wait has a
deadline here, because a suspended engine keeps its sockets open and sends nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import Any

import httpx

from dg_lsp.client.port import EngineBusyError, EngineError, LinkLostError, SilentError
from dg_lsp.core.values import Candidate
from dg_lsp.wire import discovery, messages, network
from dg_lsp.wire.discovery import State
from dg_lsp.wire.messages import Ask, Bye, Done, Draft, Event, Fields, Problem, Status, WireError, parse

OnDraft = Callable[[tuple[str, ...], int], None]
OnDone = Callable[[Done], None]

CONNECT_PATIENCE_S = 5.0
PING_EVERY_S = 5.0
"""The engine sends an event or a ping at least this often on every stream."""
SILENCE_S = 3 * PING_EVERY_S
"""After so long without one, the engine counts as not responding."""
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


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error of an event loop as asyncio does, but not a result that comes too late.

    anyio raises that when its Unix socket becomes readable in the same loop iteration in which its reader is cancelled. Nothing
    is lost.
    """
    if isinstance(context.get("exception"), asyncio.InvalidStateError):
        log.debug("%s", context.get("message"))
    else:
        loop.default_exception_handler(context)


class Link:
    """An open lease, the engine's status as sent over the lease, and an HTTP client for requests.

    They are in one class, because they end together.
    """

    def __init__(self, state: State, http: httpx.AsyncClient, on_change: Callable[[Link], None], first_word_s: float) -> None:
        """Open the lease; use `reach` to create a link. `on_change` is called when the status changes or the link ends."""
        self.state = state
        self._on_change = on_change
        self.status = Status("unloaded")
        self.said_bye = False
        self.is_silent = False
        """The engine missed its pings."""
        self.lost = False
        self._http = http
        self._opening: set[asyncio.Future[httpx.Response]] = set()
        self._closing: set[asyncio.Future[None]] = set()
        self._timeouts: set[asyncio.Timeout] = set()
        """Those of the running requests."""
        self._has_ended = False
        loop = asyncio.get_running_loop()
        if loop.get_exception_handler() is None:
            loop.set_exception_handler(on_loop_error)
        self._opened: asyncio.Future[None] = loop.create_future()
        self._lease = asyncio.ensure_future(self._hold_lease(first_word_s))

    async def infill(self, ask: Ask, on_draft: OnDraft | None = None, on_done: OnDone | None = None) -> tuple[Candidate, ...]:
        """Return the candidates; raise EngineError, or LinkLostError when the engine ends or goes silent first."""
        if self.lost:
            raise LinkLostError("the engine has ended", crashed=not self.said_bye)
        limit_ms = ask.request.budget.ms
        patience_s = limit_ms / 1000 + ANSWER_PATIENCE_S if limit_ms else UNLIMITED_PATIENCE_S
        timeout = asyncio.timeout(patience_s)
        self._timeouts.add(timeout)
        try:
            content, headers = messages.as_json(asdict(ask)), {"Content-Type": "application/json"}
            posted = self._http.build_request("POST", "/v1/infill", content=content, headers=headers)
            async with timeout, self._sent(posted) as response:
                return await self._answer(response, on_draft, on_done)
        except TimeoutError as error:
            if self._has_ended:
                raise self._gone() from error
            raise EngineError(f"the engine did not respond within {patience_s:.0f} s; the request was cancelled") from error
        except httpx.TransportError as error:
            raise self._gone() from error
        except WireError as error:
            raise EngineError(f"the engine's answer can't be parsed: {error}") from error
        finally:
            self._timeouts.discard(timeout)

    async def _answer(
        self, response: httpx.Response, on_draft: OnDraft | None, on_done: OnDone | None
    ) -> tuple[Candidate, ...]:
        if response.status_code != httpx.codes.OK:
            try:
                problem = messages.decode_problem(parse(await response.aread()))
            except WireError:
                problem = Problem("engine_failed", f"the engine answered with status {response.status_code}")
            raise self._error(problem)
        candidates: list[Candidate] = []
        async for event in _events(response):
            match event:
                case Draft(texts, step) if on_draft is not None:
                    on_draft(texts, step)
                case Candidate() as candidate:
                    candidates.append(candidate)
                case Done() as done:
                    if on_done is not None:
                        on_done(done)
                    return tuple(candidates)
                case Problem() as reported:
                    raise self._error(reported)
                case _:
                    pass
        raise self._gone()

    def _gone(self) -> LinkLostError:
        if self.is_silent:
            return LinkLostError(f"the engine does not respond (process {self.state.pid})")
        return LinkLostError("the engine ended while it was answering", crashed=not self.said_bye)

    async def info(self) -> Fields:
        """Return the engine's description of itself; raise LinkLostError when it does not respond."""
        try:
            async with self._sent(self._http.build_request("GET", "/v1/info", timeout=SILENCE_S)) as response:
                response.raise_for_status()
                return parse(await response.aread())
        except (httpx.HTTPError, WireError) as error:
            raise LinkLostError("the engine does not respond", crashed=not self.said_bye) from error

    async def configure(self, fields: Mapping[str, float]) -> Mapping[str, object]:
        """Let the engine run with these settings from now on, and return all that it has; {} if it can't be reached."""
        return await self._post("/v1/settings", fields)

    async def end(self) -> None:
        """End the engine, also if other clients use it, and wait until it has ended, but not for long."""
        await self._post("/v1/shutdown", {"when": "now"})
        await asyncio.wait([self._lease], timeout=SILENCE_S)

    async def _post(self, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        posted = self._http.build_request("POST", path, json=body, timeout=SILENCE_S)
        try:
            async with self._sent(posted) as response:
                response.raise_for_status()
                return parse(await response.aread()).values
        except (httpx.HTTPError, LinkLostError, WireError) as error:
            log.warning("the engine did not take %s: %s", path, error)
            return {}

    async def close(self) -> None:
        self._on_change = lambda _link: None
        if self.lost:
            # The lease is about to end. Cancelling it in the moment its socket wakes up makes anyio log an error.
            await asyncio.wait([self._lease], timeout=0.2)
        self.lost = True
        self._lease.cancel()
        # Wait without `await self._lease`, so that a cancellation of the caller is not mistaken for the lease's own.
        await asyncio.wait([self._lease])
        for opening in tuple(self._opening):
            opening.cancel()  # httpcore would open another connection for it, also after its pool has been closed
        while self._closing:
            await asyncio.wait(tuple(self._closing))
        await self._http.aclose()

    @contextlib.asynccontextmanager
    async def _sent(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        """Yield the response to a request, and close it in every case.

        httpcore loses connections when it is cancelled while it opens one, or while it closes those that have been idle for too
        long. A day of typing would leave hundreds of them open. So a cancellation ends neither: both have tasks of their own.
        """
        opening = asyncio.ensure_future(self._http.send(request, stream=True))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            yield await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                raise self._gone() from None  # `close` has cancelled it, not who waits here
            raise
        finally:
            closing = asyncio.ensure_future(_close(opening))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            if opening.done():
                await asyncio.wait([closing])

    async def _hold_lease(self, first_word_s: float) -> None:
        now = asyncio.get_running_loop().time
        try:
            lease = self._http.stream("GET", "/v1/lease", params={"warm": "1"})
            async with silence(first_word_s) as reset, lease as response:
                if response.status_code != httpx.codes.OK:
                    return
                async for event in _events(response, lambda: reset(self._silence_s())):
                    self._take(event)
                    reset(self._silence_s())
        except TimeoutError:
            self.is_silent = True
        except (httpx.HTTPError, OSError, WireError):
            pass
        finally:
            self.lost = self._has_ended = True
            # Wait briefly for a request's own error, which says more than the end of the lease.
            for timeout in self._timeouts:
                if not timeout.expired():
                    timeout.reschedule(now() + (0.0 if self.is_silent else 1.0))
            if not self._opened.done():
                self._opened.set_exception(SilentError(self.state) if self.is_silent else LinkLostError("no engine responds"))
                self._opened.exception()  # asyncio logs exceptions that were never read
            else:
                self._on_change(self)

    def _take(self, event: Event) -> None:
        if isinstance(event, Bye):
            self.said_bye = True
        if not self._opened.done():
            self._opened.set_result(None)
        if isinstance(event, Status):
            self.status = event
            self._on_change(self)

    def _silence_s(self) -> float:
        return LOADING_SILENCE_S if self.status.state == "loading" else SILENCE_S

    def _error(self, problem: Problem) -> Exception:
        match problem.code:
            case "busy":
                return EngineBusyError(problem.message)
            case "stopping" | "unauthorized":
                # The engine is ending, or another engine has taken its address; a new connection will work.
                return LinkLostError(problem.message, crashed=False)
            case _:
                return EngineError(problem.message)


async def _close(opening: asyncio.Future[httpx.Response]) -> None:
    with contextlib.suppress(Exception):  # no request waits for it
        await (await opening).aclose()


async def reach(state: State, on_change: Callable[[Link], None], *, first_word_s: float = SILENCE_S) -> Link | None:
    """Return a link to a running engine, with an open lease; None when no engine responds.

    Raises DiscoveryError, and SilentError when the process runs but sends nothing within `first_word_s`.
    """
    try:
        discovery.check_owner(state.address)
    except OSError:
        return None
    link = Link(state, _client(state), on_change, first_word_s)
    try:
        await asyncio.shield(link._opened)  # set when the engine has confirmed the lease
    except LinkLostError:
        await link.close()
        return None
    except BaseException:
        await link.close()
        raise
    return link


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


async def ask_to_end(state: State) -> bool:
    """Ask an engine to end when no client uses it; return whether it is idle already. Raises SilentError."""
    async with _client(state) as http:
        try:
            async with silence(SILENCE_S) as reset:
                info = parse((await http.get("/v1/info", timeout=None)).content)
                reset(SILENCE_S)
                is_idle = not (info.integer("leases", 0) or info.integer("running", 0) or info.integer("waiting", 0))
                (await http.post("/v1/shutdown", json={"when": "idle"}, timeout=None)).raise_for_status()
        except TimeoutError as error:
            raise SilentError(state) from error
        except (httpx.HTTPError, WireError):
            return False
    return is_idle


def _client(state: State) -> httpx.AsyncClient:
    # No limit on connections, because the engine itself refuses requests when it is full.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
    return httpx.AsyncClient(
        transport=network.to_engine(httpx.AsyncHTTPTransport, state.address, limits=limits),
        base_url=state.url,
        trust_env=False,
        headers={"Authorization": f"Bearer {state.token}"},
        # Longer than the lease's silence limit, so that the lease detects a silent engine first.
        timeout=httpx.Timeout(LOADING_SILENCE_S + SILENCE_S, connect=CONNECT_PATIENCE_S, pool=None),
    )


async def _events(response: httpx.Response, on_line: Callable[[], None] = lambda: None) -> AsyncIterator[Event]:
    """Yield the events of a stream; `on_line` is called for each line, pings included."""
    name, data = "", ""
    async for line in response.aiter_lines():
        on_line()
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line and data:
            yield messages.decode_event(name, parse(data))
            name, data = "", ""
