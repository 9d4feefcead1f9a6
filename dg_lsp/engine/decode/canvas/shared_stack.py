"""Own the stack of prefixes on which rows of several requests step together.

Knows stacks and the denoiser's inputs. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dg_lsp.engine.decode.canvas.denoise import DecoderInput
from dg_lsp.engine.decode.canvas.stack import PrefixRows, Stack, joined
from dg_lsp.engine.model.family import KV, Family


class SharedStack:
    """The stack of the canvases that last stepped together, until another set does or one of them leaves.

    A stack serves exactly the rows it was built for, so it is useless once one of its canvases has ended or steps alone.
    """

    def __init__(self, passes: Family) -> None:
        self._passes = passes
        self._stack: Stack | None = None

    @property
    def bytes(self) -> int:
        """The number of bytes of the stack."""
        return self._stack.bytes if self._stack else 0

    def logits(self, prefixes: Sequence[KV], inputs: Sequence[DecoderInput], *, conditioned: bool) -> list[Tensor]:
        """Run one pass over all canvases, and return the logits [G, V] of each."""
        whole = joined(inputs)
        parts = [PrefixRows(kv, len(each.ids)) for kv, each in zip(prefixes, inputs, strict=True)]
        if self._stack is None or not self._stack.serves(parts, whole.ids.shape[1]):
            self._stack = None  # free the old stack first, because memory may not have room for two
            self._stack = Stack(parts, whole.ids.shape[1])
        logits = self._stack.logits(self._passes, whole, conditioned=conditioned)
        return list(torch.split(logits, [int(each.free.sum()) for each in inputs]))

    def leave(self, prefix: KV) -> None:
        """Drop the stack if the canvas on this prefix is part of it."""
        if self._stack is not None and any(part.kv is prefix for part in self._stack.parts):
            self._stack = None
