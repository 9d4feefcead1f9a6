"""Cache the keys and values of prefixes, so that a keystroke encodes only its new tokens.

It requires attention: keys and values by position, which can be cropped anywhere, and passes with any visibility mask. Every
layer, also a sliding one, keeps full-length keys and values: the library's own sliding cache drops positions that such a crop
would need.

Shapes: R rows, N or L tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dg_lsp.core.values import n_common

# The smallest cache limit, however small the model: about ten places of the embedded model's in fp32, twenty in bf16. The
# engine stays in memory between edits, so it keeps only the places that a user is likely to return to.
LEAST_BYTES = 64 * 1024 * 1024
GPU_CHUNK = 2048  # tokens that a GPU encodes in one pass
END = 64  # a prefix is dropped when a new one differs in at most this many of its last tokens

KV = list[tuple[Tensor, Tensor]]  # per layer: keys and values, each [R or 1, kv heads, L, head dimension]


class Encoder(Protocol):
    """The causal passes of one loaded model."""

    def encode(self, ids: Tensor, past: KV | None = None) -> tuple[Tensor, KV]:
        """Return the last hidden states [R, L, H] of new tokens [R, L], and the keys and values of past and new tokens."""

    def extend(self, ids: Tensor, positions: Tensor, kv: KV, mask: Tensor, key_positions: Tensor) -> Tensor:
        """Return the last hidden states [N, H] of new tokens [N], each at its own position [N].

        The pass overwrites the last N places of `kv`. Token n sees the places in `mask` [N, L], whose positions are
        `key_positions` [L]: layers with a sliding window need them.
        """

    def logits(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        """Return the logits [..., V] in 32 bits, or only those of the tokens from `first` to `last`."""


def crop(kv: KV, length: int) -> KV:
    """Return the keys and values of the first `length` positions, as views."""
    return [(keys[:, :, :length], values[:, :, :length]) for keys, values in kv]


class _Entry(NamedTuple):
    """A prefix's keys and values, its last hidden state [H] if known, and the bytes of the former."""

    kv: KV
    hidden: Tensor | None
    n_bytes: int


class PrefixCache:
    """Encoded prefixes, limited in bytes; the least recently used one is dropped first."""

    def __init__(self, max_bytes: int = LEAST_BYTES) -> None:
        self.max_bytes = max_bytes
        self.reused_tokens = self.asked_tokens = 0
        self.bytes = 0  # the cache's size; other threads may read it at any time
        self._entries: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
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
        return length, crop(self._entries[best].kv, length)

    def last_hidden(self, ids: tuple[int, ...]) -> Tensor | None:
        """Return the last hidden state [H] of exactly this prefix, or None."""
        entry = self._entries.get(ids)
        return entry.hidden if entry else None

    def put(self, ids: Sequence[int], kv: KV, hidden: Tensor | None = None, *, is_guess: bool = False) -> None:
        """Add a prefix with its last hidden state [H], and drop the prefixes that it contains, except for a short end at most.

        A guess is a prefix that no request has used yet. It replaces no other prefix, and only the last guess is kept.
        """
        key, dropped = tuple(ids), [tuple(ids), self._guess]
        if not is_guess:
            dropped += [known for known in self._entries if len(known) - n_common(known, key) <= min(END, len(known) // 8)]
        self._guess = key if is_guess else None
        for each in dropped:
            if each is not None and (entry := self._entries.pop(each, None)) is not None:
                self.bytes -= entry.n_bytes
        n_bytes = sum(tensor.numel() * tensor.element_size() for pair in kv for tensor in pair)
        self._entries[key] = _Entry(kv, hidden, n_bytes)
        self.bytes += n_bytes
        while len(self._entries) > 1 and self.bytes > self.max_bytes:
            self.bytes -= self._entries.popitem(last=False)[1].n_bytes

    def clear(self) -> None:
        """Drop all prefixes."""
        self._entries.clear()
        self._guess = None
        self.bytes = 0


class PrefixEncoder:
    """The model's encoder and the cache of encoded prefixes."""

    def __init__(self, passes: Encoder, device: str, cache: PrefixCache) -> None:
        self._passes, self._device, self.cache = passes, device, cache
        self._is_on_gpu = device.startswith("cuda")

    def at_once(self, chunk: int) -> int:
        """Return the most tokens of one pass, where a processor takes a chunk: a GPU reads its weights once for all of them."""
        return max(chunk, GPU_CHUNK) if self._is_on_gpu else chunk

    def encode(
        self, ids: tuple[int, ...], n_encoded: int, kv: KV | None, most: int, *, is_guess: bool = False
    ) -> tuple[int, KV]:
        """Encode at most `most` more ids after the first `n_encoded`, and cache them; return the new count and the kv."""
        part = torch.tensor([ids[n_encoded : n_encoded + most]], device=self._device)
        hidden, kv = self._passes.encode(part, kv)
        n_encoded = min(n_encoded + most, len(ids))
        self.cache.put(ids[:n_encoded], kv, hidden[0, -1].clone(), is_guess=is_guess)
        if self._is_on_gpu:
            torch.cuda.synchronize(self._device)  # the pass was only queued, and the caller measures how long it takes
        return n_encoded, kv
