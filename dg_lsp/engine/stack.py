"""One decoder pass for rows on one prefix or on several: prefixes of different lengths side by side, canvases too.

Prefixes are padded on the left, so that every row's canvas begins at the same place and a sliding layer's window is the
same cut for all; canvases on the right, with positions that are not there. Both are masked, and positions are counted
from each row's own prefix, so that a row computes what it would alone, to rounding. Knows passes and the denoiser's
inputs. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dg_lsp.engine.denoise import DecoderInput
from dg_lsp.engine.passes import KV, Passes


@dataclass(frozen=True, slots=True)
class PrefixRows:
    """Rows that share a prefix: its keys and values, [1, kv heads, L, D] on each layer, and how many rows they are."""

    kv: KV
    rows: int

    @property
    def length(self) -> int:
        """How many tokens the prefix has."""
        return self.kv[0][0].shape[2]


class Stack:
    """Keys and values of the prefixes of several parts, a copy for each row, with room behind them for a canvas.

    Made once for a set of rows and used at each of their steps.
    """

    def __init__(self, parts: Sequence[PrefixRows], width: int) -> None:
        self.parts, self.width = tuple(parts), width
        longest, rows = max(part.length for part in parts), sum(part.rows for part in parts)
        device = parts[0].kv[0][0].device
        lengths = [part.length for part in parts for _ in range(part.rows)]
        self.lengths = torch.tensor(lengths, device=device)[:, None]  # [R, 1]
        self.seen: Tensor | None = None  # [R, L] bool, where a row's own prefix stands; None: everywhere
        if min(lengths) < longest:
            self.seen = torch.arange(longest, device=device)[None] >= longest - self.lengths
        self._kv: KV = []
        for pairs in zip(*(part.kv for part in parts), strict=True):
            first = pairs[0][0]
            sides = [first.new_empty(rows, first.shape[1], longest + width, first.shape[3]) for _ in range(2)]
            at = 0
            for part, pair in zip(parts, pairs, strict=True):
                for side, values in zip(sides, pair, strict=True):
                    side[at : at + part.rows, :, : longest - part.length] = 0  # what is masked must still be a number
                    side[at : at + part.rows, :, longest - part.length : longest] = values
                at += part.rows
            self._kv.append((sides[0], sides[1]))

    def serves(self, parts: Sequence[PrefixRows], width: int) -> bool:
        """Return whether this is the stack of these rows; that of one prefix serves fewer rows too."""
        if width != self.width or len(parts) != len(self.parts):
            return False
        pairs = list(zip(parts, self.parts, strict=True))
        if any(ours.kv is not mine.kv for ours, mine in pairs):
            return False
        return all(ours.rows == mine.rows for ours, mine in pairs) or (len(parts) == 1 and parts[0].rows <= self.parts[0].rows)

    @property
    def bytes(self) -> int:
        """How much memory the stack takes."""
        return sum(2 * keys.numel() * keys.element_size() for keys, _ in self._kv)

    def logits(self, passes: Passes, decoder_input: DecoderInput, *, conditioned: bool) -> Tensor:
        """Return logits [G, V] at the free positions of the stack's rows, with their self-conditioning or without."""
        soft = passes.soft(decoder_input.top_ids, decoder_input.top_chances * float(conditioned))
        return self.decode(passes, decoder_input.ids, soft, decoder_input.used, decoder_input.free)

    def decode(self, passes: Passes, canvas: Tensor, soft: Tensor, used: Tensor, free: Tensor) -> Tensor:
        """Return logits [G, V] in 32 bits at the free positions of canvases [R, C]."""
        rows, width = canvas.shape
        lengths = self.lengths[:rows]
        # Held positions must stand where they would if the deleted ones had never been.
        positions = lengths + (used.cumsum(1) - 1).clamp(min=0)
        mask = None
        if self.seen is not None or not bool(used.all()):
            n_past = self._kv[0][0].shape[2] - width
            seen = self.seen if self.seen is not None else torch.ones(rows, n_past, dtype=torch.bool, device=canvas.device)
            mask = torch.cat([seen, used], 1)[:, None, None].expand(-1, 1, width, -1)
        kv = [(keys[:rows], values[:rows]) for keys, values in self._kv]
        return passes.logits(passes.decode(canvas, kv, soft, positions=positions, mask=mask, with_room=True)[free])


class LocalDecoder:
    """The decoder of a loaded model on one encoded prefix: the denoiser's, when its rows step alone."""

    def __init__(self, passes: Passes, kv: KV, *, conditioned: bool = True) -> None:
        self.passes, self.kv, self.conditioned = passes, kv, conditioned
        self.stack: Stack | None = None

    def soft(self, ids: Tensor, probabilities: Tensor) -> Tensor:
        """Return conditioning [R, C, H] for tokens [R, C, K] and their probabilities [R, C, K]."""
        return self.passes.soft(ids, probabilities * float(self.conditioned))

    def logits(self, canvas: Tensor, soft: Tensor, used: Tensor, free: Tensor) -> Tensor:
        """Return logits [G, V] in 32 bits at the free positions."""
        parts = [PrefixRows(self.kv, len(canvas))]
        if self.stack is None or not self.stack.serves(parts, canvas.shape[1]):
            self.stack = None  # there need not be room for two
            self.stack = Stack(parts, canvas.shape[1])
        return self.stack.decode(self.passes, canvas, soft, used, free)


def joined(inputs: Sequence[DecoderInput]) -> DecoderInput:
    """Return the inputs as one, on canvases as wide as the widest: what is added is not there."""
    width = max(one.ids.shape[1] for one in inputs)

    def whole(tensors: Sequence[Tensor]) -> Tensor:
        padded = [
            torch.cat([one, one.new_zeros(one.shape[0], width - one.shape[1], *one.shape[2:])], 1)
            if one.shape[1] < width
            else one
            for one in tensors
        ]
        return torch.cat(padded)

    return DecoderInput(
        whole([one.ids for one in inputs]),
        whole([one.top_ids for one in inputs]),
        whole([one.top_chances for one in inputs]),
        whole([one.used for one in inputs]),
        whole([one.free for one in inputs]),
    )
