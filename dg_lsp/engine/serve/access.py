"""Decide which requests the engine serves: with its token, from this machine, with a JSON body of limited size.

Web pages are always refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import cast

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dg_lsp.wire.fields import Fields, parse
from dg_lsp.wire.messages import MAX_BODY_BYTES, ErrorCode, Problem, encode_problem

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


class RefusalError(Exception):
    """A request is refused; the message is a sentence for the user."""

    def __init__(self, status: int, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code: ErrorCode = code
        self.message = message


def refused(method: str, headers: Mapping[str, str], token: str) -> RefusalError | None:
    """Return the reason to refuse a request with these headers, or None to serve it.

    A web page can reach a loopback port, also through a host name that resolves to it. But its browser adds an `Origin`,
    and the page does not know our token.
    """
    scheme, _, request_token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(request_token.strip().encode(), token.encode()):
        return RefusalError(
            401, "unauthorized", "the request needs the header `Authorization: Bearer TOKEN` with this engine's token"
        )
    if "origin" in headers:
        return RefusalError(403, "unauthorized", "requests from web pages are refused")
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in LOCAL_HOSTS:
        return RefusalError(403, "unauthorized", "the Host header must name this machine: localhost or 127.0.0.1")
    if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return RefusalError(415, "bad_request", "the body must be JSON, with the header `Content-Type: application/json`")
    if (length := headers.get("content-length", "")).isdecimal() and len(length) < 20 and int(length) > MAX_BODY_BYTES:
        return too_large()
    return None


def too_large() -> RefusalError:
    """Return the refusal of a body over the size limit."""
    return RefusalError(413, "bad_request", f"the body is larger than {MAX_BODY_BYTES // 1024**2} MB")


def to_response(refusal: RefusalError) -> JSONResponse:
    """Return the response for a refusal, in the shape of all our errors."""
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
    if refusal.code == "busy":
        headers["Retry-After"] = "1"
    return JSONResponse(encode_problem(Problem(refusal.code, refusal.message)), refusal.status, headers)


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
        raise RefusalError(400, "bad_request", "the request ended before its body did") from error
    return parse(bytes(body))
