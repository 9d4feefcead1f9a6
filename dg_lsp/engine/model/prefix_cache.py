"""Cache the keys and values of prefixes, so that a keystroke encodes only its new tokens.

It requires attention: keys and values by position, which can be cropped anywhere, and passes with any visibility mask. Every
layer, also a sliding one, keeps full-length keys and values: the library's own sliding cache drops positions that such a crop
would need.

Shapes: R rows, N or L tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dg_lsp.core.values import n_common

# The smallest cache limit, however small the model: about ten places of the embedded model's in fp32, twenty in bf16. The
# engine stays in memory between edits, so it keeps only the places that a user is likely to return to.
LEAST_BYTES = 64 * 1024 * 1024
GPU_CHUNK = 2048  # tokens that a GPU encodes in one pass

KV = list[tuple[Tensor, Tensor]]  # per layer: keys and values, each [R or 1, kv heads, L, head dimension]


class Encoder(Protocol):
    """The causal passes of one loaded model."""

    def encode(self, ids: Tensor, past: KV | None = None) -> tuple[Tensor, KV]:
        """Return the last hidden states [R, L, H] of new tokens [R, L], and the keys and values of past and new tokens."""

    def extend(self, ids: Tensor, positions: Tensor, kv: KV, mask: Tensor, key_positions: Tensor) -> Tensor:
        """Return the last hidden states [N, H] of new tokens [N], each at its own position [N].

        The pass overwrites the last N slots of `kv`. Token n sees the slots in `mask` [N, L], whose positions are
        `key_positions` [L]: layers with a sliding window need them.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] in 32 bits."""


def crop(kv: KV, length: int) -> KV:
    """Return the keys and values of the first `length` positions, as views."""
    return [(keys[:, :, :length], values[:, :, :length]) for keys, values in kv]


def room(like: KV, n_slots: int) -> KV:
    """Return keys and values of one row with so many slots, with the sizes of others. They are zeros: finite if masked."""
    shapes = [(1, keys.shape[1], n_slots, keys.shape[3]) for keys, _ in like]
    return [(keys.new_zeros(shape), values.new_zeros(shape)) for (keys, values), shape in zip(like, shapes, strict=True)]


def copy_into(kv: KV, into: KV, first: int = 0) -> None:
    """Copy keys and values of one row into others, to the slots from `first` on."""
    for pair, targets in zip(kv, into, strict=True):
        for values, target in zip(pair, targets, strict=True):
            target[:, :, first : first + values.shape[2]] = values


class _Node:
    """A run of tokens after those of its parent: their keys and values, and their last hidden state [H] if known.

    `used` grows with each use of it or of a node below it.
    """

    def __init__(self, parent: _Node | None, ids: tuple[int, ...], kv: KV, hidden: Tensor | None, used: int) -> None:
        self.parent, self.ids, self.kv, self.hidden, self.used = parent, ids, kv, hidden, used
        self.children: dict[int, _Node] = {}  # by their first token

    @property
    def bytes(self) -> int:
        """The bytes of the keys and values."""
        return sum(side.numel() * side.element_size() for pair in self.kv for side in pair)


class PrefixCache:
    """Encoded prefixes in a tree, where they share what they have in common; limited in bytes.

    The least recently used ends are dropped first. With `dtype`, keys and values are kept in that type.
    """

    def __init__(self, max_bytes: int = LEAST_BYTES, dtype: torch.dtype | None = None) -> None:
        self.max_bytes, self._dtype = max_bytes, dtype
        self.bytes = 0  # the cache's size; other threads may read it at any time
        self._clock = itertools.count(1)
        self._root = _Node(None, (), [], None, 0)
        self._wide: torch.dtype | None = None  # of the keys and values that a pass reads

    def known(self, ids: Sequence[int]) -> int:
        """Return the number of leading ids in the cache."""
        return sum(n for _, n in self._path(tuple(ids)))

    def longest(self, ids: Sequence[int]) -> tuple[int, KV | None]:
        """Return the number of leading ids in the cache, and their keys and values."""
        path, now = self._path(tuple(ids)), next(self._clock)
        length = sum(n for _, n in path)
        for node, _ in path:
            node.used = now
        return length, self._joined([crop(node.kv, n) for node, n in path]) if path else None

    def last_hidden(self, ids: tuple[int, ...]) -> Tensor | None:
        """Return the last hidden state [H] of exactly this prefix, or None."""
        path = self._path(ids)
        is_whole = bool(path) and path[-1][1] == len(path[-1][0].ids) and sum(n for _, n in path) == len(ids)
        return path[-1][0].hidden if is_whole else None

    def put(self, ids: Sequence[int], kv: KV, hidden: Tensor | None = None) -> None:
        """Add a prefix with its last hidden state [H]."""
        ids, now, node, n_known = tuple(ids), next(self._clock), self._root, 0
        for node, n in self._path(ids):
            n_known, node.used = n_known + n, now
            if n < len(node.ids):
                node = self._split(node, n)
        self._wide = kv[0][0].dtype
        if n_known < len(ids):
            own = [(self._own(keys, n_known), self._own(values, n_known)) for keys, values in kv]
            node.children[ids[n_known]] = node = _Node(node, ids[n_known:], own, None, now)
            self.bytes += node.bytes
        node.hidden = hidden if hidden is not None else node.hidden
        while self.bytes > self.max_bytes and (ends := [each for each in self._ends() if each is not node]):
            oldest = min(ends, key=lambda each: each.used)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.ids[0]]
            self.bytes -= oldest.bytes

    def clear(self) -> None:
        """Drop all prefixes."""
        self._root.children.clear()
        self.bytes = 0

    def _path(self, ids: tuple[int, ...]) -> list[tuple[_Node, int]]:
        """Return the nodes that the ids lead through, each with the number of ids that it shares with them."""
        path, at, node = list[tuple[_Node, int]](), 0, self._root
        while at < len(ids) and (child := node.children.get(ids[at])) is not None:
            node, n = child, n_common(child.ids, ids[at : at + len(child.ids)])
            path.append((node, n))
            at += n
            if n < len(node.ids):
                break
        return path

    def _split(self, node: _Node, n: int) -> _Node:
        """Return a new node with the first `n` tokens of a node, whose other tokens come after it."""
        parent = node.parent
        assert parent is not None
        first = _Node(parent, node.ids[:n], crop(node.kv, n), None, node.used)
        parent.children[first.ids[0]] = first
        node.parent, node.ids, node.kv = first, node.ids[n:], [(keys[:, :, n:], values[:, :, n:]) for keys, values in node.kv]
        # Copies: a view would keep the memory of both when the end is dropped.
        first.kv, node.kv = ([(keys.clone(), values.clone()) for keys, values in each] for each in (first.kv, node.kv))
        first.children[node.ids[0]] = node
        return first

    def _ends(self) -> Iterator[_Node]:
        """Yield the nodes without children."""
        nodes = list(self._root.children.values())
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            if not node.children:
                yield node

    def _own(self, side: Tensor, start: int) -> Tensor:
        """Return the keys or values from a position on, in memory of their own."""
        part = side[:, :, start:]
        return part.to(self._dtype) if self._dtype not in (None, side.dtype) else part.clone() if start else part

    def _joined(self, parts: Sequence[KV]) -> KV:
        """Return the keys and values of one run after the other, in the type that passes read."""
        if len(parts) == 1:
            return [(keys.to(self._wide), values.to(self._wide)) for keys, values in parts[0]]
        return [
            (
                torch.cat([keys for keys, _ in layer], 2).to(self._wide),
                torch.cat([values for _, values in layer], 2).to(self._wide),
            )
            for layer in zip(*parts, strict=True)
        ]


class PrefixEncoder:
    """The model's encoder and the cache of encoded prefixes."""

    def __init__(self, passes: Encoder, device: str, cache: PrefixCache) -> None:
        self._passes, self._device, self.cache = passes, device, cache
        self._is_on_gpu = device.startswith("cuda")

    def at_once(self, chunk: int) -> int:
        """Return the most tokens of one pass, where a processor takes a chunk: a GPU reads its weights once for all of them."""
        return max(chunk, GPU_CHUNK) if self._is_on_gpu else chunk

    def keep(self, ids: tuple[int, ...], root: tuple[KV, Tensor] | None) -> None:
        """Cache a prefix whose keys, values and last hidden state [H] a tree has, if only its last id is missing."""
        if root is not None and self.cache.known(ids) == len(ids) - 1:
            self.cache.put(ids, *root)

    def encode(self, ids: tuple[int, ...], n_encoded: int, kv: KV | None, most: int) -> tuple[int, KV]:
        """Encode at most `most` more ids after the first `n_encoded`, and cache them; return the new count and the kv."""
        part = torch.tensor([ids[n_encoded : n_encoded + most]], device=self._device)
        hidden, kv = self._passes.encode(part, kv)
        n_encoded = min(n_encoded + most, len(ids))
        self.cache.put(ids[:n_encoded], kv, hidden[0, -1].clone())
        if self._is_on_gpu:
            torch.cuda.synchronize(self._device)  # the pass was only queued, and the caller measures how long it takes
        return n_encoded, kv
