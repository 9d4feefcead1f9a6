"""What must happen before torch is imported. Modules that a command imports before any other one with torch import this first.

Import numpy, so that Ctrl-C ends the import. torch imports numpy while it is imported itself, and turns every error of that
into a warning, Ctrl-C included.

Limit the two caches of compiled operations in oneDNN and in torch's layer above it. Each new number of rows is another
operation, and some take a megabyte. With the default of 1,024 entries, they took half a gigabyte after forty holes; with
these limits, no pass took longer.

Let threads that wait for each other sleep soon. By default libgomp lets them spin for so long that a pass whose threads don't
all have a core takes thirty times the processor time (decision 37). The limit of libomp, on a Mac, is in milliseconds.

Leave a current folder that was removed: from there, MKL ends the process, because it can't find its libraries.
"""

from __future__ import annotations

import contextlib
import os

from dg_lsp.wire import programs

for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(name, "64")

for name, value in (("GOMP_SPINCOUNT", "30000"), ("KMP_BLOCKTIME", "1")):
    os.environ.setdefault(name, value)

if not programs.here():
    os.chdir(programs.FOLDER)

# If the engine's packages are missing, the import of torch says so.
with contextlib.suppress(ModuleNotFoundError):
    import numpy  # noqa: F401
