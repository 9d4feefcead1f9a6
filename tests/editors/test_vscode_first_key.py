"""Typing in VS Code's first editor before VS Code has set up inline suggestions there, as on a slow machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.editors.conftest import Watch
from tests.editors.waiting import until
from tests.editors.workbench import workbench

# How many times slower the page's processor is while the editor opens.
SLOWDOWN = 6


def test_text_typed_before_inline_suggestions_are_set_up_gets_a_suggestion(
    environment: Mapping[str, str], tmp_path: Path, watch: Watch
) -> None:
    with workbench(tmp_path, environment) as code:
        watch(code.picture)
        code.until_ready()
        # The slowdown lasts as long as this session.
        session = code.page.context.new_cdp_session(code.page)
        session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWDOWN})
        code.command("dgLsp.openSample")
        code.page.wait_for_selector(".monaco-editor.focused")
        line = "return vscode.window.activeTextEditor?.selection.active.line"
        until(lambda: code.run(line), "the cursor below the first lines", tell=code.picture)
        code.type("self.")
        session.detach()
        # The slow page may still show a suggestion for the empty line.
        until(lambda: code.ghost() == "height = height", "the rest of the typed line", tell=code.picture)
