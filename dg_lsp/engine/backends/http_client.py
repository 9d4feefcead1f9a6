"""An HTTP client for model servers. Its calls run on a separate thread, can be cancelled, and fail with a readable error.

An answer may be streamed as server-sent events, each with a JSON object. A server may ignore the request to stream and answer
with one JSON object; the first byte shows which it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import logging
import math
import re
import threading
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from dg_lsp import __version__
from dg_lsp.core import secrets, wording
from dg_lsp.engine.common.task import UserError
from dg_lsp.wire import network
from dg_lsp.wire.config import KEY_VARIABLE, Config
from dg_lsp.wire.messages import Fields, WireError, parse
from dg_lsp.wire.model_names import address_of

# At the level of information it logs the server's reason phrase, in which the server can repeat the key or the code.
logging.getLogger("httpx").setLevel(logging.WARNING)

CONNECT_S = 5.0
# The limit for a complete answer, not for each part of it.
ANSWER_S = 120.0
# Shorter than servers keep an idle connection open (uvicorn, and so vLLM: 5 s). Otherwise a request may be sent on a
# connection that the server is closing, and fail.
KEEP_ALIVE_S = 2.0
MAX_ANSWER_BYTES = 16 << 20
MOST_REST_S = 3600.0  # for which a server's `Retry-After` counts
TOO_MANY = 429
MAX_MESSAGE_CHARS = 20_000


class RemoteError(UserError):
    """A request to a server failed. The message is a sentence for the user and contains no code.

    `status` is the HTTP status, or 0 if there is none. `server_message` is the server's own error message, and `retry_s` how
    many seconds the server wants no requests for.
    """

    def __init__(self, message: str, status: int = 0, server_message: str = "", retry_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.server_message, self.retry_s = status, server_message, retry_s


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A model server's URL, as `model_names.parse_remote` allows it, and its API key."""

    url: str
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        address = address_of(self.url)
        if self.key and (address is None or address.is_clear):
            raise RemoteError(f"the API key of {self.host} is not sent over http, which others can read; use https")

    @property
    def host(self) -> str:
        """The server's host name, with the port if the URL has one."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname)
        return f"{host}:{parts.port}" if parts.port else host


def server_at(url: str, configured: Config, key: str = "") -> ServerAddress:
    """Return the server at a URL, with the user's key for it, or else `key`; raise RemoteError if others could read that."""
    server = ServerAddress(url)
    return replace(server, key=configured.key_for(server.host) or key)


@dataclass(frozen=True, slots=True)
class Call:
    """One request: a POST of `body`, or a GET if `body` is None. `about` is data for the caller only.

    With a `listener`, the answer may be streamed, and another body may be sent if the server refuses the first one.
    """

    path: str
    body: Mapping[str, object] | None = None
    about: object = None
    listener: Listener | None = None


class ServerClient:
    """A client for one server. It runs an event loop on its own thread; `close` ends both."""

    def __init__(self, server: ServerAddress) -> None:
        """Start the thread; nothing is sent yet. Raises RemoteError if the proxy or the certificates can't be used."""
        self.server = server
        try:
            self._route = network.route_to(httpx.URL(server.url))
        except network.NetworkError as error:
            raise RemoteError(f"{server.host} can't be reached: {error}") from error
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dg-lsp-remote", daemon=True)
        self._closed = False
        self._rests_until, self._rest_from = 0.0, RemoteError("")
        self._thread.start()
        # Compressed answers are refused: a few bytes could expand to more than the memory holds.
        headers = {"User-Agent": f"dg-lsp/{__version__}", "Accept": "application/json", "Accept-Encoding": "identity"}
        if server.key:
            headers["Authorization"] = f"Bearer {server.key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=KEEP_ALIVE_S),
            # A redirect must not send the key to another server.
            follow_redirects=False,
            verify=self._route.tls,
            proxy=self._route.proxy,
            trust_env=False,
        )

    @property
    def host(self) -> str:
        return self.server.host

    def send(self, call: Call) -> Future[Fields]:
        """Return a future for the answer, which fails only with RemoteError. Cancelling it closes its connection."""
        if self._closed:
            failed_future: Future[Fields] = Future()
            failed_future.set_exception(RemoteError("the connection to the server is closed"))
            return failed_future
        return asyncio.run_coroutine_threadsafe(self._ask(call), self._loop)

    def ask(self, call: Call) -> Fields:
        """Send a call and return its answer; raise RemoteError if it fails."""
        try:
            return self.send(call).result()
        except CancelledError as error:
            raise RemoteError("the connection to the server is closed") from error

    def close(self) -> None:
        """Cancel all calls and end the thread. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end()))
        if threading.current_thread() is not self._thread:
            self._thread.join(CONNECT_S)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _end(self) -> None:
        own = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not own]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        with contextlib.suppress(Exception):  # the connection is closed either way
            await self._http.aclose()
        self._loop.stop()

    async def _ask(self, call: Call) -> Fields:
        """Return the answer. If the server refuses the body, send the one that the listener offers instead.

        Nothing is sent before the time that the server named in `Retry-After`.
        """
        while True:
            if (left_s := self._rests_until - time.monotonic()) > 0:
                asked = self._rest_from
                raise RemoteError(str(asked), asked.status, asked.server_message, left_s)
            try:
                return await self._ask_once(call)
            except RemoteError as error:
                body = call.listener.body_after(error.status, error.server_message) if call.listener else None
                if body is None or error.retry_s > ANSWER_S:
                    raise
                await asyncio.sleep(error.retry_s)
                call = replace(call, body=body)

    async def _ask_once(self, call: Call) -> Fields:
        host = self.server.host
        try:
            method, content = ("GET", None) if call.body is None else ("POST", json.dumps(call.body).encode())
            headers = {"Content-Type": "application/json"} if content is not None else {}
            url = joined(self.server.url, call.path)
            receiving = self._receive(self._http.build_request(method, url, content=content, headers=headers), call)
            response, data = await asyncio.wait_for(receiving, ANSWER_S)
        except httpx.ConnectTimeout as error:
            raise RemoteError(f"{host} could not be reached within {CONNECT_S:.0f} seconds{self._by_proxy()}") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise RemoteError(f"{host} did not respond within {ANSWER_S:.0f} seconds") from error
        except httpx.ConnectError as error:
            raise RemoteError(f"{host} can't be reached: {wording.reason(error)}; {self._remedy(error)}") from error
        except httpx.HTTPError as error:
            raise RemoteError(f"the connection to {host} failed: {wording.reason(error)}{self._by_proxy()}") from error
        if isinstance(data, Fields):
            return data
        if response.status_code != httpx.codes.OK:
            refused = refusal(response.status_code, data, self.server, call, rest_s(response.headers))
            if (until := time.monotonic() + refused.retry_s) > self._rests_until:
                self._rests_until, self._rest_from = until, refused
            raise refused
        try:
            return self._checked(parse(data), call)
        except WireError as error:
            if _error_message(data):
                raise refusal(httpx.codes.OK, data, self.server, call) from error
            raise self._not_json_object(call) from error

    def _remedy(self, error: httpx.ConnectError) -> str:
        """Return what may help to reach the server."""
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return network.certificate_advice()
        return self._by_proxy().removeprefix("; ") or "is the server running, and is the URL right?"

    def _by_proxy(self) -> str:
        """Return advice about the proxy as the end of a sentence; "" if there is none."""
        variable = self._route.variable
        return f"; is the proxy of {variable} running? Without it: NO_PROXY={self.server.host}" if variable else ""

    async def _receive(self, request: httpx.Request, call: Call) -> tuple[httpx.Response, bytes | Fields]:
        """Return a response with its raw body, or with the answer that its streamed parts make up.

        Raises RemoteError for a response that is too long or compressed, and for malformed parts.
        """
        response = await self._http.send(request, stream=True)
        try:
            encoding = response.headers.get("content-encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                raise RemoteError(
                    f"{self.server.host} compressed its answer although the request forbids it", response.status_code
                )
            async with contextlib.aclosing(self._chunks(response)) as chunks:
                if call.listener is not None and response.status_code == httpx.codes.OK:
                    return response, await self._listen(chunks, call, call.listener)
                return response, b"".join([chunk async for chunk in chunks])
        finally:
            await response.aclose()

    async def _chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """Yield the body's chunks as they arrive; raise RemoteError if they add up to too much."""
        n_bytes = 0
        async for chunk in response.aiter_raw():
            n_bytes += len(chunk)
            if n_bytes > MAX_ANSWER_BYTES:
                raise RemoteError(f"{self.server.host} answered with more than {MAX_ANSWER_BYTES >> 20} MB")
            yield chunk

    async def _listen(self, chunks: AsyncGenerator[bytes], call: Call, listener: Listener) -> bytes | Fields:
        """Return the answer that the streamed parts make up, or the body if it is not a stream; stop when it is complete."""
        reader, body = EventReader(), bytearray()
        try:
            async for chunk in chunks:
                if any(listener.add(self._checked(event, call)) for event in reader.feed(chunk)) or reader.is_done:
                    break
                if not reader.is_stream:
                    body += chunk
            else:
                for event in reader.end():
                    listener.add(self._checked(event, call))
        except WireError as error:
            raise RemoteError(f"the answer of {self.server.host} can't be understood: {error}") from error
        if not reader.is_stream:
            return bytes(body)
        answer = listener.answer(is_whole=True)
        if answer is None:
            raise self._not_json_object(call)
        return answer

    def _checked(self, answer: Fields, call: Call) -> Fields:
        """Return an answer or a part of one; raise RemoteError if it reports an error of the server."""
        if not answer.has("error") and (not _ANSWERS.isdisjoint(answer.values) or not _words(dict(answer.values))):
            return answer
        error = answer.values.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else httpx.codes.OK
        raise refusal(status, json.dumps(dict(answer.values)).encode(), self.server, call)

    def _not_json_object(self, call: Call) -> RemoteError:
        return RemoteError(
            f"{self.server.host} answered {call.path} with something other than a JSON object; is the URL right?"
        )


def joined(base: str, path: str) -> str:
    """Return the URL of a path below a base URL. A part that the base already ends with, such as /v1, is not repeated."""
    base = base.rstrip("/")
    own = urlsplit(base).path
    if own and own.endswith(path):
        return base
    parts = path.strip("/").split("/")
    for size in range(len(parts) - 1, 0, -1):
        if own.endswith("/" + "/".join(parts[:size])):
            return "/".join([base, *parts[size:]])
    return base + path


def outcome_of(future: Future[Fields]) -> Fields | RemoteError:
    """Return a finished future's answer, or its error."""
    try:
        return future.result()
    except CancelledError:
        return RemoteError("the connection to the server was closed")
    except RemoteError as error:
        return error


def refusal(status: int, data: bytes, server: ServerAddress, call: Call, retry_s: float = 0.0) -> RemoteError:
    """Return the error for a server's refusal, with the server's own words and advice.

    The message says at what time the server takes requests again, so that it stays the same until then.
    """
    # Redacted before it is shortened: part of a key can't be recognised.
    message = redact(_error_message(data), server.key, call.body)
    words = cut(message or redact(_text_of_page(data), server.key, call.body))
    host, model, advice = server.host, (call.body or {}).get("model"), ""
    match status:
        case httpx.codes.OK:
            what = "answered with an error"
        case 401 | 403 if server.key:
            what, advice = "refuses the API key", f"set another in {KEY_VARIABLE} or in the configuration's [keys]"
        case 401 | 403:
            what = "requires an API key"
            advice = f"add it to the configuration's [keys], or set {KEY_VARIABLE}={host}=KEY"
        case 402:
            what = "requires payment"
        case 404 | 405:
            what = f"has no {call.path}{f', or no model {model}' if model else ''}"
            advice = "check the URL, and the model after the #"
        case 413:
            what = "does not accept a request of this size"
        case _ if status == TOO_MANY:
            what = "has too many requests, or the quota is used up"
            advice = "" if retry_s else "try again later"
        case _ if 300 <= status < 400:
            what, advice = "redirects the request", "configure the URL that it redirects to"
        case _:
            what = "refuses the request" if status < 500 else "failed"
    if retry_s:
        again = time.strftime("%H:%M:%S", time.localtime(math.ceil(time.time() + retry_s)))
        advice = f"{advice}{'; ' if advice else ''}it gets no requests until {again}"
    number, said = "" if status == httpx.codes.OK else f" ({status})", words.rstrip(".") if advice else words
    text = f"{host} {what}{number}{f': {said}' if said else ''}{f'; {advice}' if advice else ''}"
    return RemoteError(text, status, cut(message), retry_s)


def rest_s(headers: Mapping[str, str]) -> float:
    """Return for how many seconds a server wants no requests, by the headers of a refusal; at most `MOST_REST_S`.

    `Retry-After-Ms` is in milliseconds. `Retry-After` is in seconds, or a date by the server's own clock, which is `Date`.
    """
    milliseconds, after = headers.get("retry-after-ms", "").strip(), headers.get("retry-after", "").strip()
    if _NUMBER.fullmatch(milliseconds):
        seconds = float(milliseconds) / 1000
    elif _NUMBER.fullmatch(after):
        seconds = float(after)
    else:
        until, now = _timestamp(after), _timestamp(headers.get("date", ""))
        seconds = until - (now or time.time()) if until else 0.0
    return min(max(seconds, 0.0), MOST_REST_S)


_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?")


def _timestamp(date: str) -> float:
    """Return the time of a date in a header, in seconds since 1970; 0.0 if it is no date."""
    try:
        time_of = parsedate_to_datetime(date)
        return (time_of if time_of.tzinfo else time_of.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


MAX_PAGE_BYTES = 4096
_MARKUP = re.compile(r"<(script|style)\b.*?(?:</\1\s*>|\Z)|<!.*?(?:>|\Z)|</?[a-z][^>]*(?:>|\Z)", re.DOTALL | re.IGNORECASE)
_NAMES_OF_WORDS = ("error", "errors", "message", "detail", "msg", "text", "error_description", "title", "reason")


def _error_message(data: bytes) -> str:
    """Return the message in an error's body, which may be an event of a stream, on one line; "" if there is none."""
    words, lines = "", (line.removeprefix(b"data:") for line in data.splitlines() if line.startswith(b"data:"))
    for each in (data, *lines):
        with contextlib.suppress(ValueError, RecursionError):
            words = words or _words(json.loads(each))
    return _on_one_line(words)


def _text_of_page(data: bytes) -> str:
    """Return the first words of an error's body that is text or HTML, as a proxy's is; "" if it is JSON."""
    page = data.lstrip()[:MAX_PAGE_BYTES].decode("utf-8", "ignore")
    return "" if page.startswith(("{", "[")) else _on_one_line(html.unescape(_MARKUP.sub(" ", page)))


def _on_one_line(words: str) -> str:
    return "".join(letter for letter in " ".join(words[:MAX_MESSAGE_CHARS].split()) if letter.isprintable())


def _words(value: object, depth: int = 8) -> str:
    """Return the first words in an error's body, which may hold them in lists and in fields with usual names."""
    if isinstance(value, str):
        return value
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = (value[name] for name in _NAMES_OF_WORDS if name in value)
    elif isinstance(value, list):
        inner = value
    words = next(filter(None, (_words(each, depth - 1) for each in inner)), "") if depth else ""
    location = value.get("loc") if isinstance(value, dict) else None  # FastAPI names the invalid field
    return f"{location[-1]}: {words}" if words and isinstance(location, list) and location else words


def cut(text: str) -> str:
    """Return the text, shortened to fit into a message."""
    return text if len(text) <= 300 else f"{text[:299]}…"


DONE = b"[DONE]"
_ANSWERS = frozenset({"choices", "content", "data", "response"})  # fields that only an answer has


class Listener(Protocol):
    """Collects the parts of one streamed answer, and offers another body after a refusal."""

    def add(self, event: Fields) -> bool:
        """Add the next part; return whether the answer is complete. Raises WireError for a malformed part."""

    def answer(self, *, is_whole: bool) -> Fields | None:
        """Return the parts so far in the shape of an unstreamed answer; None if there are none."""

    def body_after(self, status: int, message: str) -> dict[str, object] | None:
        """Return the body to send after a refusal with this status and message; None to give up."""


class EventReader:
    """Splits a stream's bytes into events. `is_stream` is None until the first byte, and False for plain JSON.

    httpx-sse takes a whole response instead: it has no limit of bytes, and refuses a server that answers with plain JSON.
    """

    def __init__(self) -> None:
        self.is_stream: bool | None = None
        self.is_done = False
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[Fields]:
        """Return the objects that these bytes complete; raise WireError for an event without an object."""
        if self.is_stream is None:
            data = data.lstrip(b"\xef\xbb\xbf \t\r\n")
            if not data:
                return []
            self.is_stream = not data.startswith((b"{", b"["))
        if not self.is_stream:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events += self._event()
        return events

    def end(self) -> list[Fields]:
        """Return the last event's object if the stream ended without an empty line after it."""
        if self._rest.startswith(b"data:"):
            self._data.append(self._rest[5:].strip())
        return self._event() if self._data else []

    def _event(self) -> list[Fields]:
        text = b"\n".join(self._data)
        self._data = []
        if text.strip() == DONE:
            self.is_done = True
        return [] if self.is_done or not text.strip() else [parse(text)]


# --- Remove the key, other secrets and the user's code from a server's error message
# A server that refuses a request often quotes it: whole or in part, escaped or truncated. Error messages are shown and logged.


# A shared run of this many letters and digits is no coincidence. Shorter ones reveal nothing.
SHARED_CHARS = 12
SHARED_KEY_CHARS = 6

# Fields of a request that hold no user text, and that help to understand a refusal.
_PUBLIC = frozenset({"model"})


def redact(text: str, key: str, body: Mapping[str, object] | None) -> str:
    """Return a server's message with a mask over each part that it shares with the key or the request's body."""
    private = {name: value for name, value in (body or {}).items() if name not in _PUBLIC}
    sent_text = _bare(json.dumps(private, ensure_ascii=False))[0]
    text = _masked(text, _bare(key)[0], min(SHARED_KEY_CHARS, max(len(_bare(key)[0]), 1)))
    return secrets.mask(_masked(text, sent_text, SHARED_CHARS))


def _masked(text: str, private: str, size: int) -> str:
    """Return the text with a mask over each run of at least `size` letters and digits that also occurs in `private`."""
    letters, places = _bare(text)
    hidden = [False] * len(text)
    for start in range(len(letters) - size + 1):
        if letters[start : start + size] in private:
            # The mask also covers the characters between the letters.
            first, last = places[start], places[start + size - 1]
            hidden[first : last + 1] = [True] * (last + 1 - first)
    parts = []
    for at, char in enumerate(text):
        if not hidden[at]:
            parts.append(char)
        elif not at or not hidden[at - 1]:
            parts.append(secrets.MASK)
    return "".join(parts)


def _bare(text: str) -> tuple[str, list[int]]:
    """Return only the letters and digits, with their positions. Escapes, line ends and indents may differ in a quotation."""
    places = [at for at, char in enumerate(text) if char.isalnum() and not (at and text[at - 1] == "\\" and char in "nrtbfu")]
    return "".join(text[at] for at in places), places
