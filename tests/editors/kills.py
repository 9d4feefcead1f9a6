"""Texts to type and a killer of engines, for the tests that kill the engine repeatedly during typing.

`KILLS` sets the number of kills; twenty take minutes. `DEADLINE_MS` replaces the default deadline on a machine that is too
busy to meet it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.editors import machine
from tests.processes import is_gone

SHAPES = """\
class Rectangle:
    def __init__(self, ONE, TWO):
        self.ONE = ONE
        self.TWO = TWO

    def area(self):
        return self.ONE * self.TWO


class Window:
    def __init__(self, ONE, TWO):
        self.ONE = ONE
        CURSOR

    def area(self):
        return self.ONE * self.TWO
"""
ONES = ("width", "depth", "left", "size", "first", "start", "count", "color", "top", "owner", "source", "low")
TWOS = ("height", "length", "weight", "right", "price", "name", "last", "stop", "label", "shape", "bottom", "high")
LINE = SHAPES[: SHAPES.index("CURSOR")].count("\n")
KEYS = "self."
DEADLINE_MS = int(os.environ.get("DEADLINE_MS", "0"))
N_KILLS = int(os.environ.get("KILLS", "0"))


@dataclass(frozen=True, slots=True)
class Sample:
    """A text to type `KEYS` into, on line `LINE`, and the right suggestion there."""

    text: str
    answer: str


def samples() -> Iterator[Sample]:
    """Yield texts without end, each once.

    The server has the answer for a text that it saw before, and shows it while no engine runs. The test would take that for
    an answer of the next engine and kill that engine before its first answer, which three times in a row is a crash loop.
    """
    for number in itertools.count():
        suffix = str(number + 1) if number else ""
        for one, two in itertools.product(ONES, TWOS):
            text = SHAPES.replace("ONE", one + suffix).replace("TWO", two + suffix).replace("CURSOR", "")
            yield Sample(text, f"{two}{suffix} = {two}{suffix}")


class Victim:
    """The engine that runs now, which is killed within two seconds."""

    def __init__(self, environment: Mapping[str, str], chance: random.Random) -> None:
        self._pid = int(json.loads(machine.engine(environment, "status", "--json"))["pid"])
        self._timer = threading.Timer(chance.uniform(0, 2.0), self._kill)
        self._timer.start()

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended. A suggestion for a text that is typed later comes from another engine."""
        return is_gone(self._pid)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
