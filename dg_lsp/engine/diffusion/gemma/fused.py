"""Multiply with a layer's experts, and with 8-bit matrices, in the fused kernels of `kernels`, where a machine has them.

Each function returns None where the kernels don't apply; the caller then computes it in another way. They apply to 16-bit
inputs on an NVIDIA GPU with Triton, which PyTorch for CUDA on Linux brings. If a kernel fails, the log says why, once, and none
is tried again.

Shapes: T tokens, K experts of a token, H hidden, I the experts' inner size.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dg_lsp.core import wording

log = logging.getLogger("dg_lsp.engine")

MAX_LINEAR_ROWS = 512  # for more rows, a matrix is widened first, because the product takes longer than that
MIN_FP8 = (8, 9)  # the compute capability from which Triton converts e4m3


@dataclass(frozen=True, slots=True)
class Bank:
    """The matrices [experts, O, I] of a layer's experts; in 8 bits, with a scale for each row [experts, O, 1]."""

    values: Tensor
    scales: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Tiles:
    """The sizes of a kernel's tiles: rows, columns and the depth of one product; its pipeline's stages, and its warps."""

    rows: int
    columns: int
    depth: int
    stages: int = 4
    warps: int = 4

    @property
    def options(self) -> dict[str, int]:
        return {
            "ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth,
            "num_stages": self.stages, "num_warps": self.warps,
        }  # fmt: skip


# By the most pairs that an expert has on average: the tiles of the two kernels for wide weights, and for those in 8 bits. Each
# fits into the 99 KB of shared memory of a consumer card; of those that do, the first line's were the fastest on an H100.
TILES = (
    (8, (Tiles(16, 32, 128), Tiles(16, 64, 128, 3)), (Tiles(16, 64, 128, 3), Tiles(16, 64, 128, 3))),
    (24, (Tiles(32, 64, 64), Tiles(32, 128, 64)), (Tiles(32, 64, 128, 3), Tiles(32, 128, 128, 3))),
    (48, (Tiles(64, 64, 64, 3), Tiles(64, 128, 64, 3)), (Tiles(64, 64, 128, 3), Tiles(64, 128, 128, 3))),
    (math.inf, (Tiles(64, 64, 64, 3, 8), Tiles(64, 128, 64, 3, 8)), (Tiles(64, 64, 128, 3, 8), Tiles(64, 128, 128, 3, 8))),
)


def tiles_for(n_pairs: int, n_experts: int, *, is_narrow: bool) -> tuple[Tiles, Tiles]:
    """Return the tiles for the gate and up projections, and for the down projection."""
    return next(narrow if is_narrow else wide for most, wide, narrow in TILES if n_pairs <= most * n_experts)


class _Guard:
    """Says whether the kernels may be used, which ends with their first error."""

    def __init__(self) -> None:
        self.is_usable = True

    def run(self, work: Callable[[], Tensor]) -> Tensor | None:
        try:
            return work()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # Triton's compiler and its launcher raise errors of many kinds
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise  # the recording is lost; the error says why
            self.is_usable = False
            log.warning("the fused kernels for experts can't be used, which makes steps slower: %s", wording.reason(error))
            return None


guard = _Guard()


@cache
def _kernels() -> Any:
    """Return the module of the kernels, or None without Triton."""
    try:
        from dg_lsp.engine.diffusion.gemma import kernels
    except ImportError:
        return None
    return kernels


def _apply_to(inputs: Tensor, *matrices: Bank) -> bool:
    if not guard.is_usable or inputs.device.type != "cuda" or inputs.dtype not in (torch.bfloat16, torch.float16):
        return False
    for matrix in matrices:
        is_plain = matrix.values.dtype == inputs.dtype and matrix.scales is None
        has_row_scales = matrix.scales is not None and matrix.scales.shape == (*matrix.values.shape[:-1], 1)
        if not is_plain and not (has_row_scales and torch.cuda.get_device_capability(inputs.device) >= MIN_FP8):
            return False
        if not matrix.values.is_contiguous():
            return False
    return _kernels() is not None


def experts(hidden: Tensor, expert_ids: Tensor, weights: Tensor, gate_up: Bank, down: Bank) -> Tensor | None:
    """Return the weighted outputs [T, H] of the experts `expert_ids` [T, K] of each token in `hidden` [T, H].

    `weights` [T, K] are those of the routing. An expert is down(gelu(gate) * up), with the approximation with tanh.
    """
    if not _apply_to(hidden, gate_up, down):
        return None
    return guard.run(lambda: compute(hidden, expert_ids, weights, gate_up, down))


def linear(inputs: Tensor, matrix: Bank) -> Tensor | None:
    """Return the product of inputs [..., I] with an 8-bit matrix [O, I]."""
    if inputs[..., 0].numel() > MAX_LINEAR_ROWS or not _apply_to(inputs, matrix):
        return None
    return guard.run(lambda: product(inputs, matrix))


def compute(
    hidden: Tensor, expert_ids: Tensor, weights: Tensor, gate_up: Bank, down: Bank, tiles: tuple[Tiles, Tiles] | None = None
) -> Tensor:
    """Compute the [T, H] that `experts` returns, with `tiles` instead of those of the table. Raises what Triton raises."""
    kernels, (n_experts, two_inner, size) = _kernels(), gate_up.values.shape
    top_k, n_pairs, inner = expert_ids.shape[1], expert_ids.numel(), two_inner // 2
    is_narrow = gate_up.scales is not None
    for_up, for_down = tiles or tiles_for(n_pairs, n_experts, is_narrow=is_narrow)
    pairs, order = expert_ids.flatten().sort(stable=True)
    bounds = torch.searchsorted(pairs, torch.arange(n_experts + 1, device=pairs.device), out_int32=True)
    activated, outputs = hidden.new_empty(n_pairs, inner), hidden.new_empty(n_pairs, size, dtype=torch.float32)
    common = {
        "N_EXPERTS": n_experts, "EXPERTS": 1 << (n_experts - 1).bit_length(), "HIDDEN": size, "INNER": inner,
        "IS_NARROW": is_narrow,
    }  # fmt: skip
    kernels.gate_up[_grid(n_pairs, n_experts, inner, for_up)](
        hidden.contiguous(), gate_up.values, _or_values(gate_up), order, bounds, activated,
        TOP_K=top_k, **common, **for_up.options,
    )  # fmt: skip
    kernels.down[_grid(n_pairs, n_experts, size, for_down)](
        activated, down.values, _or_values(down), order, bounds, weights.contiguous(), outputs, **common, **for_down.options
    )
    return outputs.view(-1, top_k, size).sum(1).to(hidden.dtype)


def product(inputs: Tensor, matrix: Bank) -> Tensor:
    """Compute the products [..., O] that `linear` returns. Raises what Triton raises."""
    n_out, n_in = matrix.values.shape
    flat = inputs.reshape(-1, n_in)
    out = flat.new_empty(len(flat), n_out)
    rows = 64 if len(flat) > 32 else 32 if len(flat) > 16 else 16
    columns = 64 if len(flat) > 128 else 32 if n_out > 4000 else 16  # so that few rows keep all processors of the card busy
    grid = (-(-len(flat) // rows), -(-n_out // columns))
    _kernels().linear[grid](
        flat, matrix.values, _or_values(matrix), out, len(flat), N_OUT=n_out, N_IN=n_in, **Tiles(rows, columns, 128).options
    )
    return out.view(*inputs.shape[:-1], n_out)


def _grid(n_pairs: int, n_experts: int, n_columns: int, tiles: Tiles) -> tuple[int, int]:
    """Return the most tiles that any routing of so many pairs has, and the number of blocks of columns."""
    return min(n_pairs, min(n_experts, n_pairs) + n_pairs // tiles.rows), -(-n_columns // tiles.columns)


def _or_values(bank: Bank) -> Tensor:
    """Return a bank's scales. A kernel of wide weights never reads them, but a launch needs some tensor."""
    return bank.values if bank.scales is None else bank.scales
