"""Print progress to standard error: on a terminal in one changing line, elsewhere a line at intervals."""

from __future__ import annotations

import sys
import time

from dg_lsp.wire.visible import visible_line

EVERY_S = 10.0


class Progress:
    """Prints progress messages, and remembers the last one."""

    def __init__(self) -> None:
        self._last = ""
        self._printed_at: float | None = None
        self._width = 0

    def show(self, text: str) -> None:
        """Print a progress message if it is new."""
        if not text or text == self._last:
            return
        self._last = text
        text = visible_line(text)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
            sys.stderr.flush()
            return
        now = time.monotonic()
        if self._printed_at is None or now - self._printed_at >= EVERY_S:
            self._printed_at = now
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def end(self) -> None:
        """End the progress line, if one was printed."""
        if self._width:
            sys.stderr.write("\n")
            self._width = 0
