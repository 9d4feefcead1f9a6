"""The plugin in a real Neovim, with the real server, the real engine and the embedded model."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.editors import machine
from tests.editors.machine import program
from tests.editors.neovim import EVERYTHING, LOOK, PLUGIN, Neovim
from tests.editors.texts import BODIES, FILES, INSIDE, LONG_BODY, SHOP, SHOPS, check_saved, inserted, paced
from tests.editors.waiting import until

OPTIONS = EVERYTHING
CURRENT = "(require('vim.lsp._capability').all.inline_completion.active[vim.api.nvim_get_current_buf()] or {}).current"


def test_the_status_names_the_remedy_where_the_plugin_is_not_set_up(nvim: Neovim) -> None:
    nvim.command("enew")
    not_running = "dg-lsp is not running for this buffer. "
    assert nvim.sentences() == not_running + "The buffer has no filetype; set one, as in :set filetype=python"
    nvim.command("set filetype=nothing")
    assert nvim.sentences() == not_running + "The option `filetypes` of setup() lacks nothing."
    nvim.lua("vim.lsp.enable('dg_lsp', false)")
    assert nvim.sentences() == not_running + 'Put require("dg_lsp").setup() into init.lua.'
    nvim.lua("vim.lsp.enable('dg_lsp')")
    nvim.command("set filetype=python")
    nvim.until("require('dg_lsp').status()", "the server")


@pytest.mark.parametrize("kind", SHOPS)
def test_a_suggestion_is_inserted_into_any_text_in_one_step_to_undo(nvim: Neovim, kind: str) -> None:
    path = nvim.edit(f"{kind}.py", SHOPS[kind])
    head = SHOPS[kind].splitlines()[INSIDE[0]]
    nvim.lua("vim.bo.expandtab = not ...", kind == "tabs")
    nvim.put(INSIDE[0], len(head.encode()))
    # Replace autoindent's indentation by the right one.
    indent = "\t\t" if kind == "tabs" else "        "
    nvim.type(f"<CR><C-u>{indent}x = '😀日'; value = self.")
    ghost = nvim.until_ghost()
    assert "\r" not in ghost
    before = nvim.text()
    nvim.change("<C-l>")
    assert not nvim.ghost()
    check_saved(nvim.save(path), kind, f"x = '😀日'; value = self.{ghost.split(chr(10))[0]}")
    nvim.type("u")
    until(lambda: nvim.text() == before, "what was typed", tell=nvim.text)


def test_a_dot_repeats_what_was_typed_and_accepted(nvim: Neovim) -> None:
    nvim.begin()
    nvim.change("<C-l>")
    added = inserted(SHOP, nvim.text())
    nvim.leave("<Esc>")
    once = nvim.text()
    nvim.change(".")
    assert len(nvim.text()) == len(once) + len(added)
    nvim.type("u")
    until(lambda: nvim.text() == once, "the text without its repetition", tell=nvim.text)


def test_a_dot_repeats_accepted_words(nvim: Neovim) -> None:
    nvim.begin()
    nvim.change("<C-j>")
    nvim.leave("é<Esc>")
    line = nvim.lua("return vim.api.nvim_get_current_line()")
    nvim.change(".")
    assert nvim.lua("return vim.api.nvim_get_current_line()").strip().endswith(line.strip())


@pytest.mark.parametrize("accept", ["<C-l>", "<C-j>", "<C-g>l"])
@pytest.mark.parametrize("register", ["a", "A"])
def test_a_macro_writes_what_was_accepted_while_it_was_recorded(nvim: Neovim, accept: str, register: str) -> None:
    nvim.edit("shop.py", SHOP)
    nvim.lua("vim.fn.setreg('a', '')")
    nvim.put(*INSIDE)
    nvim.leave("<Esc>")
    nvim.type(f"q{register}A<CR>self.")
    nvim.until_ghost()
    accepted = nvim.change(accept)
    nvim.leave("é<Esc>")
    nvim.type("q")
    nvim.until("vim.fn.reg_recording() == ''", "the end of the recording")
    # In a buffer without the server, so that nothing but the macro can write the text.
    nvim.command("enew | set autoindent filetype= | inoremap ( [")
    nvim.type("i    x<Esc>@a")
    nvim.until("vim.api.nvim_get_mode().mode == 'n' and vim.fn.line('$') > 1", "the lines of the macro")
    assert nvim.text() == f"    x\n    self.{accepted}é\n"


def test_accepted_text_is_not_given_to_another_plugins_paste(nvim: Neovim) -> None:
    nvim.lua("vim.g.pasted = 0; vim.paste = function() vim.g.pasted = vim.g.pasted + 1; return true end")
    nvim.begin()
    nvim.change("<C-l>")
    assert nvim.lua("return vim.g.pasted") == 0
    nvim.lua("vim.api.nvim_paste('x', false, -1)")
    assert nvim.lua("return vim.g.pasted") == 1


HELD = OPTIONS.replace("settings = { ", "settings = { ['completion.trigger'] = 'held', ")


def test_a_held_suggestion_is_shown_and_accepted_only_after_it_was_revealed(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    with Neovim(program("nvim"), tmp_path, environment, HELD) as nvim:
        nvim.lua("vim.keymap.set('i', '<C-r><C-v>', '<Plug>(dg-lsp-reveal)')")
        nvim.edit("shop.py", SHOP)
        nvim.put(*INSIDE)
        nvim.type("<CR>self.")
        nvim.until(f"{CURRENT} ~= nil", "the prepared suggestion")
        assert nvim.ghost() == ""
        assert nvim.lua("return require('dg_lsp').is_shown()") is False
        before = nvim.text()
        assert nvim.lua("return require('dg_lsp').accept()") is False
        assert nvim.text() == before
        nvim.type("<C-r><C-v>")
        ghost = nvim.until_ghost()
        assert nvim.change("<C-l>") == ghost
        nvim.type("<CR>self.")
        nvim.until(f"{CURRENT} ~= nil", "the next prepared suggestion")
        assert nvim.ghost() == ""
        # Who leaves insert mode before it comes does not see it when the user is back.
        nvim.type("<Esc>o<C-r><C-v><Esc>i")
        nvim.until(f"{CURRENT} ~= nil", "the suggestion in an empty line")
        assert nvim.ghost() == ""


def test_single_words_and_lines_can_be_accepted(nvim: Neovim) -> None:
    whole = nvim.begin()
    word = nvim.change("<C-j>")
    assert whole.startswith(word)
    assert len(word.split()) == 1
    rest = nvim.ghost()
    if whole != word:
        assert whole == word + rest, "the rest stays on the screen without waiting for the server"
        assert nvim.change("<C-g>l") == rest.split("\n")[0]
    assert nvim.text().endswith(SHOP.split("item):\n", 1)[1])


def test_other_suggestions_are_shown_in_turn(nvim: Neovim) -> None:
    first = nvim.begin("value = ")
    nvim.type("<M-n>")
    until(lambda: "/" in nvim.hint(), "the number of suggestions", tell=nvim.picture)
    suggestions = {first, nvim.ghost()}
    nvim.type("<M-p>")
    until(lambda: nvim.ghost() not in ("", *(suggestions - {first})), "another suggestion", tell=nvim.picture)
    assert len(suggestions | {nvim.ghost()}) > 1


def test_a_dismissed_suggestion_is_neither_shown_nor_inserted(nvim: Neovim) -> None:
    nvim.begin()
    before = nvim.text()
    nvim.type("<C-x><C-d>")
    until(lambda: not nvim.ghost(), "no ghost text")
    nvim.type("<C-l>")
    assert nvim.lua("return require('dg_lsp').is_shown()") is False
    assert nvim.text() == before


def test_a_suggestion_that_no_longer_fits_is_neither_shown_nor_inserted(nvim: Neovim) -> None:
    nvim.begin()
    # Send both keys at once, so that no answer arrives between them: a key that no suggestion begins with, then accept.
    nvim.type("?<C-l>")
    until(lambda: "self.?" in nvim.text(), "the typed character")
    assert "        self.?\n" in nvim.text()


FLOAT = (
    "lua vim.api.nvim_open_win(vim.api.nvim_create_buf(false, true), true, {relative='editor',row=1,col=1,width=9,height=2})"
)
WAYS = (
    *("new", "tabnew", "split | wincmd w", "bnext", "copen", "help", FLOAT, "stopinsert", "vsplit other.py", "normal! v"),
    *("edit!", "undo", "terminal", "Explore", "bwipeout!", "Dg pause", "Dg snooze"),
)
KEYS = ("<C-c>", "<Esc>", "<C-o>v", "<Esc>qa$A.x<Esc>q@a", "<Esc>0<C-v>kIx<Esc>", "<Esc>j.", "<Esc>q:")


@pytest.mark.parametrize("key", [*KEYS, *WAYS])
def test_a_suggestion_goes_when_insert_mode_or_its_window_is_left(nvim: Neovim, key: str) -> None:
    nvim.edit("other.py", "")
    nvim.edit("shop.py", SHOP)
    if key in WAYS:
        nvim.lua("vim.keymap.set('i', '<F5>', '<Cmd>' .. ... .. '<CR>')", key)
        key = "<F5>"
    nvim.ask()
    buffer = nvim.call("nvim_get_current_buf").data[-1]
    nvim.type(key)
    until(lambda: not nvim.call("nvim_buf_is_valid", buffer) or not nvim.ghost(buffer), "no ghost text", tell=nvim.picture)


def test_a_suggestion_goes_when_another_program_changes_the_file(nvim: Neovim) -> None:
    path = nvim.edit("shop.py", SHOP)
    nvim.ask()
    path.write_text(f"# changed\n{SHOP}")
    os.utime(path, (1, 1))
    nvim.command("set autoread nomodified")
    nvim.command("silent checktime")
    until(lambda: not nvim.ghost(), "no ghost text", tell=nvim.picture)
    assert nvim.text().startswith("# changed\n")


def test_the_typed_part_of_a_suggestion_is_not_inserted_again(nvim: Neovim) -> None:
    ghost = nvim.begin()
    before = nvim.text()
    nvim.type(f"{'<lt>' if ghost[0] == '<' else ghost[0]}<C-l>")
    until(lambda: inserted(before, nvim.text()) not in ("", ghost[0]), "the accepted text", tell=nvim.picture)
    assert inserted(before, nvim.text()) == ghost


WATCH = """
_G.seen = { bars = {}, drafts = {}, states = {} }
vim.api.nvim_create_autocmd("LspProgress", { callback = function(event)
  table.insert(_G.seen.bars, event.data.params.value.kind)
end })
vim.api.nvim_create_autocmd("User", { pattern = "DgLspStatus", callback = function(event)
  table.insert(_G.seen.states, event.data.state .. (event.data.busy and " busy" or ""))
end })
local on_draft = require("dg_lsp.draft").on_draft
require("dg_lsp.draft").on_draft = function(params, context)
  on_draft(params, context)
  vim.cmd.redraw()
  LOOK
  table.insert(_G.seen.drafts, seen_now)
end
""".replace("LOOK", "local seen_now = (function() " + LOOK.replace("HIGHLIGHT", '"DgLspDraft"') + " end)()")


def test_fill_body_shows_its_drafts_and_is_one_step_to_undo(nvim: Neovim) -> None:
    path = nvim.edit("item.py", BODIES)
    nvim.lua(WATCH)
    nvim.command("11")
    nvim.command("DgFill")
    until(lambda: nvim.text() != BODIES, "the filled body", tell=nvim.picture)
    filled_text = nvim.text()
    head, tail = BODIES.split("        ...\n", 1)
    assert filled_text.startswith(head)
    assert filled_text.endswith(tail)
    ast.parse(nvim.save(path))
    events = nvim.lua("return _G.seen")
    assert events["bars"][0] == "begin"
    assert len({draft for draft in events["drafts"] if draft}) >= 2, events["drafts"]
    assert "ready busy" in events["states"]
    until(lambda: not nvim.draft(), "the drafts to go")
    nvim.command("undo")
    assert nvim.text() == BODIES


def test_a_fill_can_be_cancelled(nvim: Neovim) -> None:
    nvim.edit("item.py", BODIES)
    nvim.lua(WATCH)
    nvim.command("DgFill!")
    nvim.until("vim.list_contains(_G.seen.bars, 'begin')", "the progress bar")
    nvim.command("Dg cancel")
    nvim.until("vim.list_contains(_G.seen.bars, 'end')", "the end")
    nvim.until("not require('dg_lsp').status().busy", "the server to be idle")
    assert nvim.text() == BODIES
    assert not nvim.draft()


def test_what_is_typed_before_the_engine_is_ready_gets_a_suggestion(environment: Mapping[str, str], tmp_path: Path) -> None:
    # Another folder for sockets, so that this editor finds no engine.
    cold = {**environment, "DG_LSP_RUNTIME_DIR": str(Path(environment["HOME"]) / "cold")}
    waiting_little = OPTIONS.replace("['completion.deadline'] = 60000", "['completion.deadline'] = 50")
    try:
        with Neovim(program("nvim"), tmp_path, cold, waiting_little) as editor:
            editor.edit("shop.py", SHOP, wait=False)
            editor.put(*INSIDE)
            editor.type("<CR>self.")
            editor.until_ready()
            # No further key is pressed. Later answers may need longer than this deadline.
            editor.until(
                "(require('dg_lsp').status() or {}).latencyMs ~= nil or require('dg_lsp.ghost').is_shown()", "an answer"
            )
    finally:
        machine.engine(cold, "stop", "--now", "--all")


def test_a_killed_server_is_restarted(nvim: Neovim) -> None:
    nvim.edit("shop.py", SHOP)
    client_id = nvim.lua("return vim.lsp.get_clients({ name = 'dg_lsp' })[1].id")
    os.kill(nvim.server_pid(), signal.SIGKILL)
    nvim.until(f"(vim.lsp.get_clients({{ name = 'dg_lsp' }})[1] or {{ id = {client_id} }}).id ~= {client_id}", "a new server")
    nvim.until_ready()
    nvim.ask()


def test_fast_typing_inserts_exactly_the_typed_text(nvim: Neovim) -> None:
    nvim.edit("fast.py", "\n")
    nvim.lua(
        """
        _G.sent, _G.most = 0, 0
        vim.api.nvim_create_autocmd("LspRequest", { callback = function(event)
          if event.data.request.method ~= "textDocument/inlineCompletion" then return end
          if event.data.request.type == "pending" then _G.sent = _G.sent + 1 end
          -- Count after the handlers have run; one of them cancels older requests.
          vim.schedule(function()
            local n = 0
            for _, client in ipairs(vim.lsp.get_clients({ name = "dg_lsp" })) do
              for _, request in pairs(client.requests) do
                if request.method == "textDocument/inlineCompletion" and request.type == "pending" then n = n + 1 end
              end
            end
            _G.most = math.max(_G.most, n)
          end)
        end })
        vim.bo.autoindent, vim.bo.indentexpr = false, ""
        """
    )
    typed_text, keys = paced()
    nvim.put(0, 0)
    for key in keys:
        nvim.type({"Enter": "<CR>", "Backspace": "<BS>", "<": "<lt>"}.get(key, key))
        if key == "Enter":
            # Neovim sends a request after a short pause. Continue typing while the request is running.
            n_sent = nvim.lua("return _G.sent")
            nvim.until(f"_G.sent > {n_sent}", "a request")
        else:
            # The test types twelve keys a second, so there is no state to wait for.
            time.sleep(1 / 12)
    until(lambda: nvim.text() == typed_text + "\n", "what was typed", tell=nvim.picture)
    nvim.until(
        "vim.iter(pairs(vim.lsp.get_clients({ name = 'dg_lsp' })[1].requests)):all("
        "function(_, request) return request.type ~= 'pending' end)",
        "all requests to be answered",
    )
    assert nvim.text() == typed_text + "\n"
    assert nvim.lua("return _G.most") == 1
    # If a suggestion is shown, it must be for this place.
    if ghost := nvim.ghost():
        nvim.change("<C-l>")
        assert nvim.text() == typed_text + ghost + "\n"


def test_a_pause_lasts_until_resume(nvim: Neovim) -> None:
    nvim.edit("shop.py", SHOP)
    nvim.command("Dg pause")
    nvim.put(*INSIDE)
    nvim.type("<CR>self.")
    nvim.until_silent("manual")
    assert not nvim.ghost()
    nvim.lua("require('dg_lsp').request()")
    nvim.until_ghost()
    nvim.type("<C-x><C-d>")
    nvim.command("Dg resume")
    # Type at another place, because a dismissed suggestion is not offered again.
    nvim.type("<Esc>S        value = self.")
    nvim.until_ghost()


def begin_nameless(nvim: Neovim, text: str) -> None:
    """Make a buffer without a name, with this text."""
    nvim.command("enew")
    nvim.lua("vim.api.nvim_buf_set_lines(0, 0, -1, true, ...)", text.removesuffix("\n").split("\n"))
    nvim.command("setfiletype python")


def test_a_nameless_buffer_is_filled_without_creating_another(nvim: Neovim) -> None:
    begin_nameless(nvim, BODIES)
    nvim.until_ready()
    buffers = nvim.lua("return vim.api.nvim_list_bufs()")
    nvim.command("DgFill!")
    until(lambda: "..." not in nvim.text(), "the filled bodies", tell=nvim.picture)
    assert nvim.lua("return vim.api.nvim_list_bufs()") == buffers
    # All buffers without a name have the same URI, so a second one would be taken for the first.
    nvim.command("set hidden")
    begin_nameless(nvim, SHOP)
    nvim.command("DgFill!")
    assert "without a name" in nvim.notes()[-1]
    assert nvim.text() == SHOP


def test_a_nameless_buffer_gets_suggestions_and_keeps_the_server_when_it_is_written_to_a_file(nvim: Neovim) -> None:
    begin_nameless(nvim, SHOP)
    nvim.until_ready()
    nvim.ask()
    nvim.leave("<Esc>")
    nvim.command("write shop.py")
    nvim.ask()
    nvim.type("?")
    until(lambda: not nvim.ghost(), "no ghost text", tell=nvim.picture)
    nvim.edit("item.py", BODIES)
    nvim.command("enew")
    begin_nameless(nvim, BODIES)
    nvim.until_ready()
    nvim.command("write filled.py")
    nvim.command("DgFill!")
    until(lambda: "..." not in nvim.text(), "the filled bodies", tell=nvim.picture)


@pytest.mark.parametrize("command", ["file other.py", "saveas other.py", "write shop.py | file other.py"])
@pytest.mark.parametrize("is_nameless", [True, False])
def test_a_buffer_keeps_its_suggestions_under_a_new_name(nvim: Neovim, command: str, is_nameless: bool) -> None:
    if is_nameless:
        begin_nameless(nvim, SHOP)
    else:
        nvim.edit("first.py", SHOP)
    nvim.command(command.replace("write", "write!"))
    for name in ("other.py", "third.py"):
        nvim.ask()
        nvim.change("<C-l>")
        opened = "return vim.tbl_map(vim.uri_from_bufnr, vim.tbl_keys(vim.lsp.get_clients()[1].attached_buffers))"
        assert [uri.rpartition("/")[2] for uri in nvim.lua(opened)] == [name]
        nvim.leave("<Esc>")
        nvim.command("file third.py")


def test_a_buffer_without_a_type_gets_suggestions_when_it_is_named(nvim: Neovim) -> None:
    nvim.command("enew")
    nvim.lua("vim.api.nvim_buf_set_lines(0, 0, -1, true, ...)", SHOP.removesuffix("\n").split("\n"))
    nvim.command("file shop.py")
    assert nvim.lua("return vim.bo.filetype") == "python"
    nvim.ask()


@pytest.mark.parametrize("name", ["", "item.py"])
def test_text_typed_just_before_an_edit_is_preserved(nvim: Neovim, name: str) -> None:
    if name:
        nvim.edit(name, BODIES)
    else:
        begin_nameless(nvim, BODIES)
        nvim.until_ready()
    # Neovim sends a typed key to the server with a delay, so the server does not know it yet.
    nvim.lua(
        "local handlers = require('dg_lsp.server').client().handlers; local apply = handlers['workspace/applyEdit'];"
        "handlers['workspace/applyEdit'] = function(...)"
        " vim.api.nvim_buf_set_lines(0, 0, 0, true, { '# typed', '' }); local answer = apply(...);"
        " vim.g.answer = answer; return answer end"
    )
    nvim.command("DgFill!")
    nvim.until("vim.g.answer ~= nil", "the edit")
    assert nvim.text() == f"# typed\n\n{BODIES}"
    assert nvim.lua("return vim.g.answer.applied") is False
    assert "changed" in nvim.notes()[-1]


def test_the_root_is_where_the_users_markers_are(nvim: Neovim) -> None:
    nvim.lua("vim.lsp.config('dg_lsp', { root_markers = { 'here.txt' } })")
    (nvim.folder / "inner" / "deep").mkdir(parents=True)
    (nvim.folder / "inner" / "here.txt").touch()
    nvim.edit("inner/deep/shop.py", SHOP)
    assert nvim.lua("return require('dg_lsp.server').client().root_dir") == str(nvim.folder / "inner")


def test_a_draft_for_a_deleted_buffer_creates_no_buffer(nvim: Neovim) -> None:
    path = nvim.edit("files.py", FILES)
    nvim.command(f"{LONG_BODY + 1}")
    nvim.command("DgFill")
    nvim.until("require('dg_lsp.draft').count > 0", "a draft")
    nvim.command("bwipeout!")
    nvim.until("#vim.g.notes > 0", "that the document has changed")
    assert nvim.lua("return vim.fn.bufexists(...)", str(path)) == 0


def test_a_pause_for_a_language_preserves_the_languages_in_the_options(nvim: Neovim) -> None:
    nvim.lua("require('dg_lsp').setup({ settings = { completion = { disabledLanguages = { 'lua' }, threshold = 0 } } })")
    nvim.command("Dg pause python")
    settings = nvim.lua("return require('dg_lsp.config').server_settings()")
    assert settings == {"completion.disabledLanguages": ["lua", "python"], "completion.threshold": 0}


@pytest.mark.parametrize("selection", ["inclusive", "exclusive"])
def test_exactly_the_selection_is_regenerated_with_the_instruction(nvim: Neovim, selection: str) -> None:
    nvim.edit("item.py", BODIES)
    nvim.command(f"set selection={selection}")
    nvim.lua(
        "local client = require('dg_lsp.server').client();"
        "client.request = function(_, _, params) vim.g.asked = params.arguments[1]; return false end"
    )
    nvim.command('execute "normal! 8G^vee\\<Esc>"')
    nvim.command("'<,'>DgFill in capitals")
    asked = nvim.lua("return vim.g.asked")
    question = asked["range"]
    assert asked["instruction"] == "in capitals"
    assert BODIES.split("\n")[7][question["start"]["character"] : question["end"]["character"]] == "return self"


def test_a_restart_reports_a_server_that_can_not_run(nvim: Neovim) -> None:
    nvim.lua("require('dg_lsp').setup({ cmd = { '/nowhere/dg-lsp', 'serve' } })")
    nvim.lua("vim.g.notes = {}")
    nvim.command("Dg restart")
    assert "/nowhere/dg-lsp can't be run" in nvim.notes()[-1]


def test_setup_works_without_options(environment: Mapping[str, str], tmp_path: Path) -> None:
    with Neovim(program("nvim"), tmp_path, environment) as nvim:
        nvim.edit("item.py", BODIES, wait=False)
        # Fill at once, while the server is starting.
        nvim.command("DgFill!")
        assert "starting" in nvim.notes()[-1]
        until(lambda: nvim.text() != BODIES, "the filled bodies", tell=nvim.picture)
        assert all("best guess" in note or "of 3 holes filled" in note for note in nvim.notes()[1:]), nvim.notes()
        assert "settings" not in nvim.lua("return vim.fn.execute('messages')")


def test_an_error_names_the_invalid_option(nvim: Neovim) -> None:
    for options, sentence in (
        ("{ atuo = true }", 'unknown option "atuo"'),
        ("{ cmd = {} }", "dg_lsp: cmd"),
        ("{ settings = { 1 } }", "settings"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            nvim.lua(f"require('dg_lsp').setup({options})")


@pytest.mark.parametrize("name", ["dg-lsp", "dg_lsp"])
def test_the_health_check_reports_no_problem(nvim: Neovim, name: str) -> None:
    nvim.edit("shop.py", SHOP)
    nvim.command(f"checkhealth {name}")
    text = nvim.text()
    assert "ERROR" not in text
    assert "WARNING" not in text
    assert "the engine is ready" in text
    assert "accepts suggestions" in text


def test_the_health_check_reports_a_pause_and_invalid_settings(nvim: Neovim) -> None:
    nvim.edit("shop.py", SHOP)
    nvim.command("Dg pause")
    nvim.lua("require('dg_lsp.server').change_settings(function(settings) settings['completion.threshold'] = 7 end)")
    nvim.until("#(require('dg_lsp').status() or { problems = {} }).problems > 0", "the invalid setting")
    nvim.command("checkhealth dg-lsp")
    text = nvim.text()
    assert "WARNING dgLsp.completion.threshold" in text
    assert "suggestions are paused" in text


def test_the_help_names_every_command_map_and_option(nvim: Neovim, tmp_path: Path) -> None:
    text = (PLUGIN / "doc" / "dg-lsp.txt").read_text()
    options = nvim.lua("return vim.tbl_keys(require('dg_lsp.config').defaults)")
    maps = nvim.lua(
        "return vim.tbl_map(function(map) return map.lhs end, vim.tbl_filter(function(map) "
        "return vim.startswith(map.lhs, '<Plug>(dg-lsp') end, vim.list_extend(vim.api.nvim_get_keymap('i'), "
        "vim.api.nvim_get_keymap('n'))))"
    )
    subcommands = nvim.lua("return vim.fn.getcompletion('Dg ', 'cmdline')")
    assert [name for name in (*options, *maps, *(f":Dg {name}" for name in subcommands)) if name not in text] == []
    (tmp_path / "doc").mkdir()
    (tmp_path / "doc" / "dg-lsp.txt").write_text(text)
    nvim.command(f"helptags {tmp_path / 'doc'}")
    assert "dg-lsp-maps" in (tmp_path / "doc" / "tags").read_text()


def test_a_model_is_chosen_among_those_that_fit(nvim: Neovim, environment: Mapping[str, str]) -> None:
    nvim.edit("shop.py", SHOP)
    nvim.lua(
        """
        vim.ui.select = function(items, options, done)
          _G.offered = vim.tbl_map(options.format_item, items)
          done(items[1])
        end
        """
    )
    nvim.command("DgModel")
    until(
        lambda: any("the embedded model is used from now on" in note for note in nvim.notes()), "the choice", tell=nvim.picture
    )
    first = nvim.lua("return _G.offered[1]")
    assert first.startswith("the small model that comes with dg-lsp (recommended): on this machine; ")
    config_file = Path(environment["XDG_CONFIG_HOME"]) / "dg-lsp" / "config.toml"
    # A model that is pulled later is then used.
    assert config_file.read_text() == '[engine]\nmodel = "auto"\n'
    config_file.unlink()


def test_a_snooze_after_another_was_ended_by_resume_pauses_too(nvim: Neovim) -> None:
    nvim.edit("shop.py", SHOP)
    nvim.command("Dg snooze 30")
    nvim.command("Dg resume")
    assert "suggestions are on" in nvim.notes()[-1]
    nvim.command("Dg snooze 10")
    nvim.put(*INSIDE)
    nvim.type("<CR>self.")
    nvim.until_silent("manual")


def test_a_pause_is_not_ended_by_an_earlier_snooze(nvim: Neovim) -> None:
    nvim.edit("shop.py", SHOP)
    # A snooze of 600 ms.
    nvim.command("Dg snooze 0.01")
    nvim.command("Dg pause")
    assert "no suggestions until :Dg resume" in nvim.notes()[-1]
    nvim.lua("vim.g.is_later = false; vim.defer_fn(function() vim.g.is_later = true end, 900)")
    nvim.until("vim.g.is_later", "a moment after the end of the snooze")
    assert nvim.lua("return require('dg_lsp.config').server_settings()['completion.trigger']") == "manual"


def test_a_snooze_pauses_and_ends(nvim: Neovim) -> None:
    nvim.edit("shop.py", SHOP)
    nvim.command("Dg snooze 30")
    assert "no suggestions for 30 minutes" in nvim.notes()[-1]
    nvim.until("require('dg_lsp').statusline() == 'DG Paused '", "the status, before a key is typed")
    nvim.put(*INSIDE)
    nvim.type("<CR>self.")
    nvim.until_silent("manual")
    sentences = nvim.sentences()
    assert re.search(r"No suggestion: suggestions are snoozed until \d\d:\d\d; :Dg snooze 0 ends the snooze\.", sentences)
    nvim.command("Dg snooze 0")
    assert "snoozed" not in nvim.sentences()
    nvim.type("x<BS>")
    nvim.until_ghost()


@pytest.mark.parametrize("command", [("stylua", "--check", "."), ("luacheck", "--no-color", ".")])
def test_the_lua_is_formatted_and_luacheck_finds_nothing(command: tuple[str, ...]) -> None:
    words = [str(program(command[0])), *command[1:]]
    process = subprocess.run(words, cwd=PLUGIN, capture_output=True, text=True, check=False, timeout=60)
    assert process.returncode == 0, process.stdout + process.stderr
