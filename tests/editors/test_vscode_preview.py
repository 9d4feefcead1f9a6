"""What VS Code shows before and after a fill and beside its list, with an engine that answers what the text tells it to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.editor import says
from tests.editors.machine import ROOT
from tests.editors.waiting import until
from tests.editors.workbench import Workbench, workbench

WORKING = "def f(count):\n    return count + 1\n"


@pytest.fixture(scope="module")
def code(environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    command = [sys.executable, "-m", "dg_lsp", "serve", "--engine", "tests.server.scripted:engine"]
    scripted = {**environment, "PYTHONPATH": str(ROOT)}
    with workbench(tmp_path_factory.mktemp("vscode"), scripted, {"dgLsp.client.command": command}) as window:
        yield window


pytestmark = pytest.mark.usefixtures("photographed")


def regenerate(code: Workbench, text: str) -> None:
    """Regenerate the working line, and wait for the preview."""
    code.open("a.py", text)
    code.select((2, 4), (2, 20))
    code.press("Control+Alt+Enter")
    code.page.wait_for_selector(".quick-input-widget:visible input")
    code.press("Enter")
    choices = code.page.locator(".quick-input-widget:visible .quick-input-list .monaco-list-row", has_text="Apply")
    until(choices.count, "the question", tell=code.picture)
    until(code.page.locator(".monaco-diff-editor").count, "the diff", tell=code.picture)
    until(code.page.locator(CHANGED).count, "the change", tell=code.picture)
    assert document(code) == text, "nothing is written before the user agrees"


CHANGED = ".monaco-diff-editor .line-delete:visible, .monaco-diff-editor .line-insert:visible"


def is_covered(code: Workbench) -> bool:
    """Return whether the question hides a changed line of the diff."""
    question = code.page.locator(".quick-input-widget:visible").bounding_box()
    lines = [line.bounding_box() for line in code.page.locator(CHANGED).all()]
    assert question is not None
    return any(line is None or line["y"] < question["y"] + question["height"] for line in lines)


def document(code: Workbench) -> str:
    """Return the text of the file, which may be one side of a diff."""
    expression = "vscode.workspace.textDocuments.find((each) => each.uri.scheme === 'file' && each.fileName.endsWith('a.py'))"
    return str(code.run(f"return ({expression}).getText()"))


@pytest.mark.parametrize(("answer", "note"), [("return 2", "90 %"), ("pass", "90 %, replaces working code by less")])
def test_a_selection_is_regenerated_after_its_preview(code: Workbench, answer: str, note: str) -> None:
    text = says(text=answer) + WORKING
    regenerate(code, text)
    code.photograph(f"preview-{answer[:4]}")
    assert not is_covered(code), "the change is at the top of the file"
    assert f"Regenerating the selection ({note})" in (code.page.locator(".quick-input-title").text_content() or "")
    code.press("Enter")
    until(lambda: code.text() == text.replace("return count + 1", answer), "the new text", tell=code.picture)
    until(lambda: not code.page.locator(".monaco-diff-editor").count(), "the diff to go", tell=code.picture)
    until(lambda: code.run("return vscode.window.tabGroups.all.length") == 1, "the group of the diff to go", tell=code.picture)
    code.undo()
    until(lambda: code.text() == text, "the old text after one undo", tell=code.text)


def test_a_change_far_below_is_shown_without_another_group(code: Workbench) -> None:
    text = says(text="return 2") + WORKING + "\n" * 60
    code.open("a.py", text.replace(WORKING, "\n" * 60 + WORKING))
    code.select((62, 4), (62, 20))
    code.press("Control+Alt+Enter")
    code.page.wait_for_selector(".quick-input-widget:visible input")
    code.press("Enter")
    until(code.page.locator(CHANGED).count, "the change", tell=code.picture)
    until(lambda: not is_covered(code), "the change in the middle", tell=code.picture)
    assert code.run("return vscode.window.tabGroups.all.length") == 1
    code.press("Escape")
    until(lambda: not code.page.locator(".monaco-diff-editor").count(), "the diff to go", tell=code.picture)


def test_a_discarded_preview_is_not_applied(code: Workbench) -> None:
    text = says(text="pass") + WORKING
    regenerate(code, text)
    code.press("Escape")
    until(lambda: not code.page.locator(".monaco-diff-editor").count(), "the diff to go", tell=code.picture)
    until(lambda: not code.told().get("busy"), "the end of the fill", tell=code.picture)
    # The closed diff may be the active editor for a moment.
    until(lambda: code.text() == text, "the unchanged text", tell=code.text)


def test_fills_of_a_whole_file_end_with_a_list(code: Workbench) -> None:
    text = says(texts=["return 1", "return 22"]) + "def f():\n    ...\n\n\ndef g():\n    ...\n"
    code.open("b.py", text)
    code.press("Control+Alt+Shift+Enter")
    # A list that is closed stays in the page, hidden.
    title = code.page.locator(".quick-input-widget:visible .quick-input-title", has_text="2 of 2 holes filled")
    until(title.count, "the list", tell=code.picture)
    rows = code.page.locator(".quick-input-widget:visible .quick-input-list .monaco-list-row")
    until(lambda: rows.count() == 2, "both fills in the list", tell=code.picture)
    labels = [row.get_attribute("aria-label") or "" for row in rows.all()]
    assert "return 1" in labels[0]
    assert "line 3, 90 %" in labels[0]
    assert "line 7, 90 %" in labels[1]
    rows.nth(1).click()
    until(lambda: code.run("return vscode.window.activeTextEditor.selection.active.line") == 6, "the cursor at the fill")
    code.undo()
    until(lambda: code.text() == text, "the old text after one undo", tell=code.text)


def test_a_single_fill_shows_its_confidence(code: Workbench) -> None:
    code.open("c.py", says(text="return 1", probability=0.34) + "def f():\n    ...\n")
    code.put(2, 4)
    code.press("Control+Alt+Enter")
    bar = code.page.locator(".statusbar-item", has_text="filled (34 %)")
    until(lambda: bar.count(), "the note in the status bar", tell=code.picture)


PRICES = says(text="(3)") + "def price_total(count):\n    return count\n\n\n"
LISTED = ".suggest-widget.visible .monaco-list-row.focused"


@pytest.fixture
def listing(code: Workbench) -> Iterator[None]:
    """Let the editor's list open while typing, as it does by default."""
    change = 'await vscode.workspace.getConfiguration("editor").update("quickSuggestions", VALUE, true)'
    code.run(change.replace("VALUE", "{ other: 'on' }"))
    yield
    code.run(change.replace("VALUE", "{ other: 'off' }"))


def open_list(code: Workbench, name: str) -> None:
    """Begin a name in a new file; wait for the list, and for ghost text beside it."""
    code.open(name, PRICES)
    code.put(PRICES.count("\n"), 0)
    code.type("pric")
    until(lambda: "price_total" in "".join(code.page.locator(LISTED).all_text_contents()), "the list", tell=code.picture)
    until(lambda: code.ghost() == "e_total(3)", "ghost text that continues the selected entry", tell=code.picture)


@pytest.mark.usefixtures("listing")
def test_ghost_text_continues_the_entry_that_the_list_selects(code: Workbench) -> None:
    open_list(code, "a.py")
    code.press("Tab")
    until(lambda: code.text() == f"{PRICES}price_total", "the entry, and no more", tell=code.picture)
    until(lambda: code.ghost() == "(3)", "ghost text behind the entry", tell=code.picture)
    code.press("Tab")
    until(lambda: code.text() == f"{PRICES}price_total(3)", "the suggestion", tell=code.picture)


@pytest.mark.usefixtures("listing")
def test_once_the_list_is_closed_tab_inserts_the_ghost_text(code: Workbench) -> None:
    open_list(code, "d.py")  # in the other one, its text was removed and is not suggested again
    code.press("Escape")
    until(lambda: not code.page.locator(LISTED).count(), "the list to close", tell=code.picture)
    ghost = code.until_ghost()
    code.press("Tab")
    until(lambda: code.text() == f"{PRICES}pric{ghost}", "the suggestion", tell=code.picture)


def test_an_answer_after_the_deadline_appears_without_another_key(code: Workbench) -> None:
    code.open("late.py", says(late="code", text="abs(3)") + "x =")
    code.put(1, 3)
    code.type(" ")
    until(lambda: code.ghost() == "abs(3)", "the late answer", tell=code.picture)
