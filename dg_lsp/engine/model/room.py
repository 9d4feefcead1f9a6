"""The keys and values of one running request: of its prompt, and of all texts that are written and scored behind it.

    PrefixCache.runs -> Room.add    what is encoded already is copied into a room once
    Room.read -> PrefixCache.put    the rest of the prompt is read into the room, and what is new of it is copied to the cache
    Tree.grow -> Room.read          drafts and scores follow behind the prompt, or behind the part of it that the room keeps

Nothing else holds keys and values of a text. Knows passes and token ids. Knows nothing of text.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dg_lsp.engine.model.kv import KV, Encoder, Tokens, crop
from dg_lsp.engine.model.prefix_cache import PrefixCache
from dg_lsp.engine.model.recording import Buffer, Buffers

MORE = 128  # slots of a room for what is written behind its prompt, at first, and more each time that these are full
GPU_CHUNK = 2048  # tokens that a GPU encodes in one pass


class Room:
    """Slots for the keys and values of one row of tokens, of which the first `len(positions)` are read, at these positions.

    It has at least `n_slots`, and grows. On a GPU they are in a buffer of the model, in which passes over trees are recorded.
    """

    def __init__(self, passes: Encoder, n_slots: int) -> None:
        self._buffers: Buffers | None = getattr(passes, "buffers", None)
        self.passes = passes if self._buffers is None else self._buffers.passes
        self.positions = list[int]()
        self._take(n_slots)

    @property
    def kv(self) -> KV:
        """The keys and values of what is read, as views."""
        return crop(self._pairs, len(self.positions))

    @property
    def device(self) -> torch.device:
        return self._pairs[0][0].device

    def _take(self, n_slots: int) -> None:
        """Hold at least so many slots, with what is read in the first ones. Views of those before stay valid."""
        before = self.kv if self.positions else []
        self._buffer: Buffer | None = None
        with torch.inference_mode(mode=False), torch.no_grad():  # a tensor of this mode could not be changed outside of it
            if self._buffers is None:
                self._store, self.capacity = self.passes.store(n_slots), n_slots
            else:
                self._buffer = self._buffers.take(n_slots)
                self._buffer.owner = weakref.ref(self)
                self._store, self.capacity = self._buffer.store, self._buffer.capacity
            self._pairs = self.passes.pairs(self._store)
            if before:
                self.passes.fill(self._store, before, 0, self.positions)

    def keep(self, n_tokens: int) -> None:
        """Forget all but the first tokens. Trees behind more of them must not be used any more."""
        del self.positions[n_tokens:]

    def add(self, kv: KV) -> None:
        """Copy keys and values of the next tokens of a text behind what is read."""
        first = len(self.positions)
        positions = range(first, first + kv[0][0].shape[2])
        self.passes.fill(self._store, kv, first, positions)
        self.positions += positions

    def read(self, ids: Sequence[int], positions: Sequence[int] = (), visible: NDArray[np.bool_] | None = None) -> Tensor:
        """Read new tokens [N] into the next slots; return their last hidden states [N, H].

        Token n stands at its position and sees the slots in `visible` [N, L]. Without these, the tokens go on with a text.
        """
        first, end = len(self.positions), len(self.positions) + len(ids)
        positions = positions or range(first, end)
        if end > self.capacity:
            self._take(end + MORE)
        self.positions += positions
        if visible is not None and self._buffer is not None:
            return self._buffer.read(first, ids, positions, visible)
        new, at = (torch.tensor(list(numbers), device=self.device) for numbers in (ids, positions))
        mask = None if visible is None else torch.from_numpy(visible).to(self.device)
        return self.passes.read(Tokens(new, at, slice(first, end), mask), self._store)


class PrefixEncoder:
    """The model's encoder and the cache of encoded prefixes."""

    def __init__(self, passes: Encoder, device: str, cache: PrefixCache) -> None:
        self._passes, self._device, self.cache = passes, device, cache
        self._is_on_gpu = device.startswith("cuda")

    def at_once(self, chunk: int) -> int:
        """Return the most tokens of one pass, where a processor takes a chunk: a GPU reads its weights once for all of them."""
        return max(chunk, GPU_CHUNK) if self._is_on_gpu else chunk

    def room(self, ids: Sequence[int], more: int = 0) -> Room:
        """Return a room for a prompt, which holds what the cache has of it, with `more` slots behind it."""
        room = Room(self._passes, len(ids) + more)
        for kv in self.cache.runs(ids):
            room.add(kv)
        return room

    def encode(self, ids: tuple[int, ...], room: Room, most: int) -> None:
        """Read at most `most` more of a prompt's ids into its room, and cache them."""
        first, end = len(room.positions), min(len(room.positions) + most, len(ids))
        hidden = room.read(ids[first:end])
        self.cache.put(ids[:end], room.kv, hidden[-1].clone())
        if self._is_on_gpu:
            torch.cuda.synchronize(self._device)  # the pass was only queued, and the caller measures how long it takes

    def keep(self, ids: tuple[int, ...], root: tuple[KV, Tensor] | None) -> None:
        """Cache a prefix whose keys, values and last hidden state [H] a tree has, if only its last id is missing."""
        if root is not None and self.cache.known(ids) == len(ids) - 1:
            self.cache.put(ids, *root)
