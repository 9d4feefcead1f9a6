"""Record functions that always use the same memory as CUDA graphs, so that the CPU launches them once, not kernel by kernel.

Their memory is in buffers of a few lengths, which a pool holds: of the trees of drafts and scores, and of denoising steps. A
function that can't be recorded is run directly for good: slower, with the same result. Knows nothing of models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from dg_lsp.core import wording
from dg_lsp.engine.model.memory import fixed_bytes

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
        """Run the function once, in one way or the other."""
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
        """The bytes of all buffers."""
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
        most_bytes = n_bytes + self.bytes if free is None else fixed_bytes(free + self.bytes)
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
    """Return the length of the buffers that so many places share: the next multiple of `step`."""
    return max(1, -(-number // step)) * step


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Return values of the host on the device. A copy to a GPU does not wait for the work that is queued there."""
    if not str(device).startswith("cuda"):
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def copy_to_device(buffer: Tensor, values: Tensor) -> None:
    """Copy values of the host into a buffer on a device, without waiting for the work that is queued there."""
    is_cuda = buffer.device.type == "cuda"
    buffer.copy_(values.pin_memory() if is_cuda else values, non_blocking=is_cuda)
