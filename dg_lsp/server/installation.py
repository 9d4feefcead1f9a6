"""Whether the installed files are still those that this server runs.

Modules and tables are read when they are first needed, so an update or a removal makes a running server fail at one of them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import dg_lsp

UPDATED = "dg-lsp was updated while it ran: restart it to use the new version"
REMOVED = "dg-lsp was removed while it ran: install it again, then restart it"

_FILE = Path(dg_lsp.__file__)


def _stamp() -> frozenset[tuple[str, int, int]]:
    """Return the files that are there, each with its inode and time; empty if the package is gone.

    An update may leave any of them as it was, also the package's own file.
    """
    found = set[tuple[str, int, int]]()
    for path in _FILE.parent.rglob("*.*") if _FILE.exists() else ():
        if path.parent.name != "__pycache__":
            with contextlib.suppress(OSError):
                info = path.stat()
                found.add((str(path), info.st_ino, info.st_mtime_ns))
    return frozenset(found)


_AT_START = _stamp()


def change() -> str:
    """Return in a sentence how the installation has changed since the start, "" if it has not."""
    now = _stamp()
    if now == _AT_START:
        return ""
    return UPDATED if now else REMOVED
