"""Replace a file wholly or not at all, and open files that other people chose.

Such a file is never opened through a link, never waited for and never read beyond a limit. Looking at a path first and
opening it then leaves time to exchange it, so what was opened is looked at. Knows files and bytes; nothing of what is in them.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path


class NotRegularError(OSError):
    """What is there is a link, a folder, a device, a pipe or a socket."""

    def __str__(self) -> str:
        """Return the end of a sentence about the file."""
        return "is not a regular file"


class TooLargeError(OSError):
    """The file is larger than it may be."""

    def __init__(self, limit: int) -> None:
        """Name the limit, in bytes."""
        super().__init__(errno.EFBIG, os.strerror(errno.EFBIG))
        self.limit = limit

    def __str__(self) -> str:
        """Return the end of a sentence about the file."""
        return f"is larger than {self.limit >> 10} KiB"


def replace(path: Path, data: bytes, *, finish: Callable[[Path], None] = lambda _: None, is_durable: bool = False) -> None:
    """Write a file so that a reader, a full disk or a crash sees the old content or the new, whole; raise OSError.

    The data is written beside the file and moved over it. The new file is private to the user; `finish` may change that
    before the move. With `is_durable` the data is on the disk before the move, so that a power cut leaves no empty file.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:32]}.", suffix=".dg-lsp", dir=path.parent)  # made 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        finish(Path(name))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """Return all bytes of a regular file; raise NotRegularError, TooLargeError or another OSError."""
    data = read_start(path, limit + 1)
    if len(data) > limit:
        raise TooLargeError(limit)
    return data


def read_start(path: Path, size: int) -> bytes:
    """Return the first bytes of a regular file, at most `size`; raise NotRegularError or another OSError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        # A link, and a socket or a device without a driver.
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV):
            raise NotRegularError(*error.args) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NotRegularError(errno.EINVAL, os.strerror(errno.EINVAL))
        parts = []
        while size > 0 and (part := os.read(handle, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
    finally:
        os.close(handle)
