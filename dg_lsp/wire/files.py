"""Replace a file atomically, and open untrusted files safely.

An untrusted file is not opened through a link, does not block, and is read only up to a limit. The type is checked
after opening, because a check before would leave time to exchange the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

Stamp = tuple[int, int, int]
"""What changes whenever a file does: its time, its size and its inode."""
IsOwn = Callable[[bytes], bool]
"""Returns whether a file with this content, or one that begins so, was written by an option."""

COPIES, NEW_COPIES = "dg-lsp-check-", ".dg-lsp-new-"
"""How the names of directories begin that hold copies of projects, before and after they are complete."""
_OWN_BYTES = 64 << 20  # a longer patch counts as changed


class NotRegularError(OSError):
    """The path is not a regular file but a link, folder, device, pipe or socket."""

    def __str__(self) -> str:
        """Return the message, which completes a sentence that begins with the file."""
        return "is not a regular file"


class TooLargeError(OSError):
    """The file is larger than its limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(errno.EFBIG, os.strerror(errno.EFBIG))
        self.limit = limit

    def __str__(self) -> str:
        """Return the message, which completes a sentence that begins with the file."""
        return f"is larger than {self.limit >> 10} KiB"


def stamp(info: os.stat_result) -> Stamp:
    return info.st_mtime_ns, info.st_size, info.st_ino


def is_of_copies(name: str) -> bool:
    """Return whether a directory of this name holds copies of projects, which dg-lsp writes and no walk of ours enters."""
    return name.startswith((COPIES, NEW_COPIES))


def replace(path: Path, data: bytes, *, finish: Callable[[Path], None] = lambda _: None, is_durable: bool = False) -> None:
    """Write a file atomically: a reader sees the old content or the new one, also after a crash; raise OSError on failure.

    The data is written to a temporary file in the same folder, which is then moved over the file. The new file is
    private to the user; `finish` may change its permissions before the move. With `is_durable` the data is flushed to
    the disk before the move, so that a power failure leaves no empty file.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:32]}.", suffix=".dg-lsp", dir=path.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        finish(Path(name))
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno == errno.EBUSY:
            what = "it is mounted by itself, so it can't be replaced; mount its folder instead"
            raise OSError(errno.EBUSY, what) from error
        raise


def write_output(path: Path, data: bytes, *, new_mode: int | None = None, is_own: IsOwn | None = None) -> None:
    """Write a file that a user named, atomically; raise OSError on failure, and if `output_problem` has an answer.

    The target of a link is replaced, not the link. An existing file keeps what it is besides its content. A new one gets
    `new_mode`, or the permissions that the user's other new files get.
    """
    if problem := output_problem(path, is_own):
        raise OSError(errno.EEXIST, problem)
    target = Path(os.path.realpath(path))
    try:
        replace(target, data, finish=like(target), is_durable=True)
    except FileNotFoundError:
        if new_mode is None:
            # The mask can only be read by setting it. Files that another thread creates meanwhile are private.
            mask = os.umask(0o077)
            os.umask(mask)
            new_mode = 0o666 & ~mask
        mode = new_mode
        replace(target, data, finish=lambda new: new.chmod(mode), is_durable=True)


def like(path: Path) -> Callable[[Path], None]:
    """Return a function that gives a new file the owner, if permitted, mode and attributes of this one; raise OSError."""
    before = path.stat()

    def finish(new: Path) -> None:
        for owner in ((-1, before.st_gid), (before.st_uid, -1)):
            with contextlib.suppress(PermissionError):  # another user's file in a shared folder
                os.chown(new, *owner)
        # The extended attributes and the mode, after chown, which clears the set-user-id bits.
        shutil.copystat(path, new)
        os.utime(new)  # the file has changed

    return finish


def output_problem(path: Path, is_own: IsOwn | None = None) -> str:
    """Return why `write_output` can't write a file, as far as that is known before, or "".

    With `is_own`, an existing file must be no link, and be as the same option left it, so that no file is lost. An empty file
    may be `__init__.py` or `.gitkeep`, so no option writes one.
    """
    real = os.path.realpath(path)
    folder = os.path.dirname(real)  # noqa: PTH120
    # Path's own methods raise for long names and without permission.
    if os.path.isdir(real):  # noqa: PTH112
        return "this is a folder; name a file in it"
    if is_own and os.path.islink(path):  # noqa: PTH114
        return "this is a link; name a new file"
    if os.path.exists(real):  # noqa: PTH110
        if not os.path.isfile(real):  # noqa: PTH113
            return "this is not a regular file"
        if not os.access(real, os.W_OK) or not os.stat(real).st_mode & 0o222:  # noqa: PTH116 -- root may write any file
            return "this file is read-only"
        try:
            head = read_start(Path(real), _OWN_BYTES) if is_own else b""
        except OSError as error:
            return f"this file can't be read: {(error.strerror or str(error)).lower()}"
        if is_own and os.stat(real).st_nlink > 1:  # noqa: PTH116
            return "this file has other names (hard links), which would change or be left behind; name a new file"
        if is_own and not is_own(head):
            return "this file is not as an earlier run left it; name a new file"
    if not os.path.isdir(folder):  # noqa: PTH112
        return f"there is no folder {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"files can't be written in {folder}: permission denied, or the file system is read-only"
    return ""


def folder_problem(place: Path) -> str:
    """Return why a folder may hold what others wrote, as the end of a sentence that begins with its path; "" if it may not."""
    try:
        status = place.lstat()
    except OSError as error:
        return f"can't be read: {(error.strerror or str(error)).lower()}"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if status.st_uid != os.getuid():
        return "belongs to another user"
    if status.st_mode & 0o022:
        return "can be changed by other users; make it private (chmod 700)"
    return ""


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
        # The errors for a link, and for a socket or a device without a driver.
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
