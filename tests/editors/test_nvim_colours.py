"""Suggestions in Neovim differ from the user's own text, with and without true colour."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.editors import machine
from tests.editors.conftest import Watch
from tests.editors.neovim import EVERYTHING, PLUGIN, Neovim
from tests.editors.terminal import Terminal
from tests.editors.texts import SHOP
from tests.editors.waiting import until

# How a terminal shows bright black.
GREY = ("\x1b[90m", "\x1b[38;5;8m")


def colours(nvim: Neovim, name: str = "ComplHint") -> dict[str, Any]:
    return dict(nvim.lua(f"return vim.api.nvim_get_hl(0, {{ name = '{name}', link = false }})"))


def test_a_scheme_without_a_terminal_colour_for_suggestions_gets_grey(nvim: Neovim) -> None:
    dark = colours(nvim)
    assert (dark["ctermfg"], dark["fg"]) == (8, colours(nvim, "NonText")["fg"])
    assert colours(nvim, "DgLspDraft") == dark
    nvim.command("set background=light")
    light = colours(nvim)
    assert (light["ctermfg"], light["fg"]) == (8, colours(nvim, "NonText")["fg"])
    assert light["fg"] != dark["fg"]


def test_a_scheme_with_a_terminal_colour_for_suggestions_keeps_it(nvim: Neovim) -> None:
    nvim.command("colorscheme vim")
    assert colours(nvim)["ctermfg"] == colours(nvim, "NonText")["ctermfg"] != 8
    folder = nvim.folder / "colors"
    folder.mkdir()
    (folder / "own.lua").write_text(
        "vim.cmd.highlight('clear'); vim.api.nvim_set_hl(0, 'ComplHint', { ctermfg = 3, fg = 1 })\n"
    )
    nvim.lua("vim.opt.rtp:append(...)", str(nvim.folder))
    nvim.command("colorscheme own")
    assert colours(nvim) == {"ctermfg": 3, "fg": 1}
    nvim.command("colorscheme default")
    assert colours(nvim)["ctermfg"] == 8


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not there")
def test_a_suggestion_is_grey_in_a_terminal_without_true_colour(
    environment: Mapping[str, str], tmp_path: Path, watch: Watch, request: pytest.FixtureRequest
) -> None:
    init = tmp_path / "init.lua"
    init.write_text(
        f"vim.opt.rtp:prepend({str(PLUGIN)!r})\nvim.o.termguicolors = false\nrequire('dg_lsp').setup({EVERYTHING})\n"
    )
    (tmp_path / "shop.py").write_text(SHOP)
    terminal = Terminal([str(machine.program("nvim")), "--clean", "-u", str(init), "shop.py"], tmp_path, environment)
    request.addfinalizer(terminal.close)
    watch(terminal.screen)
    terminal.until_seen("class")
    terminal.type("5GA\nself.")
    until(lambda: any(grey in terminal.screen(colours=True) for grey in GREY), "grey text", tell=terminal.screen)
