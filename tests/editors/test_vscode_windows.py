"""The extension in a window with several folders, and in a browser without a machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.editors.conftest import Watch
from tests.editors.texts import INSIDE, SHOP
from tests.editors.waiting import until
from tests.editors.workbench import workbench


def test_each_folder_of_a_workspace_uses_its_own_ignore_file(
    environment: Mapping[str, str], tmp_path: Path, watch: Watch
) -> None:
    with workbench(tmp_path, environment, others=["second"]) as window:
        watch(lambda: window.picture("folders.failed"))
        second = window.folder.parent / "second"
        (second / ".gitignore").write_text("private.py\n")
        for name, is_suggested in (("files/private.py", True), ("second/shop.py", True), ("second/private.py", False)):
            window.open(f"../{name}", SHOP)
            window.put(*INSIDE)
            window.press("End", "Enter")
            window.type("self.")
            if is_suggested:
                window.until_ghost()
            else:
                until(lambda: (window.told()["suppressed"] or {}).get("code") == "ignored", "the reason", tell=window.picture)
                assert not window.ghost()


def test_the_web_extension_reports_that_it_needs_a_machine(
    environment: Mapping[str, str], tmp_path: Path, watch: Watch
) -> None:
    # As on a web page without a server: the extension runs in the browser.
    with workbench(tmp_path, environment, {"remote.extensionKind": {"dg-lsp.dg-lsp": ["web"]}}) as window:
        watch(lambda: window.picture("web.failed"))
        assert "a web page can't" in window.status()
        window.page.locator(".statusbar-item[id*=dgLsp]").click()
        messages = until(window.messages, "the message", tell=window.picture)
        assert "a web page can't" in messages[0]
        assert window.told() == {}
