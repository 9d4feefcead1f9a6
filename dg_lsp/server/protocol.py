"""The JSON-RPC edge: every request gets an answer, whatever came in, and nothing that was answered is remembered.

This owns what pygls gets wrong or leaves open: text (its documents split lines where the protocol does not, so ours are in
`sync`), requests with malformed parameters (it answers none), one future kept for each notification, answers to requests
that were cancelled meanwhile, and the exit code. Knows nothing of what the requests mean.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, BinaryIO, Protocol

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
    """The protocol's state machine, over messages that are JSON objects already."""

    # Documents are ours (`sync`), commands and progress are ordinary handlers (`app`).
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
    """Called when the client says `exit`."""
    unreadable: Callable[[str, object], None] = staticmethod(lambda _method, _params: None)
    """Called with each notification that could not be read."""
    initialized = False
    experimental: Json = MappingProxyType({})

    @property
    def was_shut_down(self) -> bool:
        """Whether the client asked for the end before it came."""
        return bool(self._shutdown)

    def receive(self, message: object) -> None:
        """Handle one message; never raises. A request that can't be handled is answered with an error that says why."""
        try:
            if isinstance(message, dict):
                self._receive(message)
            else:
                self._refuse(None, INVALID_REQUEST, "a message is a JSON object; batches are no part of this protocol")
        except Exception:
            # One bad message must not end a server that holds the user's unsaved text.
            log.exception("a message could not be handled")

    def _receive(self, message: dict[str, Any]) -> None:
        msg_id, method = message.get("id"), message.get("method")
        if method is None:
            # Some write a null where others leave it out, and pygls takes what has the key for a request.
            message.pop("method", None)
        is_request = method is not None and "id" in message
        if message.get("jsonrpc") != "2.0" or not (method is None or isinstance(method, str)):
            return self._refuse(msg_id, INVALID_REQUEST, 'a message says "jsonrpc": "2.0" and names its method by a string')
        if method is None and "result" not in message and "error" not in message:
            return self._refuse(msg_id, INVALID_REQUEST, "a message has a method, a result or an error")
        if is_request and not _is_id(msg_id):
            return self._refuse(None, INVALID_REQUEST, "a request's id is a number or a string")
        if is_request and msg_id in self._request_futures:
            return self._refuse(msg_id, INVALID_REQUEST, "a request with this id is under way")
        if is_request and self._shutdown:
            return self._refuse(msg_id, INVALID_REQUEST, "the server was shut down")
        if not self.initialized and method is not None and method not in (lsp.INITIALIZE, lsp.EXIT):
            if is_request:
                self._refuse(msg_id, NOT_INITIALIZED, "the first request is `initialize`")
            return None
        if method == lsp.INITIALIZE and self.initialized:
            return self._refuse(msg_id, INVALID_REQUEST, "the server is initialized already")
        try:
            structured = self.structure_message(message)
        except Exception as error:
            return self._unreadable(message, error)
        if is_request and not hasattr(structured, "id"):
            return self._refuse(msg_id, INVALID_REQUEST, f"{method} is a notification, and has no id")
        self.handle_message(structured)
        return None

    def _unreadable(self, message: dict[str, Any], error: Exception) -> None:
        method, msg_id = message.get("method"), message.get("id")
        if method is None:
            future = self._request_futures.pop(msg_id, None) if isinstance(msg_id, (str, int)) else None
            if future is not None and not future.done():
                future.set_exception(JsonRpcInternalError("the client's answer could not be read"))
        elif "id" in message:
            self._refuse(msg_id, INVALID_PARAMS, f"the parameters of {method} could not be read: {_cause(error)}")
        else:
            log.warning("the parameters of %s could not be read: %s", method, _cause(error))
            self.unreadable(method, message.get("params"))

    def _refuse(self, msg_id: object, code: int, sentence: str) -> None:
        log.warning("refused a message: %s", sentence)
        known = msg_id if _is_id(msg_id) else None
        self._write({"jsonrpc": "2.0", "id": known, "error": {"code": code, "message": sentence}})

    def bad_json(self, sentence: str) -> None:
        """Answer what is no JSON."""
        self._refuse(None, PARSE_ERROR, sentence)

    def _write(self, data: Json) -> None:
        body = json.dumps(data).encode()
        assert self.writer is not None
        self.writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    # What pygls remembers of a handler it never forgets, but for requests.
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
        self._refuse(msg_id, INTERNAL_ERROR, f"dg-lsp failed on this request ({type(error).__name__}); its log says where")

    def _check_handler_result(self, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            log.error("a notification could not be handled", exc_info=error)

    def _handle_cancel_notification(self, msg_id: str | int) -> None:
        # Unlike pygls' own, leaves the future where it is until it is done, and says nothing of ids it does not know: the
        # answer was on its way.
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
        """Answer with the capabilities, those that are our own among them."""
        result = yield from super().lsp_initialize(params)
        result.capabilities.experimental = self.experimental
        # Only now: an `initialize` that failed may be tried again.
        self.initialized = True
        return result

    @lsp_method(lsp.SHUTDOWN)
    def lsp_shutdown(self, *args: Any) -> Any:
        """Let the user's handler end what is under way, and take no more requests."""
        if (handler := self.fm.features.get(lsp.SHUTDOWN)) is not None:
            yield handler, args, None
        for msg_id, future in list(self._request_futures.items()):
            if msg_id != self.msg_id and not future.done():
                future.cancel()
        self._shutdown = True

    @lsp_method(lsp.EXIT)
    def lsp_exit(self, *args: Any) -> Any:
        """End; whoever runs the server knows the exit code."""
        self.ended()
        yield from ()


class Writer(Protocol):
    """Where messages go."""

    def write(self, data: bytes) -> None:
        """Write and flush."""

    def close(self) -> None:
        """Write no more."""


class StreamWriter:
    """Writes whole messages to a stream; what is written after the other side left is dropped."""

    def __init__(self, stream: BinaryIO, left: Callable[[], None]) -> None:
        """Call `left` when the other side is gone."""
        self._stream, self._left, self._is_open = stream, left, True

    def write(self, data: bytes) -> None:
        """Write and flush."""
        if not self._is_open:
            return
        try:
            self._stream.write(data)
            self._stream.flush()
        except (OSError, ValueError):
            self.close()
            self._left()

    def close(self) -> None:
        """Write no more."""
        self._is_open = False


def read_messages(stream: BinaryIO, take: Callable[[object], None], refuse: Callable[[str], None]) -> None:
    """Call `found` with each message until the stream ends, and `bad` with a sentence for each that is no JSON.

    Header names count in any case. Lines that are no header are skipped until there is one, since what follows a
    message that was cut short is its rest. A message does not end with a line end, so the next header follows that rest
    on its line.
    """
    length: int | None = None
    while line := stream.readline(MAX_MESSAGE_BYTES):
        # The last colon, as what was cut short has some of its own.
        head, _, value = (part.strip() for part in line.rpartition(b":"))
        if head.lower().endswith(_LENGTH) and not (
            head[: -len(_LENGTH)][-1:].isalnum() or head[: -len(_LENGTH)].endswith(b"-")
        ):
            # Python makes no number of some thousand digits.
            length = int(value) if value.isdigit() and len(value) < 20 else None
            if length is None or length > MAX_MESSAGE_BYTES:
                refuse("a header's Content-Length is no number of bytes that can be read")
                length = None
        elif not line.strip() and length is not None:
            body = stream.read(length)
            if len(body) < length:
                return
            length = None
            try:
                message = json.loads(body)
            except (ValueError, RecursionError):
                refuse("a message is no JSON")
            else:
                take(message)


async def run(protocol: RpcProtocol, reader: BinaryIO, writer: BinaryIO, background: Callable[[], Awaitable[None]]) -> int:
    """Serve until the client says `exit` or is gone; return the exit code: 0 when it asked for the end before, else 1.

    A thread reads, so that the client can always write. `background` runs beside, and ends with us.
    """
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_loop_error)
    over = asyncio.Event()
    protocol.ended = over.set
    protocol.set_writer(StreamWriter(writer, over.set))

    def hand(call: Callable[..., object], *args: object) -> None:
        try:
            loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not loop.is_closed():
                raise

    def read() -> None:
        try:
            read_messages(reader, lambda message: hand(protocol.receive, message), lambda text: hand(protocol.bad_json, text))
        except (OSError, ValueError):
            log.warning("the connection to the editor broke")
        hand(over.set)

    threading.Thread(target=read, name="dg-lsp-reader", daemon=True).start()
    beside = asyncio.ensure_future(background())
    try:
        await over.wait()
    finally:
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
    return 0 if protocol.was_shut_down else 1


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # A Unix socket of anyio's that becomes readable in the very turn in which its reader is cancelled ends here; the
    # reader is gone, and nothing is lost.
    if isinstance(context.get("exception"), asyncio.InvalidStateError):
        log.debug("%s", context.get("message"))
    else:
        loop.default_exception_handler(context)


class Wire:
    """Which way the client writes; an older one is known by its first trigger kind 0, or by its capabilities."""

    def __init__(self) -> None:
        """Assume the present way."""
        self.is_old = False

    def context(self, data: Any, structurer: cattrs.Converter) -> lsp.InlineCompletionContext:
        """Return the context of an inline completion.

        vscode-languageclient 9 counts trigger kinds from 0 and writes the range of `selectedCompletionInfo` as an array.
        """
        kind, selected = data.get("triggerKind", lsp.InlineCompletionTriggerKind.Automatic.value), None
        if (selection := data.get("selectedCompletionInfo")) is not None:
            ends = selection["range"]
            self.is_old = self.is_old or isinstance(ends, list)
            ends = {"start": ends[0], "end": ends[1]} if isinstance(ends, list) else ends
            selected = lsp.SelectedCompletionInfo(structurer.structure(ends, lsp.Range), str(selection["text"]))
        # Only the older format has a 0, and only the present one a 2.
        self.is_old = kind == 0 or (self.is_old and kind != lsp.InlineCompletionTriggerKind.Automatic.value)
        return lsp.InlineCompletionContext(lsp.InlineCompletionTriggerKind(kind + self.is_old), selected)


def converter(wire: Wire) -> cattrs.Converter:
    """Return pygls' converter, except that what it has no type for stays JSON, and that it reads the older way too."""
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
    structurer.register_structure_hook(lsp.InlineCompletionContext, lambda data, _: wire.context(data, structurer))
    return structurer


def _is_id(value: object) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _cause(error: BaseException) -> str:
    """Return the innermost thing that was wrong, without the values that were sent."""
    while True:
        inner = getattr(error, "exceptions", None)
        following = inner[0] if inner else error.__cause__
        if following is None or following is error:
            break
        error = following
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return type(error).__name__
