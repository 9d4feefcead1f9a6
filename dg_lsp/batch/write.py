"""Put new text in a file's place, wholly or not at all.

Knows files and bytes. The text is written beside the target and moved over it, so that a reader, a full disk or a power
cut sees the old file or the new one.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


class WriteError(Exception):
    """The file stays as it is; the message says why."""


def replace(path: Path, data: bytes, *, expected: bytes) -> None:
    """Replace the file's content; its mode stays, and its owner where the system lets us.

    Raise WriteError when the file no longer holds `expected`, or can't be written.
    """
    try:
        if path.read_bytes() != expected:
            raise WriteError("the file changed in the meantime")
        _replace(path, data)
    except OSError as error:
        raise WriteError(f"the file can't be written: {(error.strerror or str(error)).lower()}") from error


def _replace(path: Path, data: bytes) -> None:
    info = path.stat()
    # Moving a file over it needs no right to write the file itself; who took that right away meant it.
    if not info.st_mode & 0o222:
        raise WriteError("the file is read-only")
    if info.st_nlink > 1:
        raise WriteError(f"the file has {info.st_nlink} names (hard links), and only this one would change")
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:32]}.", suffix=".dg-lsp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if hasattr(os, "chown"):
            with contextlib.suppress(PermissionError):  # another user's file in a shared folder: its group may refuse us
                os.chown(name, info.st_uid, info.st_gid)
        _copy_attributes(path, Path(name))
        # After the owner: changing that clears the set-user-id bits.
        Path(name).chmod(stat.S_IMODE(info.st_mode))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _copy_attributes(source: Path, target: Path) -> None:
    """Give the new file the extended attributes of the old one, as far as the system lets us."""
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            with contextlib.suppress(OSError):  # what belongs to the system is its own to set
                os.setxattr(target, name, os.getxattr(source, name))
