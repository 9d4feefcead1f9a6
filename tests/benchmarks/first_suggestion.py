"""The time of a new user of VS Code, from the press on *Install* to the first right suggestion in the walkthrough's sample.

The machine has Python and VS Code. pip installs all dependencies into a new environment, from the package index that pip is
configured with; packages that pip has in its cache are not downloaded again. `make test-editors` installs the editor, and
`make vscode` packages the extension.

    python tests/benchmarks/first_suggestion.py [requirements.txt]

The requirements file lists what pip installs beside dg-lsp, as `dgLsp.client.requirements` does. Without one, the extension's
own requirements are installed, with the build of torch that it offers first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.editors import machine
from tests.editors.waiting import until
from tests.editors.workbench import Workbench, workbench

RIGHT = "height = height"
# The defaults, where the tests of the editor have other values.
DEFAULTS = {"dgLsp.completion.deadline": 1500, "dgLsp.completion.threshold": 0.3, "dgLsp.completion.tokenThreshold": 0.1}
PATIENCE_S = 1800


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirements", type=Path, nargs="?")
    requirements = parser.parse_args(arguments).requirements
    with tempfile.TemporaryDirectory(prefix="dg-") as folder:
        home = Path(folder)
        environment = machine.environment(home)
        environment["PATH"] = machine.path_without("dg-lsp")
        environment |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        (home / "window").mkdir()
        settings = {**DEFAULTS, "dgLsp.client.requirements": str(requirements.resolve()) if requirements else ""}
        try:
            with workbench(home / "window", environment, settings) as window:
                measure(window, asks=requirements is None and sys.platform == "linux")
        finally:
            machine.engine(environment, "stop", "--now", "--all")


def measure(window: Workbench, *, asks: bool) -> None:
    until(lambda: "was not found" in window.status(), "the warning", tell=window.status)
    window.page.locator(".statusbar-item[id*=dgLsp]").click()
    row = window.page.locator(".quick-input-list .monaco-list-row", has_text="Install the server")
    row.wait_for()
    pressed = time.monotonic()
    row.click()
    if asks:
        question = window.page.locator(".quick-input-widget:visible", has_text="NVIDIA GPU was found")
        until(question.count, "the question which build of torch", tell=window.picture)
        window.photograph("which-torch")
        window.press("Enter")

    def told(what: str) -> None:
        print(f"{time.monotonic() - pressed:6.1f} s  {what}", flush=True)

    def is_installed() -> bool:
        messages = window.messages()
        assert not any("could not be installed" in each for each in messages), messages
        return any("dg-lsp is installed" in each for each in messages) or window.told().get("state") == "ready"

    until(is_installed, "the installation", patience_s=PATIENCE_S, tell=window.picture)
    told("installed")
    window.command("dgLsp.openSample")
    until(lambda: "class Window" in window.text(), "the sample", tell=window.picture)
    window.page.wait_for_selector(".monaco-editor.focused")
    window.type("self.")
    shown = window.until_ghost()
    told(f"the first suggestion: {shown!r}, which is {'right' if shown == RIGHT else f'not {RIGHT!r}'}")
    window.photograph("first-suggestion")


if __name__ == "__main__":
    main(sys.argv[1:])
