"""The plugin's Lua is formatted, and luacheck finds nothing."""

from __future__ import annotations

import subprocess

from tests.editors.machine import program
from tests.editors.neovim import PLUGIN


def run(*command: str) -> None:
    process = subprocess.run(command, cwd=PLUGIN, capture_output=True, text=True, check=False, timeout=60)
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_lua_is_formatted() -> None:
    run(str(program("stylua")), "--check", ".")


def test_luacheck_finds_nothing() -> None:
    run(str(program("luacheck")), "--no-color", ".")
