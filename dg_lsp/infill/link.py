"""One connection to one engine process: a lease held open, and requests beside it.

Knows HTTP and the wire's messages. Knows nothing of starting engines or of trying again (`client`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import httpx

from dg_lsp.core.values import Candidate
from dg_lsp.infill.port import EngineError
from dg_lsp.wire import meeting, messages
from dg_lsp.wire.fields import Fields, WireError, parse
from dg_lsp.wire.meeting import State
from dg_lsp.wire.messages import Ask, Bye, Done, Draft, Event, Found, Problem, Status

OnDraft = Callable[[tuple[str, ...], int], None]
OnStatus = Callable[[Status], None]
OnDone = Callable[[Done], None]

CONNECT_PATIENCE_S = 5.0
SILENCE_S = 120.0
"""The engine says something every few seconds; but while it imports and loads, its process may stand still for long."""


class LinkLostError(Exception):
    """The engine is gone, or answers no more; `crashed` is False when it said so before."""

    def __init__(self, message: str, *, crashed: bool = True) -> None:
        """Hold the sentence."""
        super().__init__(message)
        self.crashed = crashed


class EngineBusyError(EngineError):
    """The engine's queue is full; asking again later may help."""


class Link:
    """A lease, the state that the engine tells over it, and a client for requests."""

    def __init__(self, state: State, http: httpx.AsyncClient, on_status: OnStatus) -> None:
        """Hold a client; `reach` makes these, with the lease open."""
        self.state = state
        self.counted = False
        self._on_status = on_status
        self.status = Status("unloaded")
        self.said_bye = False
        self.lost = False
        self._http = http
        self._closing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lease = asyncio.ensure_future(self._hold_lease())

    @property
    def protocol(self) -> int:
        """The protocol to speak."""
        common = messages.common_protocol(self.state.protocol_min, self.state.protocol_max)
        return messages.PROTOCOL_MAX if common is None else common

    async def opened(self) -> None:
        """Wait until the engine counts us; raise LinkLostError when it does not answer."""
        await asyncio.shield(self._opened)

    async def ready(self, say: Callable[[str, float], None]) -> None:
        """Wait until the model is loaded; raise EngineError when it can't be, LinkLostError when the engine ends."""
        while True:
            changed, status = self._changed, self.status
            if self.lost:
                raise LinkLostError("the engine ended while it was loading", crashed=not self.said_bye)
            if status.state == "ready":
                return
            if status.state == "failed":
                raise EngineError(status.message)
            if status.state == "loading":
                say(status.message, status.fraction)
            await changed.wait()

    async def infill(self, ask: Ask, on_draft: OnDraft | None = None, on_done: OnDone | None = None) -> tuple[Candidate, ...]:
        """Return the candidates; raise EngineError, or LinkLostError when the engine ends first."""
        if self.lost:
            raise LinkLostError("the engine has ended", crashed=not self.said_bye)
        found: list[Candidate] = []
        try:
            async with self._posted(messages.as_json(messages.encode_ask(ask))) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._error(await _problem(response))
                async for event in _events(response):
                    match event:
                        case Draft(texts, step) if on_draft is not None:
                            on_draft(texts, step)
                        case Found(candidate, early=False):
                            found.append(candidate)
                        case Done() as done:
                            if on_done is not None:
                                on_done(done)
                            return tuple(found)
                        case Problem() as problem:
                            raise self._error(problem)
                        case _:
                            pass
        except httpx.TransportError as error:
            raise LinkLostError("the engine ended while it was answering", crashed=not self.said_bye) from error
        except WireError as error:
            raise EngineError(f"the engine's answer can't be understood: {error}") from error
        raise LinkLostError("the engine ended while it was answering", crashed=not self.said_bye)

    async def info(self) -> Fields:
        """Return what the engine tells about itself; raise LinkLostError when it is gone."""
        try:
            response = await self._http.get("/v1/info")
            response.raise_for_status()
            return parse(response.content)
        except (httpx.HTTPError, WireError) as error:
            raise LinkLostError("the engine does not answer", crashed=not self.said_bye) from error

    async def close(self) -> None:
        """Give the lease back, and close all connections."""
        if self.lost:
            # It is about to end by itself; to cancel it just when its socket wakes up makes anyio log an error.
            await asyncio.wait([self._lease], timeout=0.2)
        self.lost = True
        self._lease.cancel()
        # Its end is not ours: whoever is cancelled while they close this must hear of that.
        await asyncio.wait([self._lease])
        for closing in self._closing:
            closing.cancel()  # the client closes what they wait for as well
        if self._closing:
            await asyncio.wait(self._closing)
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
            closing.add_done_callback(self._closing.discard)
            raise
        try:
            yield response
        finally:
            await response.aclose()

    async def _hold_lease(self) -> None:
        try:
            async with self._http.stream("GET", "/v1/lease", params={"warm": "1"}) as response:
                if response.status_code != httpx.codes.OK:
                    return
                async for event in _events(response):
                    if isinstance(event, Status):
                        self.status = event
                        self._on_status(event)
                    elif isinstance(event, Bye):
                        self.said_bye = True
                    if not self._opened.done():
                        self._opened.set_result(None)
                    self._tell()
        except (httpx.HTTPError, OSError, WireError):
            pass
        finally:
            self.lost = True
            if not self._opened.done():
                self._opened.set_exception(LinkLostError("no engine answers"))
                self._opened.exception()  # whoever gave up waiting does not ask
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _error(self, problem: Problem) -> Exception:
        match problem.code:
            case "busy":
                return EngineBusyError(problem.message)
            case "stopping" | "unauthorized":
                # It ends, or another one has taken its address: in both cases a fresh one will answer.
                return LinkLostError(problem.message, crashed=False)
            case _:
                return EngineError(problem.message)


async def reach(state: State, on_status: OnStatus) -> Link | None:
    """Return a link to a running engine with the lease open, or None when nothing answers there. Raises MeetingError."""
    try:
        meeting.check_owner(state.address)
    except OSError:
        return None
    link = Link(state, _client(state), on_status)
    try:
        await link.opened()
    except LinkLostError:
        await link.close()
        return None
    except BaseException:
        await link.close()
        raise
    return link


async def ask_to_end(state: State) -> bool:
    """Ask an engine that we can't talk to otherwise to end, if nobody uses it; return whether it will."""
    async with _client(state) as http:
        try:
            info = parse((await http.get("/v1/info")).content)
            if info.integer("leases", 0) or info.integer("running", 0) or info.integer("waiting", 0):
                return False
            (await http.post("/v1/shutdown", json={"when": "idle"})).raise_for_status()
        except (httpx.HTTPError, WireError):
            return False
    return True


def _client(state: State) -> httpx.AsyncClient:
    by_socket = state.address.startswith("/")
    # A lease and any number of requests: the engine says itself when it has too many.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=state.address if by_socket else None, limits=limits),
        base_url=f"http://{'localhost' if by_socket else state.address}",
        headers={"Authorization": f"Bearer {state.token}"},
        timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_PATIENCE_S, pool=None),
    )


async def _events(response: httpx.Response) -> AsyncIterator[Event]:
    name, data = "", ""
    async for line in response.aiter_lines():
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
