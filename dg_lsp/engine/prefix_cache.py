"""Keys and values of prefixes that were encoded lately, so that a keystroke encodes only what it added.

Full-length keys and values are kept on every layer, sliding ones too, so that a prefix can be cut anywhere (the
library's own sliding cache forgets what a crop beyond the window would need). Knows token ids. Knows nothing of text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dg_lsp.engine.passes import KV, crop
from dg_lsp.engine.vocabulary import common_prefix

LEAST_BYTES = 256 * 1024 * 1024  # of a cache, however small the model
END = 64  # tokens at the end of a prefix that are not worth keeping all of it for a second time


class PrefixCache:
    """Encoded prefixes, bounded by bytes; the least recently used goes first."""

    def __init__(self, max_bytes: int = LEAST_BYTES) -> None:
        self.max_bytes = max_bytes
        self.reused_tokens = self.asked_tokens = 0
        self.bytes = 0  # how much memory the cache holds; other threads may read it at any time
        self._entries: OrderedDict[tuple[int, ...], KV] = OrderedDict()
        self._guess: tuple[int, ...] | None = None

    def longest(self, ids: Sequence[int], *, ahead: bool = False) -> tuple[int, KV | None]:
        """Return how many leading ids are known, and their keys and values; what is looked up `ahead` is not counted."""
        best, length, ids = None, 0, tuple(ids)
        for key in self._entries:
            if (common := common_prefix(key, ids)) > length:
                best, length = key, common
        if not ahead:
            self.asked_tokens, self.reused_tokens = self.asked_tokens + len(ids), self.reused_tokens + length
        if best is None:
            return 0, None
        self._entries.move_to_end(best)
        return length, crop(self._entries[best], length)

    def put(self, ids: Sequence[int], kv: KV, *, is_guess: bool = False) -> None:
        """Remember a prefix; what it extends is forgotten, as it holds all of that, but for a short end at most.

        A guess is a prefix that nobody asked for yet. It replaces nothing, and only the last one is remembered.
        """
        key = tuple(ids)
        if self._guess is not None:
            self._forget([self._guess] if self._guess in self._entries else [])
            self._guess = None
        if is_guess:
            self._guess = key
        else:
            self._forget([known for known in self._entries if _is_held_by(known, key)])
        self._forget([key] if key in self._entries else [])
        self._entries[key] = kv
        self.bytes += _size(kv)
        while len(self._entries) > 1 and self.bytes > self.max_bytes:
            self._forget([next(iter(self._entries))])

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._guess = None
        self.bytes = 0

    def _forget(self, keys: Sequence[tuple[int, ...]]) -> None:
        for key in keys:
            self.bytes -= _size(self._entries.pop(key))


def _is_held_by(known: tuple[int, ...], key: tuple[int, ...]) -> bool:
    return len(known) - common_prefix(known, key) <= min(END, len(known) // 8)


def _size(kv: KV) -> int:
    return sum(tensor.numel() * tensor.element_size() for pair in kv for tensor in pair)
