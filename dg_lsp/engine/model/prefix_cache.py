"""Cache the keys and values of recent prefixes, so that a keystroke encodes only its new tokens.

Every layer, also a sliding one, keeps full-length keys and values, so that a prefix can be cropped anywhere. The library's
own sliding cache drops positions that such a crop would need.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from dg_lsp.core.values import n_common
from dg_lsp.engine.model.family import KV, Family, crop

# The smallest cache limit, however small the model: about ten places of the embedded model's in fp32, twenty in bf16. The
# engine stays in memory between edits, so it keeps only the places that a user is likely to return to.
LEAST_BYTES = 64 * 1024 * 1024
END = 64  # a prefix is dropped when a new one differs in at most this many of its last tokens


class PrefixCache:
    """Encoded prefixes, limited in bytes; the least recently used one is dropped first."""

    def __init__(self, max_bytes: int = LEAST_BYTES) -> None:
        self.max_bytes = max_bytes
        self.reused_tokens = self.asked_tokens = 0
        self.bytes = 0  # the cache's size; other threads may read it at any time
        self._entries: OrderedDict[tuple[int, ...], KV] = OrderedDict()
        self._hidden: dict[tuple[int, ...], Tensor] = {}
        self._guess: tuple[int, ...] | None = None

    def longest(self, ids: Sequence[int], *, ahead: bool = False) -> tuple[int, KV | None]:
        """Return the number of leading ids in the cache, and their keys and values. Lookups `ahead` are not counted."""
        best, length, ids = None, 0, tuple(ids)
        for key in self._entries:
            if (common := n_common(key, ids)) > length:
                best, length = key, common
        if not ahead:
            self.asked_tokens, self.reused_tokens = self.asked_tokens + len(ids), self.reused_tokens + length
        if best is None:
            return 0, None
        self._entries.move_to_end(best)
        return length, crop(self._entries[best], length)

    def last_hidden(self, ids: tuple[int, ...]) -> Tensor | None:
        """Return the last hidden state [H] of exactly this prefix, or None."""
        return self._hidden.get(ids)

    def put(self, ids: Sequence[int], kv: KV, hidden: Tensor | None = None, *, is_guess: bool = False) -> None:
        """Add a prefix with its last hidden state [H], and drop the prefixes that it contains, except for a short end at most.

        A guess is a prefix that no request has used yet. It replaces no other prefix, and only the last guess is kept.
        """
        key = tuple(ids)
        if self._guess is not None:
            self._forget([self._guess] if self._guess in self._entries else [])
            self._guess = None
        if is_guess:
            self._guess = key
        else:
            self._forget([cached_ids for cached_ids in self._entries if _is_contained(cached_ids, key)])
        self._forget([key] if key in self._entries else [])
        self._entries[key] = kv
        if hidden is not None:
            self._hidden[key] = hidden
        self.bytes += _size(kv)
        while len(self._entries) > 1 and self.bytes > self.max_bytes:
            self._forget([next(iter(self._entries))])

    def clear(self) -> None:
        """Drop all prefixes."""
        self._entries.clear()
        self._hidden.clear()
        self._guess = None
        self.bytes = 0

    def _forget(self, keys: Sequence[tuple[int, ...]]) -> None:
        for key in keys:
            self.bytes -= _size(self._entries.pop(key))
            self._hidden.pop(key, None)


def _is_contained(cached_ids: tuple[int, ...], key: tuple[int, ...]) -> bool:
    return len(cached_ids) - n_common(cached_ids, key) <= min(END, len(cached_ids) // 8)


def _size(kv: KV) -> int:
    return sum(tensor.numel() * tensor.element_size() for pair in kv for tensor in pair)


class PrefixEncoder:
    """The model's encoder and the cache of encoded prefixes."""

    def __init__(self, passes: Family, device: str, cache: PrefixCache) -> None:
        self._passes, self._device, self.cache = passes, device, cache

    def encode(
        self, ids: tuple[int, ...], n_encoded: int, kv: KV | None, most: int, *, is_guess: bool = False
    ) -> tuple[int, KV]:
        """Encode at most `most` more ids after the first `n_encoded`, and cache them; return the new count and the kv."""
        part = torch.tensor([ids[n_encoded : n_encoded + most]], device=self._device)
        hidden, kv = self._passes.encode(part, kv)
        n_encoded = min(n_encoded + most, len(ids))
        self.cache.put(ids[:n_encoded], kv, hidden[0, -1].clone(), is_guess=is_guess)
        return n_encoded, kv
