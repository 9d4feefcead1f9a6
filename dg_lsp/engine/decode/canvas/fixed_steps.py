"""Take the denoising steps of a GPU in fixed buffers, one set for each bucket, and read their flags one step later.

The flags that say which rows have settled are copied to the host while the next step runs, so that the GPU never waits for
the CPU. A row that settled takes one more step by then, in which it does not change. Knows buckets, memory and graphs. Knows
nothing of requests.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dg_lsp.engine.decode.canvas.denoise import Denoiser
from dg_lsp.engine.decode.canvas.fixed_step import Bucket, FixedStep, bucket_of
from dg_lsp.engine.decode.canvas.stack import LocalDecoder
from dg_lsp.engine.decode.canvas.step_graph import Recorder, StepGraph
from dg_lsp.engine.model import room
from dg_lsp.engine.model.family import Family
from dg_lsp.engine.model.room import Cost

MAX_BUCKETS = 8  # an editor's requests need two or three
MAX_POSITIONS = 2048  # more canvas positions in a pass keep a GPU busy without a graph, and their mask would be large


@dataclass(slots=True)
class _Entry:
    """The buffers of a bucket, the graph of their step, their bytes, and the decoder whose prefix they hold."""

    step: FixedStep
    graph: StepGraph
    n_bytes: int
    decoder: weakref.ref[LocalDecoder] | None = None


class FixedSteps:
    """The buffers of the buckets in use, the least recently used of which are dropped first.

    `free` returns the free bytes of the device, None if unknown. `lag` is the number of steps by which flags are read late.
    """

    def __init__(
        self, passes: Family, cost: Cost, free: Callable[[], int | None], *, recorder: Recorder | None = None, lag: int = 1
    ) -> None:
        self._passes, self._cost, self._free, self._recorder, self.lag = passes, cost, free, recorder, lag
        self._entries: OrderedDict[Bucket, _Entry] = OrderedDict()
        self._n_vocabulary: int = passes.n_vocabulary

    @property
    def bytes(self) -> int:
        """The bytes of all buffers and graphs, which `clear` gives back."""
        return sum(entry.n_bytes for entry in self._entries.values())

    def clear(self) -> None:
        """Drop all buffers."""
        self._entries.clear()

    def step(self, denoiser: Denoiser, decoder: LocalDecoder, rows: Sequence[int], *, lag: int | None = None) -> bool:
        """Take one step of these rows on the decoder's prefix; return False if there is no room, and nothing was done.

        With a `lag` of 0, the flags are read at once, and rows that have settled are stepped like all others.
        """
        lag = self.lag if lag is None else lag
        bucket = bucket_of(denoiser, rows, decoder.kv[0][0].shape[2], conditioned=decoder.conditioned)
        entry = self._entry(bucket, decoder)
        if entry is None:
            return False
        if entry.decoder is None or entry.decoder() is not decoder:
            entry.step.load_prefix(decoder.kv)
            entry.decoder = weakref.ref(decoder)
        entry.step.load_rows(denoiser, rows, freezes=lag > 0)
        entry.graph.run()
        denoiser.note(rows, _flags(entry.step.save_rows(denoiser, rows)))
        denoiser.collect(keep=lag)
        if denoiser.done:
            denoiser.collect()
        return True

    def _entry(self, bucket: Bucket, decoder: LocalDecoder) -> _Entry | None:
        """Return the buffers of a bucket, allocated if there is room."""
        if bucket in self._entries:
            self._entries.move_to_end(bucket)
            return self._entries[bucket]
        if bucket.rows * bucket.width > MAX_POSITIONS:
            return None
        n_bytes, free = bucket.n_bytes(self._cost), self._free()
        most = None if free is None else room.fixed_bytes(free + self.bytes)
        while self._entries and (len(self._entries) >= MAX_BUCKETS or (most is not None and self.bytes + n_bytes > most)):
            self._entries.popitem(last=False)
        if most is not None and n_bytes > most:
            return None
        try:
            step = FixedStep(self._passes, bucket, decoder.kv, self._n_vocabulary)
        except torch.OutOfMemoryError:  # the memory is in pieces that are too small
            return None
        self._entries[bucket] = entry = _Entry(step, StepGraph(step.run, self._recorder), n_bytes)
        return entry


def _flags(settled: Tensor) -> Callable[[], Sequence[bool]]:
    """Return a function that waits for flags and returns them; the copy to the host starts at once."""
    if settled.device.type != "cuda":
        return settled.tolist
    host = torch.empty(settled.shape, dtype=settled.dtype, pin_memory=True)
    host.copy_(settled, non_blocking=True)
    is_there = torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_there.record()

    def read() -> Sequence[bool]:
        is_there.synchronize()
        flags: list[bool] = host.tolist()
        return flags

    return read
