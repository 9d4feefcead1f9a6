"""The build of this installation: its version, and a hash of the files that an engine runs.

Two installations of one version may differ, such as a release and a checkout. An engine writes its build into its state
file, and a client compares that with its own.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from dg_lsp import __version__

PACKAGE = Path(__file__).resolve().parents[1]
PARTS = ("core", "engine", "models", "wire")
SUFFIXES = (".json", ".py", ".safetensors", ".scm")
EDGE_BYTES = 1 << 16  # of a larger file only the size, the start and the end are hashed

_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def current(package: Path = PACKAGE) -> str:
    """Return the build of the files that are installed now, such as `0.1.0+1a2b3c4d`.

    Reads the files at each call, which takes a few milliseconds: a new engine runs them, even if this process has imported
    others before. Returns only the version if they can't be read.
    """
    try:
        first = (package / "__init__.py").read_text("utf-8")
        digest = hashlib.blake2b(first.encode(), digest_size=4)
        for name in sorted(_names(package)):
            digest.update(f"\0{name}\0".encode())
            digest.update(_content(package / name))
    except (OSError, UnicodeDecodeError):
        return __version__
    match = _VERSION.search(first)
    return f"{match[1] if match else __version__}+{digest.hexdigest()}"


def _names(package: Path) -> Iterator[str]:
    """Yield the paths of the files that an engine may read, relative to the package."""
    for part in PARTS:
        for folder, folders, files in os.walk(package / part):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield from (os.path.relpath(Path(folder) / name, package) for name in files if name.endswith(SUFFIXES))


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * EDGE_BYTES:
            return file.read()
        start = file.read(EDGE_BYTES)
        file.seek(-EDGE_BYTES, os.SEEK_END)
        return b"%d %b %b" % (size, start, file.read())
