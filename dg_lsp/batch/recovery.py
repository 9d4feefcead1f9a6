"""Remember what a file held while it holds text that is only being checked, so that the next run can put it back.

A process that is killed hard can't tidy up. The record is written, and is on the disk, before the file changes; it is locked
while its run lives. Knows files; knows nothing of fills.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from dg_lsp.batch import write

MAX_RECORD_BYTES = 64 << 20


@contextlib.contextmanager
def remembered(path: Path, old: bytes, new: bytes) -> Iterator[None]:
    """Keep a record of the file's content while it may hold `new` instead; raise OSError where none can be kept."""
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}-{os.getpid()}.json"
    content = {
        "path": os.fsdecode(path).encode("utf-8", "surrogateescape").hex(),
        "old": base64.b64encode(old).decode(),
        "new": hashlib.sha256(new).hexdigest(),
    }
    handle = os.open(record, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _lock(handle)
        with open(os.dup(handle), "wb") as file:  # noqa: PTH123 -- it is open already
            file.write(json.dumps(content).encode())
            file.flush()
            os.fsync(handle)
        yield
    finally:
        # However this is left, whoever is alive to leave it has put the file back.
        with contextlib.suppress(OSError):
            record.unlink(missing_ok=True)
        os.close(handle)


def recover() -> Iterator[str]:
    """Put back every file that a killed run left with text that was only being checked; yield a sentence for each."""
    try:
        records = sorted(_folder().glob("*.json"))
    except OSError:
        return
    for record in records:
        if said := _recovered(record):
            yield said


def _recovered(record: Path) -> str:
    try:
        handle = os.open(record, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return ""
    try:
        # Another run is at it.
        if not _lock(handle):
            return ""
        content = json.loads(os.read(handle, MAX_RECORD_BYTES))
        path = Path(os.fsdecode(bytes.fromhex(content["path"])))
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != content["new"]:
            record.unlink(missing_ok=True)
            return ""
        write.replace(path, base64.b64decode(content["old"], validate=True), expected=data)
        record.unlink(missing_ok=True)
    except write.WriteError as error:
        return f"{path} holds text of a check that was cut off, and can't be put back: {error}"
    # A record that was cut off was written before its file changed; a file that is gone needs none.
    except (OSError, ValueError, KeyError, TypeError):
        with contextlib.suppress(OSError):
            record.unlink(missing_ok=True)
        return ""
    else:
        return f"{path} was put back to what it held before a check that was cut off"
    finally:
        os.close(handle)


def _folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("dg-lsp", appauthor=False)) / "recovery"


def _lock(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
