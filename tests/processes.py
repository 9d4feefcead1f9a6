"""Processes of the tests: of `dg-lsp`, of git, and what the tests ask about those that they do not own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]


def dg_lsp(*arguments: str | Path, code: int | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of `dg-lsp` to its end, by default in the repository, and return what it prints.

    It must end without a traceback, and with the exit code if one is given; `options` are those of `subprocess.run`.
    """
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": PATIENCE_S, "check": False, **options}
    process = subprocess.run([sys.executable, "-m", "dg_lsp", *map(str, arguments)], **options)
    assert code in (None, process.returncode), process
    assert "Traceback" not in process.stdout + process.stderr, process
    return process


def git(*arguments: str, cwd: Path | None = None) -> str:
    """Return what git prints, without the white space around it; it has an identity, and clones folders."""
    own = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "protocol.file.allow=always")
    return subprocess.run(["git", *own, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


def is_gone(pid: int) -> bool:
    """Return whether a process has ended or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        # The second is raised if the process ends between the opening and the reading of its file.
        return True


def processor_ms(pid: int) -> float:
    """Return the processor time of a process with all its threads, in milliseconds; 0 if it has ended. Only on Linux."""
    try:
        # The number of the process's clock, as `clock_getcpuclockid` returns it; Python has no function for that.
        return 1000 * time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0
