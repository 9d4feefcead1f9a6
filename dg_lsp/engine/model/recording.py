"""Record functions that always use the same memory as CUDA graphs, so that the CPU launches them once, not kernel by kernel.

Their memory is in buffers of a few lengths, which a pool holds: of the rooms of requests, and of denoising steps. A function
that can't be recorded is run directly for good: slower, with the same result.

The buffers of rooms have shapes that depend on nothing but a bucket: a number of slots, the usual one, which all shorter rooms
share, or a longer one in steps of 256. Each has a graph for 1, 4, 16 and 64 new tokens. The first buffer of a bucket runs each
twice directly; later ones are recorded at their first use. Fewer tokens are padded: the added ones write to the last slot,
which no other token sees. So a pass is one copy to the device, one launch, and a copy of the hidden states. A pass may be
larger than any graph if the model says so; it is then run directly. Knows memory and graphs. Knows nothing of models or trees.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dg_lsp.core import wording
from dg_lsp.engine.model.kv import Encoder, Tokens

log = logging.getLogger("dg_lsp.engine")

ROWS = (1, 4, 16, 64)  # the numbers of new tokens of a recorded pass over a tree
WARM_UPS = 2  # direct calls before the recording: they load kernels and plan what a recording can't load

Work = Callable[[], None]
KeyT = TypeVar("KeyT")
BuffersT = TypeVar("BuffersT")


class Recorder:
    """Records functions as graphs, which share one pool of memory because only one runs at a time.

    `what` names the functions in the log, in the plural.
    """

    def __init__(self, what: str = "denoising steps") -> None:
        self.what = what
        self.is_usable = True  # False after a function could not be recorded
        self.n_recorded = 0
        self.reason = ""  # why it is not usable
        self._pool: Any = None

    def record(self, work: Work) -> Work:
        """Return a function that replays `work`; raise RuntimeError if it can't be recorded. It does not run `work`."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads report the free memory meanwhile, which must not end the recording.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def give_up(self, error: RuntimeError) -> None:
        """Record nothing more, and log why."""
        self.is_usable, self.reason = False, wording.reason(error)
        log.warning("%s are not recorded as CUDA graphs, which makes them slower: %s", self.what, self.reason)


@dataclass(slots=True)
class WarmUps:
    """How many direct calls are left before a recording. Functions that launch the same kernels share one."""

    left: int = WARM_UPS


class StepGraph:
    """One function that takes no argument and always uses the same memory, run directly at first and then as a graph."""

    def __init__(self, work: Work, recorder: Recorder | None, warm_ups: WarmUps | None = None) -> None:
        """Without a recorder, the function is always run directly. Without `warm_ups`, it has its own."""
        self._work, self._recorder, self._warm_ups = work, recorder, warm_ups or WarmUps()
        self._replay: Work | None = None

    def run(self) -> None:
        recorder = self._recorder
        if self._replay is None and recorder is not None and recorder.is_usable and self._warm_ups.left <= 0:
            try:
                self._replay = recorder.record(self._work)
                recorder.n_recorded += 1
            # Also if memory ran out, though it may be free later: PyTorch does not say in which state a recording that failed
            # leaves the pool that all recordings share. The buffers were checked against the free memory, so this is rare.
            except RuntimeError as error:  # also what CUDA raises
                recorder.give_up(error)
        if self._replay is not None:
            self._replay()
        else:
            self._work()
            self._warm_ups.left -= 1


@dataclass(frozen=True, slots=True, eq=False)
class _Held(Generic[KeyT, BuffersT]):
    key: KeyT
    n_bytes: int
    buffers: BuffersT


class Pool(Generic[KeyT, BuffersT]):
    """Buffers of fixed size for functions that a GPU records, by key: at most `most`, in at most a quarter of the free memory.

    `free` returns the free bytes of the device, None if unknown.
    """

    def __init__(self, free: Callable[[], int | None], most: int) -> None:
        self._free, self._most = free, most
        self._held: list[_Held[KeyT, BuffersT]] = []  # the least recently used first

    @property
    def bytes(self) -> int:
        return sum(each.n_bytes for each in self._held)

    def clear(self) -> None:
        """Drop all buffers that are free."""
        self._held = [each for each in self._held if not self.is_free(each.buffers)]

    def is_free(self, buffers: BuffersT) -> bool:
        """Return whether the buffers may be given to another request, or dropped."""
        del buffers
        return True

    def held(self, key: KeyT, n_bytes: int, make: Callable[[], BuffersT]) -> BuffersT | None:
        """Return free buffers of this key, made if there are none; None if memory has no room for them.

        For new ones, others are dropped as far as necessary, the least recently used first.
        """
        for each in self._held:
            if each.key == key and self.is_free(each.buffers):
                self._held.remove(each)
                self._held.append(each)
                return each.buffers
        free = self._free()
        most_bytes = n_bytes + self.bytes if free is None else (free + self.bytes) // 4
        while len(self._held) >= self._most or self.bytes + n_bytes > most_bytes:
            unused = next((each for each in self._held if self.is_free(each.buffers)), None)
            if unused is None or n_bytes > most_bytes:
                return None
            self._held.remove(unused)
        try:
            self._held.append(_Held(key, n_bytes, make()))
        except torch.OutOfMemoryError:  # the memory is in pieces that are too small
            return None
        return self._held[-1].buffers


def padded(number: int, step: int) -> int:
    """Return the length of the buffers that so many slots share: the next multiple of `step`."""
    return max(1, -(-number // step)) * step


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Return values of any shape on the device. A copy to a GPU does not wait for the work that is queued there."""
    if not str(device).startswith("cuda"):
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def copy_to_device(buffer: Tensor, values: Tensor) -> None:
    """Copy values of any shape into a buffer of a device, without waiting for the work that is queued there."""
    is_cuda = buffer.device.type == "cuda"
    buffer.copy_(values.pin_memory() if is_cuda else values, non_blocking=is_cuda)


# --- The buffers of rooms


STEP = 256  # slots
MAX_BUFFERS = 6  # requests that take turns, and rooms of two or three lengths


class FixedPasses(Encoder, Protocol):
    """Passes that can be recorded, over at most `most_rows` tokens at once."""

    device: torch.device
    n_hidden: int
    hidden_dtype: torch.dtype
    most_rows: int

    def store_bytes(self, n_slots: int) -> int:
        """Return the bytes of so many slots, and of what passes over them need."""


class _Graph:
    """A pass over a fixed number of new tokens of one buffer, and what it reads and writes."""

    def __init__(
        self, passes: FixedPasses, store: Any, shape: tuple[int, int], recorder: Recorder | None, warm_ups: WarmUps
    ) -> None:
        n_rows, self._shape = shape[0], shape
        # One buffer for all inputs, so that there is one copy to the device.
        self._given = torch.zeros(_n_given(*self._shape), dtype=torch.uint8, device=passes.device)
        self.hidden = hidden = torch.zeros(n_rows, passes.n_hidden, dtype=passes.hidden_dtype, device=passes.device)
        first, visible = self._given[: _FIRST * _width(n_rows)], self._given[_FIRST * _width(n_rows) :]
        numbers = first.view(torch.long).view(3, -1)[:, :n_rows]
        ids, positions, slots = numbers.unbind()
        tokens = Tokens(ids, positions, slots, visible.view(torch.bool).view(n_rows, -1))

        def work() -> None:  # without `self`, or a dropped buffer keeps its memory until garbage is collected
            hidden.copy_(passes.read(tokens, store))

        self._graph = StepGraph(work, recorder, warm_ups)

    def run(self, at: int, ids: Sequence[int], positions: Sequence[int], visible: NDArray[np.bool_]) -> None:
        """Compute the hidden states of at most N new tokens at the slots from `at` on, which see `visible` slots."""
        (n_rows, n_slots), n_own = self._shape, len(ids)
        given = np.zeros(_n_given(*self._shape), dtype=np.uint8)
        numbers = given[: _FIRST * _width(n_rows)].view(np.int64).reshape(3, -1)
        numbers[2] = n_slots - 1
        numbers[:, :n_own] = ids, positions, range(at, at + n_own)
        seen = given[_FIRST * _width(n_rows) :].reshape(n_rows, n_slots)
        seen[:n_own, : visible.shape[1]] = visible
        seen[n_own:, -1] = True  # attention over nothing is not a number
        copy_to_device(self._given, torch.from_numpy(given))
        self._graph.run()


_FIRST = 3 * 8  # the bytes of a token's id, position and slot


def _width(n_rows: int) -> int:
    """Return the numbers in a line of inputs: the kernels read lines that begin at multiples of 16 bytes faster."""
    return max(2, n_rows)


def _n_given(n_rows: int, n_slots: int) -> int:
    return _FIRST * _width(n_rows) + n_rows * n_slots


_WarmUps = defaultdict[tuple[int, int], WarmUps]
"""By the numbers of new tokens and of slots, on which the choice of kernels depends."""


class Buffer:
    """The slots of one room at a time, the last of which is that of added tokens, and the graphs that use them."""

    def __init__(self, passes: FixedPasses, n_slots: int, recorder: Recorder | None, warm_ups: _WarmUps) -> None:
        self.passes, self._recorder, self._warm_ups, self._n_slots = passes, recorder, warm_ups, n_slots
        with torch.inference_mode(mode=False), torch.no_grad():  # a tensor of this mode could not be changed outside of it
            self.store = passes.store(n_slots)
        self._graphs: dict[int, _Graph] = {}
        self.owner: weakref.ref[Any] | None = None

    @property
    def capacity(self) -> int:
        """The number of slots for tokens."""
        return self._n_slots - 1

    def read(self, first: int, ids: Sequence[int], positions: Sequence[int], visible: NDArray[np.bool_]) -> Tensor:
        """Return the last hidden states [N, H] of new tokens, whose keys and values go to the slots from `first` on.

        Token n sees the slots in `visible` [N, L]. One pass reads at most `most_rows` of them.
        """
        parts, most = [], self.passes.most_rows
        for start in range(0, len(ids), most):
            own = slice(start, min(start + most, len(ids)))
            n_own = own.stop - start
            graph = self._graph(n_own)
            graph.run(first + start, ids[own], positions[own], visible[own])
            parts.append(graph.hidden[:n_own].clone())  # the next pass overwrites them
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _graph(self, n_rows: int) -> _Graph:
        """Return the pass over so many new tokens, or more; one over more than any graph has is not kept."""
        rows = next((rows for rows in ROWS if rows >= n_rows), 0)
        with torch.inference_mode(mode=False):
            if not rows:
                return _Graph(self.passes, self.store, (n_rows, self._n_slots), None, WarmUps())
            if rows not in self._graphs:
                shape = rows, self._n_slots
                self._graphs[rows] = _Graph(self.passes, self.store, shape, self._recorder, self._warm_ups[shape])
        return self._graphs[rows]


class Buffers(Pool[int, Buffer]):
    """The buffers of one model, by their numbers of slots, usually those of rooms with `usual` slots.

    Those that a room uses are not dropped.
    """

    def __init__(
        self, passes: FixedPasses, free: Callable[[], int | None], recorder: Recorder | None = None, usual: int = 0
    ) -> None:
        super().__init__(free, MAX_BUFFERS)
        self.passes, self._recorder = passes, recorder
        self._warm_ups: _WarmUps = defaultdict(WarmUps)
        self._usual = padded(usual + 1, STEP) if usual else 0  # with the slot of added tokens

    def take(self, n_slots: int) -> Buffer:
        """Return a free buffer for at least so many tokens, whose owner the caller sets.

        If there is no memory for another one, or too many are in use, it is one that is not recorded or kept.
        """
        # Attention over slots that no token sees takes microseconds, and a buffer of another length has to be recorded.
        n_slots = max(padded(n_slots + 1, STEP), self._usual)
        recorded = functools.partial(Buffer, self.passes, n_slots, self._recorder, self._warm_ups)
        held = self.held(n_slots, self.passes.store_bytes(n_slots), recorded)
        return held or Buffer(self.passes, n_slots, None, self._warm_ups)

    def record(self, n_slots: int) -> None:
        """Record the passes over a buffer for rooms of at most `n_slots`, so that no request waits for it.

        If that fails, requests run without recorded passes.
        """
        self._usual = padded(n_slots + 1, STEP)
        try:
            with torch.inference_mode():
                buffer = self.take(n_slots)
                for n_rows in ROWS * (WARM_UPS + 1):
                    buffer.read(0, [0] * n_rows, range(n_rows), np.ones((n_rows, n_rows), dtype=np.bool_))
        except RuntimeError as error:  # also what CUDA raises, such as a lack of memory
            if self._recorder is not None:
                self._recorder.give_up(error)

    def is_free(self, buffers: Buffer) -> bool:
        """Return whether no room uses a buffer."""
        return buffers.owner is None or buffers.owner() is None
