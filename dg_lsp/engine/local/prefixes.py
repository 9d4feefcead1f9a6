"""Encode prefixes into the cache in chunks, each of which is one uninterruptible step.

Knows token ids, keys and values. Knows nothing of requests.
"""

from __future__ import annotations

import torch

from dg_lsp.engine.model import Loaded
from dg_lsp.engine.passes import KV
from dg_lsp.engine.prefix_cache import PrefixCache


class PrefixEncoder:
    """The model's encoder and the cache of encoded prefixes."""

    def __init__(self, loaded: Loaded, cache: PrefixCache) -> None:
        self._loaded, self.cache = loaded, cache

    def encode(
        self, ids: tuple[int, ...], n_encoded: int, kv: KV | None, most: int, *, is_guess: bool = False
    ) -> tuple[int, KV]:
        """Encode at most `most` more ids after the first `n_encoded`, and cache them; return the new count and the kv."""
        part = torch.tensor([ids[n_encoded : n_encoded + most]], device=self._loaded.device)
        kv = self._loaded.passes.encode(part, kv)[1]
        n_encoded = min(n_encoded + most, len(ids))
        self.cache.put(ids[:n_encoded], kv, is_guess=is_guess)
        return n_encoded, kv
