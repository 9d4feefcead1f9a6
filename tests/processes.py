"""What the tests ask about processes that they do not own."""

from __future__ import annotations

import time
from pathlib import Path


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
