"""The engine's HTTP endpoints on its optional port, for clients that were made for OpenAI's completions or llama.cpp.

Our own clients use the socket (`clients`). A handler converts, awaits and converts back. Closing a response cancels its work
within one step.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import math
import time
from collections.abc import Mapping
from typing import ClassVar, cast

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dg_lsp.core.values import Candidate
from dg_lsp.engine.serve import compat
from dg_lsp.engine.serve.compat import CompletionRequest
from dg_lsp.engine.serve.queue import RefusalError
from dg_lsp.engine.serve.service import Inbox, Service, refusal_of
from dg_lsp.wire.messages import MAX_BODY_BYTES, Done, Event, Fields, Problem, WireError, as_json, encode_problem, parse
from dg_lsp.wire.model_names import is_remote
from dg_lsp.wire.stream import PING_EVERY_S

log = logging.getLogger("dg_lsp.engine")


def build(service: Service, token: str) -> ASGIApp:
    """Return the application; the service runs already."""
    routes = Routes(service)
    app = Starlette(
        routes=[
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/infill", routes.llama_infill, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/health", routes.health),
        ],
        exception_handlers=dict.fromkeys((RefusalError, WireError, HTTPException, Exception), _on_error),
    )
    return AccessControl(app, token)


class Routes:
    def __init__(self, service: Service) -> None:
        self._service, self._queue = service, service.queue
        self._ids = itertools.count(1)
        # Most remote servers need one call per candidate, and charge for each.
        self._choice = 1 if is_remote(service.engine_id.model) else compat.CHOICE

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, compat.from_openai(await read_body(request), self._choice), b"data: [DONE]\n\n")

    async def llama_infill(self, request: Request) -> Response:
        completion = compat.from_llama(await read_body(request), self._choice)
        if completion.max_tokens == 0:
            # Editors send `n_predict` 0 to warm the prompt cache.
            self._queue.order("load")
            self._queue.expect(completion.ask.request)
            return JSONResponse(compat.answers(completion, (), Done("finished"), self._facts())[0])
        return await self._answer(request, completion)

    async def models(self, request: Request) -> Response:
        model = {"id": self._service.engine_id.model, "object": "model", "created": 0, "owned_by": "dg-lsp"}
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, request: Request) -> Response:
        """Return whether the engine serves requests. This neither loads the model nor counts as use of the engine."""
        status = self._queue.status
        if status.state in ("ready", "unloaded"):
            return JSONResponse({"status": "ok", "state": status.state})
        body = {"status": status.state, "state": status.state, "message": status.message, "fraction": status.fraction}
        return JSONResponse(body, 503)

    def _facts(self) -> dict[str, object]:
        return {"id": f"cmpl-{next(self._ids)}", "created": int(time.time()), "model": self._service.engine_id.model}

    async def _answer(self, request: Request, completion: CompletionRequest, ending: bytes = b"") -> Response:
        """Return the answer, of a stream all its events at once; cancel the work when the client disconnects."""
        inbox: Inbox[Event] = Inbox()
        job = self._service.submit(completion.ask, inbox.put)

        async def left() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        gathering, leaving = asyncio.ensure_future(_gather(inbox)), asyncio.ensure_future(left())
        try:
            await asyncio.wait((gathering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not gathering.done():
                raise RefusalError("bad_request", "the client disconnected")
            bodies = compat.answers(completion, *gathering.result(), self._facts())
        finally:
            self._queue.cancel(job)
            gathering.cancel()
            leaving.cancel()
            await asyncio.gather(gathering, leaving, return_exceptions=True)
        if not completion.stream:
            return JSONResponse(bodies[0])
        events = b"".join(b"data: " + as_json(body) + b"\n\n" for body in bodies)
        return Response(events + ending, headers={"Cache-Control": "no-store"}, media_type="text/event-stream")


async def _gather(inbox: Inbox[Event]) -> tuple[list[Candidate], Done]:
    candidates: list[Candidate] = []
    while True:
        match await inbox.take(PING_EVERY_S):
            case Candidate() as candidate:
                candidates.append(candidate)
            case Done() as done:
                return candidates, done
            case Problem(code, message, retry_s):
                raise RefusalError(code, message, retry_s=retry_s)
            case _:
                pass


async def _on_error(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        sentences = {404: "no such path", 405: "this path does not accept that method"}
        return to_response(RefusalError("bad_request", sentences.get(error.status_code, str(error.detail)), error.status_code))
    return to_response(refusal_of(error))


# --- Which requests are served: with the token, from this machine, with a JSON body of limited size


LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


def refused(method: str, headers: Mapping[str, str], token: str) -> RefusalError | None:
    """Return the reason to refuse a request with these headers, or None to serve it.

    A web page can reach a loopback port, also through a host name that resolves to it. But its browser adds an `Origin`,
    and the page does not know our token.
    """
    scheme, _, request_token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(request_token.strip().encode(), token.encode()):
        return RefusalError(
            "unauthorized", "the request needs the header `Authorization: Bearer TOKEN` with this engine's token", 401
        )
    if "origin" in headers:
        return RefusalError("unauthorized", "requests from web pages are refused", 403)
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in LOCAL_HOSTS:
        return RefusalError("unauthorized", "the Host header must name this machine: localhost or 127.0.0.1", 403)
    if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return RefusalError("bad_request", "the body must be JSON, with the header `Content-Type: application/json`", 415)
    if (length := headers.get("content-length", "")).isdecimal() and len(length) < 20 and int(length) > MAX_BODY_BYTES:
        return too_large()
    return None


def too_large() -> RefusalError:
    return RefusalError("bad_request", f"the body is larger than {MAX_BODY_BYTES // 1024**2} MB", 413)


def to_response(refusal: RefusalError) -> JSONResponse:
    """Return the response for a refusal, in the shape of all our errors."""
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
    if refusal.problem.code == "busy":
        headers["Retry-After"] = str(math.ceil(refusal.problem.retry_s) or 1)
    return JSONResponse(encode_problem(refusal.problem), refusal.status, headers)


class AccessControl:
    """An ASGI application that passes only permitted requests to the application behind it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one permitted request on, or send the refusal."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http":
            refusal = refused(scope["method"], cast("Mapping[str, str]", Headers(scope=scope)), self._token)
            if refusal is not None:
                await to_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def read_body(request: Request) -> Fields:
    """Return the JSON object in a request's body; raise RefusalError or WireError if it has none."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise too_large()
    except ClientDisconnect as error:
        raise RefusalError("bad_request", "the request ended before its body did") from error
    return parse(bytes(body))


# --- Connections. Every user of this machine can open them, and only the token tells them apart. Our own clients use the Unix
# socket, whose folder is private, so that these limits never concern them.


# The time from the start of a connection, or from the last response, to the end of the next request's headers.
HEAD_S = 30.0
MAX_PORT_CONNECTIONS = 64


class PortConnection(H11Protocol):
    """A connection that is closed when there are too many, or when its next request does not arrive."""

    all_open: ClassVar[set[PortConnection]] = set()
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.all_open) >= MAX_PORT_CONNECTIONS:
            log.warning("refused a connection: the port has %d", MAX_PORT_CONNECTIONS)
            transport.abort()
            return
        self.all_open.add(self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read data, and stop the timeout where a request has begun."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.all_open.discard(self)
        self._watch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the timeout if a request is awaited and it does not run; stop it otherwise."""
        is_awaited = self in self.all_open and (self.cycle is None or self.cycle.response_complete)
        if is_awaited and self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self.transport.abort)
        elif not is_awaited and self._timer is not None:
            self._timer.cancel()
            self._timer = None
