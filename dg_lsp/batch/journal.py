"""Remember finished answers in a file, so that an interrupted run goes on where it stopped.

One line of JSON for each answer, under a key made of everything that the answer depends on: the file's content, the hole,
related text, the model, the seed, the version of dg-lsp. A file that changed has other keys, so an old answer can't land in
it. Knows nothing of engines.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dg_lsp import __version__
from dg_lsp.batch.plan import Fill
from dg_lsp.core.confidence import Calibrated, Confidence, Ranked
from dg_lsp.core.values import Document, Edit, Hole, Snippet, Span

_BEGINS = b'{"key": "'


class JournalError(Exception):
    """The journal can't be used; the message is a sentence for the user."""


class Journal:
    """The answers of this run and of those before it, in one file; without a path it remembers nothing."""

    def __init__(self, path: Path | None, settings: Sequence[object] = ()) -> None:
        """Open the journal and read what it holds; raise JournalError when that fails.

        `settings` are the values that answers depend on besides the hole.
        """
        self._settings = tuple(settings)
        self._known: dict[str, tuple[Fill, ...]] = {}
        self._handle: int | None = None
        self._path = path
        if path is None:
            return
        try:
            # The journal holds code, so only the user may read it.
            # A pipe is not waited for, and a device that never ends is not read.
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600)
            if not stat.S_ISREG(os.fstat(self._handle).st_mode):
                os.close(self._handle)
                raise JournalError(f"{path} is not a regular file; name a new file to keep answers in")
            data = path.read_bytes()
            if not data.startswith(_BEGINS[: len(data)]):
                os.close(self._handle)
                raise JournalError(f"{path} is no journal of dg-lsp; name a new file to keep answers in")
            if data and not data.endswith(b"\n"):
                os.write(self._handle, b"\n")  # the last run ended in the middle of a line
        except OSError as error:
            raise JournalError(f"{path} can't be used to resume: {(error.strerror or str(error)).lower()}") from error
        for line in data.split(b"\n"):
            self._learn(line)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def get(self, document: Document, hole: Hole, related: Sequence[Snippet] = ()) -> tuple[Fill, ...]:
        """Return the fills found before, best first; empty when the hole is still open."""
        known = self._known.get(self._key(document, hole, related), ())
        # The file may have been written by others; no edit from it touches anything outside the hole.
        return tuple(fill for fill in known if fill.edit.span == hole.span)

    def add(self, document: Document, hole: Hole, fills: tuple[Fill, ...], related: Sequence[Snippet] = ()) -> None:
        """Remember the fills of a hole."""
        if self._handle is None or not fills:
            return
        rows = [
            {"edit": [*_pair(fill.edit.span), fill.edit.text], "steps": fill.steps, **_confidence_row(fill.confidence)}
            for fill in fills
        ]
        # One write, so that lines stay whole when two runs share a journal.
        line = (json.dumps({"key": self._key(document, hole, related), "fills": rows}) + "\n").encode()
        try:
            n_written = os.write(self._handle, line)
        except OSError as error:
            raise JournalError(f"{self._path} can't be written: {(error.strerror or str(error)).lower()}") from error
        if n_written < len(line):
            raise JournalError(f"{self._path} can't be written: the disk is full, or a limit of file sizes is reached")

    def _learn(self, line: bytes) -> None:
        try:
            entry: dict[str, Any] = json.loads(line)
            fills = tuple(
                Fill(Edit(Span(start, end), str(text)), _confidence_of(fill), int(fill["steps"]))
                for fill in entry["fills"]
                for start, end, text in [fill["edit"]]
            )
            self._known[str(entry["key"])] = fills
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            return  # a line cut short by the interruption, or not by us: its hole is simply filled again

    def _key(self, document: Document, hole: Hole, related: Sequence[Snippet]) -> str:
        text = hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest()
        nearby = [(snippet.path, snippet.text) for snippet in related]
        place = [document.uri, text, _pair(hole.span), hole.kind, hole.instruction]
        parts = [__version__, *place, nearby, *map(str, self._settings)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _finite(value: Any) -> float:
    """Return a number that is one; raise ValueError for infinity and what is none, which JSON may hold as 1e999 and NaN."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _confidence_row(confidence: Confidence) -> dict[str, object]:
    match confidence:
        case Calibrated(probability):
            return {"probability": probability}
        case Ranked(position, doubted):
            return {"probability": None, "rank": position, "doubted": doubted}


def _confidence_of(row: dict[str, Any]) -> Confidence:
    if row["probability"] is None:
        return Ranked(int(row["rank"]), bool(row["doubted"]))
    return Calibrated(_finite(row["probability"]))


def _pair(span: Span) -> tuple[int, int]:
    return span.start, span.end
