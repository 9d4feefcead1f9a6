"""File locks that the kernel releases however their process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from dg_lsp.wire.discovery.runtime import unusable


class Lock:
    """A lock on a file by the operating system, held until `release` or the end of the process."""

    def __init__(self, path: Path, handle: int) -> None:
        """Take over a handle that is already locked; use `hold` to get a lock."""
        self.path = path
        self._handle = handle

    def release(self) -> None:
        """Remove the file and release the lock. A process that waits on the removed file notices in `hold`, and retries."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._handle)


def hold(path: Path) -> Lock | None:
    """Return the lock, or None if another process holds it; raise DiscoveryError if the file can't be created or locked."""
    try:
        while (handle := _locked(path)) is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return Lock(path, handle)
            os.close(handle)
    except OSError as error:
        raise unusable(path, error) from error
    return None


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock. The check takes a free lock for a moment."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _try_lock(handle)
    except OSError:
        return False
    finally:
        os.close(handle)


def _locked(path: Path) -> int | None:
    """Return a locked handle of the file, created if missing; None if another process holds the lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if _try_lock(handle):
            return handle
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True
