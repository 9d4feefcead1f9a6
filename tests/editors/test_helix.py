"""Helix, which has no inline completion: code actions, and suggestions in its ordinary completion list."""

from __future__ import annotations

import ast
import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine
from tests.editors.conftest import Watch
from tests.editors.terminal import Terminal
from tests.editors.texts import BODIES, BODY, SHOP
from tests.editors.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not there")

MENU = "Fill function body"
# As editors/README.md gives it.
LANGUAGES = """\
[language-server.dg-lsp]
command = "dg-lsp"
args = ["serve"]

[[language]]
name = "python"
language-servers = ["dg-lsp"]
"""


@pytest.fixture
def helix(environment: Mapping[str, str], tmp_path: Path, watch: Watch) -> Iterator[Terminal]:
    settings = Path(environment["XDG_CONFIG_HOME"]) / "helix"
    settings.mkdir(parents=True, exist_ok=True)
    # Show what the model has, however sure it is and however long it takes: these tests are about editors.
    sure = (
        "\n[language-server.dg-lsp.config.completion]\nthreshold = 0.0\ndeadline = 60000\n"
        "\n[language-server.dg-lsp.config.actions]\ndeadline = 60000\n"
    )
    (settings / "languages.toml").write_text(LANGUAGES + sure)
    (tmp_path / "item.py").write_text(BODIES)
    (tmp_path / "shop.py").write_text(SHOP)
    editor = Terminal([str(machine.program("hx"))], tmp_path, environment)
    watch(editor.screen)
    editor.until_seen("NOR")
    yield editor
    editor.close()


def test_the_readme_gives_this_configuration() -> None:
    assert LANGUAGES in (machine.ROOT / "editors" / "README.md").read_text("utf-8")


def test_a_body_is_filled_from_the_menu(helix: Terminal, tmp_path: Path) -> None:
    helix.type(f":open item.py:{BODY + 1}:9\r")
    helix.until_seen("class Item")

    # A menu that is asked for again while the first one is under way may close it, so that is done with patience, in case the
    # server was not there yet.
    for patience_s in (5, 10, 20, 40):
        helix.type(" a")
        with contextlib.suppress(AssertionError):
            until(lambda: MENU in helix.screen(), "the menu", patience_s=patience_s)
            break
        helix.press("Escape")
    helix.until_seen(MENU)
    helix.press("Enter")
    # The menu is drawn over one of the bodies.
    until(lambda: MENU not in (now := helix.screen()) and now.count("...") == 2, "the filled body", tell=helix.screen)
    helix.type(":write\r")
    until(lambda: written(tmp_path / "item.py").count("...") == 2, "the saved file", tell=helix.screen)
    ast.parse(written(tmp_path / "item.py"))


def test_a_suggestion_is_in_the_completion_list(helix: Terminal) -> None:
    helix.type(":open shop.py:5:5\r")
    helix.until_seen("class Cart")
    helix.type("o    self.")

    # Asking again would end a request that is under way, so that is done with patience, in case the server was not there yet.
    for patience_s in (5, 10, 20):
        helix.press("C-x")
        with contextlib.suppress(AssertionError):
            until(lambda: " text" in inside(helix.screen()), "the list", patience_s=patience_s)
            return
    pytest.fail(helix.screen())


def written(path: Path) -> str:
    """Return a file's text, "" at the moment when Helix has taken the old one away and not yet put the new one there."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text("utf-8")
    return ""


def inside(screen: str) -> str:
    """Return what is on the screen below `def add` and above what follows the class."""
    return screen.split("def add")[1].split("cart.add")[0]
