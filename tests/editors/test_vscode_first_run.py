"""The extension where nothing is installed yet: it offers to install the server, does so, and the first infill follows."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine
from tests.editors.waiting import until
from tests.editors.workbench import Workbench, workbench


@pytest.fixture(scope="module")
def bare() -> Iterator[Mapping[str, str]]:
    """Yield an environment with Python but without dg-lsp, in which pip finds dg-lsp's wheel, made of this very tree."""
    with tempfile.TemporaryDirectory(prefix="dg-") as folder:
        home = Path(folder)
        made = machine.environment(home)
        own = str(Path(sys.executable).parent)
        made["PATH"] = os.pathsep.join(part for part in made["PATH"].split(os.pathsep) if part != own)
        wheels = home / "wheels"
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(wheels), str(machine.ROOT)],
            check=True,
            capture_output=True,
            timeout=300,
        )
        # The rest of what dg-lsp needs is large, and is had from the environment that runs these tests.
        made |= {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_IGNORE_INSTALLED": "1", "PIP_FIND_LINKS": str(wheels)}
        made["PYTHONPATH"] = sysconfig.get_path("purelib")
        yield made
        machine.engine(made, "stop", "--now", "--all")


@pytest.fixture(scope="module")
def window(bare: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with workbench(tmp_path_factory.mktemp("first"), bare) as found:
        yield found


def test_what_cannot_be_installed_is_told_with_a_way_out(window: Workbench) -> None:
    window.set("client.package", "dg-lsp-that-is-nowhere[engine]")
    until(lambda: "was not found" in window.status(), "the warning", tell=window.status)
    window.page.locator(".statusbar-item[id*=dgLsp]").click()
    window.page.locator(".quick-input-list .monaco-list-row", has_text="Install dg-lsp").click()
    said = until(lambda: [each for each in window.messages() if "could not be installed" in each], "the message")
    assert "dg-lsp-that-is-nowhere" in said[0]
    assert "dgLsp.client.package" in said[0]
    window.command("notifications.clearAll")
    window.set("client.package", None)


def test_what_is_missing_can_be_installed_from_the_status_bar(window: Workbench) -> None:
    until(lambda: "was not found" in window.status(), "the warning", tell=window.status)
    window.page.locator(".statusbar-item[id*=dgLsp]").click()
    window.page.locator(".quick-input-list .monaco-list-row", has_text="Install dg-lsp").click()
    window.until_ready()
    until(lambda: "The engine is ready" in window.status(), "the status bar to say so", tell=window.status)


def test_the_walkthrough_ends_with_the_first_infill(window: Workbench) -> None:
    window.run('await vscode.commands.executeCommand("workbench.action.openWalkthrough", "dg-lsp.dg-lsp#start", false)')
    step = window.page.locator(".getting-started-step", has_text="Open a file and type")
    step.click()
    window.page.get_by_role("button", name="Open a sample").click()
    until(lambda: "set_price" in window.text(), "the sample")
    window.page.wait_for_selector(".monaco-editor.focused")
    # The cursor stands where the walkthrough says.
    window.type("self.")
    until(lambda: "        self." in window.text(), "what was typed", tell=window.picture)
    window.until_ghost()
    before = window.text()
    window.press("Tab")
    until(lambda: window.text() != before, "the accepted text", tell=window.picture)
    # The next step fills a body of the sample, which is then out of sight.
    window.run('await vscode.commands.executeCommand("workbench.action.openWalkthrough", "dg-lsp.dg-lsp#start", false)')
    window.page.locator(".getting-started-step", has_text="Fill a hole").click()
    window.page.get_by_role("button", name="Fill the body of get_price").click()
    until(lambda: "set_price" in window.text() and "..." not in window.text(), "the filled body", tell=window.picture)
