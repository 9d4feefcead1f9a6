"""The JSON-RPC layer: it answers every request, also a malformed one, and keeps no state of finished requests.

It works around what pygls gets wrong or leaves open:
- pygls splits lines where the protocol does not, so `sync` holds our own documents.
- pygls does not answer requests with malformed parameters.
- pygls keeps a future for each notification, for ever.
- pygls fails on responses to requests that were cancelled meanwhile.
- pygls leaves the exit code open.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO

import cattrs
from lsprotocol import converters
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInternalError
from pygls.protocol import JsonRPCRequestMessage, JsonRPCResponseMessage, LanguageServerProtocol, lsp_method
from pygls.protocol.json_rpc import JsonRPCNotification

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32602, -32603
NOT_INITIALIZED, CONTENT_MODIFIED = -32002, -32801
_LENGTH = b"content-length"

Json = Mapping[str, Any]


class RpcProtocol(LanguageServerProtocol):
    """The state machine of the protocol; it receives messages as parsed JSON."""

    # Switch off pygls' own handlers: `sync` holds the documents, `handlers` runs commands and progress.
    lsp_text_document__did_open = None  # type: ignore[assignment]  # only callables are registered
    lsp_text_document__did_change = None  # type: ignore[assignment]
    lsp_text_document__did_close = None  # type: ignore[assignment]
    lsp_notebook_document__did_open = None  # type: ignore[assignment]
    lsp_notebook_document__did_change = None  # type: ignore[assignment]
    lsp_notebook_document__did_close = None  # type: ignore[assignment]
    lsp_workspace__did_change_workspace_folders = None  # type: ignore[assignment]
    lsp_workspace__execute_command = None  # type: ignore[assignment]
    lsp_work_done_progress_cancel = None  # type: ignore[assignment]

    ended: Callable[[], None] = staticmethod(lambda: None)
    """Called when the client sends `exit`."""
    unreadable: Callable[[str, object], None] = staticmethod(lambda _method, _params: None)
    """Called with the method and the parameters of each notification that can't be parsed."""
    explain: Callable[[], str] = staticmethod(lambda: "")
    """Called after an unexpected error; returns why requests fail now, "" if only this one does."""
    begins: Callable[[], object] = staticmethod(lambda: None)
    """Called with the first message after `initialize`: some clients send no `initialized`."""
    initialized = has_begun = False
    experimental: Json = MappingProxyType({})

    def receive(self, message: object) -> None:
        """Handle one message; never raises. A request that can't be handled gets an error response with the reason."""
        try:
            if isinstance(message, dict):
                self._receive(message)
            else:
                self._refuse(None, INVALID_REQUEST, "a message must be a JSON object; LSP has no batches")
        except Exception:
            # One bad message must not end a server that holds the user's unsaved text.
            log.exception("a message could not be handled")

    def _receive(self, message: dict[str, Any]) -> None:
        msg_id, method = message.get("id"), message.get("method")
        if method is None:
            # Some clients send `"method": null` in a response, which pygls would take for a request.
            message.pop("method", None)
        is_request = method is not None and "id" in message
        if message.get("jsonrpc") != "2.0" or not (method is None or isinstance(method, str)):
            return self._refuse(msg_id, INVALID_REQUEST, 'a message needs "jsonrpc": "2.0", and its method must be a string')
        if method is None and "result" not in message and "error" not in message:
            return self._refuse(msg_id, INVALID_REQUEST, "a message needs a method, a result or an error")
        if is_request and not _is_id(msg_id):
            return self._refuse(None, INVALID_REQUEST, "a request's id must be a number or a string")
        if is_request and msg_id in self._request_futures:
            return self._refuse(msg_id, INVALID_REQUEST, "a request with this id is still running")
        if is_request and self._shutdown:
            return self._refuse(msg_id, INVALID_REQUEST, "the server has been shut down")
        if not self.initialized and method is not None and method not in (lsp.INITIALIZE, lsp.EXIT):
            if is_request:
                self._refuse(msg_id, NOT_INITIALIZED, "the first request must be `initialize`")
            return None
        if method == lsp.INITIALIZE and self.initialized:
            return self._refuse(msg_id, INVALID_REQUEST, "the server is initialized already")
        if self.initialized and not self.has_begun and method not in (lsp.SHUTDOWN, lsp.EXIT):
            self.has_begun = True
            self.begins()
        if method == lsp.INITIALIZED and not is_request:
            return None  # also without its parameters, which say nothing
        try:
            structured = self.structure_message(message)
        except Exception as error:
            return self._unreadable(message, error)
        if is_request and not hasattr(structured, "id"):
            return self._refuse(msg_id, INVALID_REQUEST, f"{method} is a notification and must not have an id")
        self.handle_message(structured)
        return None

    def _unreadable(self, message: dict[str, Any], error: Exception) -> None:
        method, msg_id = message.get("method"), message.get("id")
        if method is None:
            future = self._request_futures.pop(msg_id, None) if isinstance(msg_id, (str, int)) else None
            if future is not None and not future.done():
                future.set_exception(JsonRpcInternalError("the client's response could not be parsed"))
        elif "id" in message:
            self._refuse(msg_id, INVALID_PARAMS, f"the parameters of {method} could not be parsed: {_cause(error)}")
        else:
            log.warning("the parameters of %s could not be parsed: %s", method, _cause(error))
            self.unreadable(method, message.get("params"))

    def _refuse(self, msg_id: object, code: int, sentence: str) -> None:
        log.warning("refused a message: %s", sentence)
        valid_id = msg_id if _is_id(msg_id) else None
        body = json.dumps({"jsonrpc": "2.0", "id": valid_id, "error": {"code": code, "message": sentence}}).encode()
        assert self.writer is not None
        self.writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    # pygls keeps the future of each handler for ever, so remove it when it is done.
    def _execute_handler(
        self,
        msg_id: str | int,
        handler: Callable[..., Any],
        callback: Callable[[Future[Any]], None],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        super()._execute_handler(msg_id, handler, callback, args, kwargs)
        future = self._request_futures.get(msg_id)
        if future is not None:
            future.add_done_callback(lambda _: self._request_futures.pop(msg_id, None))

    def _send_handler_result(self, future: Future[Any], *, msg_id: str | int) -> None:
        error = None if future.cancelled() else future.exception()
        if error is None or isinstance(error, JsonRpcException):
            super()._send_handler_result(future, msg_id=msg_id)
            return
        log.error("a request failed", exc_info=error)
        sentence = self.explain() or f"dg-lsp failed on this request ({type(error).__name__}); its log says where"
        self._refuse(msg_id, INTERNAL_ERROR, sentence)

    def _check_handler_result(self, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            log.error("a notification could not be handled", exc_info=error)
            self.explain()

    def _handle_cancel_notification(self, msg_id: str | int) -> None:
        # Unlike pygls' version, keep the future until it is done, and do not log unknown ids: their response was already sent.
        future = self._request_futures.get(msg_id) if _is_id(msg_id) else None
        if future is not None:
            future.cancel()

    def _handle_response(self, msg_id: str | int, result: Any | None = None, error: lsp.ResponseError | None = None) -> None:
        self._result_types.pop(msg_id, None)
        future = self._request_futures.get(msg_id)
        if future is None or future.done():
            self._request_futures.pop(msg_id, None)
            return
        super()._handle_response(msg_id, result, error)

    @lsp_method(lsp.INITIALIZE)
    def lsp_initialize(self, params: lsp.InitializeParams) -> Any:
        """Return the capabilities, including our experimental ones."""
        result = yield from super().lsp_initialize(params)
        result.capabilities.experimental = self.experimental
        # Set at the end, so that a failed `initialize` can be retried.
        self.initialized = True
        return result

    @lsp_method(lsp.SHUTDOWN)
    def lsp_shutdown(self, *args: Any) -> Any:
        """Run the registered handler, cancel all other requests and refuse new ones."""
        if (handler := self.fm.features.get(lsp.SHUTDOWN)) is not None:
            yield handler, args, None
        for msg_id, future in list(self._request_futures.items()):
            if msg_id != self.msg_id and not future.done():
                future.cancel()
        self._shutdown = True

    @lsp_method(lsp.EXIT)
    def lsp_exit(self, *args: Any) -> Any:
        """Stop serving; `run` returns the exit code."""
        self.ended()
        yield from ()


class StreamWriter:
    """Writes whole messages to a stream; after the client has disconnected, messages are dropped."""

    def __init__(self, stream: BinaryIO, on_disconnect: Callable[[], None]) -> None:
        """Call `on_disconnect` when a write fails because the client is gone."""
        self._stream, self._on_disconnect, self._is_open = stream, on_disconnect, True

    def write(self, data: bytes) -> None:
        """Write the bytes and flush."""
        if not self._is_open:
            return
        try:
            self._stream.write(data)
            self._stream.flush()
        except (OSError, ValueError):
            self.close()
            self._on_disconnect()

    def close(self) -> None:
        """Ignore all later writes."""
        self._is_open = False


def read_messages(stream: BinaryIO, take: Callable[[object], None], refuse: Callable[[str], None]) -> None:
    """Call `take` with each message until the stream ends, and `refuse` with a sentence for each that is no JSON.

    Header names are case-insensitive. After a truncated message, its remaining text comes first: lines are skipped until
    the next header. A message does not end with a newline, so that header stands at the end of a line.
    """
    length: int | None = None
    while line := stream.readline(MAX_MESSAGE_BYTES):
        # Split at the last colon, because the rest of a truncated message may contain colons.
        head, _, value = (part.strip() for part in line.rpartition(b":"))
        if head.lower().endswith(_LENGTH) and not (
            head[: -len(_LENGTH)][-1:].isalnum() or head[: -len(_LENGTH)].endswith(b"-")
        ):
            # `int` raises ValueError for numbers of some thousand digits.
            length = int(value) if value.isdigit() and len(value) < 20 else None
            if length is None or length > MAX_MESSAGE_BYTES:
                refuse(f"a Content-Length header must be a number from 0 to {MAX_MESSAGE_BYTES}")
                length = None
        elif not line.strip() and length is not None:
            body = stream.read(length)
            if len(body) < length:
                return
            length = None
            try:
                message = json.loads(body)
            except (ValueError, RecursionError):
                refuse("a message is not valid JSON")
            else:
                take(message)


async def run(protocol: RpcProtocol, reader: BinaryIO, writer: BinaryIO, background: Callable[[], Awaitable[None]]) -> int:
    """Serve until the client sends `exit` or disconnects; return the exit code: 0 after `shutdown`, else 1.

    A thread reads the input, so that the client's writes never block. `background` runs concurrently until the end.
    """
    loop = asyncio.get_running_loop()
    calls = asyncio.Queue[Callable[[], object] | None]()
    protocol.ended = partial(calls.put_nowait, None)
    protocol.set_writer(StreamWriter(writer, protocol.ended))

    def hand(call: Callable[..., object], *args: object) -> None:
        try:
            loop.call_soon_threadsafe(calls.put_nowait, partial(call, *args))
        except RuntimeError:
            if not loop.is_closed():
                raise

    def read() -> None:
        try:
            read_messages(
                reader,
                lambda message: hand(protocol.receive, message),
                lambda sentence: hand(protocol._refuse, None, PARSE_ERROR, sentence),
            )
        except (OSError, ValueError):
            log.warning("the connection to the editor was lost")
        hand(protocol.ended)

    threading.Thread(target=read, name="dg-lsp-reader", daemon=True).start()
    background_task = asyncio.ensure_future(background())
    try:
        while (call := await calls.get()) is not None:
            call()
            await asyncio.sleep(0)  # a request begins, and so reads the text, before the next message changes it
    finally:
        background_task.cancel()
        await asyncio.gather(background_task, return_exceptions=True)
    return 0 if protocol._shutdown else 1


def converter() -> cattrs.Converter:
    """Return pygls' converter, but data of unknown type stays JSON, and a version may be missing or null."""
    structurer = converters.get_converter()
    structurer.register_structure_hook(
        JsonRPCRequestMessage, lambda data, cls: cls(data["id"], data["method"], data["jsonrpc"], data.get("params"))
    )
    structurer.register_structure_hook(
        JsonRPCNotification, lambda data, cls: cls(data["method"], data["jsonrpc"], data.get("params"))
    )
    structurer.register_structure_hook(
        JsonRPCResponseMessage, lambda data, cls: cls(data["id"], data["jsonrpc"], data.get("result"))
    )
    for kind in (lsp.TextDocumentItem, lsp.VersionedTextDocumentIdentifier):
        usual = structurer.get_structure_hook(kind)
        structurer.register_structure_hook(kind, partial(_with_version, usual))
    return structurer


def _with_version(usual: Callable[..., Any], data: Json, cls: type[Any]) -> Any:
    has_version = data.get("version") is not None
    item = usual(data if has_version else {**data, "version": 0}, cls)
    if not has_version:
        object.__setattr__(item, "version", None)  # its class takes only a number
    return item


def _is_id(value: object) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _cause(error: BaseException) -> str:
    """Return the innermost error in words, without the client's values, which may contain code."""
    while True:
        inner = getattr(error, "exceptions", None)
        cause = inner[0] if inner else error.__cause__
        if cause is None or cause is error:
            break
        error = cause
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return type(error).__name__
