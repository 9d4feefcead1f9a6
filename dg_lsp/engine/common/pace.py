"""Measure how long the model's units take on this device, to plan the work before a deadline, and count what a request used.

On a CPU, a unit with more positions takes longer; on a GPU, hardly. So each size is measured separately. Knows a clock and
numbers. Knows nothing of rows or requests.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Unit = Literal["step", "token", "score", "prefill"]
NEWEST = 0.3  # the weight of the newest measurement of a size
SIZES_PER_DOUBLING = 4  # sizes that differ by less count as the same size
LEAST_STEPS = 8  # a canvas seldom settles in fewer steps


class Pace:
    """The measured durations of a model's units by size. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._points: dict[Unit, dict[int, tuple[float, float]]] = defaultdict(dict)

    @contextmanager
    def measuring(self, unit: Unit, positions: int) -> Iterator[None]:
        """Measure the block as one unit with this number of positions."""
        began = self.clock()
        yield
        self.note(unit, positions, (self.clock() - began) * 1000)

    def note(self, unit: Unit, positions: int, milliseconds: float) -> None:
        """Add the duration of one unit."""
        points, key = self._points[unit], round(SIZES_PER_DOUBLING * math.log2(max(positions, 1.0)))
        old_size, old_ms = points.get(key, (positions, milliseconds))
        points[key] = (old_size + NEWEST * (positions - old_size), old_ms + NEWEST * (milliseconds - old_ms))

    def expected_ms(self, unit: Unit, positions: int) -> float | None:
        """Return the expected milliseconds of a unit, interpolated between sizes, or None if none was measured."""
        points = [point for _, point in sorted(self._points[unit].items())]
        if not points:
            return None
        if len(points) == 1:  # a smaller unit may take as long; a larger one takes proportionally longer
            [(only, milliseconds)] = points
            return milliseconds * max(1.0, positions / max(only, 1.0))
        right = min(max(1, sum(point[0] < positions for point in points)), len(points) - 1)
        (size_0, ms_0), (size_1, ms_1) = points[right - 1 : right + 1]
        slope = max(0.0, (ms_1 - ms_0) / max(size_1 - size_0, 1e-6))
        return max(ms_1 + slope * (positions - size_1), 0.0)


class Timing:
    """How long the units of a model take, what a task has used over all its canvases, and what it may still use.

    It has until `due_at` in seconds on the clock of the pace; without a deadline, as long as it needs, whatever the clock says.
    Its milliseconds count for the `stage`, and only within the task's own units of work, each of which `began` at some time.
    The tokens are those of its prefixes.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace, self.due_at = pace, math.inf
        self.milliseconds = {"prefill": 0.0, "draft": 0.0, "denoise": 0.0, "score": 0.0}
        self.prefix_tokens = self.reused_tokens = 0
        self.stage, self.began = "prefill", 0.0

    @property
    def is_limited(self) -> bool:
        return self.due_at < math.inf

    def left_ms(self, reserve_ms: float = 0.0) -> float:
        """Return the milliseconds left beside the reserve for what must follow; infinity without a deadline."""
        return (self.due_at - self.pace.clock()) * 1000 - reserve_ms if self.is_limited else math.inf

    def units(self, unit_ms: float | None, reserve_ms: float = 0.0) -> int | None:
        """Return the number of units that fit beside the reserve; None if any number may run, or none was measured."""
        if not self.is_limited or unit_ms is None:
            return None
        return max(0, int(self.left_ms(reserve_ms) // max(unit_ms, 1e-6)))

    def switch(self, stage: str) -> str:
        """Count the time from now on for another stage; return the stage before."""
        now, before = time.perf_counter(), self.stage
        self.milliseconds[before] += (now - self.began) * 1000
        self.stage, self.began = stage, now
        return before
