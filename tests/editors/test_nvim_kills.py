"""Kill the engine repeatedly during typing in Neovim with default settings; suggestions must return each time.

The test runs only if `KILLS` sets the number of kills, because it takes minutes and needs an idle machine. `DEADLINE_MS`
replaces the default deadline on a machine that is too busy to meet it. The time from a ready engine to each suggestion is
printed (`-s`), not asserted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine
from tests.editors.machine import program
from tests.editors.neovim import Neovim
from tests.editors.waiting import until

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
DEADLINE_MS = os.environ.get("DEADLINE_MS", "")
N_KILLS = int(os.environ.get("KILLS", "0"))
pytestmark = pytest.mark.skipif(not N_KILLS, reason="set KILLS=20 to kill the engine that often")


@pytest.fixture
def nvim(environment: Mapping[str, str], tmp_path: Path, watch: Callable[[Callable[[], str]], None]) -> Iterator[Neovim]:
    settings = f"{{ ['completion.deadline'] = {int(DEADLINE_MS)} }}" if DEADLINE_MS else "{}"
    with Neovim(program("nvim"), tmp_path, environment, f"{{ settings = {settings} }}") as editor:
        watch(editor.picture)
        yield editor


def pid(environment: Mapping[str, str]) -> int:
    return int(json.loads(machine.engine(environment, "status", "--json"))["pid"])


def type_line(nvim: Neovim, chance: random.Random, names: Iterator[tuple[str, str]]) -> str:
    """Type a line of a new text with varying pauses, and return the expected continuation."""
    one, two = next(names)
    text = SHAPES.replace("ONE", one).replace("TWO", two).replace("CURSOR", "").split("\n")
    nvim.lua("vim.cmd.stopinsert()")
    nvim.until("vim.api.nvim_get_mode().mode == 'n'", "normal mode")
    nvim.call("nvim_buf_set_lines", 0, 0, -1, True, text)
    nvim.call("nvim_win_set_cursor", 0, [LINE + 1, 0])
    nvim.type("A")
    for key in KEYS:
        nvim.type(key)
        time.sleep(chance.uniform(0.03, 0.2))
    return f"{two} = {two}"


@pytest.mark.slow
def test_suggestions_return_after_each_of_many_kills(nvim: Neovim, environment: Mapping[str, str]) -> None:
    chance, names = random.Random(16), itertools.cycle(NAMES)
    nvim.edit("shapes.py", SHAPES)
    nvim.lua(
        """
        _G.ready = { n = 0, at = 0 }
        vim.api.nvim_create_autocmd("User", { pattern = "DgLspStatus", callback = function(event)
          if event.data.state ~= "ready" then
            _G.ready.is_down = true
          elseif _G.ready.is_down then
            _G.ready = { n = _G.ready.n + 1, at = vim.uv.now() }
          end
        end })
        """
    )
    waits_ms = []
    for number in range(N_KILLS):
        victim = pid(environment)
        killing = threading.Timer(chance.uniform(0, 2.0), _kill, [victim])
        killing.start()

        def is_back(number: int = number) -> bool:
            expected = type_line(nvim, chance, names)
            # Wait before the next key; on a busy machine an answer takes seconds.
            end = time.monotonic() + 10.0
            while time.monotonic() < end and not nvim.ghost():
                time.sleep(0.05)
            is_right = nvim.ghost() == expected
            # Accept the suggestion, so that it does not count as rejected.
            nvim.lua("if require('dg_lsp').is_shown() then require('dg_lsp').accept() end")
            return is_right and int(nvim.lua("return _G.ready.n")) > number

        until(is_back, f"a suggestion after kill {number + 1}", tell=nvim.picture)
        killing.join()
        waits_ms.append(int(nvim.lua("return vim.uv.now() - _G.ready.at")))
    print("\nms from a ready engine to the suggestion on the screen:", sorted(waits_ms))
    assert len(waits_ms) == N_KILLS


def _kill(victim: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
