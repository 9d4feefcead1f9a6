"""Read a model's weights shard by shard, and copy each tensor directly to the device.

Only one file is open at a time, so the host never holds more than one shard.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dg_lsp.engine.diffusion.gemma import inventory, quantised
from dg_lsp.engine.diffusion.gemma.inventory import Inventory, Piece
from dg_lsp.engine.diffusion.gemma.quantised import Fp8Weight, Int4Weight, NarrowExperts, NarrowWeight
from dg_lsp.engine.model.fit import QUANTISED, Precision
from dg_lsp.engine.model.weights.checkpoint import CheckpointError
from dg_lsp.engine.model.weights.fetch import Meter


class ReadError(CheckpointError):
    """A weight file can't be read; the message is a sentence."""


def fill(model: Any, listed: Inventory, device: str, precision: Precision, dtype: torch.dtype, meter: Meter) -> None:
    """Fill an empty model with its weights on a device, in `dtype` or narrower as `precision` says. Raises ReadError."""
    from safetensors import SafetensorError, safe_open

    names: dict[str, list[str]] = {}
    for name, first in inventory.aliases(model).items():
        names.setdefault(first, []).append(name)
    by_file: dict[Path, list[Piece]] = {}
    for group in listed.pieces.values():
        for piece in group:
            by_file.setdefault(piece.stored.file, []).append(piece)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict(keep_vars=True).items()}
    gathered: dict[str, _Gathered] = {}
    for file, pieces in by_file.items():
        try:
            # On the host the file is memory-mapped. Closing it frees its pages.
            with safe_open(file, framework="pt") as opened:
                for piece in pieces:
                    target = piece.target
                    if target not in gathered:
                        gathered[target] = _Gathered(listed.pieces[target], shapes[target], device, dtype)
                    if gathered[target].add(piece, opened.get_tensor(piece.stored.name)):
                        weight = gathered.pop(target).weight()
                        place(model, names[target], weight, precision, dtype, shapes[target])
                        del weight
                    meter.add(piece.stored.n_bytes)
        except (OSError, SafetensorError) as error:
            raise ReadError(f"{file} can't be read ({error}); download it again") from error
    inventory.fill_buffers(model, device)
    if empty := inventory.left_empty(model):
        raise ReadError(f"{len(empty)} weights of the model were not filled, such as {min(empty)}")


class _Gathered:
    """The pieces of one weight that are already read."""

    def __init__(self, pieces: tuple[Piece, ...], shape: tuple[int, ...], device: str, dtype: torch.dtype) -> None:
        self._n_missing = len(pieces)
        self._shape, self._device = shape, device
        narrow = any(piece.stored.dtype == "F8_E4M3" for piece in pieces)
        self._dtype = quantised.FP8 if narrow else dtype
        self._values: Tensor | None = None
        self._scales: dict[tuple[int, int], Tensor] = {}

    def add(self, piece: Piece, tensor: Tensor) -> bool:
        """Copy one piece to the device; return whether it was the last."""
        self._n_missing -= 1
        if piece.is_scale:
            self._scales[piece.expert or 0, piece.half or 0] = tensor.to(self._device, torch.float32, copy=True)
        elif piece.expert is None:
            # Always copy, because the file's mapping ends when the file is closed.
            self._values = tensor.to(self._device, self._dtype, copy=True)
        else:
            if self._values is None:
                self._values = torch.empty(self._shape, dtype=self._dtype, device=self._device)
            bank = self._values[piece.expert]
            n_rows = len(tensor)
            bank.narrow(0, n_rows * (piece.half or 0), n_rows).copy_(tensor)
        return self._n_missing == 0

    def weight(self) -> Tensor | Fp8Weight:
        """Return the complete weight."""
        assert self._values is not None
        if not self._scales or self._dtype != quantised.FP8:
            return self._values
        # The scales get as many dimensions as the values.
        if (0, 0) in self._scales and len(self._scales) == 1:
            return Fp8Weight(self._values, _of_rows(self._scales[0, 0], self._shape))
        n_experts, n_halves = self._shape[0], 1 + max(half for _, half in self._scales)
        part = (self._shape[1] // n_halves, *self._shape[2:])
        rows = [
            torch.cat([_per_row(self._scales[expert, half], part) for half in range(n_halves)]) for expert in range(n_experts)
        ]
        return Fp8Weight(self._values, torch.stack(rows))


def _of_rows(scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the scale of a tensor, its rows or its blocks, with as many dimensions as the weight."""
    if scale.ndim == len(shape):
        return scale
    if scale.numel() == 1:
        return scale.reshape([1] * len(shape))
    return scale.reshape(*scale.shape, *[1] * (len(shape) - scale.ndim))


def _per_row(scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a matrix's scales as [rows, columns or column blocks], so that the scales of two halves can be concatenated."""
    scale = _of_rows(scale, shape)
    rows = shape[0]
    if scale.shape[0] == rows:
        return scale
    return scale.repeat_interleave(-(-rows // scale.shape[0]), 0)[:rows]


def place(
    model: Any, names: list[str], weight: Tensor | Fp8Weight, precision: Precision, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Set a weight under all its names in the model, quantised if the precision and the weight allow it."""
    first = names[0]
    # bitsandbytes 0.50 is wrong on rows of incomplete blocks.
    fits = precision != "int4" or shape[-1] % quantised.NF4_BLOCK == 0
    narrow = precision in QUANTISED and quantised.is_narrow(first) and fits
    if isinstance(weight, Fp8Weight) and not (narrow and precision == "fp8"):
        weight = weight.dense(dtype)
    if not narrow:
        assert isinstance(weight, Tensor)
        inventory.set_weight(model, names, weight)
        return
    placed: NarrowWeight = (
        weight if isinstance(weight, Fp8Weight) else (Fp8Weight if precision == "fp8" else Int4Weight).of(weight)
    )
    for name in names:
        quantised.place(model, name, placed, shape)
    # Both passes share one module for a layer's experts.
    paths = [name.rpartition(".")[0] for name in names]
    experts = model.get_submodule(paths[0])
    for path in paths[1:] if isinstance(experts, NarrowExperts) else ():
        model.set_submodule(path, experts)
