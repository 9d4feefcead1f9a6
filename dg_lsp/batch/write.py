"""Put new text in a file's place, wholly or not at all.

Knows files and bytes. A reader, a full disk or a power cut sees the old file or the new one (`wire.files`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from dg_lsp.wire import files


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
    before = path.stat()

    def finish(new: Path) -> None:
        if hasattr(os, "chown"):
            with contextlib.suppress(PermissionError):  # another user's file in a shared folder: its group may refuse us
                os.chown(new, before.st_uid, before.st_gid)
        # After the owner: changing that clears the set-user-id bits.
        new.chmod(stat.S_IMODE(before.st_mode))

    files.replace(path, data, finish=finish, is_durable=True)
