"""Read new tokens after a prefix in preallocated buffers, so that a GPU can record the pass as a graph.

Drafts and scores are such passes: a tree of tokens grows, and each pass reads a few of its tokens. A pass of few tokens takes
longer to launch kernel by kernel than to compute. The buffers hold one tree's keys and values; what the tree has gained since
the last pass is copied. Knows passes, memory and graphs. Knows nothing of requests.

Shapes: N new tokens, L places in the tree's buffer, P places in ours, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model.memory import MASK_BYTES, PREFIX_BUCKET, Cost, Pool
from dg_lsp.engine.model.prefix_cache import KV
from dg_lsp.engine.model.recording import ROWS, Recorder, StepGraph

MAX_ROOMS = 2  # an editor switches between prefixes of two lengths at most; others take their place


@dataclass(slots=True)
class _Pass:
    """The inputs and the output of a pass of some number of tokens, and its graph."""

    ids: Tensor
    positions: Tensor
    places: Tensor
    mask: Tensor
    hidden: Tensor
    graph: StepGraph


class _Room:
    """Keys and values of one length, and the passes that read and write them.

    The last places are for tokens that pad a pass. No other token sees them.
    """

    def __init__(self, passes: Passes, n_places: int, like: KV, recorder: Recorder | None) -> None:
        self._passes, self._recorder, self._n_places = passes, recorder, n_places
        self._kv: KV = [(self._sized(keys), self._sized(values)) for keys, values in like]
        self._device = like[0][0].device
        self._key_positions = torch.zeros(n_places + ROWS[-1], dtype=torch.long, device=self._device)
        self._passes_by_rows: dict[int, _Pass] = {}
        # The tree's buffer of which we hold a copy, and how many of its places. Keeping it keeps its address from being reused.
        self._source: KV | None = None
        self._n_copied = 0

    def _sized(self, side: Tensor) -> Tensor:
        return side.new_zeros(1, side.shape[1], self._n_places + ROWS[-1], side.shape[3])  # zeros: masked values must be finite

    def extend(self, ids: Tensor, positions: Tensor, kv: KV, mask: Tensor, key_positions: Tensor) -> Tensor:
        """Do what `Passes.extend` does."""
        n_new, n_places = mask.shape
        n_past = n_places - n_new
        one = self._pass(next(rows for rows in ROWS if rows >= n_new))
        self._copy_past(kv, n_past)
        one.ids[:n_new], one.positions[:n_new] = ids, positions
        torch.arange(self._n_places, self._n_places + len(one.places), out=one.places)
        torch.arange(n_past, n_places, out=one.places[:n_new])
        one.mask.zero_()
        one.mask[:n_new, :n_places] = mask
        one.mask[n_new:, 0] = True  # attention of a row that sees nothing is not finite
        self._key_positions[:n_places] = key_positions
        one.graph.run()
        for given, own in zip(kv, self._kv, strict=True):
            for side, values in zip(given, own, strict=True):
                side[:, :, n_past:] = values[:, :, n_past:n_places]
        self._n_copied = n_places
        return one.hidden[:n_new].clone()

    def _copy_past(self, kv: KV, n_past: int) -> None:
        """Copy the places of a tree that we lack. A tree never changes a place that it has written."""
        if self._source is None or self._source[0][0].data_ptr() != kv[0][0].data_ptr():
            self._n_copied = 0
        self._source = kv
        if self._n_copied < n_past:
            for given, own in zip(kv, self._kv, strict=True):
                for side, values in zip(given, own, strict=True):
                    values[:, :, self._n_copied : n_past] = side[:, :, self._n_copied : n_past]

    def _pass(self, rows: int) -> _Pass:
        """Return the pass of this many tokens."""
        if rows not in self._passes_by_rows:
            ids, positions, places = (torch.zeros(rows, dtype=torch.long, device=self._device) for _ in range(3))
            mask = torch.zeros(rows, self._n_places + ROWS[-1], dtype=torch.bool, device=self._device)
            hidden = self._kv[0][0].new_zeros(rows, self._passes.config.hidden_size)

            passes, kv, key_positions = self._passes, self._kv, self._key_positions

            def work() -> None:  # without `self`, or a dropped room keeps its memory until garbage is collected
                hidden.copy_(passes.extend_at(ids, positions, kv, mask, key_positions, places))

            self._passes_by_rows[rows] = _Pass(ids, positions, places, mask, hidden, StepGraph(work, self._recorder))
        return self._passes_by_rows[rows]


class Extensions(Pool[int, _Room]):
    """The rooms in use, by their numbers of places."""

    def __init__(self, passes: Passes, cost: Cost, free: Callable[[], int | None], *, recorder: Recorder | None = None) -> None:
        super().__init__(free, MAX_ROOMS)
        self._passes, self._cost, self._recorder = passes, cost, recorder

    def extend(self, ids: Tensor, positions: Tensor, kv: KV, mask: Tensor, key_positions: Tensor) -> Tensor | None:
        """Do what `Passes.extend` does; return None if there is no room, and nothing was done."""
        if not 1 <= len(ids) <= ROWS[-1]:
            return None
        room = self._room(-(-mask.shape[1] // PREFIX_BUCKET) * PREFIX_BUCKET, kv)
        return None if room is None else room.extend(ids, positions, kv, mask, key_positions)

    def _room(self, n_places: int, like: KV) -> _Room | None:
        """Return the room of this length, allocated if memory has room."""
        rows, all_places = ROWS[-1], n_places + ROWS[-1]
        of_rows = rows * (self._cost.canvas_token - self._cost.logit_token + all_places * MASK_BYTES)
        n_bytes = all_places * self._cost.prefix_token + of_rows
        return self.held(n_places, n_bytes, lambda: _Room(self._passes, n_places, like, self._recorder))
