"""Wait for a state, never for a fixed time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# After this time a test fails. A passing test never waits that long, so it is generous for busy machines.
PATIENCE_S = float(os.environ.get("DG_LSP_TEST_PATIENCE_S", "90"))


def until(look: Callable[[], T], what: str, *, patience_s: float = PATIENCE_S, tell: Callable[[], object] = lambda: "") -> T:
    """Return the result of `look` as soon as it is true. After `patience_s` fail with `what` and the result of `tell`."""
    end = time.monotonic() + patience_s
    while True:
        if value := look():
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience_s:.0f} s for {what}: {tell()}")
        # Leave the processor to the editor.
        time.sleep(0.02)
