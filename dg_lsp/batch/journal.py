"""Store finished answers in a file, so that an interrupted run continues where it stopped.

Below a first line that only our journals have, each answer is one line of JSON. Its key is a hash of everything that the
answer depends on: the file's content, the hole, the requests for it, with their text from other files, the model, its options
and the version of dg-lsp. So an answer is used only if the model would be sent the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import msgspec

from dg_lsp import __version__
from dg_lsp.batch.plan import PlanError
from dg_lsp.core.values import Document, Edit, Hole, InfillRequest, Span
from dg_lsp.infill.fill import Fill
from dg_lsp.wire import files
from dg_lsp.wire.messages import Stated, stated

_MARK = b"# dg-lsp infill --resume\n"


def is_journal(head: bytes) -> bool:
    """Return whether a file that begins so is a journal."""
    return head == _MARK or head.startswith(_MARK + b"{")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row(Stated):
    """A fill as it is stored."""

    edit: tuple[int, int, str]
    steps: int

    def fill(self) -> Fill:
        """Return the fill; raise ValueError if its confidence is no confidence."""
        start, end, text = self.edit
        return Fill(Edit(Span(start, end), text), self.read(), self.steps)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the file."""

    key: str
    fills: tuple[_Row, ...]


class Journal:
    """The answers of this run and of earlier ones, in one file. Without a path, nothing is stored."""

    def __init__(self, path: Path | None, settings: Sequence[object] = ()) -> None:
        """Open the journal and read its answers; raise PlanError if that fails.

        `settings` are the values that answers depend on besides the file and the hole.
        """
        self._settings = tuple(settings)
        self._fills_by_key: dict[str, tuple[Fill, ...]] = {}
        self._handle: int | None = None
        self._path = path
        if path is None:
            return
        if problem := files.output_problem(path, is_journal):
            raise PlanError(f"--resume {path}: {problem}")
        try:
            if not os.path.lexists(path):
                # Atomically, so that a killed run leaves a journal or none. It contains code, so only the user may read it.
                files.write_output(path, _MARK, new_mode=0o600)
            # O_NONBLOCK: opening a pipe must not block.
            self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW)
            data = path.read_bytes()
            if not data.endswith(b"\n"):
                os.write(self._handle, b"\n")  # the last run stopped in the middle of a line
        except OSError as error:
            raise PlanError(f"{path} can't be used to resume: {(error.strerror or str(error)).lower()}") from error
        for line in data.split(b"\n"):
            self._learn(line)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)

    @property
    def is_stored(self) -> bool:
        """Whether answers are stored in a file."""
        return self._handle is not None

    def get(self, document: Document, hole: Hole, requests: Sequence[InfillRequest] = ()) -> tuple[Fill, ...]:
        """Return the stored fills of a hole for these requests, best first; empty if there are none."""
        if self._handle is None:
            return ()
        fills = self._fills_by_key.get(self._key(document, hole, requests), ())
        # Another program may have written the file, so only edits of exactly this hole are used.
        return tuple(fill for fill in fills if fill.edit.span == hole.span)

    def add(self, document: Document, hole: Hole, fills: tuple[Fill, ...], requests: Sequence[InfillRequest] = ()) -> None:
        """Store the fills of a hole for these requests."""
        if self._handle is None or not fills:
            return
        rows = [
            _Row(edit=(*astuple(fill.edit.span), fill.edit.text), steps=fill.steps, **stated(fill.confidence)) for fill in fills
        ]
        entry = msgspec.to_builtins(_Entry(self._key(document, hole, requests), tuple(rows)))
        # One write, so that lines stay whole when two runs share a journal.
        line = f"{json.dumps(entry)}\n".encode()
        try:
            n_written = os.write(self._handle, line)
        except OSError as error:
            raise PlanError(f"{self._path} can't be written: {(error.strerror or str(error)).lower()}") from error
        if n_written < len(line):
            raise PlanError(f"{self._path} can't be written: the disk is full, or a file size limit is reached")

    def _learn(self, line: bytes) -> None:
        try:
            entry = msgspec.convert(json.loads(line), _Entry)
            self._fills_by_key[entry.key] = tuple(row.fill() for row in entry.fills)
        except (ValueError, RecursionError):
            return  # a truncated or foreign line: its hole is filled again

    def _key(self, document: Document, hole: Hole, requests: Sequence[InfillRequest]) -> str:
        place = [document.uri, _hash(document.text), astuple(hole.span), hole.kind, hole.instruction]
        parts = [__version__, *place, [_hash(repr(_without_order(request))) for request in requests], *map(str, self._settings)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _without_order(request: InfillRequest) -> InfillRequest:
    """Return the request without what those before it have shown, which a run that goes on does not ask again."""
    return replace(request, related=tuple(each for each in request.related if not each.was_shown))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
