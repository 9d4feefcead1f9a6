"""Run a program in a terminal of its own and read its screen, with tmux."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.editors.machine import PICTURES
from tests.editors.waiting import until


class Terminal:
    """A terminal with a program that runs in a folder; the folder's name is the terminal's name."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        """Start the program."""
        self._name = folder.name
        self._tmux = ["tmux", "-S", str(Path(environment["HOME"]) / f"tmux-{secrets.token_hex(4)}")]
        settings = ["env", "-i", "TERM=screen-256color", *(f"{key}={value}" for key, value in environment.items())]
        size = ("-x", "100", "-y", "30")
        self.run("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), *settings, *command)

    def run(self, *arguments: str) -> str:
        """Return the output of a tmux command."""
        process = subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=True, timeout=20)
        return process.stdout

    def screen(self, *, colours: bool = False) -> str:
        """Return the text on the screen."""
        return self.run("capture-pane", "-p", *(["-e"] if colours else []))

    def press(self, *keys: str) -> None:
        """Press named keys, as tmux names them."""
        self.run("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type text."""
        self.run("send-keys", "-l", text)

    def until_seen(self, text: str) -> None:
        """Wait until a text is on the screen."""
        until(lambda: text in self.screen(), f"{text!r} on the screen", tell=self.screen)

    def keep(self, name: str) -> None:
        """Save the screen with its colours."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        (PICTURES / f"{name}.screen").write_text(self.screen(colours=True), "utf-8")

    def close(self) -> None:
        """Save the last screen, and end the program and its terminal."""
        self.keep(self._name)
        self.run("kill-server")
