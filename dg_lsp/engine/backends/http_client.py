"""HTTP to a model's server: calls run on a thread of their own, end when nobody wants them, and fail with a sentence.

Knows HTTP, keys and errors. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import httpx

from dg_lsp import __version__
from dg_lsp.engine.backends.events import EventReader, Listener
from dg_lsp.engine.backends.redact import redact
from dg_lsp.engine.task import UserError
from dg_lsp.wire.config import KEY_VARIABLE, Config
from dg_lsp.wire.fields import Fields, WireError, parse
from dg_lsp.wire.model_names import LOOPBACK, address_of, without_password

CONNECT_S = 5.0
# For a whole answer, however its bytes are spread over it.
ANSWER_S = 120.0
MAX_ANSWER_BYTES = 16 << 20
MAX_SAID_CHARS = 20_000
UNLIKE = 409  # the status of a server that is no replica of the others; none of them says so itself


class RemoteError(UserError):
    """A server can't serve; the message is a sentence for the user, and holds no code. `status` is HTTP's, 0 without one.

    `said` is what the server itself said.
    """

    def __init__(self, message: str, status: int = 0, said: str = "") -> None:
        """Hold the sentence."""
        super().__init__(message)
        self.status = status
        self.said = said


@dataclass(frozen=True, slots=True)
class Server:
    """Where a model is served, and the key that opens it."""

    url: str
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            known = False
        if not known:
            raise RemoteError(
                f"{without_password(self.url) or 'nothing'} is no server's URL; one begins with http:// or https://"
            )
        if parts.username or parts.password:
            raise RemoteError(f"a URL must hold no password; put the key of {parts.hostname} into the configuration's [keys]")
        if parts.query or parts.fragment:
            raise RemoteError(f"the URL of {parts.hostname} must end with its path")
        address = address_of(self.url)
        if address is None:
            raise RemoteError(f"{self.url} is no server's URL that dg-lsp understands; write it in ASCII, without \\")
        if self.key and address.is_clear:
            raise RemoteError(f"the API key of {self.host} is not sent over http, which others can read; use https")

    @property
    def host(self) -> str:
        """The server's name, with its port where one is given."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname)
        return f"{host}:{parts.port}" if parts.port else host

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, so that no proxy is in between."""
        return urlsplit(self.url).hostname in LOOPBACK


def server_at(url: str, configured: Config, key: str = "") -> Server:
    """Return the server at a URL, with the user's key for it, or else this one; raise RemoteError where there can be none."""
    server = Server(url)
    return replace(server, key=configured.key_for(server.host) or key)


@dataclass(frozen=True, slots=True)
class Call:
    """One question: a POST of `body`, or a GET where there is none. `about` is for who asks alone.

    With a `listener` the answer may come in parts, and another body may be sent after a refusal.
    """

    path: str
    body: Mapping[str, object] | None = None
    about: object = None
    listener: Listener | None = None


class ServerClient:
    """A client for one server, on a thread with an event loop. `close` ends both."""

    def __init__(self, server: Server) -> None:
        """Start the thread; nothing is sent yet."""
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dg-lsp-remote", daemon=True)
        self._closed = False
        self._thread.start()
        # Nothing is decompressed: a few bytes of it can stand for more than there is memory.
        headers = {"User-Agent": f"dg-lsp/{__version__}", "Accept": "application/json", "Accept-Encoding": "identity"}
        if server.key:
            headers["Authorization"] = f"Bearer {server.key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
            # A key must not follow a redirect to somebody else.
            follow_redirects=False,
            trust_env=not server.is_here,
        )

    @property
    def server(self) -> Server:
        """The server."""
        return self._server

    @property
    def host(self) -> str:
        """The server's name."""
        return self.server.host

    def send(self, call: Call, done: Callable[[], None] = lambda: None) -> Future[Fields]:
        """Return the answer to come; cancelling it closes its connection. It fails with RemoteError alone.

        `done` is called, on the client's thread, when it is there or has failed.
        """
        if self._closed:
            failed: Future[Fields] = Future()
            failed.set_exception(RemoteError("the connection to the server is closed"))
            done()
            return failed
        future = asyncio.run_coroutine_threadsafe(self._ask(call), self._loop)
        future.add_done_callback(lambda _: done())
        return future

    def ask(self, call: Call) -> Fields:
        """Return the answer; raise RemoteError when there is none."""
        try:
            return self.send(call).result()
        except CancelledError as error:
            raise RemoteError("the connection to the server is closed") from error

    def close(self) -> None:
        """Drop what is under way and end the thread; a second time does nothing."""
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
        with contextlib.suppress(Exception):  # whatever a broken connection says, it is gone
            await self._http.aclose()
        self._loop.stop()

    async def _ask(self, call: Call) -> Fields:
        """Return the answer, where need be to another body than the one that the server refuses first."""
        while True:
            try:
                return await self._ask_once(call)
            except RemoteError as error:
                body = call.listener.body_after(error.status, error.said) if call.listener else None
                if body is None:
                    raise
                call = replace(call, body=body)

    async def _ask_once(self, call: Call) -> Fields:
        host = self.server.host
        try:
            method, sent = ("GET", None) if call.body is None else ("POST", json.dumps(call.body).encode())
            headers = {"Content-Type": "application/json"} if sent is not None else {}
            url = joined(self.server.url, call.path)
            receiving = self._receive(self._http.build_request(method, url, content=sent, headers=headers), call)
            response, data = await asyncio.wait_for(receiving, ANSWER_S)
        except httpx.ConnectTimeout as error:
            raise RemoteError(f"{host} could not be reached within {CONNECT_S:.0f} seconds") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise RemoteError(f"{host} did not answer within {ANSWER_S:.0f} seconds") from error
        except httpx.ConnectError as error:
            raise RemoteError(
                f"{host} can't be reached: {_reason(error)}; is the server running, and the URL right?"
            ) from error
        except httpx.HTTPError as error:
            raise RemoteError(f"the connection to {host} broke: {_reason(error)}") from error
        if isinstance(data, Fields):
            return data
        if response.status_code != httpx.codes.OK:
            raise refusal(response.status_code, data, self.server, call, response.headers.get("retry-after", ""))
        try:
            return parse(data)
        except WireError as error:
            raise self._no_object(call) from error

    async def _receive(self, request: httpx.Request, call: Call) -> tuple[httpx.Response, bytes | Fields]:
        """Return a response and its body, as it came, or what the parts of an answer come to.

        Raises RemoteError for a response that is too long or compressed, and for parts without sense.
        """
        response = await self._http.send(request, stream=True)
        try:
            encoding = response.headers.get("content-encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                raise RemoteError(f"{self.server.host} compressed its answer, though it was asked not to", response.status_code)
            async with contextlib.aclosing(self._chunks(response)) as chunks:
                if call.listener is not None and response.status_code == httpx.codes.OK:
                    return response, await self._listen(chunks, call, call.listener)
                return response, b"".join([chunk async for chunk in chunks])
        finally:
            await response.aclose()

    async def _chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """Yield a body as it comes; raise RemoteError when it is too long."""
        n_bytes = 0
        async for chunk in response.aiter_raw():
            n_bytes += len(chunk)
            if n_bytes > MAX_ANSWER_BYTES:
                raise RemoteError(f"{self.server.host} answered with more than {MAX_ANSWER_BYTES >> 20} MB")
            yield chunk

    async def _listen(self, chunks: AsyncGenerator[bytes], call: Call, listener: Listener) -> bytes | Fields:
        """Return what the parts of an answer come to, or a body that has none; stop reading when there are enough."""
        reader, plain = EventReader(), bytearray()
        try:
            async for chunk in chunks:
                if any(listener.add(self._sound(event, call)) for event in reader.feed(chunk)) or reader.is_done:
                    break
                if not reader.is_stream:
                    plain += chunk
            else:
                for event in reader.end():
                    listener.add(self._sound(event, call))
        except WireError as error:
            raise RemoteError(f"the answer of {self.server.host} can't be understood: {error}") from error
        if not reader.is_stream:
            return bytes(plain)
        answer = listener.answer(is_whole=True)
        if answer is None:
            raise self._no_object(call)
        return answer

    def _sound(self, event: Fields, call: Call) -> Fields:
        """Return an event; raise RemoteError for one that says that the server failed meanwhile."""
        if not event.has("error"):
            return event
        error = event.values["error"]
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        raise refusal(status, json.dumps(dict(event.values)).encode(), self.server, call)

    def _no_object(self, call: Call) -> RemoteError:
        return RemoteError(f"{self.server.host} answered {call.path} with something that is no JSON object; is the URL right?")


def joined(base: str, path: str) -> str:
    """Return the URL of a path; what the base ends with already, such as /v1, is not said twice."""
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
    """Return the answer that came, or why there is none."""
    try:
        return future.result()
    except CancelledError:
        return RemoteError("the connection to the server was closed")
    except RemoteError as error:
        return error


def refusal(status: int, data: bytes, server: Server, call: Call, retry_after: str = "") -> RemoteError:
    """Return a server's refusal as a sentence that says what to do."""
    # Before it is cut, since what is left of a key is told by the whole.
    said = cut(redact(_said(data), server.key, call.body))
    tail = f": {said}" if said else ""
    host, model = server.host, (call.body or {}).get("model")
    match status:
        case 401 | 403 if server.key:
            text = f"{host} refuses the API key ({status}); set another in {KEY_VARIABLE} or in the configuration's [keys]"
        case 401 | 403:
            text = f"{host} wants an API key ({status}); add it to the configuration's [keys], or set {KEY_VARIABLE}={host}=KEY"
        case 402:
            text = f"{host} wants to be paid first (402){tail}"
        case 404 | 405:
            named = f", or no model {model}" if model else ""
            text = f"{host} has no {call.path}{named} ({status}); check the URL, and the model after the #"
        case 413:
            text = f"{host} takes no request of this size (413)"
        case 429:
            # The header may hold a date as well; who reads it can count seconds better.
            wait = f" in {retry_after} seconds" if retry_after.isdecimal() and len(retry_after) < 6 else " later"
            text = f"{host} has too many requests, or the quota is used up (429); try again{wait}"
        case _ if 300 <= status < 400:
            text = f"{host} wants to be asked elsewhere ({status}); give the URL that it leads to"
        case _ if status < 500:
            text = f"{host} refuses the request ({status}){tail}"
        case _:
            text = f"{host} failed ({status}){tail}"
    return RemoteError(text, status, said)


def _said(data: bytes) -> str:
    """Return the message of an error's body, on one line; "" where there is none to be found."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    for name in ("error", "message", "detail"):
        while isinstance(value, dict) and name in value:
            value = value[name]
    # FastAPI's list of what is wrong with which field.
    if isinstance(value, list) and value and isinstance(value[0], dict):
        where = value[0].get("loc")
        field_name = where[-1] if isinstance(where, list) and where else ""
        value = f"{field_name}: {value[0].get('msg')}"
    text = " ".join(value[:MAX_SAID_CHARS].split()) if isinstance(value, str) else ""
    return "".join(letter for letter in text if letter.isprintable())


def cut(text: str) -> str:
    """Return a text that is short enough for a message."""
    return text if len(text) <= 300 else f"{text[:299]}…"


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
