"""Measure how long the model's units take on this device, to plan the work before a deadline.

On a CPU, a unit with more positions takes longer; on a GPU, hardly. So each size is measured separately. Knows a clock and
numbers. Knows nothing of rows or requests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Unit = Literal["step", "token", "score"]
NEWEST = 0.3  # the weight of the newest measurement of a size
SIZES_PER_DOUBLING = 4  # sizes that differ by less count as the same size
LEAST_STEPS = 8  # a canvas seldom settles in fewer steps


class Pace:
    """The measured durations of a model's units. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._curves: dict[Unit, _Curve] = {}

    @contextmanager
    def measuring(self, unit: Unit, positions: int) -> Iterator[None]:
        """Measure the block as one unit with this number of positions."""
        began = self.clock()
        yield
        self.note(unit, positions, (self.clock() - began) * 1000)

    def note(self, unit: Unit, positions: int, milliseconds: float) -> None:
        """Add the duration of one unit."""
        self._curves.setdefault(unit, _Curve()).add(positions, milliseconds)

    def expected_ms(self, unit: Unit, positions: int) -> float | None:
        """Return the expected milliseconds of a unit, or None if none was measured."""
        line = self._curves.get(unit)
        return line.at(positions) if line else None

    def due_in(self, milliseconds: float) -> Due:
        """Return the deadline this many milliseconds from now."""
        return Due(self, self.clock() + milliseconds / 1000)


class Due:
    """A deadline on the clock of a pace."""

    def __init__(self, pace: Pace, at: float) -> None:
        self._pace, self._at = pace, at

    def left_ms(self) -> float:
        """Return the milliseconds left, negative after the deadline."""
        return (self._at - self._pace.clock()) * 1000


def affordable(left_ms: float, unit_ms: float | None) -> int | None:
    """Return the number of units that fit in the time left, or None if no unit was measured."""
    if unit_ms is None:
        return None
    return max(0, int(left_ms // max(unit_ms, 1e-6)))


class _Curve:
    """The durations of units by size, with linear interpolation between sizes."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}

    def add(self, size: float, milliseconds: float) -> None:
        key = round(SIZES_PER_DOUBLING * math.log2(max(size, 1.0)))
        old_size, old_ms = self._points.get(key, (size, milliseconds))
        self._points[key] = (old_size + NEWEST * (size - old_size), old_ms + NEWEST * (milliseconds - old_ms))

    def at(self, size: float) -> float:
        points = [self._points[key] for key in sorted(self._points)]
        if len(points) == 1:  # a smaller unit may take as long; a larger one takes proportionally longer
            [(only, milliseconds)] = points
            return milliseconds * max(1.0, size / max(only, 1.0))
        right = min(max(1, sum(point[0] < size for point in points)), len(points) - 1)
        (size_0, ms_0), (size_1, ms_1) = points[right - 1 : right + 1]
        slope = max(0.0, (ms_1 - ms_0) / max(size_1 - size_0, 1e-6))
        return max(ms_1 + slope * (size - size_1), 0.0)


Result = TypeVar("Result")


@dataclass(slots=True)
class Usage:
    """The usage of one request over all its canvases."""

    milliseconds: dict[str, float] = field(default_factory=lambda: {"prefill": 0.0, "draft": 0.0, "denoise": 0.0, "score": 0.0})
    prefix_tokens: int = 0
    reused_tokens: int = 0

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.milliseconds[stage] += (time.perf_counter() - began) * 1000

    def timed(self, stage: str, work: Generator[bool, None, Result]) -> Generator[bool, None, Result]:
        """Run the work to its end, yielding as it does, and return its result; only the time of its units is added."""
        while True:
            with self.timing(stage):
                try:
                    next(work)
                except StopIteration as stop:
                    result: Result = stop.value
                    return result
            yield True
