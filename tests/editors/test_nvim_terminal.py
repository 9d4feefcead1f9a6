"""The plugin in a Neovim with a screen: what a user sees in a terminal, told by tmux."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine
from tests.editors.neovim import PLUGIN
from tests.editors.test_nvim import OPTIONS
from tests.editors.texts import BODIES, SHOP
from tests.editors.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not there")

# Grey, which only the suggestion is.
GREY = "#6c7086"


class Terminal:
    """A Neovim in a terminal of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str], name: str) -> None:
        self._tmux = ["tmux", "-S", str(Path(environment["HOME"]) / f"tmux-{name[:12]}")]
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
        command = ["env", *(f"{key}={value}" for key, value in environment.items())]
        command += [str(machine.program("nvim")), "--clean", "-u", str(init)]
        self._run("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "-c", str(folder), *command)
        self.until_seen("[No Name]")

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=True, timeout=20)
        return done.stdout

    def screen(self, *, colours: bool = False) -> str:
        """Return what is on the screen."""
        return self._run("capture-pane", "-p", *(["-e"] if colours else []))

    def grey(self) -> str:
        """Return what is drawn as a suggestion, by its colour."""
        red, green, blue = (int(GREY[idx : idx + 2], 16) for idx in (1, 3, 5))
        parts = self.screen(colours=True).split(f"\x1b[38;2;{red};{green};{blue}m")[1:]
        return "\n".join(part.split("\x1b")[0].rstrip() for part in parts)

    def press(self, *keys: str) -> None:
        """Press named keys, as tmux names them."""
        self._run("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type text."""
        self._run("send-keys", "-l", text)

    def until_seen(self, text: str) -> None:
        """Wait until a text is on the screen."""
        until(lambda: text in self.screen(), f"{text!r} on the screen", tell=self.screen)

    def open(self, name: str, text: str) -> Path:
        """Write a file and open it; wait for the engine."""
        path = self._folder / name
        path.write_text(text)
        self.type(f":edit {name}\n")
        self.until_seen(f"{name} DG")
        until(lambda: "DG starting" not in self.screen(), "the engine", tell=self.screen)
        return path

    def close(self) -> None:
        """End Neovim and its terminal; keep the last screen to look at."""
        machine.PICTURES.mkdir(parents=True, exist_ok=True)
        (machine.PICTURES / f"{self._folder.name}.screen").write_text(self.screen(colours=True))
        self._run("kill-server")


@pytest.fixture
def terminal(environment: Mapping[str, str], tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path, environment, tmp_path.name)
    yield made
    made.close()


def test_what_is_grey_is_what_is_accepted(terminal: Terminal) -> None:
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


def test_a_fill_is_seen_while_it_is_written(terminal: Terminal) -> None:
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


def test_the_code_actions_are_in_the_menu(terminal: Terminal) -> None:
    terminal.open("item.py", BODIES)
    terminal.type(":11\ngra")
    terminal.until_seen("Fill function body")
    terminal.type("1\n")
    until(lambda: terminal.screen().count("...") == 2, "the filled body", tell=terminal.screen)
