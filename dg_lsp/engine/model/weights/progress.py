"""Report the progress of a download or a load in words: bytes, rate, time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dg_lsp.core.wording import size

EVERY_S = 0.5  # the interval between reports


class Meter:
    """Counts bytes, from any thread, and reports the progress at intervals.

    `on_progress` receives a text and a fraction between `low` and `high`. `done` bytes were there before and do not count.
    Its attributes are its parameters, and the counts and times of a report, which one lock guards.
    """

    def __init__(
        self,
        what: str,
        total: int,
        on_progress: Callable[[str, float], None],
        *,
        low: float = 0.0,
        high: float = 1.0,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.total, self.done = what, total, done
        self._on_progress, self._low, self._high, self._clock = on_progress, low, high, clock
        self._lock = threading.Lock()
        self._began, self._before = clock(), done
        self._reported_at: float | None = None

    def add(self, n_bytes: int) -> None:
        """Count more bytes as done, and report if it is time."""
        with self._lock:
            self.done += n_bytes
            now = self._clock()
            if self._reported_at is not None and now - self._reported_at < EVERY_S and self.done < self.total:
                return
            self._reported_at = now
            self._on_progress(self.text(now), self._low + (self._high - self._low) * self.share())

    def share(self) -> float:
        """Return the fraction that is done."""
        return min(1.0, self.done / self.total) if self.total > 0 else 1.0

    def text(self, now: float) -> str:
        """Return the progress as text, with the rate and the time left if known."""
        text = f"{self.what}: {size(min(self.done, self.total))} of {size(self.total)}"
        took_s = now - self._began
        if took_s <= 0 or self.done <= self._before:
            return text
        rate = (self.done - self._before) / took_s
        return f"{text}, {size(rate)}/s, {duration(max(0, self.total - self.done) / rate)} left"


def duration(seconds: float) -> str:
    """Return a duration as readable text, rounded up to seconds or minutes, or in hours."""
    whole = int(seconds + 0.999)
    if whole < 90:
        return f"{whole} s"
    if whole < 90 * 60:
        return f"{-(-whole // 60)} min"
    return f"{whole / 3600:.1f} h"
