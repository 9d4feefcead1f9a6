"""The engine's log: private, without the user's code, limited in size and in repeated lines."""

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

from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import EngineFiles
from dg_lsp.wire.visible import LogFormatter

# At most this many lines with the same start are written per minute. The next line says how many were omitted.
MAX_ALIKE = 20
ALIKE_S = 60.0
ALIKE_CHARS = 40


class Discreet(LogFormatter):
    """A formatter that logs an error's type and frames only, because its message may contain the user's code."""

    def formatException(  # noqa: N802 -- logging defines the name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Return the frames of an error, without its message or source lines."""
        frames = traceback.extract_tb(ei[2])
        places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        return "\n".join([*places, f"  {ei[0].__name__ if ei[0] else 'no error'}"])


class Seldom(logging.Filter):
    """A filter that passes the first MAX_ALIKE similar records of each minute and counts the rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._since: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record."""
        # Another handler has already filtered this record.
        if "is_seldom" in record.__dict__:
            return bool(record.__dict__["is_seldom"])
        key = (record.name, record.levelno, str(record.msg)[:ALIKE_CHARS])
        now = self._clock()
        start, n_alike = self._since.get(key, (now, 0))
        n_omitted = 0
        if now - start >= ALIKE_S:
            start, n_omitted, n_alike = now, max(n_alike - MAX_ALIKE, 0), 0
        self._since[key] = (start, n_alike + 1)
        while len(self._since) > 1_000:
            del self._since[next(iter(self._since))]
        if n_omitted:
            record.msg = f"{record.msg} ({n_omitted} similar lines were omitted)"
        record.__dict__["is_seldom"] = n_alike < MAX_ALIKE
        return n_alike < MAX_ALIKE


class Rolling(logging.handlers.RotatingFileHandler):
    """A private log file, rotated when it is full. With `takes_output`, standard output and error go there too."""

    def __init__(self, path: Path, *, takes_output: bool) -> None:
        self._takes_output = takes_output
        super().__init__(path, maxBytes=discovery.MAX_LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace")

    def doRollover(self) -> None:  # noqa: N802 -- logging defines the name
        """Start a new file, and redirect standard output and error to it if `takes_output` is set."""
        super().doRollover()
        if self._takes_output and self.stream is not None:
            # Otherwise the interpreter's own messages would still go to the old file.
            for number in (1, 2):
                os.dup2(self.stream.fileno(), number)

    def _open(self) -> io.TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o600)
        return open(handle, "a", encoding=self.encoding, errors=self.errors)  # noqa: PTH123 -- it opens a descriptor, not a path


def write_to(files: EngineFiles, *, detached: bool) -> None:
    """Log to the engine's log file, and to standard error unless `detached`. Raises DiscoveryError."""
    try:
        handlers: list[logging.Handler] = [Rolling(files.log, takes_output=detached)]
    except OSError as error:
        raise discovery.unusable(files.log, error) from error
    if not detached:
        handlers.append(logging.StreamHandler(sys.stderr))
    seldom = Seldom()
    for handler in handlers:
        handler.setFormatter(Discreet("%(asctime)s %(levelname)s %(message)s"))
        handler.addFilter(seldom)
    logging.basicConfig(level=logging.INFO, handlers=handlers)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its information repeats our own lines
    faulthandler.enable()
