"""How many rows and requests the free memory admits beside the prefix cache, which may still grow to its bound.

Knows sizes. Knows nothing of what rows hold.
"""

from __future__ import annotations

from dg_lsp.engine import room
from dg_lsp.engine.model import Loaded
from dg_lsp.engine.prefix_cache import PrefixCache
from dg_lsp.engine.room import Cost


class Headroom:
    """The memory left on a model's device; `max_rows` bounds the rows of one request in one pass."""

    def __init__(self, loaded: Loaded, cache: PrefixCache, cost: Cost, max_rows: int) -> None:
        self._loaded, self._cache, self.cost, self.max_rows = loaded, cache, cost, max_rows

    def free(self, own_bytes: int = 0) -> int | None:
        """Return the bytes free for rows, `own_bytes` that they hold already included; None where nobody can tell."""
        free = room.free_bytes(self._loaded.device)
        return None if free is None else free + own_bytes - max(0, self._cache.max_bytes - self._cache.bytes)

    def rows_at_once(self, prefix_tokens: int, canvas_tokens: int) -> int:
        """Return how many rows of one request may step in one pass."""
        return room.rows_that_fit(self.free(), self.cost.row(prefix_tokens, canvas_tokens), self.max_rows)

    def admits_request(self) -> bool:
        """Return whether one more request of the usual size fits beside those under way."""
        profile, free = self._loaded.profile, self.free()
        prefix = profile.prefix_tokens + profile.suffix_tokens
        usual = prefix * self.cost.prefix_token + self.cost.row(prefix, profile.canvas_tokens)
        return free is None or usual <= free * room.SHARE
