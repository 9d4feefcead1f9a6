"""Next edits in Neovim, from the real server with an engine that writes what the text says."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.editor import says
from tests.editors.machine import ROOT, program
from tests.editors.neovim import Neovim
from tests.editors.waiting import until

COMMAND = (sys.executable, "-m", "dg_lsp", "serve", "--engine", "tests.server.scripted:engine")
SETUP = f"{{ cmd = {{ {', '.join(map(json.dumps, COMMAND))} }}, settings = {{ ['nextEdit.trigger'] = 'TRIGGER' }} }}"
OPTIONS = SETUP.replace("TRIGGER", "pause")
VARIABLES = {"PYTHONPATH": str(ROOT), "DG_LSP_EDIT_MODEL": "fim:openai:http://127.0.0.1:1#scripted"}

CODE = "def area(w, h):\n    return w * h\n\n\na = area(2, 3)\nprint(a)\nb = area(4, 5)\n"
RENAMED = CODE.replace("def area", "def size")
FIRST = RENAMED.replace("a = area", "a = size")
SECOND = FIRST.replace("b = area", "b = size")
# Blank lines keep the script out of the lines around the cursor, which the engine rewrites.
GAP = "\n\n\n"
TOP = 4

# Counts the answers, and maps Tab as the help suggests.
PREPARE = """
vim.g.n_answers = 0
vim.api.nvim_create_autocmd("LspRequest", { callback = function(event)
  local request = event.data.request
  if request.method == "textDocument/copilotInlineEdit" and request.type == "complete" then
    vim.g.n_answers = vim.g.n_answers + 1
  end
end })
vim.keymap.set({ "n", "i" }, "<Tab>", function()
  return require("dg_lsp").has_next_edit() and "<Plug>(dg-lsp-next-edit)" or "<Tab>"
end, { expr = true, remap = true })
"""
SEEN = """
local seen = {}
for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, vim.api.nvim_create_namespace("dg-lsp-next-edit"), 0, -1,
    { details = true })) do
  local row, column, details = mark[2], mark[3], mark[4]
  local function add(kind, text) table.insert(seen, { row, kind, text }) end
  if details.hl_group then
    add("old", vim.api.nvim_buf_get_text(0, row, column, details.end_row, details.end_col, {})[1])
  end
  if details.virt_text then add("new", details.virt_text[1][1]) end
  for _, line in ipairs(details.virt_lines or {}) do
    add(details.virt_lines_above and "above" or "below", line[1][1])
  end
end
return seen
"""


def seen(nvim: Neovim) -> list[tuple[int, str, str]]:
    """Return what is drawn: the row of the code, whether it is old text or new, and the text."""
    return [(row - TOP, kind, text) for row, kind, text in nvim.lua(SEEN)]


def code(nvim: Neovim) -> str:
    return nvim.text().split("\n", TOP)[TOP]


def open_code(nvim: Neovim, text: str, edit: tuple[str, str], name: str = "a.py") -> None:
    nvim.lua(PREPARE)
    ends = "\r\n" if "\r\n" in text else "\n"
    nvim.edit(name, (says(edit=edit) + GAP).replace("\n", ends) + text)


def change(nvim: Neovim, keys: str) -> list[tuple[int, str, str]]:
    """Press keys in Normal mode, and return what is drawn then."""
    nvim.type(keys)
    return until(lambda: seen(nvim), "an edit", tell=nvim.picture)


def rename(nvim: Neovim) -> None:
    """Rename the function in its definition, and wait until the first call of it is offered."""
    open_code(nvim, CODE, ("area", "size"))
    assert change(nvim, f"{TOP + 1}Gwcwsize<Esc>") == [(4, "old", "area"), (4, "new", "size")]
    assert code(nvim) == RENAMED


def until_answered(nvim: Neovim, keys: str) -> None:
    """Press keys that move the cursor, and wait for the answer that is given there."""
    before = int(nvim.lua("return vim.g.n_answers"))
    nvim.type(keys)
    nvim.until(f"vim.g.n_answers > {before}", "an answer")
    nvim.until("next(vim.lsp.get_clients({ name = 'dg_lsp' })[1].requests) == nil", "all answers")


def test_an_edit_is_shown_gone_to_and_accepted_and_the_rest_follows(nvim: Neovim) -> None:
    rename(nvim)
    assert nvim.lua("return require('dg_lsp').statusline()") == "DG Edit   "
    nvim.type("<Tab>")
    nvim.until(f"vim.deep_equal(vim.api.nvim_win_get_cursor(0), {{ {TOP + 5}, 4 }})", "the cursor at the edit")
    assert code(nvim) == RENAMED
    nvim.type("<Tab>")
    until(lambda: code(nvim) == FIRST, "the first call", tell=nvim.picture)
    until(lambda: seen(nvim) == [(6, "old", "area"), (6, "new", "size")], "the rest", tell=nvim.picture)
    nvim.type("<Tab><Tab>")
    until(lambda: code(nvim) == SECOND, "the second call", tell=nvim.picture)
    # Without an edit the key is Neovim's own.
    nvim.type("A<Tab><Esc>")
    until(lambda: code(nvim) == SECOND.replace("5)\n", "5)  \n"), "a tab", tell=nvim.picture)
    nvim.type("uu")
    until(lambda: code(nvim) == FIRST, "one step back", tell=nvim.picture)


@pytest.mark.parametrize("keys", ["<Esc>", ":Dg reject<CR>"])
def test_a_rejected_edit_does_not_come_back(nvim: Neovim, keys: str) -> None:
    rename(nvim)
    nvim.type(keys)
    until(lambda: not seen(nvim), "the edit to go", tell=nvim.picture)
    until_answered(nvim, "jj")
    assert seen(nvim) == []
    assert code(nvim) == RENAMED


def test_escape_in_insert_mode_keeps_the_edit(nvim: Neovim) -> None:
    rename(nvim)
    nvim.type("i")
    nvim.until("vim.api.nvim_get_mode().mode == 'i'", "insert mode")
    nvim.leave("<Esc>")
    assert until(lambda: seen(nvim), "the edit") == [(4, "old", "area"), (4, "new", "size")]


@pytest.mark.parametrize(
    ("action", "after"),
    [
        ("vim.cmd('undo')", CODE),
        ("vim.api.nvim_buf_set_lines(0, -1, -1, true, { '# more' })", RENAMED + "# more\n"),
        # The first call goes there, the second applies, and the third asks.
        ("for _ = 1, 3 do require('dg_lsp').next_edit() end", FIRST),
        ("vim.cmd('file b.py')", RENAMED),
        ("vim.cmd('new') vim.cmd('wincmd p')", RENAMED),
        ("vim.cmd('write') vim.cmd('bdelete') vim.cmd('edit a.py')", RENAMED),
        ("vim.api.nvim_paste(('x = 1\\n'):rep(170000), false, -1)", None),
        ("vim.cmd('write') vim.fn.writefile({ '', '', '', '', 'b = 1' }, 'a.py') vim.cmd('edit')", "b = 1\n"),
        ("vim.cmd('write') vim.cmd('enew')", None),
    ],
    ids=["undo", "change", "accepted twice", "renamed", "another window", "closed", "huge paste", "branch", "another buffer"],
)
def test_what_makes_an_edit_stale_takes_it_away(nvim: Neovim, action: str, after: str | None) -> None:
    rename(nvim)
    assert nvim.lua(f"{action} return require('dg_lsp').has_next_edit()") is False
    assert seen(nvim) == []
    assert after is None or code(nvim) == after
    nvim.until("#vim.tbl_keys((vim.lsp.get_clients({ name = 'dg_lsp' })[1] or {}).requests or {}) == 0", "all answers")
    assert after is None or code(nvim) == after


def test_another_window_of_the_same_text_accepts_it_too(nvim: Neovim) -> None:
    rename(nvim)
    nvim.command("split")
    nvim.type("G")
    nvim.type("<Tab><Tab>")
    until(lambda: code(nvim) == FIRST, "the first call", tell=nvim.picture)


@pytest.mark.parametrize(("enter", "leave"), [("V", "<Esc>"), ("qa", "q"), ("R", "<Esc>")])
def test_nothing_is_shown_in_a_selection_or_a_macro(nvim: Neovim, enter: str, leave: str) -> None:
    rename(nvim)
    nvim.type(enter)
    until(lambda: not seen(nvim), "the edit to go", tell=nvim.picture)
    nvim.type("jj" if enter != "R" else "")
    nvim.type(leave)
    assert change(nvim, "j") == [(4, "old", "area"), (4, "new", "size")]
    nvim.type("@a")
    assert code(nvim) == RENAMED


@pytest.mark.parametrize(
    ("text", "edit", "drawn", "after"),
    [
        (CODE, ("print(a)\n", ""), [(5, "old", "print(a)")], "a = area(2, 3)\nb ="),
        (CODE, ("print(a)\n", "print(a)\nexit()\n"), [(6, "above", "exit()")], "print(a)\nexit()\nb ="),
        (CODE, ("5)\n", "5)\n\texit()\n"), [(6, "below", "    exit()")], "5)\n\texit()\n"),
        (
            CODE,
            ("print(a)\n", "if a:\n    print(a)\n"),
            [(5, "old", "print(a)"), (5, "below", "if a:"), (5, "below", "    print(a)")],
            "if a:\n    print(a)\n",
        ),
        ("a = 1\n\nb = 'é'\n", ("= 'é'", "= 'è'"), [(2, "old", "é"), (2, "new", "è")], "b = 'è'"),
        (CODE.replace("\n", "\r\n"), ("area(4", "size(4"), [(6, "old", "area"), (6, "new", "size")], "size(4"),
    ],
    ids=["removed", "inserted", "at the end", "more lines", "accent", "CRLF"],
)
def test_how_an_edit_is_drawn_and_applied(
    nvim: Neovim, text: str, edit: tuple[str, str], drawn: list[tuple[int, str, str]], after: str
) -> None:
    open_code(nvim, text, edit)
    assert change(nvim, f"{TOP + 1}Gcwz<Esc>j") == drawn
    nvim.type("<Tab><Tab>")
    until(lambda: not seen(nvim), "the edit to go", tell=nvim.picture)
    assert after in code(nvim)


def test_with_the_trigger_manual_a_key_asks(environment: Mapping[str, str], tmp_path: Path) -> None:
    with Neovim(program("nvim"), tmp_path, {**environment, **VARIABLES}, SETUP.replace("TRIGGER", "manual")) as nvim:
        open_code(nvim, CODE, ("area", "size"))
        nvim.type(f"{TOP + 1}Gwcwsize<Esc>")
        until(lambda: code(nvim) == RENAMED, "the change", tell=nvim.picture)
        assert change(nvim, ":Dg next<CR>") == [(4, "old", "area"), (4, "new", "size")]
        assert nvim.lua("return vim.g.n_answers") == 1
        nvim.type("<Tab><Tab>")
        until(lambda: code(nvim) == FIRST, "the first call", tell=nvim.picture)


def test_with_the_trigger_off_nothing_runs(environment: Mapping[str, str], tmp_path: Path) -> None:
    with Neovim(program("nvim"), tmp_path, {**environment, **VARIABLES}, SETUP.replace("TRIGGER", "off")) as nvim:
        open_code(nvim, CODE, ("area", "size"))
        nvim.type(f"{TOP + 1}Gwcwsize<Esc>")
        until(lambda: code(nvim) == RENAMED, "the change", tell=nvim.picture)
        assert nvim.lua("return package.loaded['dg_lsp.next_edit'] == nil and vim.fn.exists('#dg-lsp-next-edit')") == 0
        nvim.lua("require('dg_lsp').next_edit()")
        assert "next edits are off" in nvim.notes()[-1]
        assert nvim.lua("return vim.g.n_answers") == 0


def test_a_line_above_the_first_one_is_on_the_screen(nvim: Neovim) -> None:
    nvim.lua(PREPARE)
    script = says(edit=["a = 1\n", "import b\na = 1\n"])
    nvim.edit("top.py", "a = 1\nc = 2\n" + "\n" * 9 + script)
    assert change(nvim, "2Gcwd<Esc>") == [(-TOP, "above", "import b")]
    assert nvim.lua("return vim.fn.winsaveview().topfill") == 1
    nvim.type("<Tab><Tab>")
    until(lambda: nvim.text().startswith("import b\na = 1\nd = 2\n"), "the import", tell=nvim.picture)
