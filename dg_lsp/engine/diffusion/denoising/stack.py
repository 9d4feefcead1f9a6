"""Run one decoder pass for rows on one or several prefixes, with prefixes and canvases of different lengths.

Prefixes are padded on the left, so that all canvases start at the same place, and a sliding layer's window has the same
bounds for all rows. Canvases are padded on the right. Both paddings are masked, and positions count from each row's own
prefix. So each row gets the same result as alone, up to rounding. Knows passes and the denoiser's inputs. Knows nothing of
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from dg_lsp.engine.diffusion.denoising.denoise import DecoderInput
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model.prefix_cache import KV


@dataclass(frozen=True, slots=True)
class PrefixRows:
    """The rows that share a prefix: its keys and values [1, kv heads, L, D] per layer, and the number of rows."""

    kv: KV
    rows: int

    @property
    def length(self) -> int:
        """The number of tokens in the prefix."""
        return self.kv[0][0].shape[2]


class Stack:
    """The keys and values of several prefixes, one copy per row, followed by room for a canvas.

    A stack is built once for a set of rows and used in each of their steps.
    """

    def __init__(self, parts: Sequence[PrefixRows], width: int) -> None:
        self.parts, self.width = tuple(parts), width
        longest, rows = max(part.length for part in parts), sum(part.rows for part in parts)
        device = parts[0].kv[0][0].device
        lengths = [part.length for part in parts for _ in range(part.rows)]
        self.lengths = torch.tensor(lengths, device=device)[:, None]  # [R, 1]
        self.own_prefix: Tensor | None = None  # [R, L] bool, the places of each row's own prefix; None: all
        if min(lengths) < longest:
            self.own_prefix = torch.arange(longest, device=device)[None] >= longest - self.lengths
        self._kv: KV = []
        for pairs in zip(*(part.kv for part in parts), strict=True):
            first = pairs[0][0]
            sides = [first.new_empty(rows, first.shape[1], longest + width, first.shape[3]) for _ in range(2)]
            at = 0
            for part, pair in zip(parts, pairs, strict=True):
                for side, values in zip(sides, pair, strict=True):
                    side[at : at + part.rows, :, : longest - part.length] = 0  # masked values must still be finite
                    side[at : at + part.rows, :, longest - part.length : longest] = values
                at += part.rows
            self._kv.append((sides[0], sides[1]))

    def serves(self, parts: Sequence[PrefixRows], width: int) -> bool:
        """Return whether this stack fits these rows. A stack of one prefix also serves fewer rows."""
        if width != self.width or len(parts) != len(self.parts):
            return False
        pairs = list(zip(parts, self.parts, strict=True))
        if any(ours.kv is not mine.kv for ours, mine in pairs):
            return False
        return all(ours.rows == mine.rows for ours, mine in pairs) or (len(parts) == 1 and parts[0].rows <= self.parts[0].rows)

    @property
    def bytes(self) -> int:
        """The number of bytes of the stack."""
        return sum(2 * keys.numel() * keys.element_size() for keys, _ in self._kv)

    def logits(self, passes: Passes, decoder_input: DecoderInput, *, conditioned: bool) -> Tensor:
        """Return logits [G, V] in 32 bits at the free positions of canvases, with or without self-conditioning."""
        soft = passes.soft(decoder_input.top_ids, decoder_input.top_chances * float(conditioned))
        canvas, soft, used, free = _compacted(decoder_input.ids, soft, decoder_input.used, decoder_input.free)
        rows, width = canvas.shape
        lengths = self.lengths[:rows]
        # Deleted positions do not count, so that the others get the positions they would have without them.
        positions = lengths + (used.cumsum(1) - 1).clamp(min=0)
        n_past = self._kv[0][0].shape[2] - self.width
        mask = None
        if self.own_prefix is not None or not bool(used.all()):
            prefix_mask = self.own_prefix
            if prefix_mask is None:
                prefix_mask = torch.ones(rows, n_past, dtype=torch.bool, device=canvas.device)
            mask = torch.cat([prefix_mask, used], 1)[:, None, None].expand(-1, 1, width, -1)
        kv = [(keys[:rows, :, : n_past + width], values[:rows, :, : n_past + width]) for keys, values in self._kv]
        return passes.logits(passes.decode(canvas, kv, soft, positions=positions, mask=mask, with_room=True)[free])


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


class LocalDecoder:
    """The decoder of a loaded model on one encoded prefix, for rows that step without other requests."""

    def __init__(self, passes: Passes, kv: KV, *, conditioned: bool = True) -> None:
        self.passes, self.kv, self.conditioned = passes, kv, conditioned
        self.stack: Stack | None = None

    def logits(self, decoder_input: DecoderInput) -> Tensor:
        """Return logits [G, V] in 32 bits at the free positions."""
        rows, width = decoder_input.ids.shape
        parts = [PrefixRows(self.kv, rows)]
        if self.stack is None or not self.stack.serves(parts, width):
            self.stack = None  # free the old stack first, because memory may not have room for two
            self.stack = Stack(parts, width)
        return self.stack.logits(self.passes, decoder_input, conditioned=self.conditioned)


def joined(inputs: Sequence[DecoderInput]) -> DecoderInput:
    """Return one input with the rows of all inputs, padded to the widest canvas with unused positions."""
    width = max(one.ids.shape[1] for one in inputs)
    tensors_by_name = {item.name: [getattr(one, item.name) for one in inputs] for item in fields(DecoderInput)}
    return DecoderInput(
        **{
            name: torch.cat(
                [torch.cat([one, one.new_zeros(one.shape[0], width - one.shape[1], *one.shape[2:])], 1) for one in tensors]
            )
            for name, tensors in tensors_by_name.items()
        }
    )
