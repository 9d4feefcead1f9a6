"""Take steps of a denoiser's rows in preallocated buffers, whose shapes depend on nothing but a bucket.

So a GPU can record a step once as a graph and replay it, and the CPU launches it once and not kernel by kernel. On other
devices a bucket has the sizes of its rows. The rows share one prefix: its keys and values are stored once, padded on the left
to the bucket's length, and all rows are one long canvas behind it, on which a row sees the prefix and itself. So each row gets
the same result as alone, up to rounding; a test compares it with `tests/engine/reference.py` on the CPU.

The step reads no value back from the device. After it, the CPU waits for the flags that say which rows have settled. Reading
them while the next step runs saved 3 % of a step on an H100, and would cost a whole step whenever a row settles early. Knows
passes, the denoiser's state, memory and graphs. Knows nothing of requests.

Shapes: R rows, C canvas positions, F free positions, P prefix, V vocabulary, K tokens of the self-conditioning.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dg_lsp.engine.diffusion import readout
from dg_lsp.engine.diffusion.denoise import STATE, CanvasState, Denoiser, advanced
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.model import memory
from dg_lsp.engine.model.fit import VOCABULARY_SLICE, Cost
from dg_lsp.engine.model.kv import KV, copy_into
from dg_lsp.engine.model.memory import MASK_BYTES
from dg_lsp.engine.model.recording import Pool, Recorder, StepGraph, padded, to_device

WIDTH_STEP, PREFIX_STEP = 32, 512  # canvases, and prefixes, that differ by less share their buffers
MAX_BUCKETS = 8  # an editor's requests need two or three
MAX_POSITIONS = 2048  # of all rows in a pass: more of them keep a GPU no busier, and their mask would be large
SLICE_COPIES = 4  # of a position's slice of the logits, in 32 bits: before and after widening, exponentials, and a mask


@dataclass(frozen=True, slots=True)
class Bucket:
    """All that a recorded step can't change: its shapes, and the numbers that it computes with.

    `free` is the maximum number of free positions of a row.
    """

    rows: int
    width: int
    free: int
    prefix: int
    samples: bool
    n_conditioning: int
    sampling: Sampling

    def n_bytes(self, cost: Cost) -> int:
        """Return the bytes of a step in this bucket: its prefix, its canvases and what a pass over them needs, at most."""
        positions, n_read = self.rows * self.width, min(self.rows * self.free, readout.POSITIONS)
        logits = cost.logit_token if self.samples else min(cost.logit_token, SLICE_COPIES * 4 * VOCABULARY_SLICE)
        mask = positions * (self.prefix + positions) * MASK_BYTES
        return self.prefix * cost.prefix_token + positions * (cost.canvas_token - cost.logit_token) + n_read * logits + mask


def bucket_of(denoiser: Denoiser, rows: Sequence[int], prefix: int, *, is_shared: bool = True) -> Bucket:
    """Return the smallest bucket for some rows of a denoiser on a prefix of this many tokens.

    Unless it `is_shared` with rows and prefixes of other sizes, it is as large as these.
    """
    # By the rows as planned, because a position that is held later must not change the bucket.
    free, n_rows, width = max(sum(denoiser.rows[index].free) for index in rows), len(rows), denoiser.width
    if is_shared:
        width, free, prefix = padded(width, WIDTH_STEP), padded(free, WIDTH_STEP), padded(prefix, PREFIX_STEP)
        n_rows = 1 << (n_rows - 1).bit_length()
    return Bucket(
        n_rows,
        width,
        min(width, free),
        prefix,
        any(not denoiser.rows[index].greedy for index in rows),
        denoiser.canvas.top_ids.shape[-1],
        denoiser.sampling,
    )


class FixedStep:
    """The buffers of one bucket, and the step that computes in them.

    The caller loads a prefix and some rows, runs the step any number of times, and reads the rows back. Each buffer is an
    attribute, because a recorded step reads and writes at the same addresses every time.
    """

    def __init__(self, passes: Passes, bucket: Bucket, n_vocabulary: int) -> None:
        self._passes, self.bucket, self._n_vocabulary = passes, bucket, n_vocabulary
        rows, width, k, device = bucket.rows, bucket.width, bucket.n_conditioning, passes.device

        def canvas(dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, width, dtype=dtype, device=device)

        self.kv = passes.store(bucket.prefix + rows * width).kv
        self._state = CanvasState(
            canvas(torch.long), canvas(torch.bool), canvas(torch.bool), canvas(torch.long), canvas(torch.float32),
            canvas(torch.float32), torch.zeros(rows, width, k, dtype=torch.long, device=device),
            torch.zeros(rows, width, k, device=device), torch.zeros(rows, dtype=torch.bool, device=device),
        )  # fmt: skip
        self._noise, self._draws = canvas(torch.long), canvas(torch.float32)
        self._heat = torch.ones(rows, device=device)
        self._greedy = torch.ones(rows, dtype=torch.bool, device=device)
        self._length = torch.ones((), dtype=torch.long, device=device)  # of the prefix
        self._forbidden = torch.zeros(n_vocabulary, dtype=torch.bool, device=device)
        self._first = torch.zeros(n_vocabulary, dtype=torch.bool, device=device)
        places = torch.arange(rows * width, device=device) // width
        self._is_same_row = places[:, None] == places[None]  # [R * C, R * C]
        self._from_end = torch.arange(bucket.prefix, 0, -1, device=device)  # [P] the distance to the end of the prefix
        self._row_starts = torch.arange(rows, device=device)[:, None] * width

    def load_prefix(self, kv: KV) -> None:
        """Copy a prefix to the end of its room."""
        length = kv[0][0].shape[2]
        copy_into(kv, self.kv, self.bucket.prefix - length)
        self._length.fill_(length)

    def load_rows(self, denoiser: Denoiser, rows: Sequence[int]) -> None:
        """Copy some rows of a denoiser, and what their next step takes from the host."""
        at, inputs = to_device(torch.tensor(rows), denoiser.device), denoiser.inputs(rows)
        n_rows, width = len(rows), denoiser.width
        state = denoiser.canvas.rows(at)
        for buffer in (self._state.free, self._state.used):
            buffer.zero_()  # other rows and positions do not exist
        for name in STATE[:-1]:
            getattr(self._state, name)[:n_rows, :width] = getattr(state, name)
        for buffer, values in ((self._heat, inputs.heat), (self._greedy, inputs.greedy)):
            buffer[:n_rows] = to_device(values, denoiser.device)
        self._noise[:n_rows, :width] = to_device(inputs.noise, denoiser.device)
        if inputs.draws is not None:
            self._draws[:n_rows, :width] = to_device(inputs.draws, denoiser.device)
        self._forbidden.copy_(denoiser.forbidden)
        self._first.copy_(denoiser.first_forbidden)

    def run(self) -> None:
        """Take the step: replace the rows' state in the buffers by their next one."""
        bucket, state = self.bucket, self._state
        k = bucket.n_conditioning
        order = (~state.free).to(torch.uint8).argsort(dim=1, stable=True)[:, : bucket.free]  # [R, F] the free ones first
        hidden = self._decode().index_select(0, (order + self._row_starts).flatten())
        # The first free position of each row is the first in its order.
        starts = (torch.arange(bucket.free, device=order.device) == 0) & state.free.any(1, keepdim=True)
        constraints = readout.Constraints(
            self._heat[:, None].expand_as(order).flatten(),
            self._forbidden,
            self._first,
            starts.flatten(),
            self._draws.gather(1, order).flatten() if bucket.samples else None,
        )
        found = readout.read_hidden(self._passes.logits, hidden, self._n_vocabulary, constraints, k)
        wide = order[..., None].expand(-1, -1, k)
        predicted = readout.Readout(
            torch.zeros_like(state.top_ids).scatter(1, wide, found.top_ids.view(wide.shape)),
            torch.zeros_like(state.top_chances).scatter(1, wide, found.top_chances.view(wide.shape)),
            torch.zeros_like(state.entropy).scatter(1, order, found.entropies.view(order.shape)),
            None if found.sampled is None else torch.zeros_like(state.ids).scatter(1, order, found.sampled.view(order.shape)),
        )
        after = advanced(state, predicted, self._noise, self._greedy, bucket.sampling)
        for name in STATE:
            getattr(state, name).copy_(getattr(after, name))

    def save_rows(self, denoiser: Denoiser, rows: Sequence[int]) -> None:
        """Copy the rows back to their denoiser, and count the step. Waits for the device."""
        at, n_rows, width = to_device(torch.tensor(rows), denoiser.device), len(rows), denoiser.width
        for name in STATE[:-1]:
            getattr(denoiser.canvas, name)[at] = getattr(self._state, name)[:n_rows, :width]
        denoiser.canvas.settled[at] = self._state.settled[:n_rows]
        denoiser.note(rows, self._state.settled[:n_rows].tolist())

    def _decode(self) -> Tensor:
        """Return the last hidden states [R * C, H] of all rows, as one canvas behind the prefix."""
        bucket, state = self.bucket, self._state
        flat = (1, bucket.rows * bucket.width)
        soft = self._passes.soft(state.top_ids.view(*flat, -1), state.top_chances.view(*flat, -1))
        positions = self._length + torch.arange(state.ids.shape[1], device=state.ids.device).expand_as(state.ids)
        prefix_mask = (self._from_end <= self._length).expand(flat[1], -1)
        own_mask = self._is_same_row & state.used.view(flat)
        mask = torch.cat([prefix_mask, own_mask], 1)[None, None]
        canvas = state.ids.view(flat)
        return self._passes.decode(canvas, self.kv, soft, positions.view(flat), mask)[0]


@dataclass(slots=True)
class _Entry:
    """The buffers of a bucket, the graph of their step, and the first keys of the prefix that they hold."""

    step: FixedStep
    graph: StepGraph
    keys: weakref.ref[Tensor] | None = None


class FixedSteps(Pool[Bucket, _Entry]):
    """The buffers of the buckets in use."""

    def __init__(self, passes: Passes, free: Callable[[], int | None], *, recorder: Recorder | None = None) -> None:
        super().__init__(free, MAX_BUCKETS)
        self._passes, self._cost, self._recorder = passes, memory.cost(passes), recorder
        self._n_vocabulary: int = passes.n_vocabulary

    def step(self, denoiser: Denoiser, kv: KV, rows: Sequence[int]) -> None:
        """Take one step of these rows on a prefix with these keys and values, in as few passes as there is room for.

        A single row without room takes its step in buffers that are not kept.
        """
        bucket = bucket_of(denoiser, rows, kv[0][0].shape[2], is_shared=self._recorder is not None)
        is_alone, entry = len(rows) == 1, None
        if is_alone or bucket.rows * bucket.width <= MAX_POSITIONS:
            made = partial(self._made, bucket)
            entry = self.held(bucket, bucket.n_bytes(self._cost), made) or (made() if is_alone else None)
        if entry is None:
            self.step(denoiser, kv, rows[: len(rows) // 2])
            self.step(denoiser, kv, rows[len(rows) // 2 :])
            return
        if entry.keys is None or entry.keys() is not kv[0][0]:
            entry.step.load_prefix(kv)
            entry.keys = weakref.ref(kv[0][0])
        entry.step.load_rows(denoiser, rows)
        entry.graph.run()
        entry.step.save_rows(denoiser, rows)

    def _made(self, bucket: Bucket) -> _Entry:
        step = FixedStep(self._passes, bucket, self._n_vocabulary)
        return _Entry(step, StepGraph(step.run, self._recorder))
