"""How long a test waits for a state before it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 240.0
"""Long, so that tests pass on a machine whose cores are all busy; shorter than pytest's own limit, so the test says why."""


async def until(check: Callable[[], object]) -> None:
    """Wait until a check holds, which is made in each step of the event loop; fail when patience ends."""
    async with asyncio.timeout(PATIENCE_S):
        while not check():
            await asyncio.sleep(0)
