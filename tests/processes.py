"""What the tests ask about processes that they do not own."""

from __future__ import annotations

from pathlib import Path


def is_gone(pid: int) -> bool:
    """Return whether a process has ended or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        # The second is raised if the process ends between the opening and the reading of its file.
        return True
