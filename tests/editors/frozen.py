"""Stop the server of an editor, as if its event loop were blocked for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from tests.processes import is_gone

# A script that has the server as a child, as some users have one. To end only the script would leave the server.
SCRIPT = ("/bin/sh", "-c", 'dg-lsp "$0"; exit $?', "serve")


class Frozen:
    """A server that is stopped with all processes of its group."""

    def __init__(self, pid: int) -> None:
        """Stop the group of a process."""
        self._group = os.getpgid(pid)
        os.killpg(self._group, signal.SIGSTOP)
        processes = subprocess.run(["pgrep", "-g", str(self._group)], capture_output=True, text=True, check=True)
        self._pids = tuple(map(int, processes.stdout.split()))

    @property
    def is_gone(self) -> bool:
        """Whether all its processes have ended."""
        return all(map(is_gone, self._pids))

    def end(self) -> None:
        """End the group if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGKILL)
