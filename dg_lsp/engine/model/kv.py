"""Keys and values, and the passes that read and write them.

It requires attention: keys and values by position, which can be cropped anywhere, and passes with any visibility mask. Every
layer, also a sliding one, keeps full-length keys and values: the library's own sliding cache drops positions that such a crop
would need.

Shapes: N new tokens, L slots, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dg_lsp.engine.model.fit import Attention, Geometry

KV = list[tuple[Tensor, Tensor]]  # per layer: keys and values, each [1, kv heads, L, head dimension]


def crop(kv: KV, length: int) -> KV:
    """Return the keys and values of the first `length` positions, as views."""
    return [(keys[:, :, :length], values[:, :, :length]) for keys, values in kv]


def zeros(geometry: Geometry, n_slots: int, dtype: torch.dtype, device: torch.device) -> KV:
    """Return keys and values of one row with so many slots. They are finite where a token does not see them."""

    def side(shape: Attention) -> Tensor:
        return torch.zeros(1, shape.keys // shape.head_dim, n_slots, shape.head_dim, dtype=dtype, device=device)

    return [(side(each), side(each)) for each in geometry.attentions]


def copy_into(kv: KV, into: KV, first: int = 0) -> None:
    """Copy keys and values of one row into others, to the slots from `first` on."""
    for pair, targets in zip(kv, into, strict=True):
        for values, target in zip(pair, targets, strict=True):
            target[:, :, first : first + values.shape[2]] = values


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a pass reads besides the weights, on the device, for N new tokens.

    `positions` [N] turn their heads, `slots` are where their keys and values go, and `visible` [N, L] what they see of the
    first L slots. Without it, the tokens go on with a text: each sees itself and all slots before its own.
    """

    ids: Tensor
    positions: Tensor
    slots: slice | Tensor
    visible: Tensor | None = None


class Encoder(Protocol):
    """The causal passes of one loaded model over N new tokens. Only the model knows what a store is."""

    def store(self, n_slots: int) -> Any:
        """Return memory for the keys and values of so many tokens of one row."""

    def fill(self, store: Any, kv: KV, first: int, positions: Sequence[int]) -> None:
        """Copy keys and values, whose tokens stand at these positions, to the slots from `first` on."""

    def pairs(self, store: Any) -> KV:
        """Return the keys and values in all slots, as views."""

    def read(self, tokens: Tokens, store: Any) -> Tensor:
        """Return the last hidden states [N, H] of new tokens, whose keys and values go to their slots."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, V] of hidden states [N, H], in 32 bits."""
