"""The plugin in a Neovim with a screen: what a user sees in a terminal, told by tmux."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine
from tests.editors.neovim import PLUGIN
from tests.editors.terminal import Terminal
from tests.editors.test_nvim import OPTIONS
from tests.editors.texts import BODIES, FILES, INSIDE, LONG_BODY, SHOP, paced
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
            f"require('dg_lsp').setup({OPTIONS})\n"
            'vim.keymap.set("i", "<M-l>", "<Plug>(dg-lsp-accept)")\n'
            'vim.keymap.set("i", "<M-w>", "<Plug>(dg-lsp-accept-word)")\n'
            'vim.keymap.set("i", "<M-n>", "<Plug>(dg-lsp-next)")\n'
            'vim.keymap.set("i", "<M-p>", "<Plug>(dg-lsp-previous)")\n'
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

    def begin(self, typed: str) -> str:
        """Begin a line in the shop's `add`; return the suggestion."""
        self.type(f"5GA\n{typed}")
        return self.until_grey()

    def until_grey(self) -> str:
        """Return the suggestion as soon as there is one."""
        return until(self.grey, "ghost text", tell=self.screen)

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
def terminal(environment: Mapping[str, str], tmp_path: Path, watch: Callable[[Callable[[], str]], None]) -> Iterator[Neovim]:
    neovim_terminal = Neovim(tmp_path, environment)
    watch(neovim_terminal.screen)
    yield neovim_terminal
    neovim_terminal.close()


def test_the_accepted_text_is_the_ghost_text(terminal: Neovim) -> None:
    path = terminal.open("shop.py", SHOP)
    ghost = terminal.begin("self.")
    terminal.press("M-l")
    until(lambda: not terminal.grey(), "no ghost text", tell=terminal.screen)
    saved = terminal.save(path)
    head, tail = SHOP.split("item):\n", 1)
    assert saved.startswith(f"{head}item):\n        self.{ghost.splitlines()[0]}")
    assert saved.endswith(tail)
    ast.parse(saved)


def test_a_word_is_accepted(terminal: Neovim) -> None:
    path = terminal.open("files.py", FILES.replace("    ...\n", ""))
    terminal.type(f"{LONG_BODY}GA\ntry:")
    whole = terminal.until_grey()
    assert "open(path)" in whole
    terminal.press("M-w")
    until(lambda: (now := terminal.grey()) and now != whole, "the rest of the suggestion", tell=terminal.screen)
    # Its first word stands behind the line break and the indent.
    saved = terminal.save(path)
    assert saved.count("        with\n") == 1
    assert saved.endswith(FILES.split("...\n")[1])


def test_other_suggestions_are_shown_in_turn(terminal: Neovim) -> None:
    terminal.open("shop.py", SHOP)
    suggestions = {terminal.begin("value = ")}
    terminal.press("M-n")
    until(lambda: terminal.grey() not in ("", *suggestions), "another suggestion", tell=terminal.screen)
    terminal.press("M-p")
    until(
        lambda: terminal.grey().split("\n")[0] in {each.split("\n")[0] for each in suggestions},
        "the first",
        tell=terminal.screen,
    )


def test_a_draft_is_visible_during_a_fill(terminal: Neovim) -> None:
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


def test_a_draft_of_several_lines_makes_room_for_itself(terminal: Neovim) -> None:
    path = terminal.open("files.py", FILES)
    terminal.type(f":{LONG_BODY + 1}\n:DgFill\n")
    until(lambda: len(terminal.grey().split("\n")) > 2, "a draft of several lines", tell=terminal.screen)
    terminal.keep("nvim-draft")
    until(lambda: not terminal.grey() and "files.py [+]" in terminal.screen(), "the filled body", tell=terminal.screen)
    ast.parse(terminal.save(path))


def test_all_holes_are_filled_while_the_statusline_says_so(terminal: Neovim) -> None:
    path = terminal.open("item.py", BODIES)
    terminal.type(":DgFill!\n")
    terminal.until_seen("DG Working")
    # Between two drafts the screen may show neither the old text nor grey; the report comes after the edit.
    terminal.until_seen("3 of 3 holes filled")
    assert "..." not in terminal.screen()
    assert not terminal.grey()
    ast.parse(terminal.save(path))
    terminal.press("u")
    until(lambda: terminal.screen().count("...") == 3, "the old text after one undo", tell=terminal.screen)


def test_a_killed_engine_comes_back_and_the_statusline_says_so(terminal: Neovim, environment: Mapping[str, str]) -> None:
    terminal.open("shop.py", SHOP)
    terminal.begin("self.")
    terminal.press("Escape")
    os.kill(int(json.loads(machine.engine(environment, "status", "--json"))["pid"]), signal.SIGKILL)
    states: set[str] = set()

    def looked() -> str:
        states.update(re.findall(r"shop\.py (?:\[\+\] )?DG *(\S*)", terminal.screen()))
        return terminal.grey()

    terminal.type("S        value = self.")
    until(looked, "ghost text", tell=lambda: (states, terminal.screen()))
    assert "Working" in states, states


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


@pytest.mark.parametrize("kind", ["crlf", "tabs", "wide"])
def test_other_texts_stay_whole(terminal: Neovim, kind: str) -> None:
    text = {
        "crlf": SHOP.replace("\n", "\r\n"),
        "tabs": SHOP.replace("    ", "\t"),
        "wide": SHOP.replace("def add(self, item):", "def add(self, item='😀日本語'):"),
    }[kind]
    path = terminal.open(f"{kind}.py", text)
    if kind == "tabs":
        terminal.type(":set noexpandtab\n")
    ghost = terminal.begin("x = '😀日'; value = self.").split("\n")[0]
    terminal.press("M-l")
    until(lambda: not terminal.grey(), "no ghost text", tell=terminal.screen)
    saved = terminal.save(path)
    eol, indent = "\r\n" if kind == "crlf" else "\n", "\t\t" if kind == "tabs" else "        "
    lines = text.split(eol)
    head, tail = eol.join(lines[: INSIDE[0] + 1]), eol.join(lines[INSIDE[0] + 1 :])
    assert saved.startswith(f"{head}{eol}{indent}x = '😀日'; value = self.{ghost}")
    assert saved.endswith(tail)
    ast.parse(saved)


def test_fast_typing_is_exactly_what_was_typed(terminal: Neovim) -> None:
    path = terminal.open("fast.py", "\n")
    terminal.type(":set noautoindent indentexpr=\n")
    typed_text, keys = paced()
    terminal.press("i")
    for key in keys:
        if len(key) > 1:
            terminal.press({"Backspace": "BSpace"}.get(key, key))
        else:
            terminal.type(key)
        # Twelve keys a second is what is tested; there is no state to wait for.
        time.sleep(1 / 12)
    assert terminal.save(path) == typed_text + "\n"
    until(lambda: not terminal.grey(), "no ghost text outside insert mode", tell=terminal.screen)


def test_the_code_actions_are_in_the_menu(terminal: Neovim) -> None:
    terminal.open("item.py", BODIES)
    terminal.type(":11\ngra")
    terminal.until_seen("Fill function body")
    terminal.type("1\n")
    until(lambda: terminal.screen().count("...") == 2, "the filled body", tell=terminal.screen)


def test_the_readme_leads_from_nothing_to_the_first_suggestion_and_the_first_fill(
    environment: Mapping[str, str],
    tmp_path: Path,
    watch: Callable[[Callable[[], str]], None],
    request: pytest.FixtureRequest,
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
