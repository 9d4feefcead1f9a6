"""Kill the engine repeatedly during typing in Neovim with default settings; suggestions must return each time.

The time from a ready engine to each suggestion is printed (`-s`), not asserted. `KILLS` sets the number of kills; twenty take
minutes. `DEADLINE_MS` replaces the default deadline on a machine that is too busy to meet it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from tests.editors import machine
from tests.editors.neovim import Neovim
from tests.editors.waiting import until
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
N_KILLS = int(os.environ.get("KILLS", "2"))
OPTIONS = f"{{ settings = {{ ['completion.deadline'] = {DEADLINE_MS} }} }}" if DEADLINE_MS else "{}"


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
        self._pid = machine.engine_pid(environment)
        self._timer = threading.Timer(chance.uniform(0, 2.0), self._kill)
        self._timer.start()

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended. A suggestion for a text that is typed later comes from another engine."""
        return is_gone(self._pid)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


def type_line(nvim: Neovim, chance: random.Random, sample: Sample) -> None:
    """Type a line of a new text with varying pauses."""
    nvim.leave()
    nvim.call("nvim_buf_set_lines", 0, 0, -1, True, sample.text.split("\n"))
    nvim.call("nvim_win_set_cursor", 0, [LINE + 1, 0])
    nvim.type("A")
    for key in KEYS:
        nvim.type(key)
        time.sleep(chance.uniform(0.03, 0.2))


@pytest.mark.slow
def test_a_suggestion_comes_after_each_of_many_kills(nvim: Neovim, environment: Mapping[str, str]) -> None:
    chance, texts = random.Random(16), samples()
    nvim.edit("shapes.py", next(texts).text)
    nvim.lua(
        """
        _G.ready_at = 0
        vim.api.nvim_create_autocmd("User", { pattern = "DgLspStatus", callback = function(event)
          if event.data.state ~= "ready" then
            _G.is_down = true
          elseif _G.is_down then
            _G.is_down, _G.ready_at = false, vim.uv.now()
          end
        end })
        """
    )
    waits_ms, others = [], list[str]()
    for number in range(N_KILLS):
        victim = Victim(environment, chance)

        def is_back(victim: Victim = victim, number: int = number) -> bool:
            was_dead, sample = victim.is_dead, next(texts)
            type_line(nvim, chance, sample)
            # A patient user waits this long before typing on; on a busy machine an answer takes seconds.
            end = time.monotonic() + 10.0
            while time.monotonic() < end and not nvim.ghost():
                time.sleep(0.05)
            ghost = nvim.ghost()
            if was_dead and ghost != sample.answer:
                others.append(f"kill {number + 1}: {ghost or nvim.status().get('suppressed') or nvim.status().get('state')}")
            # Accept it, because a rejected text is not suggested again.
            nvim.lua("if require('dg_lsp').is_shown() then require('dg_lsp').accept() end")
            return was_dead and ghost == sample.answer

        until(is_back, f"a suggestion after kill {number + 1}", tell=nvim.picture)
        waits_ms.append(int(nvim.lua("return vim.uv.now() - _G.ready_at")))
    print("\nms from the engine's being ready to a suggestion that was seen:", sorted(waits_ms))
    print("instead of the right suggestion:", "\n".join(others) or "nothing")
    assert len(waits_ms) == N_KILLS
