"""What the tests need that kill the engine again and again while somebody types: texts to type, and the killing.

`KILLS` says how often, as twenty take minutes. `DEADLINE_MS` replaces the default deadline, for a machine that is too busy
to meet it with or without kills.
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
# Another text each time: no answer is cached, and none was rejected on that line before.
NAMES = [
    (one, two) for one in ("width", "depth", "left", "size") for two in ("height", "length", "weight", "right", "price", "name")
]
LINE = SHAPES[: SHAPES.index("CURSOR")].count("\n")
KEYS = "self."
DEADLINE_MS = int(os.environ.get("DEADLINE_MS", "0"))
N_KILLS = int(os.environ.get("KILLS", "0"))


@dataclass(frozen=True, slots=True)
class Sample:
    """A text whose line `LINE` is to be typed, and what a right suggestion goes on with after `KEYS`."""

    text: str
    answer: str


def samples() -> Iterator[Sample]:
    """Yield texts to type in, for ever."""
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
        """Whether the process is gone. Whatever is suggested for a text that was typed later is from another engine."""
        try:
            return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
