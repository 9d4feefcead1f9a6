"""Cache the keys and values of prefixes, so that a keystroke encodes only its new tokens.

Shapes: L tokens, H hidden.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dg_lsp.core.values import n_common
from dg_lsp.engine.model.kv import KV, crop

# The smallest cache limit, however small the model: about ten places of the embedded model's in fp32, twenty in bf16. The
# engine stays in memory between edits, so it keeps only the places that a user is likely to return to.
LEAST_BYTES = 64 * 1024 * 1024


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

    def known(self, ids: Sequence[int]) -> int:
        """Return the number of leading ids in the cache."""
        return sum(n for _, n in self._path(tuple(ids)))

    def runs(self, ids: Sequence[int]) -> list[KV]:
        """Return the keys and values of the leading ids in the cache, one run after the other."""
        path, now = self._path(tuple(ids)), next(self._clock)
        for node, _ in path:
            node.used = now
        return [crop(node.kv, n) for node, n in path]

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
        return part.clone() if self._dtype in (None, part.dtype) else part.to(self._dtype)
