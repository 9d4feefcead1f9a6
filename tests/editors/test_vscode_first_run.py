"""The extension on a machine without dg-lsp: it offers to install the server, installs it, and the first fill works."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dg_lsp.wire.extras import has_useless_cuda
from tests.editors import machine
from tests.editors.waiting import until
from tests.editors.workbench import Workbench, workbench


@pytest.fixture(scope="module")
def bare() -> Iterator[Mapping[str, str]]:
    """Yield an environment with Python but without dg-lsp, in which pip finds no package; the extension contains the wheel."""
    with tempfile.TemporaryDirectory(prefix="dg-") as folder:
        home = Path(folder)
        new_environment = machine.environment(home)
        new_environment["PATH"] = machine.path_without("dg-lsp")
        new_environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(home)}
        # The dependencies are large, so use those of the environment that runs these tests.
        new_environment["PYTHONPATH"] = sysconfig.get_path("purelib")
        yield new_environment
        machine.engine(new_environment, "stop", "--now", "--all")


@pytest.fixture(scope="module")
def window(bare: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    nothing = tmp_path_factory.mktemp("list") / "requirements.txt"
    nothing.write_text("# The dependencies are installed already.\n")
    with workbench(tmp_path_factory.mktemp("first"), bare, {"dgLsp.client.requirements": str(nothing)}) as code:
        yield code


def test_a_fill_without_a_server_leads_to_the_installation(window: Workbench) -> None:
    until(lambda: "was not found" in window.status(), "the warning", tell=window.status)
    window.command("dgLsp.fillHere")
    until(lambda: any("is not running" in each for each in window.messages()), "the message", tell=window.picture)
    window.page.get_by_role("button", name="Show the Reason").click()
    window.page.locator(".quick-input-list .monaco-list-row", has_text="Install the server").wait_for()
    window.press("Escape")
    window.command("notifications.clearAll")


def test_a_failed_installation_shows_a_remedy(window: Workbench) -> None:
    # pip finds no package here, so the extension's own requirements can't be installed.
    machine_settings = window.folder.parent / "profile" / "Machine" / "settings.json"
    settings_text = machine_settings.read_text()
    machine_settings.write_text("{}")
    until(lambda: window.setting("client.requirements") == "", "the setting to go")
    until(lambda: "was not found" in window.status(), "the warning", tell=window.status)
    window.page.locator(".statusbar-item[id*=dgLsp]").click()
    window.page.locator(".quick-input-list .monaco-list-row", has_text="Install the server").click()
    if sys.platform == "linux":
        rows = window.page.locator(".quick-input-list .monaco-list-row")
        until(lambda: rows.count() == 2, "the question which torch", tell=window.picture)
        cpu, cuda = sorted(rows.all(), key=lambda row: "CUDA" in row.inner_text())
        assert "Downloads about 250 MB" in cpu.inner_text()
        assert "Takes about 5 GB" in cuda.inner_text()
        is_second = has_useless_cuda()
        assert cuda.get_attribute("aria-posinset") == ("2" if is_second else "1")
        # The CPU build is installed already, so only the one with CUDA can fail here.
        window.press(*(["ArrowDown"] if is_second else []), "Enter")
    messages = until(lambda: [each for each in window.messages() if "could not be installed" in each], "the message")
    assert "dgLsp.client.requirements" in messages[0]
    assert "No matching distribution found" in messages[0]
    window.command("notifications.clearAll")
    machine_settings.write_text(settings_text)
    until(lambda: window.setting("client.requirements") != "", "the setting")


def test_a_missing_server_can_be_installed_from_the_status_bar(window: Workbench) -> None:
    until(lambda: "was not found" in window.status(), "the warning", tell=window.status)
    window.page.locator(".statusbar-item[id*=dgLsp]").click()
    window.page.locator(".quick-input-list .monaco-list-row", has_text="Install the server").click()
    until(lambda: "being installed" in window.status(), "the installation in the status bar", tell=window.status)
    # This message goes by itself after some seconds.
    until(lambda: any("dg-lsp is installed" in each for each in window.messages()), "the message", tell=window.picture)
    window.until_ready()
    until(lambda: "The engine is ready" in window.status(), "the status bar to say so", tell=window.status)
    window.command("notifications.clearAll")


def test_the_walkthrough_leads_to_a_suggestion_and_a_fill(window: Workbench) -> None:
    window.run('await vscode.commands.executeCommand("workbench.action.openWalkthrough", "dg-lsp.dg-lsp#start", false)')
    # The server was installed from the status bar. An attempt to fill something before that was no fill.
    until(lambda: is_done(window, "Install the server"), "the tick of the first step", tell=window.picture)
    assert not is_done(window, "Fill a hole")
    step = window.page.locator(".getting-started-step", has_text="Open a file and type")
    step.click()
    # The message about the installation has a button of the same name.
    step.get_by_role("button", name="Open a sample").click()
    until(lambda: "class Window" in window.text(), "the sample")
    window.page.wait_for_selector(".monaco-editor.focused")
    # The cursor is where the walkthrough says.
    window.type("self.")
    assert window.until_ghost() == "height = height"
    window.press("Tab")
    until(lambda: window.text().count("        self.height = height\n") == 2, "the right line", tell=window.picture)
    # The next step fills a body of the sample, which is hidden behind the walkthrough.
    window.run('await vscode.commands.executeCommand("workbench.action.openWalkthrough", "dg-lsp.dg-lsp#start", false)')
    window.page.locator(".getting-started-step", has_text="Fill a hole").click()
    window.page.get_by_role("button", name="Fill the body of area").click()
    until(
        lambda: window.text().count("    def area(self):\n        return self.width * self.height\n") == 2,
        "the right body",
        tell=window.picture,
    )
    window.run('await vscode.commands.executeCommand("workbench.action.openWalkthrough", "dg-lsp.dg-lsp#start", false)')
    until(lambda: is_done(window, "Fill a hole"), "the tick of the third step", tell=window.picture)


def is_done(window: Workbench, title: str) -> bool:
    """Return whether a step of the walkthrough has its tick."""
    steps = window.page.locator(".getting-started-step", has_text=title)
    return bool(steps.locator(".codicon.complete").count())
