"""Drive a real VS Code: code-server in Chromium, with the packaged extension in a clean profile.

The browser types keys and takes pictures. A small extension runs code in the extension host for documents and settings, so
that tests compare the editor's documents and not its drawing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Error as BrowserError
from playwright.sync_api import Page, sync_playwright

from tests.editors.machine import PICTURES, ROOT, program
from tests.editors.texts import inserted
from tests.editors.waiting import PATIENCE_S, until

VSIX = ROOT / "editors" / "vscode" / "dg-lsp.vsix"
DRIVER = Path(__file__).parent / "driver"

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
# Show only the editor, and make no network connections.
SETTINGS = {
    "telemetry.telemetryLevel": "off",
    "workbench.startupEditor": "none",
    "workbench.enableExperiments": False,
    "workbench.welcomePage.walkthroughs.openOnInstall": False,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.tips.enabled": False,
    "extensions.autoCheckUpdates": False,
    "extensions.autoUpdate": "off",
    "extensions.ignoreRecommendations": True,
    "chat.disableAIFeatures": True,
    "chat.commandCenter.enabled": False,
    "security.workspace.trust.enabled": False,
    "git.enabled": False,
    "editor.minimap.enabled": False,
    "editor.accessibilitySupport": "off",
    "editor.quickSuggestions": {"other": "off"},
    "files.autoSave": "off",
    "files.restoreUndoStack": False,
    "update.mode": "none",
    "window.zoomLevel": 0,
    # For the pictures.
    "workbench.colorTheme": "Default Dark Modern",
    "workbench.activityBar.location": "hidden",
    "window.commandCenter": False,
    "editor.overviewRulerBorder": False,
    "breadcrumbs.enabled": False,
    # Show what the model has, however sure it is and however long it takes: these tests are about editors.
    "dgLsp.completion.deadline": 60_000,
    "dgLsp.actions.deadline": 60_000,
    "dgLsp.completion.threshold": 0,
    "dgLsp.completion.tokenThreshold": 0,
}

# The first line stands among the text, in a piece for each colour; the others have lines of their own below it.
GHOST = """
[
  [...document.querySelectorAll(".ghost-text-decoration, .ghost-text-decoration-preview")]
    .filter((each) => !each.closest(".suggest-preview-text")).map((each) => each.textContent).join(""),
  ...[...document.querySelectorAll(".suggest-preview-text .view-line")].map((each) => each.textContent),
].join("\\n").replace(/\\u00a0/g, " ").trimEnd()
"""


# Records what is drawn as a draft in each frame.
WATCH_DRAFTS = """() => {
  window.drafts = [];
  const look = () => {
    const drawn = [...document.querySelectorAll(".view-lines span")]
      .map((each) => getComputedStyle(each, "::after"))
      .filter((style) => style.content !== "none" && style.fontStyle === "italic")
      .map((style) => style.content).join("\\n");
    if (drawn && drawn !== window.drafts.at(-1)) window.drafts.push(drawn);
    window.looking = requestAnimationFrame(look);
  };
  look();
}"""


class Workbench:
    """One window of VS Code."""

    def __init__(self, page: Page, folders: Sequence[Path], address: str, driver: tuple[int, str]) -> None:
        """Control the window on these folders through a page. Files are created in the first folder."""
        self.page, self.folder = page, folders[0]
        self._folders, self._address, self._driver = folders, address, driver

    def watch_drafts(self) -> None:
        """Record the drafts that are drawn, inside the page, because one may be gone before a test can ask for it."""
        self.page.evaluate(WATCH_DRAFTS)

    def drafts(self) -> list[str]:
        """Return the drafts that were drawn, as CSS strings, and record no more."""
        self.page.evaluate("cancelAnimationFrame(window.looking)")
        drafts: list[str] = self.page.evaluate("window.drafts")
        return drafts

    def run(self, code: str) -> Any:
        """Return the result of JavaScript code that runs in the extension host, with `vscode` in scope."""
        port, token = self._driver
        request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=code.encode(), headers={"Authorization": token})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["value"]

    def load(self) -> None:
        """Open the window, and wait until the engine is ready."""
        self.page.goto(self._address)
        self.page.wait_for_selector(".monaco-workbench .part.editor")
        until(self._host, "the test's own extension")
        # On a busy machine a new window sometimes does not read its workspace's folders; then reload it.
        until(lambda: self._has_folders() or self._reload(), "the folders", tell=self.picture)
        until(lambda: "dg-lsp" in self.status(), "the item in the status bar", tell=self.status)
        self.command("workbench.action.closeSidebar")

    def _host(self) -> int:
        """Return the process id of the window's extension host, 0 if it does not answer."""
        try:
            return int(self.run("return process.pid"))
        except OSError:
            return 0

    def _has_folders(self) -> bool:
        result = self.run("return (vscode.workspace.workspaceFolders ?? []).map((each) => each.uri.fsPath)")
        return set(result) == set(map(str, self._folders))

    def _reload(self) -> bool:
        old = self._host()
        self.page.reload()
        self.page.wait_for_selector(".monaco-workbench .part.editor")
        # The old window's extension host ends a moment later.
        until(lambda: self._host() not in (0, old), "the extensions of the new window")
        return self._has_folders()

    def open(self, name: str, text: str) -> Path:
        """Write a file with exactly this text and open it as the only editor; wait until the engine is ready."""
        path = (self.folder / name).resolve()
        self.run(
            # Editors of the previous test would ask whether to save.
            "while (vscode.window.tabGroups.all.some((group) => group.tabs.length > 0))"
            '  await vscode.commands.executeCommand("workbench.action.revertAndCloseActiveEditor");'
            'await vscode.commands.executeCommand("notifications.clearAll");'
        )
        # Written after the old document is closed: an open one would take the new text as a change, which undo takes back.
        path.write_bytes(text.encode())
        self.run(
            f"const document = await vscode.workspace.openTextDocument({json.dumps(str(path))});"
            "await vscode.window.showTextDocument(document);"
        )
        self.until_ready()
        self.page.wait_for_selector(".editor-instance .monaco-editor .view-lines")
        return path

    def until_ready(self) -> None:
        """Wait until the engine is ready."""
        until(lambda: self.told().get("state") == "ready", "the engine", tell=self.picture)

    def told(self) -> dict[str, Any]:
        """Return the server's status; {} if it is not running."""
        result = self.run(
            'const all = await vscode.commands.getCommands(); if (!all.includes("dgLsp.status")) return {};'
            'try { return await vscode.commands.executeCommand("dgLsp.status"); } catch { return {}; }'
        )
        return result or {}

    def put(self, line: int, character: int) -> None:
        """Put the cursor at a place, counted from 0 in UTF-16 units, and the focus into the editor."""
        where = self.page.locator('[id="status.editor.selection"]')

        def is_there() -> bool:
            # A window that is still opening the document restores the previous cursor position.
            self.run(
                f"const at = new vscode.Position({line}, {character}); const editor = vscode.window.activeTextEditor;"
                "editor.selection = new vscode.Selection(at, at);"
                'await vscode.commands.executeCommand("workbench.action.focusActiveEditorGroup");'
            )
            return f"Ln {line + 1}, " in " ".join(where.all_text_contents())

        until(is_there, f"the cursor on line {line + 1}", tell=self.picture)
        self.page.wait_for_selector(".monaco-editor.focused")

    def select(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Select from one place to another."""
        self.put(*end)
        self.run(f"vscode.window.activeTextEditor.selection = new vscode.Selection({start[0]}, {start[1]}, {end[0]}, {end[1]})")
        # The window shows the selection a moment later than the extension host.
        self.page.wait_for_selector(".statusbar-item:has-text('selected)')")

    def type(self, text: str) -> None:
        """Type a text, at a fast typist's speed."""
        self.page.keyboard.type(text, delay=40)

    def press(self, *keys: str) -> None:
        """Press keys, by the browser's names."""
        for key in keys:
            self.page.keyboard.press(key)

    def change(self, key: str) -> str:
        """Press a key that changes the text, and return what it inserts."""
        before = self.text()
        self.press(key)
        until(lambda: self.text() != before, f"another text after {key}", tell=self.picture)
        return inserted(before, self.text())

    def undo(self) -> None:
        """Put the focus into the editor, which a list or a diff may have had, and press the key for undo once."""
        self.command("workbench.action.focusActiveEditorGroup")
        self.page.wait_for_selector(".monaco-editor.focused")
        self.press("Control+z")

    def command(self, name: str) -> Any:
        """Run a command of the editor."""
        return self.run(f"return await vscode.commands.executeCommand({json.dumps(name)})")

    def setting(self, name: str) -> Any:
        """Return one of our settings."""
        return self.run(f'return vscode.workspace.getConfiguration("dgLsp").get({json.dumps(name)})')

    def set(self, name: str, value: object) -> None:
        """Change one of our settings; None removes the user's value."""
        json_value = "undefined" if value is None else json.dumps(value)
        self.run(f'await vscode.workspace.getConfiguration("dgLsp").update({json.dumps(name)}, {json_value}, true)')

    def text(self) -> str:
        """Return the document's text. Wait for an active editor: there is none for a moment after another one closes."""
        code = "const editor = vscode.window.activeTextEditor; return editor ? [editor.document.getText()] : []"
        text: list[str] = until(lambda: self.run(code), "an active editor", tell=self.status)
        return text[0]

    def ghost(self) -> str:
        """Return the suggestion on the screen, "" for none."""
        return str(self.page.evaluate(GHOST))

    def until_ghost(self) -> str:
        """Return the suggestion as soon as there is one."""
        return until(self.ghost, "ghost text", tell=self.picture)

    def until_ghost_or_reason(self) -> str:
        """Return the suggestion as soon as there is one, or "" as soon as the server reports a reason for none."""
        until(lambda: self.ghost() or self.told().get("suppressed"), "ghost text, or a reason for none", tell=self.picture)
        return self.ghost()

    def draft(self) -> str:
        """Return the draft on the screen: the text of the decorations."""
        return str(
            self.page.evaluate(
                """[...document.querySelectorAll(".view-lines span")]
                .map((each) => getComputedStyle(each, "::after"))
                .filter((style) => style.content !== "none" && style.fontStyle === "italic")
                .map((style) => style.content).join("\\n")"""
            )
        )

    def status(self) -> str:
        """Return the label and the text of the item in the status bar."""
        return str(
            self.page.evaluate(
                '[...document.querySelectorAll(".statusbar-item")].filter((each) => each.id.includes("dgLsp"))'
                '.map((each) => each.getAttribute("aria-label") + " " + each.textContent).join(" ")'
            )
        )

    def messages(self) -> list[str]:
        """Return the notifications on the screen."""
        result = self.page.evaluate(
            '[...document.querySelectorAll(".notification-list-item-message")].map((x) => x.textContent)'
        )
        return [str(each) for each in result]

    def save(self, path: Path) -> str:
        """Save, and return the content of the file."""
        self.command("workbench.action.files.save")
        until(lambda: not self.run("return vscode.window.activeTextEditor.document.isDirty"), "the saved file")
        return path.read_bytes().decode()

    def photograph(self, name: str, height: int = 600) -> Path:
        """Take a picture of the window, or of its upper part."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"vscode-{name}.png"
        with contextlib.suppress(BrowserError):
            self.page.screenshot(path=str(path), clip={"x": 0, "y": 0, "width": 900, "height": height})
        return path

    def picture(self, name: str = "waited") -> str:
        """Return the state of the window, for a failure's message."""
        path = self.photograph(name)
        text = self.run('return vscode.window.activeTextEditor?.document.getText() ?? "(no active editor)"')
        picture = f"ghost {self.ghost()!r}\nmessages {self.messages()}\nstatus {self.status()} {self.told()}"
        return f"\n{text}\n{picture}\npicture {path}"


@contextlib.contextmanager
def workbench(
    folder: Path, environment: Mapping[str, str], settings: Mapping[str, object] | None = None, others: Sequence[str] = ()
) -> Iterator[Workbench]:
    """Yield a window on the empty folder `files` below this one, and on others next to it; the profile is new."""
    files, profile = folder / "files", folder / "profile"
    (profile / "User").mkdir(parents=True)
    files.mkdir()
    (profile / "User" / "settings.json").write_text(json.dumps({**SETTINGS, **(settings or {})}))
    # Settings of the scope `machine` are read only from here, because the window is remote.
    (profile / "Machine").mkdir()
    (profile / "Machine" / "settings.json").write_text(json.dumps(settings or {}))
    (folder / "config.yaml").write_text("auth: none\n")
    # VS Code uses the environment of a login shell.
    (Path(environment["HOME"]) / ".profile").write_text(f"export PATH={shlex.quote(environment['PATH'])}\n")
    extensions = folder / "extensions"
    base = [str(program("code-server")), "--config", str(folder / "config.yaml")]
    base += ["--user-data-dir", str(profile), "--extensions-dir", str(extensions)]
    installation = subprocess.run(
        [*base, "--install-extension", str(VSIX), "--force"],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert installation.returncode == 0, installation.stdout + installation.stderr
    # An extension needs only its folder. Packaging this one would need another tool.
    driver = extensions / "dg-lsp-tests.driver-0.0.1"
    driver.mkdir()
    for each in DRIVER.iterdir():
        (driver / each.name).write_bytes(each.read_bytes())
    _enlist(extensions, driver)
    port, driver_port, token = _free_port(), _free_port(), secrets.token_hex(16)
    log = (folder / "code-server.log").open("wb")
    options = ["--auth", "none", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"]
    process = subprocess.Popen(
        [*base, "--bind-addr", f"127.0.0.1:{port}", *options, "--disable-proxy", "--reconnection-grace-time", "1"],
        env={**environment, "DRIVER_PORT": str(driver_port), "DRIVER_TOKEN": token},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        until(
            lambda: _answers(f"{address}/healthz"), "code-server", tell=lambda: (folder / "code-server.log").read_text()[-2000:]
        )
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(program("chromium")), args=list(FLAGS))
            page = browser.new_page(viewport={"width": 900, "height": 600})
            page.set_default_timeout(1000 * PATIENCE_S)
            # Abort requests to other machines; the editor must work without them.
            page.route("**", lambda route: route.continue_() if _is_local(route.request.url) else route.abort())
            folders = [files, *(folder / name for name in others)]
            window = Workbench(page, folders, _opening(address, files, others), (driver_port, token))
            try:
                window.load()
            except Exception as error:
                picture = f"picture {window.photograph('start')}, log {folder / 'code-server.log'}"
                raise AssertionError(f"the window did not open: {error}; {picture}") from error
            yield window
            browser.close()
    finally:
        _end(process)
        log.close()


def _opening(address: str, files: Path, others: Sequence[str]) -> str:
    """Return the address of a window on a folder, or on a workspace with several folders, which are created."""
    if not others:
        return f"{address}/?folder={urllib.parse.quote(str(files))}"
    for name in others:
        (files.parent / name).mkdir()
    workspace = files.parent / "all.code-workspace"
    workspace.write_text(json.dumps({"folders": [{"path": name} for name in (files.name, *others)]}))
    return f"{address}/?workspace={urllib.parse.quote(str(workspace))}"


def _enlist(extensions: Path, driver: Path) -> None:
    """Add the extension to the editor's list of installed extensions."""
    list_file = extensions / "extensions.json"
    entries = json.loads(list_file.read_text()) if list_file.exists() else []
    entries.append(
        {
            "identifier": {"id": "dg-lsp-tests.driver"},
            "version": "0.0.1",
            "location": {"$mid": 1, "path": str(driver), "scheme": "file"},
            "relativeLocation": driver.name,
            "metadata": {"source": "vsix"},
        }
    )
    list_file.write_text(json.dumps(entries))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and all processes of its session."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2):
            return True
    except OSError:
        return False


def _is_local(address: str) -> bool:
    return urllib.parse.urlsplit(address).hostname in ("127.0.0.1", "localhost", None)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
