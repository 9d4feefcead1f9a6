"""Multiply rows by weight matrices in 8-bit integers on a CPU, for inference only.

Weights have one scale per output channel, and inputs one scale per row. A scale per tensor, as in torch's own dynamic
quantisation, is useless here: some inputs are a thousand times larger than the others, and one such row would round all
others to zero. The integer products are exact, so a row's result does not depend on the rows beside it.

oneDNN multiplies with VNNI or AMX instructions, from weights in its own layout. The operations of torch for that are not
public, so `is_supported` checks them before they are used.

Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import functools
import platform
from typing import NamedTuple

import torch
from torch import Tensor

from dg_lsp.engine.model.products import X86

LARGEST = 127
LEAST_SCALE = 1e-30  # of a row of zeros, which must not be divided by zero


class Quantised(NamedTuple):
    """A matrix or rows of inputs in 8 bits: `values` [N, I], to multiply by `scales` [N, 1]."""

    values: Tensor
    scales: Tensor

    def dense(self) -> Tensor:
        """Return the values in 32 bits."""
        return self.values.float().mul_(self.scales)


def quantised(rows: Tensor) -> Quantised:
    """Return rows [N, I] in 8 bits, with one scale per row."""
    # `vector_norm` with an infinite order and `aminmax` are ten times slower than these two operations.
    scales = rows.abs().amax(-1, keepdim=True).mul_(1 / LARGEST).clamp_(min=LEAST_SCALE)
    return Quantised((rows / scales).round_().to(torch.int8), scales)


def remainders(rows: Tensor, values: Tensor, scales: Tensor) -> Quantised:
    """Return in 8 bits what rows [N, I] are more than their quantised values times their scales."""
    return quantised(torch.addcmul(rows, values.float(), scales, value=-1))


class Int8Matrix:
    """A weight matrix [O, I] in 8 bits, in oneDNN's own layout."""

    def __init__(self, weight: Quantised) -> None:
        self.shape = tuple(weight.values.shape)
        self._scales = weight.scales.reshape(-1).contiguous()
        self._zeros = torch.zeros(len(self._scales), dtype=torch.long)
        self._weight: Tensor = torch.ops.onednn.qlinear_prepack(weight.values.contiguous(), None)

    def times(self, rows: Quantised) -> Tensor:
        """Return the products [N, O] of quantised rows [N, I], in 32 bits, before they are multiplied by the rows' scales."""
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows.values, 1.0, 0, self._weight, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return result

    def n_bytes(self) -> int:
        """Return the bytes of the weights and their scales."""
        return self.shape[0] * (self.shape[1] + 12)


@functools.cache
def is_supported() -> bool:
    """Return whether this processor has instructions for 8-bit products, and torch has correct operations for them."""
    if platform.machine().lower() not in X86 or not torch._C._has_mkldnn:
        return False
    # Without these instructions, oneDNN adds pairs of products in 16 bits, where they overflow.
    if not (torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported()):
        return False
    values = torch.full((32, 64), LARGEST, dtype=torch.int8)
    values[::2, ::3] = -LARGEST
    inputs, weight = Quantised(values[:3], torch.ones(3, 1)), Quantised(values, torch.ones(32, 1))
    try:
        products = Int8Matrix(weight).times(inputs)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(products, inputs.values.float() @ values.float().t())
