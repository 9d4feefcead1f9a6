"""The engine's log: no code in it, private, bounded while it is written, and not flooded by one error.

Knows files and logging; knows nothing of what is logged.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import logging.handlers
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from dg_lsp.wire import meeting
from dg_lsp.wire.meeting import Place

# So many lines that begin alike are written in a minute; how many more there were is said with the next.
MAX_ALIKE = 20
ALIKE_S = 60.0
ALIKE_CHARS = 40


class Discreet(logging.Formatter):
    """Lines that hold no code of the user's: of an error, its type and where it was raised, not what it says."""

    def formatException(  # noqa: N802 -- the name is logging's
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Return the frames of an error, without its message or source lines."""
        frames = traceback.extract_tb(ei[2])
        places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        return "\n".join([*places, f"  {ei[0].__name__ if ei[0] else 'no error'}"])


class Seldom(logging.Filter):
    """Lets so many records through that are alike, and then counts them until the minute is over."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with none."""
        super().__init__()
        self._clock = clock
        self._since: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written."""
        # Another handler has asked about this very record.
        if "is_seldom" in record.__dict__:
            return bool(record.__dict__["is_seldom"])
        key = (record.name, record.levelno, str(record.msg)[:ALIKE_CHARS])
        now = self._clock()
        begun, n_alike = self._since.get(key, (now, 0))
        n_left_out = 0
        if now - begun >= ALIKE_S:
            begun, n_left_out, n_alike = now, max(n_alike - MAX_ALIKE, 0), 0
        self._since[key] = (begun, n_alike + 1)
        while len(self._since) > 1_000:
            del self._since[next(iter(self._since))]
        if n_left_out:
            record.msg = f"{record.msg} ({n_left_out} more like it were not written)"
        record.__dict__["is_seldom"] = n_alike < MAX_ALIKE
        return n_alike < MAX_ALIKE


class Rolling(logging.handlers.RotatingFileHandler):
    """A private file that makes place for a new one when it is full; with `takes_output` our output goes there too."""

    def __init__(self, path: Path, *, takes_output: bool) -> None:
        """Open the file."""
        self._takes_output = takes_output
        super().__init__(path, maxBytes=meeting.MAX_LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace")

    def doRollover(self) -> None:  # noqa: N802 -- the name is logging's
        """Begin a new file."""
        super().doRollover()
        if self._takes_output and self.stream is not None:
            # What the interpreter says itself would go on into the old one.
            for number in (1, 2):
                os.dup2(self.stream.fileno(), number)

    def _open(self) -> io.TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o600)
        return open(handle, "a", encoding=self.encoding, errors=self.errors)  # noqa: PTH123 -- it is open already


def write_to(place: Place, *, detached: bool) -> None:
    """Log to the place's file from now on, and to standard error where somebody sees it."""
    try:
        handlers: list[logging.Handler] = [Rolling(place.log, takes_output=detached)]
    except OSError as error:
        raise meeting.unusable(place.log, error) from error
    if not detached:
        handlers.append(logging.StreamHandler(sys.stderr))
    seldom = Seldom()
    for handler in handlers:
        handler.setFormatter(Discreet("%(asctime)s %(levelname)s %(message)s"))
        handler.addFilter(seldom)
    logging.basicConfig(level=logging.INFO, handlers=handlers)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it repeats what is said above
    faulthandler.enable()
