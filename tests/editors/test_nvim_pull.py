"""The offer of a better model in Neovim: a message that no key can answer, and a download that only the user starts."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.wire import laptop
from tests.editors import machine
from tests.editors.conftest import Watch
from tests.editors.machine import ROOT, program
from tests.editors.neovim import PLUGIN, Neovim
from tests.editors.terminal import Terminal
from tests.editors.waiting import until
from tests.engine import laptop_kit
from tests.engine.laptop_kit import Index

COMMAND = f"{{ cmd = {{ {json.dumps(sys.executable)}, '-m', 'tests.e2e.laptop_server' }} }}"
TEXT = "import json\n\n\ndef f(x):\n    return x\n"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with laptop_kit.serving(tmp_path / "wheels") as server:
        yield server


@pytest.fixture
def home(index: Index, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield an environment of its own in which a tiny model can be pulled."""
    # Not below pytest's own folder, whose path is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="dg-") as folder:
        data = laptop_kit.write_gguf(tmp_path / "tiny.gguf").read_bytes()
        model = laptop_kit.in_parts(data, tmp_path / "wheels")
        variables = machine.environment(Path(folder))
        del variables[laptop.NO_PULL_VARIABLE]
        ours = ("PIP_CONFIG_FILE", "PIP_INDEX_URL", laptop.STORE_VARIABLE)
        variables |= {name: laptop_kit.environment(index.url, Path(folder))[name] for name in ours}
        variables |= {"TEST_LAPTOP_MODEL": laptop_kit.as_text(model), "PYTHONPATH": str(ROOT)}
        yield variables
        machine.engine(variables, "stop", "--now", "--all")


def choice(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what is stored of the user's choice."""
    path = Path(environment["XDG_STATE_HOME"]) / "dg-lsp" / "pull-offer.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def answer(nvim: Neovim, title: str) -> None:
    """Answer the next question with the button of this title, and keep the question."""
    nvim.lua(f"vim.ui.select = function(items, options, done) _G.asked = {{ options.prompt, items }}; done({title!r}) end")


def until_offered(nvim: Neovim) -> str:
    return until(lambda: next((note for note in nvim.notes() if ":Dg pull" in note), ""), "the offer", tell=nvim.picture)


def test_the_offer_is_a_message_and_what_is_typed_meanwhile_stays(
    home: Mapping[str, str], tmp_path: Path, watch: Watch
) -> None:
    with Neovim(program("nvim"), tmp_path, home, COMMAND) as nvim:
        watch(nvim.picture)
        nvim.lua("vim.ui.select = function() _G.asked = true end")
        nvim.edit("a.py", TEXT, wait=False)
        nvim.type("GA<CR>def ")
        note = until_offered(nvim)
        assert note == (
            "dg-lsp: tiny (1 MB, downloaded once) gives nothing. :Dg pull downloads it, and :Dg pull never ends this offer"
        )
        nvim.type("name")
        until(lambda: "def name" in nvim.text(), "what was typed", tell=nvim.picture)
        assert nvim.text().startswith(TEXT)
        assert nvim.lua("return { vim.api.nvim_get_mode().mode, _G.asked == nil }") == ["i", True]
        lines = nvim.lua("return require('dg_lsp.status').sentences()")
        assert [line for line in lines if line.startswith("tiny (1 MB")] == [note.removeprefix("dg-lsp: ") + "."]
        nvim.command("stopinsert | checkhealth dg-lsp")
        until(lambda: "tiny (1 MB, downloaded once)" in nvim.text(), "the line of the health check", tell=nvim.text)


def test_the_download_starts_only_when_the_user_agrees(
    home: Mapping[str, str], index: Index, tmp_path: Path, watch: Watch
) -> None:
    with Neovim(program("nvim"), tmp_path, home, COMMAND) as nvim:
        watch(nvim.picture)
        nvim.edit("a.py", TEXT, wait=False)
        until_offered(nvim)
        answer(nvim, "Not now")
        nvim.command("Dg pull")
        prompt, items = nvim.lua("return _G.asked")
        assert (prompt, items) == ("Download tiny (1 MB, once)? It gives nothing.", ["Download", "Not now", "Never"])
        assert not index.asked
        answer(nvim, "Download")
        nvim.command("Dg pull")
        assert nvim.notes()[-1] == "dg-lsp: downloading tiny (1 MB)"
        nvim.until("require('dg_lsp').status().model == 'tiny'", "the other model")
        until(lambda: any("tiny is there" in note for note in nvim.notes()), "the message", tell=nvim.picture)
        assert not nvim.lua("return require('dg_lsp').status().offer")
        nvim.command("Dg pull")
        assert nvim.notes()[-1] == "dg-lsp: no download is offered, with model tiny; :DgModel lists models"


def test_never_is_remembered(home: Mapping[str, str], index: Index, tmp_path: Path, watch: Watch) -> None:
    with Neovim(program("nvim"), tmp_path, home, COMMAND) as nvim:
        watch(nvim.picture)
        nvim.edit("a.py", TEXT, wait=False)
        until_offered(nvim)
        nvim.command("Dg pull never")
        until(lambda: choice(home) == {"never": True}, "the stored choice", tell=nvim.picture)
        nvim.command("Dg pull later")
        assert nvim.notes()[-1] == "dg-lsp: unknown argument later; use :Dg pull or :Dg pull never"
    with Neovim(program("nvim"), tmp_path, home, COMMAND) as nvim:
        watch(nvim.picture)
        nvim.edit("a.py", TEXT)
        assert nvim.until("require('dg_lsp').status().offer", "the offer in the status")["isNew"] is False
        assert not any(":Dg pull" in note for note in nvim.notes())
    assert not index.asked


SETUP = """#!{python}
import json, sys
commands = ["dg-lsp setup --yes small"]
offers = [{{"model": "small", "title": "small", "where": "here", "cost": "98 MB", "quality": "", "commands": commands}}]
trial = {{"problem": "", "ms": 7}} if "--yes" in sys.argv else None
print(json.dumps({{"version": 1, "model": "embedded", "offers": offers, "overruled": "", "trial": trial}}))
"""


def test_a_model_that_is_chosen_from_the_list_is_downloaded(
    environment: Mapping[str, str], tmp_path: Path, watch: Watch
) -> None:
    setup = tmp_path / "setup"
    setup.write_text(SETUP.format(python=sys.executable))
    setup.chmod(0o755)
    with Neovim(program("nvim"), tmp_path, environment, f"{{ cmd = {{ {json.dumps(str(setup))}, 'serve' }} }}") as nvim:
        watch(nvim.picture)
        nvim.lua("vim.ui.select = function(items, options, done) _G.line = options.format_item(items[1]); done(items[1]) end")
        nvim.command("DgModel")
        until(lambda: any("small is used from now on" in note for note in nvim.notes()), "the choice", tell=nvim.picture)
        assert nvim.lua("return _G.line").startswith("small (downloaded when chosen): here; 98 MB")
        assert "dg-lsp: downloading small; it is tried when it is there" in nvim.notes()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not there")
def test_the_message_fits_into_a_line_of_the_terminal(
    home: Mapping[str, str], tmp_path: Path, watch: Watch, request: pytest.FixtureRequest
) -> None:
    init = tmp_path / "init.lua"
    init.write_text(f"vim.opt.rtp:prepend({str(PLUGIN)!r})\nvim.o.columns = 80\nrequire('dg_lsp').setup({COMMAND})\n")
    (tmp_path / "a.py").write_text(TEXT)
    terminal = Terminal([str(program("nvim")), "--clean", "-u", str(init), "a.py"], tmp_path, home)
    request.addfinalizer(terminal.close)
    watch(terminal.screen)
    terminal.until_seen("dg-lsp: better model (1 MB): :Dg pull; never ask: :Dg pull never")
    # A message of more than one line would take these keys.
    terminal.type("GA\ndef name")
    terminal.until_seen("def name")
    terminal.press("Escape")
    terminal.type(":Dg pull\n")
    terminal.until_seen("3: Never")
    terminal.type("1\n")
    until(lambda: "tiny is there" in terminal.screen(), "the model", tell=terminal.screen)
    assert "Press ENTER" not in terminal.screen()
    assert "def name" in terminal.screen()
