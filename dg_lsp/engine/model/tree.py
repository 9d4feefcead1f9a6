"""Encode several continuations of one prefix together, as a tree of tokens in one room.

The prefix is stored once for all continuations, and tokens that they share are encoded once. All stages of a fill use one
tree, so the log-probabilities of a text that was drafted are known when it is scored. A rejected token stays in the room,
but no token of another path attends to it. Knows passes and token ids. Knows nothing of text.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dg_lsp.engine.model.kv import KV, crop
from dg_lsp.engine.model.room import Room

ROOT = 0  # the node of the prefix's last token
LEAST = 1e-12  # the least probability whose log is added up
SCORED = 64  # positions whose whole logits are in memory at once, when tokens are scored


class Bound(NamedTuple):
    """The most that the log-probability of a row can be, and how many of its tokens are unknown."""

    logp: float
    n_unknown: int


class Tree:
    """The tokens after a prefix, whose last token `last` is the root. A node is a token after the path to it.

    All nodes see what the `room` has read until now, and their path. Without the root's last hidden state `hidden` [H], the
    room has not read the root, and the first pass does.
    """

    def __init__(self, room: Room, last: int, hidden: Tensor | None = None) -> None:
        self._room, self._length, self._last, self._device = room, len(room.positions), last, room.device
        # For each node, the slots of its path's tokens. A root whose hidden state is known needs none.
        self._paths: list[tuple[int, ...]] = [()]
        self._child: dict[tuple[int, int], int] = {}
        self._logps: dict[int, dict[int, float]] = defaultdict(dict)  # of tokens after nodes, as far as they were computed
        self._hidden = torch.empty(0) if hidden is None else hidden[None]

    @property
    def n_nodes(self) -> int:
        """The number of nodes, the root included."""
        return len(self._paths)

    @property
    def root(self) -> tuple[KV, Tensor] | None:
        """The keys and values of the prefix with its root, and the root's last hidden state [H]; None if no pass read it."""
        if not self._paths[ROOT] or not self.is_read:
            return None
        return crop(self._room.kv, self._length + 1), self._hidden[ROOT].clone()

    @property
    def is_read(self) -> bool:
        """Whether the root's last hidden state is known."""
        return len(self._hidden) > 0

    def grow(self, rows: Iterable[tuple[int, Sequence[int]]]) -> list[list[int]]:
        """Encode the tokens that the tree lacks, in one pass; return the nodes of each row's tokens.

        A row is a node and the tokens after it.
        """
        begins, tokens = not self.is_read, list[int]()
        first = ROOT if begins else len(self._paths)
        if begins:
            self._paths[ROOT] = (len(self._room.positions),)
            tokens.append(self._last)
        nodes = [self._walk(node, row, tokens) for node, row in rows]
        if tokens:
            self._encode(tokens, self._paths[first:])
        return nodes

    def hidden(self, nodes: Sequence[int]) -> Tensor:
        """Return the last hidden states [N, H] of nodes [N]."""
        if not self.is_read:
            self.grow([])
        return self._hidden[torch.tensor(nodes, dtype=torch.long, device=self._device)]

    def logits(self, nodes: Sequence[int]) -> Tensor:
        """Return the logits [N, V] of what follows nodes [N], in 32 bits."""
        return self._room.passes.logits(self.hidden(nodes))

    def learn(self, node: int, logps: Mapping[int, float]) -> None:
        """Store the log-probabilities of tokens after a node, which a pass computed."""
        self._logps[node].update(logps)

    def bound(self, row: Sequence[int]) -> Bound:
        """Return the log-probability of a row after the root as far as it is known.

        The first unknown token has at most the probability that the known ones leave.
        """
        node, total = ROOT, 0.0
        for n_seen, token in enumerate(row):
            known = self._logps[node]
            if token not in known:
                rest = max(1.0 - sum(map(math.exp, known.values())), LEAST)
                return Bound(total + math.log(rest), len(row) - n_seen)
            total += known[token]
            if (child := self._child.get((node, token))) is None:
                return Bound(total, len(row) - n_seen - 1)
            node = child
        return Bound(total, 0)

    def log_probabilities(self, rows: Sequence[Sequence[int]], first: Sequence[int] = ()) -> list[list[float]]:
        """Return the log-probability of each token of rows that follow the root, or of each from the row's `first` one on.

        A row's last token need not be encoded, and nothing is computed that is known.
        """
        before = [[ROOT, *nodes] for nodes in self.grow((ROOT, row[:-1]) for row in rows)]
        pairs = [
            list(zip(path, row, strict=False))[start:]  # an empty row has none
            for path, row, start in zip(before, rows, first or [0] * len(rows), strict=True)
        ]
        distinct = dict.fromkeys(pair for row in pairs for pair in row)
        unknown = [(node, token) for node, token in distinct if token not in self._logps[node]]
        for at in range(0, len(unknown), SCORED):
            nodes, tokens = zip(*unknown[at : at + SCORED], strict=True)
            logits = self.logits(nodes)
            targets = torch.tensor(tokens, dtype=torch.long, device=self._device)
            logps = (logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)).tolist()
            for node, token, logp in zip(nodes, tokens, logps, strict=True):
                self.learn(node, {token: logp})
        return [[self._logps[node][token] for node, token in row] for row in pairs]

    def _walk(self, node: int, row: Sequence[int], tokens: list[int]) -> list[int]:
        """Return the nodes of a row's tokens after a node, with new ones for those that the tree lacks, in `tokens` too."""
        nodes = []
        for token in row:
            child = self._child.get((node, token))
            if child is None:
                child = self._child[node, token] = len(self._paths)
                self._paths.append((*self._paths[node], len(self._room.positions) + len(tokens)))
                tokens.append(token)
            nodes.append(child)
            node = child
        return nodes

    def _encode(self, tokens: Sequence[int], paths: Sequence[tuple[int, ...]]) -> None:
        """Encode the last tokens, which are at the ends of `paths`."""
        visible = np.zeros((len(tokens), len(self._room.positions) + len(tokens)), dtype=np.bool_)
        visible[:, : self._length] = True
        for index, path in enumerate(paths):
            visible[index, list(path)] = True
        new = self._room.read(tokens, [self._length + len(path) - 1 for path in paths], visible)
        self._hidden = torch.cat([self._hidden.to(new), new]) if len(self._hidden) else new
