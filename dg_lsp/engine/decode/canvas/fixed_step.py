"""Take one denoising step in preallocated buffers whose shapes depend on nothing but a bucket.

So a GPU can record the step once as a graph and replay it (`step_graph`). The rows share one prefix: its keys and values
are stored once, padded on the left to the bucket's length, and all rows are one long canvas behind it, on which a row sees the
prefix and itself. The step reads no value back from the device. It equals `Denoiser.step` up to rounding; a test checks this
on the CPU. Knows passes and the denoiser's state. Knows nothing of requests or graphs.

Shapes: R rows, C canvas positions, F free positions, P prefix, V vocabulary, K tokens of the self-conditioning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dg_lsp.engine.decode.canvas import readout
from dg_lsp.engine.decode.canvas.denoise import STATE, CanvasState, Denoiser, Predicted, advanced
from dg_lsp.engine.model.family import KV, Family
from dg_lsp.engine.model.fit.needs import VOCABULARY_SLICE
from dg_lsp.engine.model.profile import Sampling
from dg_lsp.engine.model.room import PREFIX_BUCKET, WIDTH_BUCKET, Cost

SLICE_COPIES = 4  # of a position's slice of the logits, in 32 bits: before and after widening, exponentials, and a mask
MASK_BYTES = 32  # of one pair of a query and a key: a mask, widened for at most eight heads, as bits and as numbers


@dataclass(frozen=True, slots=True)
class Bucket:
    """All that a recorded step can't change: its shapes, and the numbers that it computes with.

    `free` is the maximum number of free positions of a row.
    """

    rows: int
    width: int
    free: int
    prefix: int
    conditioned: bool
    samples: bool
    n_conditioning: int
    sampling: Sampling
    delete: int | None

    def n_bytes(self, cost: Cost) -> int:
        """Return the bytes of a step in this bucket: its prefix, its canvases and what a pass over them needs, at most."""
        positions, n_read = self.rows * self.width, min(self.rows * self.free, readout.POSITIONS)
        logits = cost.logit_token if self.samples else min(cost.logit_token, SLICE_COPIES * 4 * VOCABULARY_SLICE)
        mask = positions * (self.prefix + positions) * MASK_BYTES
        return self.prefix * cost.prefix_token + positions * (cost.canvas_token - cost.logit_token) + n_read * logits + mask


def bucket_of(denoiser: Denoiser, rows: Sequence[int], prefix: int, *, conditioned: bool) -> Bucket:
    """Return the smallest bucket for some rows of a denoiser on a prefix of this many tokens."""
    width = _up(denoiser.canvas.ids.shape[1], WIDTH_BUCKET)
    # By the rows as planned, because a position that is held or deleted later must not change the bucket.
    free = _up(max(sum(denoiser.rows[index].free) for index in rows), WIDTH_BUCKET)
    return Bucket(
        1 << (len(rows) - 1).bit_length(),
        width,
        min(width, free),
        _up(prefix, PREFIX_BUCKET),
        conditioned,
        any(not denoiser.rows[index].greedy for index in rows),
        denoiser.canvas.top_ids.shape[-1],
        denoiser.sampling,
        denoiser.limits.delete,
    )


class FixedStep:
    """The buffers of one bucket, and the step that computes in them.

    The caller loads a prefix and some rows, runs the step any number of times, and reads the rows back. Each buffer is an
    attribute, because a recorded step reads and writes at the same addresses every time.
    """

    def __init__(self, passes: Family, bucket: Bucket, like: KV, n_vocabulary: int) -> None:
        """Allocate the buffers; `like` are keys and values of the model, whose sizes and type the prefix has."""
        self._passes, self.bucket, self._n_vocabulary = passes, bucket, n_vocabulary
        rows, width, k, device = bucket.rows, bucket.width, bucket.n_conditioning, like[0][0].device
        n_places = bucket.prefix + rows * width

        def room(side: Tensor) -> Tensor:  # zeros, because masked values must be finite
            return side.new_zeros(1, side.shape[1], n_places, side.shape[3])

        def canvas(dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, width, dtype=dtype, device=device)

        self._kv: KV = [(room(keys), room(values)) for keys, values in like]
        self._state = CanvasState(
            canvas(torch.long), canvas(torch.bool), canvas(torch.bool), canvas(torch.long), canvas(torch.float32),
            canvas(torch.float32), canvas(torch.bool), torch.zeros(rows, width, k, dtype=torch.long, device=device),
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
        length, prefix = kv[0][0].shape[2], self.bucket.prefix
        for own, given in zip(self._kv, kv, strict=True):
            for side, values in zip(own, given, strict=True):
                side[:, :, prefix - length : prefix] = values
        self._length.fill_(length)

    def load_rows(self, denoiser: Denoiser, rows: Sequence[int], *, freezes: bool) -> None:
        """Copy some rows of a denoiser, and what their next step takes from the host.

        With `freezes`, a row that has settled does not change any more.
        """
        at, inputs = _to(torch.tensor(rows), denoiser.device), denoiser.inputs(rows)
        n_rows, width = len(rows), denoiser.canvas.ids.shape[1]
        state = denoiser.canvas.rows(at)
        for buffer in (self._state.free, self._state.used):
            buffer.zero_()  # other rows and positions do not exist
        self._state.settled.fill_(True)
        for name in STATE[:-1]:
            getattr(self._state, name)[:n_rows, :width] = getattr(state, name)
        self._state.settled[:n_rows] = state.settled if freezes else False
        for buffer, values in ((self._heat, inputs.heat), (self._greedy, inputs.greedy)):
            buffer[:n_rows] = _to(values, denoiser.device)
        self._noise[:n_rows, :width] = _to(inputs.noise, denoiser.device)
        if inputs.draws is not None:
            self._draws[:n_rows, :width] = _to(inputs.draws, denoiser.device)
        self._forbidden.copy_(denoiser.forbidden)
        self._first.copy_(denoiser.first_forbidden)

    def run(self) -> None:
        """Take the step: replace the rows' state in the buffers by their next one."""
        bucket, state = self.bucket, self._state
        k = bucket.n_conditioning
        order = (~state.free).to(torch.uint8).argsort(dim=1, stable=True)[:, : bucket.free]  # [R, F] the free ones first
        hidden = self._decode().index_select(0, (order + self._row_starts).flatten())
        starts = (state.free.cumsum(1) == 1) & state.free  # the first free position of each row
        constraints = readout.Constraints(
            self._heat[:, None].expand_as(order).flatten(),
            self._forbidden,
            self._first,
            starts.gather(1, order).flatten(),
            self._draws.gather(1, order).flatten() if bucket.samples else None,
        )
        found = readout.read_hidden(self._passes.logits, hidden, self._n_vocabulary, constraints, k)
        wide = order[..., None].expand(-1, -1, k)
        predicted = Predicted(
            torch.zeros_like(state.top_ids).scatter(1, wide, found.top_ids.view(wide.shape)),
            torch.zeros_like(state.top_chances).scatter(1, wide, found.top_chances.view(wide.shape)),
            torch.zeros_like(state.entropy).scatter(1, order, found.entropies.view(order.shape)),
            None if found.sampled is None else torch.zeros_like(state.ids).scatter(1, order, found.sampled.view(order.shape)),
        )
        after = advanced(state, predicted, self._noise, self._greedy, bucket.sampling, bucket.delete)
        frozen = state.settled.clone()
        for name in STATE:
            old, new = getattr(state, name), getattr(after, name)
            old.copy_(torch.where(frozen.view(-1, *[1] * (old.ndim - 1)), old, new))

    def save_rows(self, denoiser: Denoiser, rows: Sequence[int]) -> Tensor:
        """Copy the rows back to their denoiser; return which of them [N] have settled, on the device."""
        at, n_rows, width = _to(torch.tensor(rows), denoiser.device), len(rows), denoiser.canvas.ids.shape[1]
        for name in STATE[:-1]:
            getattr(denoiser.canvas, name)[at] = getattr(self._state, name)[:n_rows, :width]
        settled = self._state.settled[:n_rows].clone()
        denoiser.canvas.settled[at] = settled
        return settled

    def _decode(self) -> Tensor:
        """Return the last hidden states [R * C, H] of all rows, as one canvas behind the prefix."""
        bucket, state = self.bucket, self._state
        flat = (1, bucket.rows * bucket.width)
        chances = state.top_chances if bucket.conditioned else torch.zeros_like(state.top_chances)
        soft = self._passes.soft(state.top_ids.view(*flat, -1), chances.view(*flat, -1))
        # Deleted positions do not count, so that the others get the positions they would have without them.
        positions = self._length + (state.used.cumsum(1) - 1).clamp(min=0)
        prefix_mask = (self._from_end <= self._length).expand(flat[1], -1)
        own_mask = self._is_same_row & state.used.view(flat)
        mask = torch.cat([prefix_mask, own_mask], 1)[None, None]
        canvas = state.ids.view(flat)
        return self._passes.decode(canvas, self._kv, soft, positions=positions.view(flat), mask=mask, with_room=True)[0]


def _up(number: int, step: int) -> int:
    return max(1, -(-number // step)) * step


def _to(values: Tensor, device: str) -> Tensor:
    """Return values of the host on the device. A copy to a GPU does not wait for the work that is queued there."""
    if not device.startswith("cuda"):
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
