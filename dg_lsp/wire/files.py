"""Replace a file wholly or not at all.

Knows files and bytes; nothing of what is in them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


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
