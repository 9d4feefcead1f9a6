"""Keys and values of trees in buffers whose shapes depend on nothing but a bucket, and the recorded passes over them.

A bucket is a number of places: the usual one, which all shorter trees share, or a longer one in steps of 256. Each of its
buffers has a graph for 1, 4, 16 and 64 new tokens. The first buffer of a bucket runs each twice directly; later
ones are recorded at their first use. Fewer tokens are padded: the added ones write to the last place, which no other token
sees. So a pass is one copy to the device, one launch, and a copy of the hidden states. A pass may be larger than any graph if
the model says so; it is then run directly.

Knows memory and graphs. Knows nothing of models or trees.
"""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dg_lsp.engine.model.gpu.passes import Inputs
from dg_lsp.engine.model.prefix_cache import KV
from dg_lsp.engine.model.recording import ROWS, WARM_UPS, Pool, Recorder, StepGraph, WarmUps, copy_to_device, padded

STEP = 256  # places
MAX_BUFFERS = 6  # a request has at most three trees, and their prefixes two or three lengths


class TreePasses(Protocol):
    """A model's passes over the new tokens of a tree, N of them, at most `most_rows` at once.

    Only the model knows what a room is: the keys and values of one tree, with places for more.
    """

    device: torch.device
    n_hidden: int
    hidden_dtype: torch.dtype
    most_rows: int

    def room(self, n_places: int, like: KV) -> Any:
        """Return room for so many places, with the sizes of these keys and values."""

    def room_bytes(self, n_places: int) -> int:
        """Return the bytes of such a room."""

    def fill(self, room: Any, kv: KV, positions: Sequence[int]) -> None:
        """Copy keys and values, whose tokens stand at these positions, to the first places of a room."""

    def pairs(self, room: Any) -> KV:
        """Return the keys and values in a room."""

    def read(self, inputs: Inputs, room: Any) -> Tensor:
        """Return the last hidden states [N, H] of new tokens, whose keys and values go to their places."""


class _Graph:
    """A pass over a fixed number of new tokens of one buffer, and what it reads and writes."""

    def __init__(
        self, passes: TreePasses, room: Any, shape: tuple[int, int], recorder: Recorder | None, warm_ups: WarmUps
    ) -> None:
        n_rows, self._shape = shape[0], shape
        # One buffer for all inputs, so that there is one copy to the device.
        self._given = torch.zeros(_n_given(*self._shape), dtype=torch.uint8, device=passes.device)
        self.hidden = hidden = torch.zeros(n_rows, passes.n_hidden, dtype=passes.hidden_dtype, device=passes.device)
        first, visible = self._given[: _FIRST * _width(n_rows)], self._given[_FIRST * _width(n_rows) :]
        numbers = first.view(torch.long).view(3, -1)[:, :n_rows]
        ids, positions, places = numbers.unbind()
        inputs = Inputs(ids, positions, places, visible.view(torch.bool).view(n_rows, -1))

        def work() -> None:  # without `self`, or a dropped buffer keeps its memory until garbage is collected
            hidden.copy_(passes.read(inputs, room))

        self._graph = StepGraph(work, recorder, warm_ups)

    def run(self, at: int, ids: Sequence[int], positions: Sequence[int], visible: NDArray[np.bool_]) -> None:
        """Compute the hidden states of at most N new tokens at the places from `at` on, which see `visible` places."""
        (n_rows, n_places), n_own = self._shape, len(ids)
        given = np.zeros(_n_given(*self._shape), dtype=np.uint8)
        numbers = given[: _FIRST * _width(n_rows)].view(np.int64).reshape(3, -1)
        numbers[2] = n_places - 1
        numbers[:, :n_own] = ids, positions, range(at, at + n_own)
        seen = given[_FIRST * _width(n_rows) :].reshape(n_rows, n_places)
        seen[:n_own, : visible.shape[1]] = visible
        seen[n_own:, -1] = True  # attention over nothing is not a number
        copy_to_device(self._given, torch.from_numpy(given))
        self._graph.run()


_FIRST = 3 * 8  # the bytes of a token's id, position and place


def _width(n_rows: int) -> int:
    """Return the numbers in a line of inputs: the kernels read lines that begin at multiples of 16 bytes faster."""
    return max(2, n_rows)


def _n_given(n_rows: int, n_places: int) -> int:
    return _FIRST * _width(n_rows) + n_rows * n_places


_WarmUps = defaultdict[tuple[int, int], WarmUps]
"""By the numbers of new tokens and of places, on which the choice of kernels depends."""


class _Buffer:
    """The keys and values of one tree at a time, and the graphs that use them."""

    def __init__(self, passes: TreePasses, n_places: int, like: KV, recorder: Recorder | None, warm_ups: _WarmUps) -> None:
        self.passes, self._recorder, self._warm_ups, self.n_places = passes, recorder, warm_ups, n_places
        self.room = passes.room(n_places, like)
        self._graphs: dict[int, _Graph] = {}
        self.owner: weakref.ref[Places] | None = None

    def graph(self, n_rows: int) -> _Graph:
        """Return the pass over so many new tokens, or more; one over more than any graph has is not kept."""
        rows = next((rows for rows in ROWS if rows >= n_rows), 0)
        with torch.inference_mode(mode=False):  # a tensor of this mode could not be changed outside of it
            if not rows:
                return _Graph(self.passes, self.room, (n_rows, self.n_places), None, WarmUps())
            if rows not in self._graphs:
                shape = rows, self.n_places
                self._graphs[rows] = _Graph(self.passes, self.room, shape, self._recorder, self._warm_ups[shape])
        return self._graphs[rows]


class Places:
    """The keys and values of one tree: a buffer as long as the tree needs it. The last place is that of added tokens."""

    def __init__(self, buffer: _Buffer) -> None:
        self._buffer = buffer
        buffer.owner = weakref.ref(self)
        self.kv = buffer.passes.pairs(buffer.room)

    @property
    def capacity(self) -> int:
        """The number of places for tokens."""
        return self._buffer.n_places - 1

    def extend(self, first: int, ids: Sequence[int], positions: Sequence[int], visible: NDArray[np.bool_]) -> Tensor:
        parts, most = [], self._buffer.passes.most_rows
        for start in range(0, len(ids), most):
            own = slice(start, min(start + most, len(ids)))
            n_own = own.stop - start
            graph = self._buffer.graph(n_own)
            graph.run(first + start, ids[own], positions[own], visible[own])
            parts.append(graph.hidden[:n_own].clone())  # the next pass overwrites them
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Buffers(Pool[int, _Buffer]):
    """The buffers of one model, by their numbers of places, usually those of trees with `usual` places.

    Those that a tree uses are not dropped.
    """

    def __init__(
        self, passes: TreePasses, free: Callable[[], int | None], recorder: Recorder | None = None, usual: int = 0
    ) -> None:
        super().__init__(free, MAX_BUFFERS)
        self._passes, self._recorder = passes, recorder
        self._warm_ups: _WarmUps = defaultdict(WarmUps)
        self._usual = padded(usual + 1, STEP) if usual else 0  # with the place of added tokens

    def take(self, kv: KV, n_places: int, positions: Sequence[int]) -> Places:
        """Return room for at least `n_places`, which begins with these keys and values of one row, at these positions.

        If there is no memory for another buffer, or too many are in use, it is one that is not recorded or kept.
        """
        with torch.inference_mode(mode=False), torch.no_grad():  # as for graphs
            # Attention over places that no token sees takes microseconds, and a buffer of another length has to be recorded.
            buffer = self._buffer(max(padded(n_places + 1, STEP), self._usual), kv)
            places = Places(buffer)
            self._passes.fill(buffer.room, kv, positions)
        return places

    def record(self, n_places: int, n_rooms: int) -> None:
        """Record the passes over so many buffers for trees of at most `n_places`, so that no request waits for it.

        If that fails, requests run without recorded passes.
        """
        self._usual = padded(n_places + 1, STEP)
        try:
            with torch.inference_mode():
                taken = [self.take([], n_places, ()) for _ in range(n_rooms)]
                for places in taken:
                    for n_rows in ROWS * (WARM_UPS + 1):
                        places.extend(0, [0] * n_rows, range(n_rows), np.ones((n_rows, n_rows), dtype=np.bool_))
        except RuntimeError as error:  # also what CUDA raises, such as a lack of memory
            if self._recorder is not None:
                self._recorder.give_up(error)

    def is_free(self, buffers: _Buffer) -> bool:
        """Return whether no tree uses a buffer."""
        return buffers.owner is None or buffers.owner() is None

    def _buffer(self, n_places: int, like: KV) -> _Buffer:
        """Return a free buffer, a new one if there is memory for it, or one that is not kept."""
        recorded = functools.partial(_Buffer, self._passes, n_places, like, self._recorder, self._warm_ups)
        held = self.held(n_places, self._passes.room_bytes(n_places), recorded)
        return held or _Buffer(self._passes, n_places, like, None, self._warm_ups)
