"""Validate and read the weights of a Llama or Qwen2 folder, without transformers, whose import takes seconds.

A folder holds wide weights, or the format that `dg-lsp engine pull` writes: matrices in 8-bit integers, with a scale per row
under the name of the weight and `_scale`. Nothing is allocated until the headers of the files match `config.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dg_lsp.engine.model.fit.geometry import LlamaSizes
from dg_lsp.engine.model.int8 import Quantised, quantised
from dg_lsp.engine.model.weights import checkpoint
from dg_lsp.engine.model.weights.checkpoint import CONFIG, WIDE, CheckpointError, Stored
from dg_lsp.engine.model.weights.fetch import Meter

FORMAT_KEY, FORMAT = "dg_lsp_quantisation", "int8-rows"
SCALE = "_scale"
MAX_MAPPED = 64 << 20  # bytes read from one mapping of a file
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
    extra = [name for name in stored.keys() - shapes.keys() if not _UNUSED.fullmatch(name.removesuffix(SCALE))]
    checkpoint.check_names(folder, len(shapes), shapes.keys() - stored.keys(), extra)
    for name, shape in shapes.items():
        one = stored[name]
        if one.shape != shape:
            raise CheckpointError(f"{name} in {folder} has the shape {list(one.shape)}, but {CONFIG} describes {list(shape)}")
        expected = ("I8",) if in_int8 and len(shape) == 2 else ("F32",) if name.endswith(SCALE) else tuple(WIDE)
        if one.dtype not in expected:
            raise CheckpointError(f"{name} in {folder} is stored as {one.dtype}, not as {' or '.join(expected)}")
    return {name: stored[name] for name in shapes}


class Weights(Mapping[str, Weight]):
    """The weights on a device, each read when it is asked for: in `dtype`, or in 8-bit integers if it is None.

    Vectors are in 32 bits. Nothing is kept, so the memory holds few weights twice. Raises CheckpointError if a file can't be
    read, or holds numbers that are not finite.
    """

    def __init__(self, stored: Mapping[str, Stored], device: str, dtype: torch.dtype | None, meter: Meter) -> None:
        self._stored, self._device, self._dtype, self._meter = stored, device, dtype, meter
        self._opened: tuple[Path, Any] | None = None
        self._n_mapped = 0

    def __len__(self) -> int:
        return sum(not name.endswith(SCALE) for name in self._stored)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._stored if not name.endswith(SCALE))

    def __getitem__(self, name: str) -> Weight:
        tensor, device, dtype = self._read(name), self._device, self._dtype
        self._meter.add(self._stored[name].n_bytes)
        if name + SCALE in self._stored:
            narrow = Quantised(tensor, _finite(name, self._read(name + SCALE))[:, None])
            return _moved(narrow, device) if dtype is None else narrow.dense().to(device, dtype)
        wide = _finite(name, tensor)
        if tensor.ndim == 1:
            return wide.to(device, torch.float32)
        return _moved(quantised(wide.float()), device) if dtype is None else wide.to(device, dtype)

    def _read(self, name: str) -> Tensor:
        """Return a copy of a stored tensor: a mapping of a file that another program shortens would end this process."""
        from safetensors import SafetensorError, safe_open

        one = self._stored[name]
        try:
            # An open file is mapped. To open it again frees the pages that were read.
            if self._opened is None or self._opened[0] != one.file or self._n_mapped > MAX_MAPPED:
                self._opened, self._n_mapped = (one.file, safe_open(one.file, framework="pt")), 0
            self._n_mapped += one.n_bytes
            tensor: Tensor = self._opened[1].get_tensor(one.name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{one.file} can't be read ({error}); download it again") from error
        return tensor.clone()


def _moved(narrow: Quantised, device: str) -> Quantised:
    return Quantised(narrow.values.to(device), narrow.scales.to(device))


def _finite(name: str, tensor: Tensor) -> Tensor:
    if not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(f"the weight {name} holds numbers that are not finite; download the model again")
    return tensor
