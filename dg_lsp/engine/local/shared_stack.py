"""The stack of prefixes that rows of several requests step on, and who owns it.

Knows stacks and the denoiser's inputs. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dg_lsp.engine.denoise import DecoderInput
from dg_lsp.engine.passes import KV, Passes
from dg_lsp.engine.stack import PrefixRows, Stack, joined


class SharedStack:
    """Owns the stack of the canvases that stepped together last, until another set of them does or one of them leaves.

    A stack serves exactly the rows it was made for, so it is of no use once one of its canvases has ended or steps alone.
    """

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._stack: Stack | None = None

    @property
    def bytes(self) -> int:
        """How much memory the stack takes."""
        return self._stack.bytes if self._stack else 0

    def logits(self, prefixes: Sequence[KV], inputs: Sequence[DecoderInput], *, conditioned: bool) -> list[Tensor]:
        """Return each canvas's logits [G, V], from one pass over all of them."""
        whole = joined(inputs)
        parts = [PrefixRows(kv, len(each.ids)) for kv, each in zip(prefixes, inputs, strict=True)]
        if self._stack is None or not self._stack.serves(parts, whole.ids.shape[1]):
            self._stack = None  # memory need not have room for two
            self._stack = Stack(parts, whole.ids.shape[1])
        logits = self._stack.logits(self._passes, whole, conditioned=conditioned)
        return list(torch.split(logits, [int(each.free.sum()) for each in inputs]))

    def leave(self, prefix: KV) -> None:
        """Drop the stack if the canvas on this prefix is part of it."""
        if self._stack is not None and any(part.kv is prefix for part in self._stack.parts):
            self._stack = None
