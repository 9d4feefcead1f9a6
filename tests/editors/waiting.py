"""Wait for a state, never for a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# What takes longer has failed. No test that passes waits for it, so it is generous: the machine may have other work.
PATIENCE_S = float(os.environ.get("DG_LSP_TEST_PATIENCE_S", "90"))


def until(look: Callable[[], T], what: str, *, patience_s: float = PATIENCE_S, tell: Callable[[], object] = lambda: "") -> T:
    """Return what `look` sees as soon as it is true; fail when that takes too long, and tell what was there instead."""
    end = time.monotonic() + patience_s
    while True:
        if value := look():
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience_s:.0f} s for {what}: {tell()}")
        # Between two looks the editor gets the machine.
        time.sleep(0.02)
