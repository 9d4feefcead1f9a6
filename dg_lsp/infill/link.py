"""One connection to one engine process: a lease held open, and requests beside it.

Knows HTTP and the wire's messages. Knows nothing of starting engines or of trying again (`client`). Every wait has a
deadline on this side: an engine that is stopped keeps its sockets open and says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from dg_lsp.core.values import Candidate
from dg_lsp.infill.life import N_PINGS
from dg_lsp.infill.port import EngineError
from dg_lsp.wire import meeting, messages
from dg_lsp.wire.fields import Fields, WireError, parse
from dg_lsp.wire.meeting import State
from dg_lsp.wire.messages import Ask, Bye, Done, Draft, Event, Found, Problem, Status

OnDraft = Callable[[tuple[str, ...], int], None]
OnDone = Callable[[Done], None]

CONNECT_PATIENCE_S = 5.0
PING_EVERY_S = 5.0
"""The engine says something at least this often on every stream."""
SILENCE_S = N_PINGS * PING_EVERY_S
LOADING_SILENCE_S = 120.0
"""While it imports and loads, its process may stand still for longer than that."""
ANSWER_PATIENCE_S = 60.0
"""An answer may come so much later than its request's own limit: it may wait for others, and steps are not interrupted."""
UNLIMITED_PATIENCE_S = 3600.0
"""A request without a limit of its own is given up then."""


class LinkLostError(Exception):
    """The engine is gone, or answers no more; `crashed` is False when it said so before."""

    def __init__(self, message: str, *, crashed: bool = True) -> None:
        """Hold the sentence."""
        super().__init__(message)
        self.crashed = crashed


class EngineBusyError(EngineError):
    """The engine's queue is full; asking again later may help."""


class SilentError(Exception):
    """The engine's process is there and says nothing."""

    def __init__(self, state: State) -> None:
        """Hold what the engine told of itself before."""
        super().__init__(f"the engine does not respond (process {state.pid})")
        self.state = state


class Link:
    """A lease, the state that the engine tells over it, and a client for requests."""

    def __init__(self, state: State, http: httpx.AsyncClient, on_change: Callable[[Link], None], first_word_s: float) -> None:
        """Hold a client; `reach` makes these, with the lease open. `on_change` is called when the status changes or it ends."""
        self.state = state
        self._on_change = on_change
        self.status = Status("unloaded")
        self.said_bye = False
        self.is_silent = False
        """The process missed its pings."""
        self.lost = False
        self.n_running = 0
        self._http = http
        self._closing: set[asyncio.Future[Any]] = set()
        self._ended = asyncio.Event()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lease = asyncio.ensure_future(self._hold_lease(first_word_s))

    @property
    def protocol(self) -> int:
        """The protocol to speak."""
        common = messages.common_protocol(self.state.protocol_min, self.state.protocol_max)
        return messages.PROTOCOL_MAX if common is None else common

    async def opened(self) -> None:
        """Wait until the engine counts us; raise LinkLostError when it does not answer."""
        await asyncio.shield(self._opened)

    async def infill(self, ask: Ask, on_draft: OnDraft | None = None, on_done: OnDone | None = None) -> tuple[Candidate, ...]:
        """Return the candidates; raise EngineError, or LinkLostError when the engine ends or goes silent first."""
        limit_ms = ask.request.budget.ms
        patience_s = limit_ms / 1000 + ANSWER_PATIENCE_S if limit_ms else UNLIMITED_PATIENCE_S
        answering = asyncio.ensure_future(self._infill(ask, on_draft, on_done))
        ended = asyncio.ensure_future(self._ended.wait())
        self.n_running += 1
        try:
            await asyncio.wait((answering, ended), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            # A connection that breaks says more than that it is over.
            if self._ended.is_set() and not self.is_silent:
                await asyncio.wait((answering,), timeout=1.0)
                if answering.done():
                    return answering.result()
            if self._ended.is_set():
                raise self._gone()
            raise EngineError(f"the engine has not answered for {patience_s:.0f} s; the request was given up")
        finally:
            self.n_running -= 1
            ended.cancel()
            if not answering.done():
                answering.cancel()
                self._keep(answering)

    async def _infill(self, ask: Ask, on_draft: OnDraft | None, on_done: OnDone | None) -> tuple[Candidate, ...]:
        if self.lost:
            raise LinkLostError("the engine has ended", crashed=not self.said_bye)
        candidates: list[Candidate] = []
        try:
            async with self._posted(messages.as_json(messages.encode_ask(ask))) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._error(await _problem(response))
                async for event in _events(response):
                    match event:
                        case Draft(texts, step) if on_draft is not None:
                            on_draft(texts, step)
                        case Found(candidate, early=False):
                            candidates.append(candidate)
                        case Done() as done:
                            if on_done is not None:
                                on_done(done)
                            return tuple(candidates)
                        case Problem() as problem:
                            raise self._error(problem)
                        case _:
                            pass
        except httpx.TransportError as error:
            raise self._gone() from error
        except WireError as error:
            raise EngineError(f"the engine's answer can't be understood: {error}") from error
        raise self._gone()

    def _gone(self) -> LinkLostError:
        if self.is_silent:
            return LinkLostError(f"the engine does not respond (process {self.state.pid})")
        return LinkLostError("the engine ended while it was answering", crashed=not self.said_bye)

    def _keep(self, task: asyncio.Future[tuple[Candidate, ...]]) -> None:
        """Let a request that was given up end by itself; `close` waits for it."""
        self._closing.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._closing.discard(task)
        # Nobody waits for it any more, and asyncio complains of errors that nobody looked at.
        if not task.cancelled():
            task.exception()

    async def info(self) -> Fields:
        """Return what the engine tells about itself; raise LinkLostError when it is gone."""
        try:
            response = await self._http.get("/v1/info", timeout=SILENCE_S)
            response.raise_for_status()
            return parse(response.content)
        except (httpx.HTTPError, WireError) as error:
            raise LinkLostError("the engine does not answer", crashed=not self.said_bye) from error

    async def close(self) -> None:
        """Give the lease back, and close all connections."""
        self._on_change = lambda _link: None
        if self.lost:
            # It is about to end by itself; to cancel it just when its socket wakes up makes anyio log an error.
            await asyncio.wait([self._lease], timeout=0.2)
        self.lost = True
        self._lease.cancel()
        # Its end is not ours: whoever is cancelled while they close this must hear of that.
        await asyncio.wait([self._lease])
        for closing in tuple(self._closing):
            closing.cancel()  # the client closes what they wait for as well
        if self._closing:
            await asyncio.wait(tuple(self._closing))
        await self._http.aclose()

    @contextlib.asynccontextmanager
    async def _posted(self, body: bytes) -> AsyncIterator[httpx.Response]:
        """Yield the response to a request for an infill, and close it however that ends.

        A connection whose opening is cancelled stays open in httpcore's pool and is used no more, so that a day of
        typing would leave hundreds. The opening therefore goes on, and what it brings is closed at once.
        """
        request = self._http.build_request("POST", "/v1/infill", content=body, headers={"Content-Type": "application/json"})
        opening = asyncio.ensure_future(self._http.send(request, stream=True))
        try:
            response = await asyncio.shield(opening)
        except asyncio.CancelledError:
            closing = asyncio.ensure_future(_close(opening))
            self._closing.add(closing)
            closing.add_done_callback(self._forget)
            raise
        try:
            yield response
        finally:
            await response.aclose()

    async def _hold_lease(self, first_word_s: float) -> None:
        try:
            async with asyncio.timeout(first_word_s) as silence:
                async with self._http.stream("GET", "/v1/lease", params={"warm": "1"}) as response:
                    if response.status_code != httpx.codes.OK:
                        return
                    async for event in _events(response, lambda: silence.reschedule(self._now() + self._silence_s())):
                        self._take(event)
                        silence.reschedule(self._now() + self._silence_s())
        except TimeoutError:
            self.is_silent = True
        except (httpx.HTTPError, OSError, WireError):
            pass
        finally:
            self.lost = True
            self._ended.set()
            if not self._opened.done():
                self._opened.set_exception(SilentError(self.state) if self.is_silent else LinkLostError("no engine answers"))
                self._opened.exception()  # whoever gave up waiting does not ask
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

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _error(self, problem: Problem) -> Exception:
        match problem.code:
            case "busy":
                return EngineBusyError(problem.message)
            case "stopping" | "unauthorized":
                # It ends, or another one has taken its address: in both cases a fresh one will answer.
                return LinkLostError(problem.message, crashed=False)
            case _:
                return EngineError(problem.message)


async def reach(state: State, on_change: Callable[[Link], None], *, first_word_s: float = SILENCE_S) -> Link | None:
    """Return a link to a running engine with the lease open, or None when nothing answers there.

    Raises MeetingError, and SilentError when the process is there and has not said a word by then.
    """
    try:
        meeting.check_owner(state.address)
    except OSError:
        return None
    link = Link(state, _client(state), on_change, first_word_s)
    try:
        await link.opened()
    except LinkLostError:
        await link.close()
        return None
    except BaseException:
        await link.close()
        raise
    return link


def kill(state: State) -> bool:
    """Kill an engine that does not respond, if it is sure that the process is the one that has the socket; return whether.

    The number in a state file may be another process's by now; the kernel says who listens on a socket.
    """
    if not state.address.startswith("/") or _listener(state.address) != state.pid:
        return False
    try:
        os.kill(state.pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _listener(address: str) -> int | None:
    """Return the process that listens on a Unix socket; None where it can't be told."""
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
    """Ask an engine to end once nobody uses it; return whether nobody does already. Raises SilentError."""
    async with _client(state) as http:
        try:
            info = parse((await http.get("/v1/info", timeout=SILENCE_S)).content)
            is_idle = not (info.integer("leases", 0) or info.integer("running", 0) or info.integer("waiting", 0))
            (await http.post("/v1/shutdown", json={"when": "idle"}, timeout=SILENCE_S)).raise_for_status()
        except httpx.TimeoutException as error:
            raise SilentError(state) from error
        except (httpx.HTTPError, WireError):
            return False
    return is_idle


def _client(state: State) -> httpx.AsyncClient:
    by_socket = state.address.startswith("/")
    # A lease and any number of requests: the engine says itself when it has too many.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=state.address if by_socket else None, limits=limits),
        base_url=f"http://{'localhost' if by_socket else state.address}",
        headers={"Authorization": f"Bearer {state.token}"},
        # Longer than the lease may be silent, which decides.
        timeout=httpx.Timeout(LOADING_SILENCE_S + SILENCE_S, connect=CONNECT_PATIENCE_S, pool=None),
    )


async def _events(response: httpx.Response, on_line: Callable[[], None] = lambda: None) -> AsyncIterator[Event]:
    """Yield the events of a stream; `on_line` is called for pings as well."""
    name, data = "", ""
    async for line in response.aiter_lines():
        on_line()
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line and data:
            event = messages.decode_event(name, parse(data))
            name, data = "", ""
            if event is not None:
                yield event


async def _close(opening: asyncio.Future[httpx.Response]) -> None:
    """Close the response that nobody waits for any more, once it is there."""
    with contextlib.suppress(httpx.HTTPError, OSError):
        await (await opening).aclose()


async def _problem(response: httpx.Response) -> Problem:
    try:
        return messages.decode_problem(parse(await response.aread()))
    except WireError:
        return Problem("engine_failed", f"the engine answered with status {response.status_code}")
