"""The stream between our own clients and the engine: a line of JSON for each message, in both directions, on a Unix socket.

A client first sends `hello` with the engine's token, then requests, each with a number of its own. The engine answers with
events under the same number, or 0 for its state, and an empty line where nothing else is to be sent.
The end of the connection ends the client's lease and its requests, and tells the client that the engine has ended.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dg_lsp.core.values import Count
from dg_lsp.wire import messages
from dg_lsp.wire.messages import MAX_BODY_BYTES, Fields, Problem, Reply, WireError

PING_EVERY_S = 5.0
"""The engine sends a line at least this often on every connection."""
PING = b"\n"
CALL_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Message:
    """One line: a request's name or an event's, its fields, and the request's number.

    A client's names are `hello` (`token`, and whether it `uses` the engine), `infill` (an `Ask`), `cancel`, and the calls
    `info`, `settings` and `shutdown`, which are answered with one `reply`.
    """

    name: str
    fields: Any = field(default_factory=dict)
    number: Count = 0


def hello(token: str, *, uses: bool) -> bytes:
    """Return a client's first line. A connection that `uses` the engine is a lease: it loads the model and keeps it running."""
    return encode(Message("hello", {"token": token, "uses": uses}))


def encode(message: Message) -> bytes:
    """Return a message's line; raise WireError if no line can hold it."""
    try:
        line = msgspec.json.encode(message) + b"\n"
    except UnicodeError as error:
        raise WireError("the text has half of a surrogate pair, which is no text") from error
    if len(line) > MAX_BODY_BYTES:
        raise WireError(f"the message is larger than {MAX_BODY_BYTES // 1024**2} MB")
    return line


def decode(line: bytes) -> Message:
    """Return the message of a line; raise WireError if it is none."""
    try:
        message = msgspec.json.decode(line, type=Message)
        return Message(message.name, messages.of(message.fields, "fields").values, message.number)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WireError("the other side of the socket does not send messages of dg-lsp") from error


async def read(reader: asyncio.StreamReader) -> bytes:
    """Return the next line; b"" when the connection has ended. Raises WireError for a line over the limit."""
    try:
        line = await reader.readline()
    except ConnectionError:
        return b""
    except ValueError as error:
        raise WireError(f"the message is larger than {MAX_BODY_BYTES // 1024**2} MB") from error
    return line if line.endswith(b"\n") else b""


def call(address: str, token: str, name: str, fields: dict[str, Any] | None = None) -> Fields:
    """Return an engine's reply to one call, without using the engine otherwise.

    Raises OSError if it can't be reached or does not reply in time, and WireError for a refusal or another kind of answer.
    """
    give_up = time.monotonic() + CALL_PATIENCE_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(CALL_PATIENCE_S)
        caller.connect(address)
        caller.sendall(hello(token, uses=False) + encode(Message(name, fields or {}, 1)))
        with caller.makefile("rb") as lines:
            while time.monotonic() < give_up and (line := lines.readline(MAX_BODY_BYTES)):
                message = decode(line) if line != PING else Message("ping")
                match messages.decode_event(message.name, Fields(message.fields)) if message.name in ANSWERS else None:
                    case Reply(values):
                        return Fields(values)
                    case Problem(_, sentence):
                        raise WireError(sentence)
    raise ConnectionError("the engine did not reply")


ANSWERS = ("done", "error", "reply")
"""The events that end a request."""
