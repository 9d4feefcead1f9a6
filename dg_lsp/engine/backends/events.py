"""Read an answer that a server sends in parts: server-sent events, each with a JSON object.

A server that was asked for parts may answer with one JSON object all the same; its first byte tells. Knows the format of
the stream. Knows nothing of HTTP or of what the objects mean.
"""

from __future__ import annotations

from typing import Protocol

from dg_lsp.wire.fields import Fields, parse

DONE = b"[DONE]"


class Listener(Protocol):
    """Takes the parts of one answer as they come, and knows what to send instead of a refused body."""

    def add(self, event: Fields) -> bool:
        """Take the next part; return whether no more are needed. Raises WireError for nonsense."""

    def answer(self, *, is_whole: bool) -> Fields | None:
        """Return the parts so far as an answer that came in one part; None where there are none."""

    def body_after(self, status: int, said: str) -> dict[str, object] | None:
        """Return the body to send after a refusal; None where the refusal stands."""


class EventReader:
    """Splits the bytes of a stream into its events; `is_stream` is None until the first byte, and False for plain JSON."""

    def __init__(self) -> None:
        """Know nothing of the stream."""
        self.is_stream: bool | None = None
        self.is_done = False
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[Fields]:
        """Return the objects that are complete with these bytes; raise WireError for an event that holds no object."""
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
        """Return the last event's object where no empty line follows it."""
        if self._rest.startswith(b"data:"):
            self._data.append(self._rest[5:].strip())
        return self._event() if self._data else []

    def _event(self) -> list[Fields]:
        text = b"\n".join(self._data)
        self._data = []
        if text.strip() == DONE:
            self.is_done = True
        return [] if self.is_done or not text.strip() else [parse(text)]
