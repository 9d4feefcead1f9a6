"""Kill the engine repeatedly during typing in Neovim with default settings; suggestions must return each time.

The time from a ready engine to each suggestion is printed (`-s`), not asserted. See `kills` for the variables.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import kills
from tests.editors.kills import Sample, Victim
from tests.editors.machine import program
from tests.editors.neovim import Neovim
from tests.editors.waiting import until

N_KILLS = kills.N_KILLS or 2


@pytest.fixture
def nvim(environment: Mapping[str, str], tmp_path: Path, watch: Callable[[Callable[[], str]], None]) -> Iterator[Neovim]:
    settings = f"{{ ['completion.deadline'] = {kills.DEADLINE_MS} }}" if kills.DEADLINE_MS else "{}"
    with Neovim(program("nvim"), tmp_path, environment, f"{{ settings = {settings} }}") as editor:
        watch(editor.picture)
        yield editor


def type_line(nvim: Neovim, chance: random.Random, sample: Sample) -> None:
    """Type a line of a new text with varying pauses."""
    nvim.lua("vim.cmd.stopinsert()")
    nvim.until("vim.api.nvim_get_mode().mode == 'n'", "normal mode")
    nvim.call("nvim_buf_set_lines", 0, 0, -1, True, sample.text.split("\n"))
    nvim.call("nvim_win_set_cursor", 0, [kills.LINE + 1, 0])
    nvim.type("A")
    for key in kills.KEYS:
        nvim.type(key)
        time.sleep(chance.uniform(0.03, 0.2))


@pytest.mark.slow
def test_a_suggestion_comes_after_each_of_many_kills(nvim: Neovim, environment: Mapping[str, str]) -> None:
    chance, samples = random.Random(16), kills.samples()
    nvim.edit("shapes.py", next(samples).text)
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
            was_dead, sample = victim.is_dead, next(samples)
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
