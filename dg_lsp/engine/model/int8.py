"""Multiply rows by weight matrices in 8-bit integers on a CPU, for inference only.

Weights have one scale per output channel, and inputs one scale per row. A scale per tensor, as in torch's own dynamic
quantisation, is useless here: some inputs are a thousand times larger than the others, and one such row would round all
others to zero. The integer products are exact, so a row's result does not depend on the rows beside it.

oneDNN multiplies with VNNI or AMX instructions, from weights in its own layout. VNNI multiplies unsigned inputs by signed
weights, so the inputs are stored with 128 added. For signed inputs, oneDNN has kernels with AMX only, and elsewhere its
reference code, which is a thousand times slower. The operations of torch are not public, so `is_supported` checks them
before they are used.

Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

import functools
import platform
from typing import NamedTuple

import torch
from torch import Tensor

from dg_lsp.engine.model.matmul import X86

LARGEST = 127
ZERO = 128  # the stored value of an input of zero
_OFFSET = torch.tensor(-ZERO, dtype=torch.int8)
LEAST_SCALE = 1e-30  # of a row of zeros, which must not be divided by zero


class Quantised(NamedTuple):
    """A weight matrix in 8 bits: `values` [N, I], to multiply by `scales` [N, 1]."""

    values: Tensor
    scales: Tensor

    def dense(self) -> Tensor:
        """Return the values in 32 bits."""
        return self.values.float().mul_(self.scales)


class QuantisedRows(NamedTuple):
    """Rows of inputs in 8 bits: unsigned `values` [N, I] less `ZERO`, to multiply by `scales` [N, 1]."""

    values: Tensor
    scales: Tensor


def quantised(weight: Tensor) -> Quantised:
    """Return a weight matrix [N, I] in 8 bits, with one scale per row."""
    scales = _scales(weight)
    return Quantised((weight / scales).round_().to(torch.int8), scales)


def quantised_rows(rows: Tensor) -> QuantisedRows:
    """Return rows of inputs [N, I] in 8 bits, with one scale per row."""
    scales = _scales(rows)
    # The fastest of several ways: torch converts to unsigned numbers one by one. The sum is taken modulo 256.
    return QuantisedRows((rows / scales).round_().to(torch.int8).add_(_OFFSET).view(torch.uint8), scales)


def remainders(rows: Tensor, values: Tensor, scales: Tensor) -> QuantisedRows:
    """Return in 8 bits what rows [N, I] are more than their quantised values times their scales."""
    return quantised_rows(torch.addcmul(rows, values.float().sub_(ZERO), scales, value=-1))


def _scales(rows: Tensor) -> Tensor:
    # `vector_norm` with an infinite order and `aminmax` are ten times slower than these two operations.
    return rows.abs().amax(-1, keepdim=True).mul_(1 / LARGEST).clamp_(min=LEAST_SCALE)


class Int8Matrix:
    """A weight matrix [O, I] in 8 bits, in oneDNN's own layout."""

    def __init__(self, weight: Quantised) -> None:
        self.shape = tuple(weight.values.shape)
        self._scales = weight.scales.reshape(-1).contiguous()
        self._zeros = torch.zeros(len(self._scales), dtype=torch.long)
        self._weight: Tensor = torch.ops.onednn.qlinear_prepack(weight.values.contiguous(), None)

    def times(self, rows: QuantisedRows) -> Tensor:
        """Return the products [N, O] of quantised rows [N, I], in 32 bits, before they are multiplied by the rows' scales."""
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows.values, 1.0, ZERO, self._weight, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
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
    if not (
        torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported() or torch.cpu.get_capabilities().get("avx_vnni")
    ):
        return False
    values = torch.full((32, 64), LARGEST, dtype=torch.int8)
    values[::2, ::3] = -LARGEST
    rows = QuantisedRows((values[:3].short() + ZERO).to(torch.uint8), torch.ones(3, 1))
    try:
        products = Int8Matrix(Quantised(values, torch.ones(32, 1))).times(rows)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(products, values[:3].float() @ values.float().t())
