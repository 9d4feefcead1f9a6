"""What the editors' clients say of the server's messages and settings is what the server says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dg_lsp.core import languages
from dg_lsp.server import configuration, methods
from dg_lsp.wire.settings import Settings

ROOT = Path(__file__).parents[1]
CODE = ROOT / "editors" / "vscode"
NVIM = ROOT / "editors" / "nvim"
EMACS = ROOT / "editors" / "emacs" / "dg-lsp.el"

pytestmark = pytest.mark.skipif(not CODE.exists(), reason="the clients are not part of a source distribution")

SENT = {methods.STATUS, methods.DRAFT, methods.REFRESH}


def ours(text: str) -> set[str]:
    """Return the names in quotes that look like our messages."""
    return set(re.findall(r'"(dgLsp[./]\w+)"', text))


def test_the_messages_of_the_code_client_are_the_servers() -> None:
    protocol = (CODE / "src" / "protocol.ts").read_text("utf-8")
    assert ours(protocol) == {*SENT, *methods.COMMANDS}
    version = re.search(r"VERSION = (\d+)", protocol)
    assert version is not None
    assert int(version[1]) == methods.VERSION
    what = re.search(r"type What =([^;]*);", protocol)
    assert what is not None
    assert set(re.findall(r'"(\w+)"', what[1])) == set(methods.KINDS)


def test_the_messages_of_the_neovim_plugin_are_the_servers() -> None:
    texts = [path.read_text("utf-8") for path in NVIM.rglob("*.lua")]
    assert set().union(*map(ours, texts)) <= {*SENT, methods.DID_MOVE, *methods.COMMANDS}
    assert ours((NVIM / "lsp" / "dg_lsp.lua").read_text("utf-8")) == SENT


def test_the_fields_of_our_messages_are_the_servers() -> None:
    protocol = (CODE / "src" / "protocol.ts").read_text("utf-8")
    status = re.search(r"interface Status {(.*?)\n}", protocol, re.DOTALL)
    draft = re.search(r"interface Draft {(.*?)\n}", protocol, re.DOTALL)
    assert status is not None
    assert draft is not None
    status_fields = methods.StatusParams("off", "embedded").to_json()
    assert re.findall(r"^  (\w+):", status[1], re.MULTILINE) == list(status_fields)
    draft_fields = methods.DraftParams("token", methods.Versioned("file:///a.py", 1), ()).to_json()
    assert re.findall(r"^  (\w+):", draft[1], re.MULTILINE) == list(draft_fields)


def test_the_settings_of_the_code_client_are_the_servers() -> None:
    package = json.loads((CODE / "package.json").read_text("utf-8"))
    groups = package["contributes"]["configuration"]
    properties = {name: each for group in groups for name, each in group["properties"].items()}
    assert [group["title"] for group in groups] == ["Suggestions", "Model", "Fills and context", "This editor"]
    assert all(
        [each["order"] for each in group["properties"].values()] == list(range(len(group["properties"]))) for group in groups
    )
    restricted = package["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"]
    assert restricted == [name for name in properties if name.startswith("dgLsp.engine.")]
    own = {name for name in properties if name.startswith(("dgLsp.client.", "dgLsp.trace."))}
    assert {name.removeprefix("dgLsp.") for name in properties if name not in own} == set(configuration.KEYS)
    defaults = {name.removeprefix("dgLsp."): each["default"] for name, each in properties.items() if name not in own}
    assert configuration.read(defaults, Settings()) == (Settings(), ())


def test_the_settings_of_the_neovim_plugin_are_the_servers() -> None:
    text = (NVIM / "lua" / "dg_lsp" / "config.lua").read_text("utf-8")
    block = text[text.index("---@class dg_lsp.Settings") : text.index("---@class dg_lsp.Config")]
    field_names = re.findall(r'---@field (?:\["([\w.]+)"\]|(\w+))\?', block)
    assert [dotted or plain for dotted, plain in field_names] == list(configuration.KEYS)


def test_the_defaults_in_the_neovim_help_are_the_servers_and_the_plugins() -> None:
    text = (NVIM / "doc" / "dg-lsp.txt").read_text("utf-8")
    listed = re.findall(r'^ {6}\["([\w.]+)"\] = (.+?),(?:\s+--.*)?$', text, re.MULTILINE)
    values = {name: [] if value == "{}" else json.loads(value) for name, value in listed}
    assert len(values) > 5
    assert configuration.read(values, Settings()) == (Settings(), ())
    options = dict(re.findall(r"^ {6}(auto|draft|restarts) = (\w+),$", text, re.MULTILINE))
    defaults = (NVIM / "lua" / "dg_lsp" / "config.lua").read_text("utf-8")
    assert len(options) == 3
    assert all(f"\n  {name} = {value},\n" in defaults for name, value in options.items())


def test_the_neovim_plugin_starts_in_every_language_of_the_table() -> None:
    text = (NVIM / "lua" / "dg_lsp" / "config.lua").read_text("utf-8")
    filetypes = re.search(r"filetypes = \{(.*?)\}", text, re.DOTALL)
    assert filetypes is not None
    names = set(re.findall(r'"(\w+)"', filetypes[1]))
    assert [language.name for language in languages.TABLE if not names & set(language.lsp_ids)] == []


def test_the_messages_and_settings_of_the_emacs_package_are_the_servers() -> None:
    text = EMACS.read_text("utf-8")
    assert {methods.STATUS, methods.DRAFT, methods.FILL} <= ours(text) <= {methods.STATUS, methods.DRAFT, *methods.COMMANDS}
    own_settings = re.findall(
        r'\(lsp-defcustom \S+ (\S+)(?:(?!\(lsp-defcustom).)*?:lsp-path "dgLsp\.([\w.]+)"', text, re.DOTALL
    )
    assert len(own_settings) == text.count("(lsp-defcustom ")
    defaults = {name: json.loads(value) for value, name in own_settings}
    assert configuration.read(defaults, Settings()) == (Settings(), ())


def test_the_code_client_keeps_its_commands_apart_from_the_servers() -> None:
    package = json.loads((CODE / "package.json").read_text("utf-8"))
    client_commands = {command["command"] for command in package["contributes"]["commands"]}
    assert not client_commands & set(methods.COMMANDS)
    registered = set(re.findall(r'(?:command|withClient)\("(dgLsp\.\w+)"', (CODE / "src" / "extension.ts").read_text("utf-8")))
    assert client_commands == registered
    placed = [*package["contributes"]["keybindings"], *package["contributes"]["menus"]["dgLsp.editor"]]
    assert {each["command"] for each in placed} <= client_commands
