"""Questions before a fill and reports after it in Neovim, with an engine that gives the answers written in the text."""

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

WORKING = "def f(count):\n    return count + 1\n"


COMMAND = (sys.executable, "-m", "dg_lsp", "serve", "--engine", "tests.server.scripted:engine")
OPTIONS = f"{{ cmd = {{ {', '.join(map(json.dumps, COMMAND))} }} }}"
VARIABLES = {"PYTHONPATH": str(ROOT)}


def until_asked(nvim: Neovim) -> str:
    nvim.until("require('dg_lsp.preview').window ~= nil", "the preview")
    return str(nvim.lua("return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, true), '\\n')"))


@pytest.mark.parametrize(("answer", "note"), [("return 2", "90 %"), ("pass", "90 %, replaces working code by less")])
def test_a_selection_is_regenerated_after_its_diff_was_shown(nvim: Neovim, answer: str, note: str) -> None:
    text = says(text=answer) + WORKING
    nvim.edit("a.py", text)
    nvim.command("3DgFill")
    diff = until_asked(nvim)
    assert "-    return count + 1" in diff
    assert f"+    {answer}" in diff
    config = nvim.lua("return vim.api.nvim_win_get_config(0)")
    title = config["title"][0][0]
    assert note in title
    # Neovim truncates a title that is wider than its window.
    assert config["width"] >= len(title)
    nvim.type("y")
    nvim.until("require('dg_lsp.preview').window == nil", "the preview to go")
    until(lambda: nvim.text() == text.replace("return count + 1", answer), "the new text", tell=nvim.picture)
    until(lambda: nvim.notes()[-1:] == [f"dg-lsp: filled ({note})"], "the note", tell=nvim.picture)
    nvim.command("undo")
    assert nvim.text() == text


@pytest.mark.parametrize("keys", ["n", "q", "<Esc>", ":close<CR>"])
def test_a_declined_diff_is_not_applied(nvim: Neovim, keys: str) -> None:
    text = says(text="pass") + WORKING
    nvim.edit("a.py", text)
    nvim.command("3DgFill")
    until_asked(nvim)
    nvim.type(keys)
    nvim.until("require('dg_lsp.preview').window == nil", "the preview to go")
    # Another preview opens, so the first request was answered.
    nvim.command("3DgFill")
    until_asked(nvim)
    nvim.type("n")
    nvim.until("require('dg_lsp.preview').window == nil", "the preview to go")
    assert nvim.text() == text


def test_a_code_action_shows_its_diff_first(nvim: Neovim) -> None:
    text = says(text="return 2") + WORKING
    nvim.edit("a.py", text)
    nvim.type("3GV")
    nvim.lua("vim.lsp.buf.code_action({ apply = true, filter = function(a) return a.title == 'Regenerate selection' end })")
    assert "+    return 2" in until_asked(nvim)
    nvim.type("y")
    until(lambda: nvim.text() == text.replace("return count + 1", "return 2"), "the new text", tell=nvim.picture)


def test_fills_of_a_whole_file_end_with_a_list(nvim: Neovim) -> None:
    stubs = "def f():\n    ...\n\n\ndef g():\n    ...\n"
    text = says(texts=["return 1", "return 22"]) + stubs
    nvim.edit("a.py", text)
    nvim.command("DgFill!")
    until(lambda: nvim.text().count("return") == 4, "both fills", tell=nvim.picture)
    until(lambda: "dg-lsp: 2 of 2 holes filled; :lopen lists them" in nvim.notes(), "the note", tell=nvim.picture)
    items = nvim.lua("return vim.fn.getloclist(0)")
    assert [(item["lnum"], item["col"], item["text"]) for item in items] == [
        (3, 5, "90 %: return 1"),
        (7, 5, "90 %: return 22"),
    ]
    nvim.command("undo")
    assert nvim.text() == text


def test_the_report_of_a_whole_file_counts_the_holes_that_stayed_empty(nvim: Neovim) -> None:
    # Nothing binds `total` in the second function.
    nvim.edit("a.py", says(text="return total") + "def f(total):\n    ...\n\n\ndef g():\n    ...\n")
    nvim.command("DgFill!")
    until(lambda: "dg-lsp: 1 of 2 holes filled; :lopen lists them" in nvim.notes(), "the note", tell=nvim.picture)
    items = nvim.lua("return vim.fn.getloclist(0)")
    assert [(item["lnum"], item["text"]) for item in items] == [(3, "90 %: return total")]
    assert any("1 of 2 holes were filled: the answer uses a name" in note for note in nvim.notes())


def test_a_missing_program_is_the_only_problem_that_is_reported(environment: Mapping[str, str], tmp_path: Path) -> None:
    with Neovim(program("nvim"), tmp_path, environment, "{ cmd = { '/nowhere/dg-lsp', 'serve' } }") as nvim:
        nvim.edit("a.py", WORKING, wait=False)
        status = nvim.lua("return require('dg_lsp.status').sentences()[1]")
        assert status == "dg-lsp is not running for this buffer. /nowhere/dg-lsp can't be run; see :checkhealth dg-lsp."
        nvim.command("checkhealth dg_lsp")
        report = nvim.text()
        assert "/nowhere/dg-lsp can't be run" in report
        # `setup` was called. It enables nothing without the program.
        assert "call require" not in report


def test_an_unknown_subcommand_is_reported_in_one_line(nvim: Neovim) -> None:
    nvim.edit("a.py", WORKING, wait=False)
    nvim.lua("vim.notify = loadstring('return function(text) _G.seen_note = text end', '@vim/_core/test.lua')()")
    nvim.command("Dg statu")
    message = nvim.lua("return _G.seen_note")
    assert message.startswith("dg-lsp: unknown subcommand :Dg statu")
    assert len(message) < int(nvim.lua("return vim.o.columns"))
    assert "the subcommands are cancel," in nvim.sentences()


def test_a_long_message_is_truncated_and_shown_in_full_by_the_status(nvim: Neovim) -> None:
    nvim.edit("a.py", WORKING, wait=False)
    messages = nvim.lua(
        """
        -- A function that looks like Neovim's own vim.notify, which these tests have replaced.
        local own = loadstring("return function(text) _G.seen_note = text end", "@vim/_core/test.lua")()
        local before = vim.notify
        vim.notify = own
        require("dg_lsp.server").notify(("word "):rep(60))
        vim.notify = before
        return _G.seen_note
        """
    )
    assert messages.endswith("… :Dg status")
    assert len(messages) < int(nvim.lua("return vim.o.columns"))
    assert ("word " * 60).strip() in nvim.sentences()


def test_the_message_of_a_failed_engine_is_shown_once_by_the_status(nvim: Neovim) -> None:
    nvim.edit("a.py", WORKING)
    message = "the model could not be loaded: no such file"
    lines = nvim.lua(
        f"""
        local client = vim.lsp.get_clients({{ name = "dg_lsp" }})[1]
        require("dg_lsp.server").notify("{message}", "WARN")
        local params = {{ state = "failed", model = "m", message = "{message}", fraction = 0, busy = false, problems = {{}} }}
        require("dg_lsp.status").on_status(params, {{ client_id = client.id }})
        return require("dg_lsp.status").sentences()
        """
    )
    assert lines == ["Problem: the engine has failed, with model m.", message]


def test_an_answer_after_the_deadline_appears_without_another_key(nvim: Neovim) -> None:
    nvim.edit("late.py", says(late="nvim", text="abs(3)") + "x = \n")
    nvim.put(1, 4)
    assert nvim.until_ghost() == "abs(3)"
