"""Neovim in a folder that its user has not read: the plugin starts nothing from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.editors.conftest import Watch
from tests.editors.machine import program
from tests.editors.neovim import Neovim
from tests.editors.waiting import until
from tests.planted import AT_START, MODULES, planted, ran

# For a Python file, Neovim itself would look for a Python.
DOUBLE = "local function double(n)\n  return n * 2\nend\n"


def test_nothing_of_the_open_folder_runs(environment: Mapping[str, str], tmp_path: Path, watch: Watch) -> None:
    root = planted(tmp_path / "work", (*MODULES, *AT_START))
    variables = {**environment, "PATH": f":.:bin:{environment['PATH']}", "PYTHONPATH": ".:"}
    with Neovim(program("nvim"), root, variables) as nvim:
        watch(nvim.picture)
        nvim.edit("double.lua", DOUBLE)
        nvim.command("checkhealth dg-lsp")
        assert "the engine is ready" in nvim.text()
        nvim.edit("double.lua", DOUBLE)
        nvim.lua("vim.ui.select = function(items) vim.g.offered = #items end")
        nvim.command("DgModel")
        until(lambda: nvim.lua("return vim.g.offered"), "the models", tell=nvim.picture)
    assert ran(root) == []
