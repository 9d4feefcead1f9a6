"""Count what a request has used so far: the time of each stage, and the tokens of its prefixes.

Knows a clock. Knows nothing of the stages' work.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

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
