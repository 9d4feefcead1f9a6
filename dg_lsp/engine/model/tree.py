"""Encode several continuations of one prefix together, as a tree of tokens in one buffer of keys and values.

The prefix is stored once for all continuations, and tokens that they share are encoded once. A rejected token stays in the
buffer, but no later token attends to it. Knows passes and token ids. Knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dg_lsp.engine.model.family import KV, Family, crop

ROOT = -1  # the parent of a token right after the prefix
MORE = 64  # the places added when the buffer is full


class Tree:
    """The tokens after one prefix. A token's node is the number of tokens added before it."""

    def __init__(self, passes: Family, kv: KV, room: int) -> None:
        self._passes, self._length = passes, kv[0][0].shape[2]
        self._kv = _with_room(kv, room)
        self._device = kv[0][0].device
        self._paths: list[tuple[int, ...]] = []

    @property
    def size(self) -> int:
        """The number of tokens added."""
        return len(self._paths)

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Add tokens after their parents and return their last hidden states [N, H]; parents must come before children."""
        first, length = len(self._paths), self._length
        end = first + len(tokens)
        if length + end > self._kv[0][0].shape[2]:
            self._kv = _with_room(crop(self._kv, length + first), end - first + MORE)
        visible = np.zeros((len(tokens), length + end), dtype=bool)
        visible[:, :length] = True
        for index, parent in enumerate(parents):
            path = (*(self._paths[parent] if parent != ROOT else ()), first + index)
            self._paths.append(path)
            visible[index, [length + node for node in path]] = True
        depths = np.fromiter((len(path) for path in self._paths), np.int64, end)
        places = torch.from_numpy(np.concatenate([np.arange(length), length - 1 + depths])).to(self._device)
        ids = torch.tensor(tokens, device=self._device)
        mask = torch.from_numpy(visible).to(self._device)
        return self._passes.extend(ids, places[length + first :], crop(self._kv, length + end), mask, places)


def trie(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[list[int]]]:
    """Return the tokens and parents of a tree with all rows, shared starts once, and the nodes of each row's tokens."""
    tokens: list[int] = []
    parents: list[int] = []
    nodes: list[list[int]] = []
    node_by_edge: dict[tuple[int, int], int] = {}
    for row in rows:
        parent, own = ROOT, list[int]()
        for token in row:
            node = node_by_edge.get((parent, token))
            if node is None:
                node = node_by_edge[parent, token] = len(tokens)
                tokens.append(token)
                parents.append(parent)
            own.append(node)
            parent = node
        nodes.append(own)
    return tokens, parents, nodes


def _with_room(kv: KV, room: int) -> KV:
    """Return a copy of one row's keys and values with `room` more places at the end."""
    grown: KV = []
    for pair in kv:
        _, heads, length, size = pair[0].shape
        sides = [side.new_zeros(1, heads, length + room, size) for side in pair]
        for side, values in zip(sides, pair, strict=True):
            side[:, :, :length] = values
        grown.append((sides[0], sides[1]))
    return grown
