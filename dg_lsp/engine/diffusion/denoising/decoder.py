"""Run decoder passes for the rows of a denoiser, all on one prefix.

A canvas that is shorter than the widest is padded on the right and masked, so each row gets the same result as alone, up to
rounding. Knows passes and the denoiser's inputs. Knows nothing of requests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dg_lsp.engine.diffusion.denoising.denoise import DecoderInput
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model.prefix_cache import KV


class LocalDecoder:
    """The decoder of a loaded model on one encoded prefix."""

    def __init__(self, passes: Passes, kv: KV) -> None:
        self.passes, self.kv = passes, kv
        self.length = kv[0][0].shape[2]  # of the prefix
        # The prefix's keys and values once for each row, followed by room for a canvas. They are made once for all steps.
        self._rows: KV = []

    @property
    def bytes(self) -> int:
        """The number of bytes of the rows' keys and values."""
        return sum(2 * keys.numel() * keys.element_size() for keys, _ in self._rows)

    def logits(self, decoder_input: DecoderInput) -> Tensor:
        """Return logits [G, V] in 32 bits at the free positions of the canvases."""
        self.make_room(*decoder_input.ids.shape)
        soft = self.passes.soft(decoder_input.top_ids, decoder_input.top_chances)
        canvas, soft, used, free = _compacted(decoder_input.ids, soft, decoder_input.used, decoder_input.free)
        rows, width = canvas.shape
        # Deleted positions do not count, so that the others get the positions they would have without them.
        positions = self.length + (used.cumsum(1) - 1).clamp(min=0)
        mask = None
        if not bool(used.all()):
            mask = torch.cat([torch.ones(rows, self.length, dtype=torch.bool, device=used.device), used], 1)
            mask = mask[:, None, None].expand(-1, 1, width, -1)
        n_places = self.length + width
        kv = [(keys[:rows, :, :n_places], values[:rows, :, :n_places]) for keys, values in self._rows]
        hidden = self.passes.decode(canvas, kv, soft, positions=positions, mask=mask, with_room=True)
        return self.passes.logits(hidden[free])

    def make_room(self, rows: int, width: int) -> None:
        """Make room for this many rows of this width, unless there is."""
        n_places = self.length + width
        if self._rows and self._rows[0][0].shape[0] >= rows and self._rows[0][0].shape[2] == n_places:
            return
        self._rows = []  # free the old ones first, because memory may not have room for both

        def copied(side: Tensor) -> Tensor:
            copies = side.new_empty(rows, side.shape[1], n_places, side.shape[3])
            copies[:, :, : self.length] = side
            return copies

        self._rows = [(copied(keys), copied(values)) for keys, values in self.kv]


def _compacted(canvas: Tensor, soft: Tensor, used: Tensor, free: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the rows with unused positions removed, down to the length of the longest row, in the same order.

    So deleted positions take no time, and rows of equal length need no mask.
    """
    longest = int(used.sum(1).max())
    if longest == used.shape[1]:
        return canvas, soft, used, free
    order = (~used).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    wide = order[..., None].expand(-1, -1, soft.shape[-1])
    return canvas.gather(1, order), soft.gather(1, wide), used.gather(1, order), free.gather(1, order)
