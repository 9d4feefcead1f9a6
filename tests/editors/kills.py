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
from pathlib import Path

from tests.editors import machine

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
# Another text each time, so that no answer is cached, and none was rejected on that line before.
NAMES = [
    (one, two) for one in ("width", "depth", "left", "size") for two in ("height", "length", "weight", "right", "price", "name")
]
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
    """Yield texts without end."""
    for one, two in itertools.cycle(NAMES):
        text = SHAPES.replace("ONE", one).replace("TWO", two).replace("CURSOR", "")
        yield Sample(text, f"{two} = {two}")


class Victim:
    """The engine that runs now, which is killed within two seconds."""

    def __init__(self, environment: Mapping[str, str], chance: random.Random) -> None:
        self._pid = int(json.loads(machine.engine(environment, "status", "--json"))["pid"])
        self._timer = threading.Timer(chance.uniform(0, 2.0), self._kill)
        self._timer.start()

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended. A suggestion for a text that is typed later comes from another engine."""
        try:
            return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
