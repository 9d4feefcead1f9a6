"""The package in an Emacs with a screen: typed keys, the unprompted suggestion, and the saved file."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.editors import machine
from tests.editors.conftest import Watch
from tests.editors.terminal import Terminal
from tests.editors.test_emacs import LIBRARIES, PACKAGE
from tests.editors.texts import BODIES, INSIDE, SHOP, SHOPS, check_saved
from tests.editors.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not there")

# A colour that only the suggestion has: its name in Emacs, and its code in the terminal.
COLOUR, CODE = "color-199", "\x1b[38;5;199m"

# As in editors/emacs/README.md.
INIT = """\
(add-to-list 'load-path "/path/to/dg-lsp/editors/emacs")
(require 'dg-lsp)
(add-hook 'prog-mode-hook #'lsp-deferred)
"""
LOOKS = """\
(setq lsp-inline-completion-idle-delay 0.3)
(add-to-list 'mode-line-misc-info '(:eval (dg-lsp-mode-line)))
"""
KEY = """\
(define-key lsp-inline-completion-active-map (kbd "M-RET") #'lsp-inline-completion-accept)
"""
# For the tests only: no questions, no other server, every suggestion whatever its latency, and a colour to recognize it.
OWN = f"""\
(setq lsp-auto-guess-root t lsp-enabled-clients '(dg-lsp) lsp-enable-suggest-server-download nil
      lsp-completion-provider :none lsp-headerline-breadcrumb-enable nil lsp-enable-snippet nil lsp-warn-no-matched-clients nil
      make-backup-files nil create-lockfiles nil auto-save-default nil inhibit-startup-screen t
      python-indent-guess-indent-offset-verbose nil dg-lsp-threshold 0.0 lsp-response-timeout 90)
(lsp-register-custom-settings '(("dgLsp.completion.deadline" 60000) ("dgLsp.actions.deadline" 60000)))
(dolist (part '(lsp-modeline lsp-lens lsp-headerline lsp-diagnostics lsp-completion lsp-semantic-tokens)) (require part))
(set-face-foreground 'lsp-inline-completion-overlay-face "{COLOUR}")
"""


class Emacs(Terminal):
    """An Emacs with the configuration of editors/emacs/README.md."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        (folder / ".git").mkdir()
        paths = "".join(f'(add-to-list (quote load-path) "{each}")\n' for each in sorted(LIBRARIES.iterdir()))
        own = INIT.replace("/path/to/dg-lsp/editors/emacs", str(PACKAGE.parent))
        (folder / ".init.el").write_text(f'{paths}(setq user-emacs-directory "{folder}/.emacs.d/")\n{own}{LOOKS}{KEY}{OWN}')
        super().__init__([str(machine.program("emacs")), "-Q", "-nw", "-l", ".init.el"], folder, environment)
        self.until_seen("*scratch*")

    def seen(self) -> str:
        """Return the suggestion on the screen, by its colour."""
        # On a line that is marked as an error, Emacs also resets other attributes.
        parts = re.findall(rf"{re.escape(CODE)}(?:\x1b\[[0-9;]*m)*([^\x1b]*)", self.screen(colours=True))
        return "\n".join(part.rstrip() for part in parts)

    def open(self, name: str, text: str) -> Path:
        """Write a file with exactly this text and open it; wait for the engine."""
        path = self._folder / name
        path.write_bytes(text.encode())
        self.press("C-x", "C-f")
        self.until_seen("Find file:")
        self.type(name)
        self.press("Enter")
        until(lambda: re.search(rf"{name} .*LSP\[.*DG Ready", self.screen()), "the engine", tell=self.screen)
        return path

    def begin(self, typed: str) -> str:
        """Begin a line in the shop's `add`; return the suggestion."""
        self.press("M-g", "g", str(INSIDE[0] + 1), "Enter", "C-e", "Enter")
        self.type(typed)
        return until(self.seen, "the suggestion", tell=self.screen)

    def accept(self) -> None:
        """Insert the suggestion."""
        self.press("M-Enter")
        until(lambda: not self.seen(), "no suggestion", tell=self.screen)

    def save(self, path: Path) -> str:
        """Save; return what the file holds then."""
        self.press("C-x", "C-s")
        self.until_seen("Wrote ")
        return path.read_bytes().decode()


@pytest.fixture
def emacs(environment: Mapping[str, str], tmp_path: Path, watch: Watch) -> Iterator[Emacs]:
    editor = Emacs(tmp_path, environment)
    watch(editor.screen)
    yield editor
    editor.close()


def test_the_readme_gives_this_configuration() -> None:
    page = (PACKAGE.parent / "README.md").read_text("utf-8")
    for part in (INIT, LOOKS, KEY):
        assert f"```elisp\n{part}```" in page


@pytest.mark.parametrize("kind", SHOPS)
def test_typing_shows_a_suggestion_that_can_be_inserted(emacs: Emacs, kind: str) -> None:
    path = emacs.open(f"{kind}.py", SHOPS[kind])
    if kind == "tabs":
        # Make RET indent with tabs.
        emacs.press("M-:")
        emacs.type("(setq indent-tabs-mode t tab-width 4 python-indent-offset 4)")
        emacs.press("Enter")
    ghost = emacs.begin("self.").split("\n")[0]
    emacs.accept()
    check_saved(emacs.save(path), kind, f"self.{ghost}")


def test_a_body_is_filled_by_command(emacs: Emacs) -> None:
    emacs.open("item.py", BODIES)
    emacs.press("M-g", "g", "11", "Enter", "M-x")
    emacs.type("dg-lsp-fill")
    emacs.press("Enter")
    until(lambda: emacs.screen().count("...") == 2, "the filled body", tell=emacs.screen)


def test_a_killed_engine_comes_back_and_the_mode_line_says_so(emacs: Emacs, environment: Mapping[str, str]) -> None:
    emacs.open("shop.py", SHOP)
    emacs.begin("self.")
    emacs.press("C-g")
    os.kill(machine.engine_pid(environment), signal.SIGKILL)
    states: set[str] = set()

    def suggestion() -> str:
        states.update(re.findall(r"DG (\w+)", emacs.screen()))
        return emacs.seen()

    # Another text than before, so that no answer is cached.
    emacs.press("Enter")
    emacs.type("value = self.")
    until(suggestion, "the suggestion", tell=lambda: (states, emacs.screen()))
    assert states - {"Ready"}, "the mode line showed only Ready"
