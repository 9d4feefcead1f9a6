"""Validate and read the weights of a Llama or Qwen2 folder, without transformers, whose import takes seconds.

A folder holds wide weights, or the format that `dg-lsp engine pull` writes: matrices in 8-bit integers, with a scale per row
under the name of the weight and `_scale`. Nothing is allocated until the headers of the files match `config.json`. Knows files
and shapes. Knows nothing of passes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dg_lsp.engine.model.fit.geometry import LlamaSizes
from dg_lsp.engine.model.int8 import Quantised, quantised
from dg_lsp.engine.model.weights import checkpoint
from dg_lsp.engine.model.weights.checkpoint import CONFIG, CheckpointError
from dg_lsp.engine.model.weights.inventory import WIDE, Stored
from dg_lsp.engine.model.weights.progress import Meter

FORMAT_KEY, FORMAT = "dg_lsp_quantisation", "int8-rows"
SCALE = "_scale"
# Older checkpoints store the rotary frequencies, and some store a tied head.
_UNUSED = re.compile(r".+\.rotary_emb\.inv_freq|lm_head\.weight")

Weight = Tensor | Quantised


def is_quantised(folder: Path, values: Mapping[str, Any]) -> bool:
    """Return whether a configuration says that the weights are in 8-bit integers; raise CheckpointError for another format."""
    stated = values.get(FORMAT_KEY)
    if stated not in (None, FORMAT):
        raise CheckpointError(f"{CONFIG} of {folder} says {FORMAT_KEY} = {stated!r}; this version of dg-lsp reads {FORMAT!r}")
    return stated == FORMAT


def check(folder: Path, sizes: LlamaSizes, *, in_int8: bool) -> dict[str, Stored]:
    """Return the stored tensors by name; raise CheckpointError unless they are exactly what the configuration describes."""
    shapes = sizes.shapes()
    if in_int8:
        shapes |= {name + SCALE: shape[:1] for name, shape in shapes.items() if len(shape) == 2}
    stored = {one.name: one for one in checkpoint.stored(folder)}
    if missing := shapes.keys() - stored.keys():
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(shapes)} weights that its {CONFIG} describes, such as {min(missing)}; "
            "download it again, or correct it"
        )
    if extra := [name for name in stored.keys() - shapes.keys() if not _UNUSED.fullmatch(name.removesuffix(SCALE))]:
        raise CheckpointError(
            f"{folder} holds {len(extra)} weights that its {CONFIG} does not describe, such as {min(extra)}; "
            "it belongs to another model"
        )
    for name, shape in shapes.items():
        one = stored[name]
        if one.shape != shape:
            raise CheckpointError(f"{name} in {folder} has the shape {list(one.shape)}, but {CONFIG} describes {list(shape)}")
        expected = ("I8",) if in_int8 and len(shape) == 2 else ("F32",) if name.endswith(SCALE) else tuple(WIDE)
        if one.dtype not in expected:
            raise CheckpointError(f"{name} in {folder} is stored as {one.dtype}, not as {' or '.join(expected)}")
    return {name: stored[name] for name in shapes}


def read(stored: Mapping[str, Stored], device: str, dtype: torch.dtype | None, meter: Meter) -> dict[str, Weight]:
    """Return the weights on a device: matrices in `dtype`, or in 8-bit integers if it is None; vectors in 32 bits.

    Raises CheckpointError if a file can't be read, or holds numbers that are not finite.
    """
    from safetensors import SafetensorError, safe_open

    weights: dict[str, Weight] = {}
    for file in sorted({one.file for one in stored.values()}):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in (name for name, one in stored.items() if one.file == file and not name.endswith(SCALE)):
                    tensor: Tensor = opened.get_tensor(name)
                    scale = _scale(stored, name)
                    weights[name] = _placed(tensor, scale, device, dtype)
                    meter.add(stored[name].n_bytes)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} can't be read ({error}); download it again") from error
    for name, weight in weights.items():
        numbers = weight.scales if isinstance(weight, Quantised) else weight
        if not bool(torch.isfinite(numbers).all()):
            raise CheckpointError(f"the weight {name} holds numbers that are not finite; download the model again")
    return weights


def _scale(stored: Mapping[str, Stored], name: str) -> Tensor | None:
    """Return the scales of a quantised matrix, which may be in another file, or None."""
    from safetensors import safe_open

    one = stored.get(name + SCALE)
    if one is None:
        return None
    with safe_open(one.file, framework="pt") as opened:
        scales: Tensor = opened.get_tensor(one.name)
    return scales


def _placed(tensor: Tensor, scale: Tensor | None, device: str, dtype: torch.dtype | None) -> Weight:
    # Copy each tensor, because the file's mapping ends when the file is closed.
    if scale is not None:
        weight = Quantised(tensor.clone(), scale.clone()[:, None])
        return weight if dtype is None else weight.dense().to(device, dtype)
    if tensor.ndim == 1:
        return tensor.to(device, torch.float32, copy=True)
    return quantised(tensor.float()) if dtype is None else tensor.to(device, dtype, copy=True)
