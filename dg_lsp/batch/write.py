"""Replace a file's content atomically.

After a crash or on a full disk, the file has its old or its new content (`wire.files`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

from dg_lsp.wire import files

_STARTED = time.time()  # older temporary files were left by a killed process


class WriteError(Exception):
    """The file was not changed; the message says why."""


def replace(path: Path, data: bytes, *, expected: bytes) -> None:
    """Replace the file's content, and preserve its mode and, if permitted, its owner.

    Raises WriteError if the file no longer contains `expected`, or can't be written.
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
    # A rename needs no permission to write the file itself, but a read-only file must not be changed.
    if not before.st_mode & 0o222:
        raise WriteError("the file is read-only")
    if before.st_nlink > 1:
        raise WriteError(f"the file has {before.st_nlink} names (hard links), and only this one would change")

    def finish(new: Path) -> None:
        with contextlib.suppress(PermissionError):  # another user's file in a shared folder
            os.chown(new, before.st_uid, before.st_gid)
        _copy_attributes(path, new)
        # After chown, which clears the set-user-id bits.
        new.chmod(stat.S_IMODE(before.st_mode))

    files.replace(path, data, finish=finish, is_durable=True)
    files.remove_leftovers(path, before=_STARTED)


def _copy_attributes(source: Path, target: Path) -> None:
    """Copy the extended attributes, as far as the system permits it."""
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            with contextlib.suppress(OSError):  # only the system can set some of them
                os.setxattr(target, name, os.getxattr(source, name))
