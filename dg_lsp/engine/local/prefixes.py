"""Encode prefixes into the cache, as many tokens at a time as one uninterruptible step may take.

Knows token ids, keys and values. Knows nothing of requests.
"""

from __future__ import annotations

import torch

from dg_lsp.engine.model import Loaded
from dg_lsp.engine.passes import KV
from dg_lsp.engine.prefix_cache import PrefixCache


class PrefixEncoder:
    """The model's encoder with the cache of what it has read."""

    def __init__(self, loaded: Loaded, cache: PrefixCache) -> None:
        self._loaded, self.cache = loaded, cache

    def encode(self, ids: tuple[int, ...], known: int, kv: KV | None, most: int, *, is_guess: bool = False) -> tuple[int, KV]:
        """Return how many ids are known, and their keys and values, after encoding at most so many more; the cache has them."""
        part = torch.tensor([ids[known : known + most]], device=self._loaded.device)
        kv = self._loaded.passes.encode(part, kv)[1]
        known = min(known + most, len(ids))
        self.cache.put(ids[:known], kv, is_guess=is_guess)
        return known, kv
