"""The plugin in a Neovim with a screen: what only a terminal shows, told by tmux. `test_nvim` tests what it does."""

from __future__ import annotations

import ast
import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine
from tests.editors.conftest import Watch
from tests.editors.neovim import EVERYTHING, PLUGIN
from tests.editors.terminal import Terminal
from tests.editors.texts import FILES, LONG_BODY
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
            "vim.o.statusline = \"%f%( %m%) %{v:lua.require'dg_lsp'.statusline()}\"\n"
            f"vim.api.nvim_set_hl(0, 'ComplHint', {{ fg = '{GREY}' }})\n"
            f"require('dg_lsp').setup({EVERYTHING})\n"
            'vim.keymap.set("i", "<M-n>", "<Plug>(dg-lsp-next)")\n'
        )
        super().__init__([str(machine.program("nvim")), "--clean", "-u", str(init)], folder, environment)
        self.until_seen("[No Name]")

    def grey(self) -> str:
        """Return what is drawn as a suggestion, by its colour."""
        red, green, blue = (int(GREY[idx : idx + 2], 16) for idx in (1, 3, 5))
        parts = self.screen(colours=True).split(f"\x1b[38;2;{red};{green};{blue}m")[1:]
        return "\n".join(part.split("\x1b")[0].rstrip() for part in parts)

    def open(self, name: str, text: str) -> Path:
        """Write a file with exactly this text and open it; wait for the engine."""
        path = self._folder / name
        path.write_bytes(text.encode())
        self.type(f":edit {name}\n")
        self.until_seen(f"{name} DG")
        until(lambda: "DG Working" not in self.screen(), "the engine", tell=self.screen)
        return path

    def save(self, path: Path) -> str:
        """Write the buffer; return what the file holds then."""
        self.press("Escape")
        # A message of the plugin may replace the editor's own, so the file and the status line tell.
        before = path.stat().st_mtime_ns
        self.type(":write\n")
        until(
            lambda: path.stat().st_mtime_ns != before and f"{path.name} [+]" not in self.screen(),
            "the written file",
            tell=self.screen,
        )
        return path.read_bytes().decode()


@pytest.fixture
def terminal(environment: Mapping[str, str], tmp_path: Path, watch: Watch) -> Iterator[Neovim]:
    neovim_terminal = Neovim(tmp_path, environment)
    watch(neovim_terminal.screen)
    yield neovim_terminal
    neovim_terminal.close()


def test_a_draft_of_several_lines_makes_room_for_itself(terminal: Neovim) -> None:
    path = terminal.open("files.py", FILES)
    terminal.type(f":{LONG_BODY + 1}\n:DgFill\n")
    until(lambda: len(terminal.grey().split("\n")) > 2, "a draft of several lines", tell=terminal.screen)
    terminal.keep("nvim-draft")
    until(lambda: not terminal.grey() and "files.py [+]" in terminal.screen(), "the filled body", tell=terminal.screen)
    ast.parse(terminal.save(path))


def test_a_file_of_secrets_gets_nothing_and_the_status_says_why(terminal: Neovim) -> None:
    terminal.open(".env", "API_KEY=\n")
    terminal.type("A1")

    # The status line says "Ready" before and after a request; a request by key is answered with the reason in words.
    for patience_s in (5, 10, 20, 40):  # pressed again only with patience, because that ends the request before
        terminal.press("M-n")
        with contextlib.suppress(AssertionError):
            until(lambda: "may hold secrets" in terminal.screen(), "the reason", patience_s=patience_s)
            break
    terminal.until_seen("may hold secrets")
    assert not terminal.grey()
    terminal.press("Escape")
    terminal.type(":Dg status\n")
    terminal.until_seen("No suggestion: this file gets no suggestions: it may hold secrets")
    assert "Press ENTER" not in terminal.screen()
    assert terminal.screen().count("may hold secrets") == 1  # the last message was the same reason
    terminal.type("h")
    until(lambda: "may hold secrets" not in terminal.screen(), "the float to close", tell=terminal.screen)


def test_the_readme_leads_from_nothing_to_the_first_suggestion_and_the_first_fill(
    environment: Mapping[str, str], tmp_path: Path, watch: Watch, request: pytest.FixtureRequest
) -> None:
    page = (PLUGIN / "README.md").read_text("utf-8")
    configuration = page.split("```lua\n", 1)[1].split("```", 1)[0]
    assert "/path/to/dg-lsp/editors/nvim" in configuration
    init = tmp_path / "init.lua"
    init.write_text(configuration.replace("/path/to/dg-lsp/editors/nvim", str(PLUGIN)))
    (tmp_path / "files.py").write_text(FILES)
    neovim_terminal = Terminal([str(machine.program("nvim")), "-u", str(init), "files.py"], tmp_path, environment)
    request.addfinalizer(neovim_terminal.close)
    watch(neovim_terminal.screen)
    neovim_terminal.until_seen("read_settings")
    neovim_terminal.type(f":{LONG_BODY + 1}\n:DgFill\n")
    # The text may be seen before it is there: as a draft.
    neovim_terminal.until_seen("files.py [+]")
    until(lambda: neovim_terminal.screen().count("except OSError") == 2, "the fill", tell=neovim_terminal.screen)
    neovim_terminal.type("u")
    neovim_terminal.until_seen("    ...")
    neovim_terminal.type(f"{LONG_BODY + 1}GStry:\nwith open(path) as file:\nreturn json.")
    until(lambda: neovim_terminal.screen().count("return json.load(file)") == 2, "the suggestion", tell=neovim_terminal.screen)
    # The ruler tells what is text: the cursor moves behind it.
    before = re.findall(r"\d+,\d+", neovim_terminal.screen())[-1]
    neovim_terminal.press("M-l")
    until(
        lambda: re.findall(r"\d+,\d+", neovim_terminal.screen())[-1] != before, "the accepted text", tell=neovim_terminal.screen
    )
    neovim_terminal.press("Escape")
    neovim_terminal.type(":write\n")
    neovim_terminal.until_seen("written")
    assert (tmp_path / "files.py").read_text().count("return json.load(file)") == 2
    neovim_terminal.type(":checkhealth dg-lsp\n")
    neovim_terminal.until_seen("<M-l> accepts suggestions")
    assert "ERROR" not in neovim_terminal.screen()
