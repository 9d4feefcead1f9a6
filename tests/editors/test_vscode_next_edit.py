"""Next edits in VS Code, from the real server with an engine that writes what the text says."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.editor import says
from tests.editors.machine import ROOT
from tests.editors.waiting import until
from tests.editors.workbench import Workbench, workbench

# Blank lines keep the script out of the lines around the cursor, which the engine rewrites.
TOP = 4
HEAD = says(edit=["area", "size"]) + "\n" * (TOP - 1)
TEXT = f"{HEAD}def area(w, h):\n    return w * h\n\n\na = area(2, 3)\nprint(a)\nb = area(4, 5)\n"
RENAMED = TEXT.replace("def area", "def size")
FIRST = RENAMED.replace("a = area", "a = size")
SECOND = FIRST.replace("b = area", "b = size")

DRAWN = """() => {
  const spans = [...document.querySelectorAll(".view-lines span span")];
  const struck = spans.filter((each) => getComputedStyle(each).textDecorationLine === "line-through" && each.textContent);
  const added = spans.map((each) => getComputedStyle(each, "::after").content).filter((each) => each.startsWith('"'));
  return [struck.map((each) => each.textContent).join(""), added.map((each) => JSON.parse(each)).join("")];
}"""


# Begins what runs in the extension host.
PRELUDE = """
const run = vscode.commands.executeCommand;
const editor = vscode.window.activeTextEditor;
const { uri } = editor.document;
const everything = new vscode.Range(0, 0, 99, 0);
"""


@pytest.fixture(scope="module")
def code(environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    command = [sys.executable, "-m", "dg_lsp", "serve", "--engine", "tests.server.scripted:engine"]
    model = "fim:openai:http://127.0.0.1:1#scripted"
    scripted = {**environment, "PYTHONPATH": str(ROOT), "DG_LSP_EDIT_MODEL": model}
    # Grey text goes first, and these tests are not about it.
    settings = {
        "dgLsp.client.command": command,
        "dgLsp.nextEdit.trigger": "pause",
        "dgLsp.completion.trigger": "manual",
        "editor.occurrencesHighlight": "off",
    }
    with workbench(tmp_path_factory.mktemp("vscode"), scripted, settings) as window:
        yield window


pytestmark = pytest.mark.usefixtures("photographed")


def drawn(code: Workbench) -> tuple[str, str]:
    """Return the text that is struck, and the text that is drawn beside it."""
    struck, added = code.page.evaluate(DRAWN)
    return struck, added.replace("\u00a0", " ").strip()


def until_drawn(code: Workbench, struck: str, added: str) -> None:
    until(
        lambda: drawn(code) == (struck, added), f"{added!r} in place of {struck!r}", tell=lambda: (drawn(code), code.picture())
    )


def rename(code: Workbench, name: str) -> None:
    """Rename the function in its definition, and wait until the first call of it is offered."""
    code.open(name, TEXT)
    code.put(TOP, 8)
    code.press(*["Backspace"] * 4)
    code.type("size")
    until_drawn(code, "area", "size")
    assert code.text() == RENAMED


def go(code: Workbench) -> None:
    """Go to the edit, and wait until the keys know it."""
    code.press("Control+Alt+n")
    at_edit = f"return vscode.window.activeTextEditor.selection.active.line === {TOP + 4}"
    until(lambda: code.run(at_edit), "the cursor at the edit", tell=code.picture)
    # Behind the extension's own, because they arrive in order.
    code.run("await vscode.commands.executeCommand('setContext', 'dgLspTest', 1)")


def test_an_edit_is_shown_gone_to_and_accepted_and_the_rest_follows(code: Workbench) -> None:
    rename(code, "a.py")
    code.photograph("next-edit", 320)
    # The cursor is elsewhere, so the key is the editor's own.
    code.press("Tab")
    until(lambda: code.text() != RENAMED, "an indentation", tell=code.picture)
    assert "def size " in code.text()
    code.undo()
    until(lambda: code.text() == RENAMED, "the text before", tell=code.picture)
    until_drawn(code, "area", "size")
    go(code)
    assert code.text() == RENAMED
    code.press("Tab")
    until(lambda: code.text() == FIRST, "the first call", tell=code.picture)
    until_drawn(code, "area", "size")
    # The rest is two lines below.
    code.press("Control+Alt+n", "Control+Alt+n")
    until(lambda: code.text() == SECOND, "the second call", tell=code.picture)
    until_drawn(code, "", "")
    code.undo()
    until(lambda: code.text() == FIRST, "one step back", tell=code.picture)


def test_a_rejected_edit_does_not_come_back(code: Workbench) -> None:
    rename(code, "b.py")
    go(code)
    code.press("Escape")
    until_drawn(code, "", "")
    # The editor tells the extension of the movement when the command has already asked.
    code.run(PRELUDE + "editor.selection = new vscode.Selection(10, 0, 10, 0); await run('dgLsp.goToNextEdit');")
    note = code.page.locator(".statusbar-item", has_text="no next edit is known here")
    until(note.count, "the note", tell=code.picture)
    assert drawn(code) == ("", "")
    assert code.text() == RENAMED


# Misuses, as code for the extension host.
RENAME = """
await run("workbench.action.files.save");
const edit = new vscode.WorkspaceEdit();
edit.renameFile(uri, vscode.Uri.joinPath(uri, "..", "renamed.py"), { overwrite: true });
await vscode.workspace.applyEdit(edit);
"""
SWITCH = """
await run("workbench.action.files.save");
await vscode.workspace.fs.writeFile(uri, new TextEncoder().encode("b = 1\\n"));
await run("workbench.action.files.revert");
"""


@pytest.mark.parametrize(
    ("action", "after", "is_silent"),
    [
        ("await run('undo');", None, True),
        ("await editor.edit((all) => all.insert(new vscode.Position(20, 0), '# more'));", f"{RENAMED}# more", False),
        # The first goes there, the second applies, and the third asks.
        ("for (let n = 0; n < 3; n++) await run('dgLsp.goToNextEdit');", FIRST, False),
        ("await run('workbench.action.files.save'); await run('workbench.action.closeActiveEditor');", None, True),
        ("await editor.edit((all) => all.replace(everything, 'x = 1\\n'.repeat(170000)));", None, True),
        ("editor.selection = new vscode.Selection(0, 0, 1, 0);", RENAMED, True),
        ("await run('workbench.action.files.newUntitledFile');", "", True),
        (RENAME, RENAMED, True),
        (SWITCH, "b = 1\n", True),
    ],
    ids=["undo", "change", "accepted-twice", "closed", "huge-paste", "selection", "another-window", "renamed", "branch"],
)
def test_what_makes_an_edit_stale_takes_it_away(
    code: Workbench, action: str, after: str | None, is_silent: bool, request: pytest.FixtureRequest
) -> None:
    rename(code, f"stale-{request.node.callspec.id.split('-')[-1]}.py")
    code.run(PRELUDE + action)
    if after is not None:
        until(lambda: code.text() == after, "the text", tell=code.picture)
    if is_silent:
        until_drawn(code, "", "")
    else:
        # It is asked for again, in the new text.
        until_drawn(code, "area", "size")
    assert after is None or code.text() == after


def test_the_setting_decides_who_asks(code: Workbench) -> None:
    def choose(trigger: str) -> None:
        code.set("nextEdit.trigger", trigger)
        until(lambda: code.told().get("nextEdit") == trigger, "the setting", tell=code.picture)

    rename(code, "off.py")
    choose("off")
    until_drawn(code, "", "")
    choose("manual")
    code.open("manual.py", TEXT)
    code.put(TOP, 8)
    code.press(*["Backspace"] * 4)
    code.type("size")
    until(lambda: code.text() == RENAMED, "the change", tell=code.picture)
    assert drawn(code) == ("", "")
    code.press("Control+Alt+n")
    until_drawn(code, "area", "size")
    choose("pause")
