"""Import numpy before torch, so that Ctrl-C ends the import.

torch imports numpy while it is imported itself, and turns every error of that into a warning, Ctrl-C included. A module that a
command imports before any other module with torch imports this one first.
"""

from __future__ import annotations

import contextlib

# If the engine's packages are missing, the import of torch says so.
with contextlib.suppress(ModuleNotFoundError):
    import numpy  # noqa: F401
