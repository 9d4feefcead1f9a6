"""Passes over a tree of tokens behind a prefix, for `engine.model.gpu.buffers`: DiffusionGemma's drafts and scores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model import prefix_cache
from dg_lsp.engine.model.gpu.passes import Inputs
from dg_lsp.engine.model.memory import MASK_BYTES, Cost
from dg_lsp.engine.model.prefix_cache import KV
from dg_lsp.engine.model.recording import ROWS


class Room(NamedTuple):
    """The keys and values of a tree, and the positions of their tokens, which decide what a sliding window shows."""

    kv: KV
    positions: Tensor


class TreePasses:
    """The encoder passes of one loaded model over the tokens of trees."""

    most_rows = sys.maxsize  # a pass of many tokens reads each expert once, recorded or not

    def __init__(self, passes: Passes, cost: Cost) -> None:
        weight = passes.decoder.embed_tokens.weight
        self._passes, self._cost, self.device, self.hidden_dtype = passes, cost, weight.device, weight.dtype
        self.n_hidden = int(passes.config.hidden_size)

    def room(self, n_places: int, like: KV) -> Room:
        """Return room for so many places, with the sizes of these keys and values."""
        return Room(prefix_cache.room(like, n_places), torch.zeros(n_places, dtype=torch.long, device=self.device))

    def room_bytes(self, n_places: int) -> int:
        """Return the bytes of such a room, and of what a pass over it needs."""
        of_rows = ROWS[-1] * (self._cost.canvas_token - self._cost.logit_token + n_places * MASK_BYTES)
        return n_places * self._cost.prefix_token + of_rows

    def fill(self, room: Room, kv: KV, positions: Sequence[int]) -> None:
        """Copy keys and values, whose tokens stand at these positions, to the first places of a room."""
        n_given = len(positions)
        room.positions[:n_given] = torch.tensor(positions, dtype=torch.long, device=self.device)
        prefix_cache.put(kv, room.kv)

    def pairs(self, room: Room) -> KV:
        """Return the keys and values in a room."""
        return room.kv

    def read(self, inputs: Inputs, room: Room) -> Tensor:
        """Return the last hidden states [N, H] of new tokens, whose keys and values go to their places."""
        assert inputs.visible is not None
        room.positions.index_copy_(0, inputs.places, inputs.positions)
        ids, positions, visible = inputs.ids, inputs.positions, inputs.visible
        return self._passes.extend_at(ids, positions, room.kv, visible, room.positions, inputs.places)
