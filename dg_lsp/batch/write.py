"""Put new text in a file's place, wholly or not at all.

Knows files and bytes. A reader, a full disk or a power cut sees the old file or the new one (`wire.files`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

from dg_lsp.wire import files

_STARTED = time.time()  # temporary files that are older were left by a process that was killed


class WriteError(Exception):
    """The file stays as it is; the message says why."""


def replace(path: Path, data: bytes, *, expected: bytes) -> None:
    """Replace the file's content; its mode stays, and its owner where the system lets us.

    Raise WriteError when the file no longer holds `expected`, or can't be written.
    """
    try:
        if files.read_regular(path, len(expected)) != expected:
            raise WriteError("the file changed in the meantime")
        _replace(path, data)
    except files.TooLargeError as error:
        raise WriteError("the file changed in the meantime") from error
    except files.NotRegularError as error:
        raise WriteError(f"the file {error}") from error
    except OSError as error:
        raise WriteError(f"the file can't be written: {(error.strerror or str(error)).lower()}") from error


def _replace(path: Path, data: bytes) -> None:
    before = path.stat()
    # Moving a file over it needs no right to write the file itself; who took that right away meant it.
    if not before.st_mode & 0o222:
        raise WriteError("the file is read-only")
    if before.st_nlink > 1:
        raise WriteError(f"the file has {before.st_nlink} names (hard links), and only this one would change")

    def finish(new: Path) -> None:
        with contextlib.suppress(PermissionError):  # another user's file in a shared folder: its group may refuse us
            os.chown(new, before.st_uid, before.st_gid)
        _copy_attributes(path, new)
        # After the owner: changing that clears the set-user-id bits.
        new.chmod(stat.S_IMODE(before.st_mode))

    files.replace(path, data, finish=finish, is_durable=True)
    files.remove_leftovers(path, before=_STARTED)


def _copy_attributes(source: Path, target: Path) -> None:
    """Give the new file the extended attributes of the old one, as far as the system lets us."""
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            with contextlib.suppress(OSError):  # what belongs to the system is its own to set
                os.setxattr(target, name, os.getxattr(source, name))
