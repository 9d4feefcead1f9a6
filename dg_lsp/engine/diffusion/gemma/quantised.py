"""Weights in 8 and 4 bits, and modules that widen a matrix, or a layer's experts, each time they use it.

8 bits are torch's float8 with a scale per row or block, as in published checkpoints. 4 bits are bitsandbytes' NF4, which
packs a tensor of any shape. On an NVIDIA GPU, kernels widen 8-bit weights while they multiply (`fused`). Everything else saves
memory, not time: each pass writes and reads each matrix once more in 16 bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dg_lsp.engine.diffusion.gemma import fused

FP8 = torch.float8_e4m3fn
FP8_MAX: float = torch.finfo(FP8).max
NF4_BLOCK = 64
BANKS = ("gate_up_proj", "down_proj")  # of a layer's experts

# Self-conditioning, routers, norms and the embedding stay wide, as in the published 8-bit checkpoints.
_NARROW = re.compile(r".*\.layers\.\d+\.(?:(?:self_attn|mlp)\.\w+_proj\.weight|experts\.(?:gate_up|down)_proj)")


def is_narrow(name: str) -> bool:
    """Return whether a weight of this name is quantised when its model is."""
    return _NARROW.fullmatch(name) is not None


class Fp8Weight(nn.Module):
    """A weight in 8 bits: `values`, and the `scales` of its rows or blocks, with as many dimensions, to multiply by."""

    def __init__(self, values: Tensor, scales: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)

    @classmethod
    def of(cls, wide: Tensor) -> Fp8Weight:
        """Return a wide weight [..., O, I] in 8 bits, with a scale for each row."""
        matrices = wide.reshape(-1, *wide.shape[-2:])
        values = torch.empty_like(matrices, dtype=FP8)
        scales = torch.empty((*matrices.shape[:2], 1), dtype=torch.float32, device=wide.device)
        for index, matrix in enumerate(matrices):  # one expert at a time, because a whole layer in 32 bits is large
            rows = matrix.float()
            scales[index] = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / FP8_MAX
            values[index] = (rows / scales[index]).to(FP8)
        return cls(values.view(wide.shape), scales.view(*wide.shape[:-1], 1))

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the weight [..., O, I] in this type."""
        return self.values.to(dtype).mul_(_over(self.scales, self.values.shape))

    @property
    def bank(self) -> fused.Bank:
        return fused.Bank(self.values, self.scales)


class Int4Weight(nn.Module):
    """A weight in 4 bits, packed by bitsandbytes."""

    def __init__(self, packed: Tensor, state: Any) -> None:
        super().__init__()
        self.values = nn.Parameter(packed, requires_grad=False)
        self.state = state

    @classmethod
    def of(cls, wide: Tensor) -> Int4Weight:
        """Return a wide weight [..., O, I] in 4 bits, with scales for blocks of its values."""
        from bitsandbytes import functional as bnb

        packed, state = bnb.quantize_4bit(
            wide.contiguous(), blocksize=NF4_BLOCK, compress_statistics=True, quant_type="nf4", quant_storage=torch.uint8
        )
        return cls(packed, state)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the weight [..., O, I] in this type."""
        from bitsandbytes import functional as bnb

        return bnb.dequantize_4bit(self.values.data, self.state).to(dtype)  # type: ignore[no-any-return]

    @property
    def n_state_bytes(self) -> int:
        inner = self.state.state2
        tensors: list[Tensor] = [self.state.absmax, *([inner.absmax] if inner is not None else [])]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


NarrowWeight = Fp8Weight | Int4Weight


class NarrowLinear(nn.Module):
    """An 8-bit or 4-bit replacement for a `Linear` without bias."""

    def __init__(self, weight: NarrowWeight, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.narrow = weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Return `hidden` [..., I] multiplied with the widened matrix [O, I]."""
        product = fused.linear(hidden, self.narrow.bank) if isinstance(self.narrow, Fp8Weight) else None
        return F.linear(hidden, self.narrow.dense(hidden.dtype)) if product is None else product


class NarrowExperts(nn.Module):
    """A wrapper of the library's experts module that keeps its banks in 8 or 4 bits.

    Where the fused kernels don't apply, each pass widens a layer's banks as a whole, so that the library multiplies all experts
    at once. Widening experts one by one takes longer than the multiplication (torchao's 3-D tensors: 18 ms a layer before any
    arithmetic, on one core).
    """

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.inner: Any = experts
        self.banks = nn.ModuleDict()

    def add(self, name: str, bank: NarrowWeight) -> None:
        self.inner._parameters.pop(name, None)
        self.banks[name] = bank

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Return the output [T, H] of the library's experts for `hidden` [T, H], by the routing `index`, `weights` [T, K]."""
        banks: Iterable[tuple[str, Any]] = self.banks.items()  # torch knows them as modules
        by_name = dict(banks)
        narrow = [bank.bank for name in BANKS if isinstance(bank := by_name.get(name), Fp8Weight)]
        if len(narrow) == len(BANKS):
            mixed = fused.experts(hidden, index, weights, *narrow)
            if mixed is not None:
                return mixed
        try:
            for name, bank in banks:
                setattr(self.inner, name, bank.dense(hidden.dtype))
            return self.inner(hidden, index, weights)  # type: ignore[no-any-return]
        finally:
            for name in self.banks:
                self.inner.__dict__.pop(name, None)


def attach(model: Any, name: str, weight: NarrowWeight, shape: tuple[int, ...]) -> None:
    """Replace the model's wide weight of this name by a narrow one."""
    path, _, attribute = name.rpartition(".")
    if attribute == "weight":
        model.set_submodule(path, NarrowLinear(weight, shape))
        return
    experts = model.get_submodule(path)
    if not isinstance(experts, NarrowExperts):
        experts = NarrowExperts(experts)
        model.set_submodule(path, experts)
    experts.add(attribute, weight)


def n_bytes(model: Any) -> int:
    """Return the bytes of a model's weights and buffers; shared ones count once."""
    tensors: dict[int, Tensor] = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    scales = sum(module.n_state_bytes for module in model.modules() if isinstance(module, Int4Weight))
    tensor_bytes: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return tensor_bytes + scales


def _over(scales: Tensor, shape: torch.Size) -> Tensor:
    """Return scales that broadcast with a tensor of `shape`: block scales are repeated over their rows and columns."""
    for dim, length in enumerate(shape):
        n_scales = scales.shape[dim]
        if n_scales not in (1, length):
            scales = scales.repeat_interleave(-(-length // n_scales), dim).narrow(dim, 0, length)
    return scales
