"""Read a low-rank adapter (LoRA, arXiv 2106.09685) for a frozen Llama or Qwen2 model, in one safetensors file.

For each layer and each projection (`geometry.PROJECTIONS`) a file holds A [rank, inputs] as `<layer><letter>_a` and
B [outputs, rank] as `<layer><letter>_b`. Its metadata has `KIND`, `FORMAT` and the `base_hash` of its base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dg_lsp.engine.model.fit.geometry import PROJECTIONS, LlamaSizes
from dg_lsp.engine.model.int8 import Quantised
from dg_lsp.engine.model.weights.checkpoint import CheckpointError

FILE = "canvas.safetensors"  # in a model's folder: an adapter that reads the suffix
KIND, FORMAT = "canvas adapter", "1"
MAX_RANK = 512
UNUSED = frozenset({"mask", "del", "dist", "hint"})
"""Tensors of older files, for a canvas that is filled in parallel. They are not read."""
WIDE = {"F32", "F16", "BF16"}


def shapes(sizes: LlamaSizes, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of an adapter by its name."""
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(sizes.layers):
        for letter, name in PROJECTIONS.items():
            n_outputs, n_inputs = sizes.projection(name)
            found |= {f"{layer}{letter}_a": (rank, n_inputs), f"{layer}{letter}_b": (n_outputs, rank)}
    return found


def base_hash(weights: Mapping[str, Tensor | Quantised]) -> str:
    """Return an id of a base model: a hash of its norms, which every format of its weights stores with the same values."""
    digest = hashlib.sha256()
    for name in sorted(name for name in weights if name.endswith("norm.weight")):
        weight = weights[name]
        values = (weight.dense() if isinstance(weight, Quantised) else weight).detach().float().cpu().contiguous()
        digest.update(name.encode() + values.numpy().tobytes())
    return digest.hexdigest()[:16]


def read(file: Path, sizes: LlamaSizes, base: str) -> dict[str, Tensor]:
    """Return an adapter's tensors by name, in 32 bits, for a model of these sizes whose `base_hash` is `base`.

    Raises CheckpointError with a sentence, before any tensor is read, unless all names, shapes and types fit.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            facts = dict(opened.metadata() or {})
            slices = {name: opened.get_slice(name) for name in opened.keys() if name not in UNUSED}  # noqa: SIM118 -- no mapping
            _check(file, facts, {n: (tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}, sizes, base)
            tensors = {name: opened.get_tensor(name).float() for name in slices}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is not an adapter that can be read ({error}); replace it, or remove it") from error
    if bad := next((name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())), ""):
        raise CheckpointError(f"{bad} in {file} holds numbers that are not finite; replace the adapter, or remove it")
    return tensors


def _check(
    file: Path, facts: Mapping[str, str], stored: Mapping[str, tuple[tuple[int, ...], str]], sizes: LlamaSizes, base: str
) -> None:
    if (facts.get("kind"), facts.get("format")) != (KIND, FORMAT):
        raise CheckpointError(f"{file} is not an adapter of format {FORMAT}, which this version of dg-lsp reads")
    if facts.get("base_hash") != base:
        name = facts.get("base") or "another model"
        raise CheckpointError(f"the adapter {file} belongs to other weights ({name}); remove it, or load that model")
    first = stored.get("0q_a", ((), ""))[0]
    if len(first) != 2 or not 0 < first[0] <= MAX_RANK:
        raise CheckpointError(f"{file} has no valid rank; replace the adapter, or remove it")
    described = shapes(sizes, first[0])
    if different := described.keys() ^ stored.keys():
        side = "lacks" if min(different) in described else "has, beside the adapter's,"
        raise CheckpointError(f"{file} {side} the tensor {min(different)}; replace the adapter, or remove it")
    for name, shape in described.items():
        own, dtype = stored[name]
        if own != shape or dtype not in WIDE:
            raise CheckpointError(
                f"{name} in {file} is {dtype} {list(own)}, but its model needs {list(shape)} in 16 or 32 bits"
            )


def low_rank(adapter: Mapping[str, Tensor], index: int, letters: str, rows: Tensor) -> Tensor:
    """Return B A [O, I] of a fused matrix, whose rows are in the order `rows`."""
    a = torch.cat([adapter[f"{index}{letter}_a"] for letter in letters]).float()
    blocks = [adapter[f"{index}{letter}_b"].float() for letter in letters]
    b: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return (b @ a).to(rows.device)[rows]
