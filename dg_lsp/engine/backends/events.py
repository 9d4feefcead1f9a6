"""Parse a streamed answer: server-sent events, each with a JSON object.

A server may ignore the request to stream and answer with one JSON object; the first byte shows which it is. This module
knows the format of the stream. It knows nothing of HTTP or of what the objects mean.
"""

from __future__ import annotations

from typing import Protocol

from dg_lsp.wire.fields import Fields, parse

DONE = b"[DONE]"


class Listener(Protocol):
    """Collects the parts of one streamed answer, and offers another body after a refusal."""

    def add(self, event: Fields) -> bool:
        """Add the next part; return whether the answer is complete. Raises WireError for a malformed part."""

    def answer(self, *, is_whole: bool) -> Fields | None:
        """Return the parts so far in the shape of an unstreamed answer; None if there are none."""

    def body_after(self, status: int, message: str) -> dict[str, object] | None:
        """Return the body to send after a refusal with this status and message; None to give up."""


class EventReader:
    """Splits a stream's bytes into events. `is_stream` is None until the first byte, and False for plain JSON."""

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
            self.is_stream = not data.startswith(b"{")
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
