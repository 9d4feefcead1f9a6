"""The packaged extension in a real VS Code with a clean profile, with the real server, engine and model."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine, tap
from tests.editors.texts import BODIES, BODY, FILES, INSIDE, LONG_BODY, SHOP, SHOPS, check_saved, paced
from tests.editors.waiting import until
from tests.editors.workbench import VSIX, Workbench, workbench


@pytest.fixture(scope="module")
def code(environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    if not VSIX.exists():
        pytest.fail(f"{VSIX} is not there; make vscode packages it")
    with workbench(tmp_path_factory.mktemp("vscode"), environment) as window:
        yield window


@pytest.fixture(autouse=True)
def resumed(code: Workbench, photographed: None) -> Iterator[None]:
    """End a pause that a failed test left."""
    yield
    if code.setting("completion.disabledLanguages"):
        code.set("completion.disabledLanguages", None)


def begin(code: Workbench, text: str = SHOP, name: str = "shop.py", typed: str = "self.", at: tuple[int, int] = INSIDE) -> str:
    """Open the text, type at the start of a new line inside a function, and return the suggestion."""
    code.open(name, text)
    code.put(*at)
    code.press("End", "Enter")
    code.type(typed)
    return code.until_ghost()


@pytest.mark.parametrize("kind", SHOPS)
def test_tab_inserts_a_suggestion_into_any_text(code: Workbench, kind: str) -> None:
    path = code.open(f"{kind}.py", SHOPS[kind])
    code.put(INSIDE[0], 0)
    code.press("End", "Enter")
    until(lambda: code.text().count("\n") > SHOPS[kind].count("\n"), "the new line", tell=code.text)
    code.type("x = '😀日'; value = self.")
    # The editor may close brackets and quotes automatically, so only the new text is compared.
    ghost = code.until_ghost()
    new = code.change("Tab")
    assert new.split("\r\n" if kind == "crlf" else "\n")[0] == ghost.split("\n")[0]
    check_saved(code.save(path), kind, f"x = '😀日'; value = self.{new}")


def test_other_suggestions_are_shown_in_turn(code: Workbench) -> None:
    first = begin(code, typed="value = ")
    code.press("Alt+]")
    other = until(lambda: (now := code.ghost()) != first and now, "another suggestion", tell=code.picture)
    code.press("Alt+[")
    until(lambda: code.ghost() not in ("", other), "the one before", tell=code.picture)


def test_fill_body_shows_its_drafts_and_is_one_step_to_undo(code: Workbench) -> None:
    path = code.open("item.py", BODIES)
    code.put(BODY, 8)
    # VS Code draws no progress of a fill that ends at once; the test that cancels a fill from the status bar looks for it.
    code.watch_drafts()
    code.press("Control+Alt+Enter")
    until(lambda: code.text() != BODIES, "the filled body", tell=code.picture)
    drafts = code.drafts()
    assert len(set(drafts)) >= 2, drafts
    filled_text = code.text()
    head, tail = BODIES.split("        ...\n", 1)
    assert filled_text.startswith(head)
    assert filled_text.endswith(tail)
    ast.parse(code.save(path))
    until(lambda: not code.draft(), "the drafts to go", tell=code.draft)
    code.undo()
    until(lambda: code.text() == BODIES, "the old text after one undo", tell=code.text)


def test_a_draft_of_several_lines_is_drawn_as_several_lines(code: Workbench) -> None:
    path = code.open("files.py", FILES)
    code.put(LONG_BODY, 4)
    code.press("Control+Alt+Enter")
    until(lambda: len(code.draft().split("\n")) > 2, "a draft of several lines", tell=code.picture)
    code.photograph("draft", 450)
    until(lambda: code.text() != FILES, "the filled body", tell=code.picture)
    until(lambda: not code.draft(), "the drafts to go", tell=code.draft)
    ast.parse(code.save(path))
    code.undo()
    until(lambda: code.text() == FILES, "the old text after one undo", tell=code.text)


def test_the_code_actions_are_in_the_menu(code: Workbench) -> None:
    code.open("item.py", BODIES)
    code.put(BODY, 8)
    code.press("Control+.")
    code.page.wait_for_selector(".action-widget .monaco-list-row")
    titles = code.page.locator(".action-widget .monaco-list-row").all_text_contents()
    assert any("Fill function body" in title for title in titles), titles
    code.photograph("menu")
    code.page.locator(".action-widget .monaco-list-row", has_text="Fill function body").click()
    until(lambda: code.text().count("...") == 2, "the filled body", tell=code.picture)


def test_a_selection_is_regenerated_with_the_instruction(code: Workbench) -> None:
    code.open("item.py", BODIES)
    code.select((7, 8), (7, 24))
    code.press("Control+Alt+Enter")
    code.page.wait_for_selector(".quick-input-widget:visible input")
    code.type("return the name in capitals")
    code.press("Enter")
    # A closed list stays in the page, hidden.
    question = code.page.locator(".quick-input-widget:visible .quick-input-list .monaco-list-row", has_text="Apply")
    until(lambda: question.count() or code.messages(), "an answer", tell=code.picture)
    if question.count():
        code.press("Enter")
        until(lambda: not question.count(), "the question to go", tell=code.picture)
        # While the diff closes, no editor is active, and there is no text.
        until(lambda: code.text() not in ("", BODIES) or code.messages(), "the new text", tell=code.picture)
    text = until(code.text, "the text")
    lines, old = text.split("\n"), BODIES.split("\n")
    assert lines[:7] == old[:7]
    assert lines[-17:] == old[-17:]
    ast.parse(text)


def test_a_killed_engine_is_restarted(code: Workbench, environment: Mapping[str, str]) -> None:
    begin(code, name="killed.py")
    watch(code)
    os.kill(machine.engine_pid(environment), signal.SIGKILL)
    code.press("Escape", "Enter")
    # Another text than before, so that no answer is cached.
    code.type("value = self.")
    code.until_ghost()
    assert code.told()["state"] == "ready"
    statuses = code.page.evaluate("window.statuses")
    assert any("is ready" not in each for each in statuses), statuses


def watch(code: Workbench) -> None:
    """Remember each text of the item in the status bar from now on."""
    code.page.evaluate(
        """() => {
          window.statuses = [];
          const look = () => {
            const item = [...document.querySelectorAll(".statusbar-item")].find((each) => each.id.includes("dgLsp"));
            const text = item ? item.getAttribute("aria-label") : "";
            if (text && text !== window.statuses.at(-1)) window.statuses.push(text);
            requestAnimationFrame(look);
          };
          look();
        }"""
    )


def server_pid(environment: Mapping[str, str]) -> int:
    """Return the process id of this window's server; other editors may run too."""

    def own() -> list[int]:
        # pgrep fails if there is no process.
        processes = subprocess.run(["pgrep", "-f", "dg-lsp serve"], capture_output=True, text=True, check=False)
        return [pid for pid in map(int, processes.stdout.split()) if {"DRIVER_PORT", environment["HOME"]} <= values(pid)]

    def values(pid: int) -> set[str]:
        try:
            parts = (part.partition("=") for part in Path(f"/proc/{pid}/environ").read_text().split("\0"))
        except OSError:
            # It has just ended.
            return set()
        return {value if name == "HOME" else name for name, _, value in parts}

    def only() -> int:
        processes = own()
        return processes[0] if len(processes) == 1 else 0

    # The previous server may not have ended yet, and a process that a server starts looks like its copy for a moment.
    return until(only, "one server", tell=own)


def test_a_killed_server_is_restarted(code: Workbench, environment: Mapping[str, str]) -> None:
    code.open("again.py", SHOP)
    pid = server_pid(environment)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the server")
    code.until_ready()
    begin(code, name="again.py")


def test_a_file_of_secrets_gets_no_suggestion_and_the_status_shows_the_reason(code: Workbench) -> None:
    code.open(".env", "API_KEY=\n")
    code.put(0, 8)
    code.type("1")
    until(lambda: "may hold secrets" in code.status(), "the reason in the status bar", tell=code.status)
    assert not code.ghost()
    code.page.locator(".statusbar-item[id*=dgLsp]").click()
    code.page.wait_for_selector(".quick-input-list .monaco-list-row")
    menu_entries = code.page.locator(".quick-input-list .monaco-list-row").all_text_contents()
    assert any("secrets" in each for each in menu_entries), menu_entries
    assert any("Pause" in each for each in menu_entries), menu_entries
    opacity = "getComputedStyle(document.querySelector('.quick-input-widget')).opacity"
    until(lambda: code.page.evaluate(opacity) == "1", "the list, no longer fading in")
    code.photograph("status", 340)
    code.press("Escape")


def pick(code: Workbench, entry: str) -> None:
    """Click the item in the status bar, and then an entry of its menu."""
    code.page.locator(".statusbar-item[id*=dgLsp]").click()
    code.page.locator(".quick-input-list .monaco-list-row", has_text=entry).click()


def test_a_pause_for_a_language_applies_only_to_that_language(code: Workbench) -> None:
    code.open("shop.py", SHOP)
    pick(code, "Pause for python")
    until(lambda: code.setting("completion.disabledLanguages") == ["python"], "the setting", tell=code.picture)
    until(lambda: "Paused: Suggestions are paused for python" in code.status(), "the pause before any key", tell=code.status)
    code.put(*INSIDE)
    code.press("End", "Enter")
    code.type("self.")
    # An earlier reason may still be there when the last key arrives.
    until(lambda: code.told()["suppressed"]["code"] == "language", "the reason for silence", tell=code.picture)
    assert "python" in code.status()
    assert not code.ghost()
    code.open("shop.js", "const cart = [];\ncart.push(1);\ncart.push(2);\n\n")
    code.put(3, 0)
    code.type("cart.p")
    code.until_ghost()
    code.open("shop.py", SHOP)
    pick(code, "Resume for python")
    until(lambda: code.setting("completion.disabledLanguages") == [], "the setting", tell=code.picture)
    until(lambda: "Ready" in code.status(), "the end of the pause before any key", tell=code.status)
    begin(code)


def test_a_model_folder_that_does_not_exist_is_refused_and_the_model_stays(code: Workbench, tmp_path: Path) -> None:
    code.open("shop.py", SHOP)
    nowhere = str(tmp_path / "no-model")
    pick(code, "Choose a model")
    code.page.locator(".quick-input-list .monaco-list-row", has_text="Another").click()
    code.page.wait_for_selector(".quick-input-box input")
    until(lambda: code.page.input_value(".quick-input-box input") == "embedded", "the name of the model used now")
    code.page.fill(".quick-input-box input", nowhere)
    code.press("Enter")
    until(lambda: any(f"there is no folder {nowhere}" in text for text in code.messages()), "the refusal", tell=code.picture)
    assert code.told()["model"] == "embedded"
    code.command("notifications.clearAll")
    begin(code)


@pytest.fixture
def tapped(code: Workbench, tmp_path: Path) -> Iterator[Path]:
    """Yield the log of all messages between the editor and its server, which the settings name."""
    log = tmp_path / "messages"
    own = Path(sys.executable)
    code.set("client.command", [str(own), tap.__file__, str(log), str(own.parent / "dg-lsp"), "serve"])
    until(lambda: any(message.get("method") == "initialized" for _, message in tap.heard(log)), "the server", tell=code.picture)
    code.until_ready()
    yield log
    code.set("client.command", None)
    code.until_ready()


def start(code: Workbench, command: str, *arguments: object) -> None:
    """Start a command without waiting for it; the extension reports its errors."""
    call_arguments = ", ".join(map(json.dumps, (command, *arguments)))
    code.run(f"void vscode.commands.executeCommand({call_arguments}).then(() => undefined, () => undefined)")


def begin_fill(code: Workbench, name: str, *, by_menu: bool = False) -> Path:
    """Open a file and start to fill its long body; return when a draft is on the screen."""
    path = code.open(name, FILES)
    code.put(LONG_BODY, 4)
    if by_menu:
        start(code, "editor.action.codeAction", {"kind": "refactor.rewrite", "apply": "first"})
    else:
        start(code, "dgLsp.fillHere")
    until(code.draft, "a draft", tell=code.picture)
    return path


@pytest.mark.parametrize("by_menu", [False, True])
def test_a_fill_is_cancelled_from_the_status_bar(code: Workbench, by_menu: bool) -> None:
    begin_fill(code, "ended.py", by_menu=by_menu)
    code.command("dgLsp.cancel")
    until(lambda: not code.told()["busy"] and not code.draft(), "the end", tell=code.picture)
    assert code.text() == FILES
    assert code.messages() == []


def test_a_file_that_is_closed_while_it_is_filled_stays_closed(code: Workbench, tapped: Path) -> None:
    path = begin_fill(code, "closed.py")
    code.command("workbench.action.closeActiveEditor")

    def answers() -> list[object]:
        request_ids = [message["id"] for _, message in tap.heard(tapped) if message.get("method") == "workspace/executeCommand"]
        return [message for sender, message in tap.heard(tapped) if sender == "server" and message.get("id") in request_ids]

    until(answers, "the end of the fill", tell=code.picture)
    tabs = "return vscode.window.tabGroups.all.flatMap((group) => group.tabs.map((tab) => tab.label))"
    assert path.name not in code.run(tabs)
    assert path.read_text() == FILES


def test_a_document_that_cannot_be_filled_shows_a_message(code: Workbench) -> None:
    code.open("item.py", BODIES)
    code.command("workbench.action.closeActiveEditor")
    for name, reason in (("fillHere", "open a file first"), ("toggleLanguage", "open a file in that language first")):
        code.command(f"dgLsp.{name}")
        until(lambda: [each for each in code.messages() if reason in each], "the reason", tell=code.picture)  # noqa: B023
    code.open("item.py", BODIES)
    code.command("workbench.action.files.setActiveEditorReadonlyInSession")
    code.put(BODY, 8)
    code.press("F1")
    code.page.wait_for_selector(".quick-input-widget:visible input")
    code.type("dg-lsp: ")
    item = code.page.locator(".quick-input-list .monaco-list-row")
    until(lambda: any("Run Doctor" in each for each in item.all_text_contents()), "the commands", tell=code.picture)
    assert not any("Fill Function Body" in each for each in item.all_text_contents())
    code.press("Escape")
    code.command("workbench.action.files.resetActiveEditorReadonlyInSession")


def test_a_server_that_ends_during_a_fill_is_reported(code: Workbench, environment: Mapping[str, str]) -> None:
    begin_fill(code, "lost.py")
    os.kill(server_pid(environment), signal.SIGKILL)
    until(lambda: any("the server ended" in each for each in code.messages()), "the message", tell=code.picture)
    until(lambda: not code.draft(), "the drafts to go", tell=code.draft)
    code.until_ready()
    assert code.text() == FILES


@pytest.fixture
def command_setting(code: Workbench) -> Iterator[Callable[[object], None]]:
    """Yield a function that sets the command of the server."""
    yield lambda value: code.set("client.command", value)
    code.set("client.command", None)
    code.until_ready()


def test_a_server_that_never_answers_can_be_replaced_and_what_was_typed_gets_a_suggestion(
    code: Workbench, command_setting: Callable[[object], None]
) -> None:
    code.open("shop.py", SHOP)
    command_setting(["/bin/sleep", "1000"])
    until(lambda: "is starting" in code.status(), "the start", tell=code.picture)
    start(code, "dgLsp.restart")
    code.put(*INSIDE)
    code.press("Enter")
    code.type("self.")
    command_setting(None)
    code.until_ready()
    assert code.until_ghost()
    assert code.messages() == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("dg-lsp serve", "must be a list of strings"),
        (["/nowhere/dg-lsp", "serve"], "/nowhere/dg-lsp, which the setting dgLsp.client.command names, can't be run"),
        (["/bin/false"], "The server"),
    ],
)
def test_a_server_that_cannot_be_started_is_named(
    code: Workbench, command_setting: Callable[[object], None], command: object, reason: str
) -> None:
    code.open("shop.py", SHOP)
    command_setting(command)
    until(lambda: reason in code.status() and "is starting" not in code.status(), "the reason", tell=code.picture)
    # A traceback names the extension's bundle.
    assert not any("extension.js" in each for each in code.messages())


def test_the_doctor_runs_with_the_servers_program_in_the_folder_of_the_window(
    code: Workbench, command_setting: Callable[[object], None]
) -> None:
    code.open("shop.py", SHOP)
    command_setting([sys.executable, "-m", "dg_lsp", "serve"])
    until(lambda: "is ready" in code.status(), "the server", tell=code.picture)
    pick(code, "Run dg-lsp doctor")
    until(lambda: "running engines: embedded" in code.text(), "the doctor's lines", tell=code.picture)
    assert "ok  dg-lsp" in code.text()
    assert str(code.folder / ".dg-lsp.toml") in code.text()
    document = "vscode.window.activeTextEditor.document"
    assert code.run(f'return vscode.workspace.getConfiguration("editor", {document}).get("wordWrap")') == "on"


def test_a_pause_changes_the_workspaces_setting_if_there_is_one(code: Workbench) -> None:
    code.open("shop.py", SHOP)
    workspace = 'await vscode.workspace.getConfiguration("dgLsp").update("completion.trigger", VALUE, false)'
    code.run(workspace.replace("VALUE", '"auto"'))
    code.command("dgLsp.togglePause")
    assert code.setting("completion.trigger") == "manual"
    code.command("dgLsp.togglePause")
    assert code.setting("completion.trigger") == "auto"
    code.run(workspace.replace("VALUE", "undefined"))


def test_disabling_a_language_replaces_a_wrong_setting(code: Workbench) -> None:
    code.open("shop.py", SHOP)
    code.set("completion.disabledLanguages", "python")
    code.command("dgLsp.toggleLanguage")
    assert code.setting("completion.disabledLanguages") == ["python"]
    code.set("completion.disabledLanguages", None)


@pytest.fixture
def plain_keys(code: Workbench) -> Iterator[None]:
    """Turn off automatic indentation and brackets."""
    change = (
        'const all = vscode.workspace.getConfiguration("editor");'
        'for (const [name, value] of [["autoIndent", "none"], ["autoClosingBrackets", "never"]])'
        "  await all.update(name, {}, vscode.ConfigurationTarget.Global);"
    )
    code.run(change.replace("{}", "value"))
    yield
    code.run(change.replace("{}", "undefined"))


@pytest.mark.usefixtures("plain_keys")
def test_fast_typing_inserts_exactly_the_typed_text(code: Workbench, tapped: Path) -> None:
    path = code.open("fast.py", "\n")
    typed_text, keys = paced()
    code.put(0, 0)
    n_before = len(tap.heard(tapped))
    for key in keys:
        code.press(key)
        # The test types twelve keys a second, so there is no state to wait for.
        time.sleep(1 / 12)
    until(lambda: code.text() == typed_text + "\n", "what was typed", tell=code.text)
    assert code.save(path) == typed_text + "\n"
    n_requests, most = tap.most_alive(tap.heard(tapped)[n_before:], "textDocument/inlineCompletion")
    assert n_requests > 0
    assert most == 1
    # If a suggestion is shown, it must be for this place.
    code.command("editor.action.inlineSuggest.trigger")
    if ghost := code.until_ghost_or_reason():
        code.change("Tab")
        assert code.text().startswith(typed_text + ghost.split("\n")[0])


def test_a_pause_lasts_until_resume(code: Workbench) -> None:
    code.open("paused.py", SHOP)
    code.command("dgLsp.togglePause")
    code.put(*INSIDE)
    code.press("Enter")
    code.type("self.")
    until(lambda: "only on request" in code.status(), "the reason in the status bar", tell=code.status)
    assert not code.ghost()
    code.command("editor.action.inlineSuggest.trigger")
    code.until_ghost()
    code.press("Escape")
    code.command("dgLsp.togglePause")
    code.press("Enter")
    code.type("value = self.")
    code.until_ghost()


def test_a_held_suggestion_is_shown_after_it_was_revealed(code: Workbench) -> None:
    code.open("held.py", SHOP)
    code.set("completion.trigger", "held")
    until(lambda: code.setting("completion.trigger") == "held", "the setting")
    try:
        code.put(*INSIDE)
        code.press("End", "Enter")
        code.type("self.")
        until(lambda: "Working" not in code.status(), "the engine", tell=code.status)
        assert not code.ghost()
        code.press("Control+Alt+Space")
        ghost = code.until_ghost()
        assert code.change("Tab").startswith(ghost.split("\n")[0])
    finally:
        code.set("completion.trigger", None)


def test_an_untitled_document_gets_suggestions(code: Workbench) -> None:
    code.command("dgLsp.openSample")
    code.page.wait_for_selector(".monaco-editor.focused")
    code.type("self.")
    code.until_ghost()


def test_a_suggestion_of_several_lines_is_inserted(code: Workbench) -> None:
    ghost = begin(code, FILES.replace("    ...\n", ""), "files.py", "try:", at=(LONG_BODY - 1, 0))
    code.photograph("suggestion", 450)
    assert code.change("Tab").strip("\n") == ghost.strip("\n")


def test_no_unexpected_message_was_shown(code: Workbench) -> None:
    """This is the last test: no earlier test has left a notification of an error."""
    assert [each for each in code.messages() if "setting" in each or "rror" in each] == []
