"""The plugin in a Neovim with a screen: what a user sees in a terminal, told by tmux."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine
from tests.editors.neovim import PLUGIN
from tests.editors.terminal import Terminal
from tests.editors.test_nvim import OPTIONS
from tests.editors.texts import BODIES, SHOP
from tests.editors.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not there")

# Grey, which only the suggestion is.
GREY = "#6c7086"


class Neovim(Terminal):
    """A Neovim with the plugin, and with suggestions in a colour of their own."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        init = folder / ".init.lua"
        init.write_text(
            f"vim.opt.rtp:prepend({str(PLUGIN)!r})\n"
            "vim.o.swapfile, vim.o.termguicolors, vim.o.laststatus = false, true, 2\n"
            "vim.o.statusline = \"%f %{v:lua.require'dg_lsp'.statusline()}\"\n"
            f"vim.api.nvim_set_hl(0, 'ComplHint', {{ fg = '{GREY}' }})\n"
            f"require('dg_lsp').setup({OPTIONS})\n"
            'vim.keymap.set("i", "<M-l>", "<Plug>(dg-lsp-accept)")\n'
        )
        super().__init__([str(machine.program("nvim")), "--clean", "-u", str(init)], folder, environment)
        self.until_seen("[No Name]")

    def grey(self) -> str:
        """Return what is drawn as a suggestion, by its colour."""
        red, green, blue = (int(GREY[idx : idx + 2], 16) for idx in (1, 3, 5))
        parts = self.screen(colours=True).split(f"\x1b[38;2;{red};{green};{blue}m")[1:]
        return "\n".join(part.split("\x1b")[0].rstrip() for part in parts)

    def open(self, name: str, text: str) -> Path:
        """Write a file and open it; wait for the engine."""
        path = self._folder / name
        path.write_text(text)
        self.type(f":edit {name}\n")
        self.until_seen(f"{name} DG")
        until(lambda: "DG starting" not in self.screen(), "the engine", tell=self.screen)
        return path


@pytest.fixture
def terminal(environment: Mapping[str, str], tmp_path: Path) -> Iterator[Neovim]:
    made = Neovim(tmp_path, environment)
    yield made
    made.close()


def test_what_is_grey_is_what_is_accepted(terminal: Neovim) -> None:
    path = terminal.open("shop.py", SHOP)
    terminal.type("5GA\nself.")
    ghost = until(terminal.grey, "ghost text", tell=terminal.screen)
    terminal.press("M-l")
    until(lambda: not terminal.grey(), "no ghost text", tell=terminal.screen)
    terminal.press("Escape")
    terminal.type(":write\n")
    terminal.until_seen("written")
    saved = path.read_text()
    head, tail = SHOP.split("item):\n", 1)
    assert saved.startswith(f"{head}item):\n        self.{ghost.splitlines()[0]}")
    assert saved.endswith(tail)
    ast.parse(saved)


def test_a_fill_is_seen_while_it_is_written(terminal: Neovim) -> None:
    terminal.open("item.py", BODIES)
    terminal.type(":11\n:DgFill\n")
    drafts: set[str] = set()

    def settled() -> bool:
        drafts.add(terminal.grey())
        # Of the three holes one is gone, and so is what was drawn.
        return terminal.screen().count("...") == 2 and not terminal.grey() and len(drafts) > 1

    until(settled, "the filled body", tell=lambda: (drafts, terminal.screen()))
    assert len(drafts - {""}) >= 2
    terminal.press("u")
    until(lambda: terminal.screen().count("...") == 3, "the old text", tell=terminal.screen)


def test_the_code_actions_are_in_the_menu(terminal: Neovim) -> None:
    terminal.open("item.py", BODIES)
    terminal.type(":11\ngra")
    terminal.until_seen("Fill function body")
    terminal.type("1\n")
    until(lambda: terminal.screen().count("...") == 2, "the filled body", tell=terminal.screen)
