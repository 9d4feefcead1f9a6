"""Compute how many rows and requests fit in the free memory, less the memory that the prefix cache may still take.

Knows sizes. Knows nothing of the rows' content.
"""

from __future__ import annotations

from dg_lsp.engine import room
from dg_lsp.engine.model import Loaded
from dg_lsp.engine.prefix_cache import PrefixCache
from dg_lsp.engine.room import Cost


class Headroom:
    """The free memory on a model's device. `max_rows` is the maximum number of a request's rows in one pass."""

    def __init__(self, loaded: Loaded, cache: PrefixCache, cost: Cost, max_rows: int) -> None:
        self._loaded, self._cache, self.cost, self.max_rows = loaded, cache, cost, max_rows

    def free(self, own_bytes: int = 0) -> int | None:
        """Return the bytes free for rows, including the `own_bytes` that they already hold; None if unknown."""
        free = room.free_bytes(self._loaded.device)
        return None if free is None else free + own_bytes - max(0, self._cache.max_bytes - self._cache.bytes)

    def rows_at_once(self, prefix_tokens: int, canvas_tokens: int) -> int:
        """Return the maximum number of a request's rows in one pass."""
        return room.rows_that_fit(self.free(), self.cost.row(prefix_tokens, canvas_tokens), self.max_rows)

    def admits_request(self) -> bool:
        """Return whether another request of full size fits beside the running ones."""
        profile, free = self._loaded.profile, self.free()
        prefix = profile.prefix_tokens + profile.suffix_tokens
        usual = prefix * self.cost.prefix_token + self.cost.row(prefix, profile.canvas_tokens)
        return free is None or usual <= free * room.SHARE
