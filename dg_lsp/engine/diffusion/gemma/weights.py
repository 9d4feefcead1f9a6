"""Validate a DiffusionGemma folder, find the pieces of each weight in its files, and read them directly to the device.

The configuration can't select code.

A stored tensor is a weight under one of its names, or a piece of one. Published 8-bit checkpoints (compressed-tensors,
"float-quantized", and the hub's "fp8") store a scale with each matrix and split the experts' banks into matrices.
Nothing is allocated until the weight headers match `config.json`. Only one file is open at a time, so the host never holds
more than one shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dg_lsp.engine.diffusion.gemma import quantised
from dg_lsp.engine.diffusion.gemma.quantised import Fp8Weight, Int4Weight, NarrowExperts, NarrowWeight
from dg_lsp.engine.model.fit import QUANTISED, VLLM_NVFP4, Precision
from dg_lsp.engine.model.weights.checkpoint import CONFIG, WIDE, CheckpointError, Stored, check_names, stated_values, stored
from dg_lsp.engine.model.weights.fetch import Meter

META = torch.device("meta")


def build(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Return a text-only `DiffusionGemmaForBlockDiffusion` on the meta device."""
    from transformers import DiffusionGemmaForBlockDiffusion

    with META:
        # This affects only the library's own computation; `passes` has its own attention.
        model: Any = DiffusionGemmaForBlockDiffusion._from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.model.encoder.vision_tower = model.model.encoder.embed_vision = None
    return model


def aliases(model: Any) -> dict[str, str]:
    """Return all names of all weights and saved buffers, each mapped to the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}


def fill_buffers(model: Any, device: str) -> None:
    """Compute the buffers that no file stores: the rotary frequencies and the embedding's scale."""
    text = model.config.text_config
    for stack in (model.model.encoder.language_model, model.model.decoder):
        stack.rotary_emb = type(stack.rotary_emb)(text).to(device)
        embed = stack.embed_tokens
        # Computed on the CPU in 32 bits, like the library, whatever the type of the weights.
        embed.embed_scale = torch.tensor(embed.scalar_embed_scale).to(device)


def set_weight(model: Any, names: Sequence[str], value: torch.Tensor) -> None:
    """Set a parameter or buffer to a tensor of any shape, under all its names in the model."""
    parameter = nn.Parameter(value, requires_grad=False)
    for name in names:
        path, _, attribute = name.rpartition(".")
        module: nn.Module = model.get_submodule(path)
        if attribute in module._buffers:
            module._buffers[attribute] = value
        else:
            module._parameters[attribute] = parameter


FP8 = "F8_E4M3"
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")


_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.(weight|weight_scale|weight_scale_inv)")
_SCALE = re.compile(r"(.+)\.(?:weight_scale|weight_scale_inv)")
# Scales of activations: dg-lsp computes in 16 bits and does not need them.
_UNUSED = re.compile(r".+\.(?:input_scale|output_scale|k_scale|v_scale)")

# Settings that select code instead of describing the model; the engine itself selects the code that runs.
# `quantization_config` describes the stored weights, not the model, so it is removed too.
_CODE = (
    "quantization_config",
    "attn_implementation",
    "experts_implementation",
    "auto_map",
    "use_kernels",
    "kernel_config",
    "_name_or_path",
)


def stored_precision(folder: Path, values: Mapping[str, Any]) -> str:
    """Return "fp8" if a configuration says that the weights are stored in 8 bits, or "" if they are not quantised.

    Raises CheckpointError for a format that dg-lsp does not read.
    """
    quantization = values.get("quantization_config")
    if quantization is None:
        return ""
    method, kind = quantization, None
    if isinstance(quantization, dict):
        method, kind = quantization.get("quant_method"), quantization.get("format")
    if method == "fp8" or (method == "compressed-tensors" and kind == "float-quantized"):
        return "fp8"
    format_names = " ".join(str(item) for item in (method, kind) if item)
    raise CheckpointError(
        f"{CONFIG} of {folder} says that its weights are quantised by {format_names}, which dg-lsp does not read; load the "
        f"unquantised model, or let vLLM serve this one (engine.model = vllm:URL), as in: {VLLM_NVFP4}"
    )


def configuration(folder: Path) -> Any:
    """Return the model's configuration without settings that select code; raise CheckpointError."""
    from transformers import DiffusionGemmaConfig

    values = stated_values(folder)
    stored_precision(folder, values)
    return DiffusionGemmaConfig.from_dict(_without_code(values))


def check(folder: Path) -> tuple[Any, Inventory]:
    """Return the model without memory, and the inventory of its stored weights.

    Raises CheckpointError unless the folder holds exactly the weights that the configuration describes.
    """
    try:
        model = build(configuration(folder))
    except CheckpointError:
        raise
    except Exception as error:  # the library may raise anything for values that it has not checked
        raise CheckpointError(f"{CONFIG} of {folder} describes no model: {error}") from error
    described = model.state_dict(keep_vars=True)
    # A weight that the model uses in two places may be stored under either name.
    first_names = aliases(model)
    weights = take(stored(folder), first_names)
    for target, group in sorted(weights.pieces.items()):
        if wrong := problem(group, tuple(described[target].shape)):
            raise CheckpointError(f"{group[0].stored.name} in {folder} {wrong}")
    targets = set(first_names.values())
    missing = _unexcused(targets - weights.pieces.keys(), model._keys_to_ignore_on_load_missing)
    extra = _unexcused([one.name for one in weights.unplaced], model._keys_to_ignore_on_load_unexpected)
    check_names(folder, len(targets), missing, extra)
    return model, weights


def _without_code(values: Mapping[str, Any]) -> dict[str, Any]:
    allowed_values = {}
    for name, value in values.items():
        if not name.endswith(_CODE):
            allowed_values[name] = _without_code(value) if isinstance(value, dict) else value
    return allowed_values


def _unexcused(names: Any, patterns: Any) -> list[str]:
    """Return the names that the library's own lists of ignored weights do not match."""
    return [name for name in names if not any(re.search(pattern, name) for pattern in patterns or ())]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored tensor and the weight it belongs to, by first name; for a bank, also the expert and the half of its rows."""

    stored: Stored
    target: str
    is_scale: bool = False
    expert: int | None = None
    half: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All pieces by weight, and the tensors that match no weight."""

    pieces: Mapping[str, tuple[Piece, ...]]
    unplaced: tuple[Stored, ...] = ()

    @property
    def n_bytes(self) -> int:
        return sum(piece.stored.n_bytes for group in self.pieces.values() for piece in group)


def take(stored: Iterable[Stored], aliases: Mapping[str, str]) -> Inventory:
    """Return the inventory of the stored tensors; `aliases` maps each name of a weight to its first one.

    The vision tower's tensors are omitted, because the engine reads only text.
    """
    pieces: dict[str, dict[tuple[bool, int | None, int | None], Piece]] = {}
    unplaced = []
    for one in stored:
        if one.name.startswith(VISION) or (one.name not in aliases and _UNUSED.fullmatch(one.name)):
            continue
        piece = _placed(one, aliases)
        if piece is None:
            unplaced.append(one)
        else:
            # A file may store one weight under two names. The first one is used.
            pieces.setdefault(piece.target, {}).setdefault((piece.is_scale, piece.expert, piece.half), piece)
    return Inventory({target: tuple(group.values()) for target, group in pieces.items()}, tuple(unplaced))


def _placed(one: Stored, aliases: Mapping[str, str]) -> Piece | None:
    if one.name in aliases:
        return Piece(one, aliases[one.name])
    if match := _EXPERT.fullmatch(one.name):
        bank, expert, part, kind = match.groups()
        name = f"{bank}.down_proj" if part == "down_proj" else f"{bank}.gate_up_proj"
        half = {"gate_proj": 0, "up_proj": 1}.get(part)
        return Piece(one, aliases[name], kind != "weight", int(expert), half) if name in aliases else None
    if match := _SCALE.fullmatch(one.name):
        # The scale of a module's matrix, or of a bank, which is not a module.
        for name in (f"{match[1]}.weight", match[1]):
            if name in aliases:
                return Piece(one, aliases[name], is_scale=True)
    return None


def problem(group: tuple[Piece, ...], shape: tuple[int, ...]) -> str:
    """Return the problem with a weight's pieces, as the end of a sentence that starts with its name; "" if there is none."""
    weights = [piece for piece in group if not piece.is_scale]
    scales = [piece for piece in group if piece.is_scale]
    if not weights:
        return "is missing; only its scale is stored"
    for piece in weights:
        if piece.stored.dtype not in WIDE and piece.stored.dtype != FP8:
            return f"is stored as {piece.stored.dtype}, which dg-lsp does not read"
        expected = shape
        if piece.expert is not None:
            expected = (shape[1] // 2 if piece.half is not None else shape[1], *shape[2:])
        if piece.stored.shape != expected:
            return f"has the shape {list(piece.stored.shape)}, but config.json describes {list(expected)}"
    if weights[0].expert is not None:
        n_parts = len({(piece.expert, piece.half) for piece in weights})
        expected_parts = shape[0] * (2 if weights[0].half is not None else 1)
        if n_parts != expected_parts or any(not 0 <= (piece.expert or 0) < shape[0] for piece in weights):
            return f"is stored as {n_parts} matrices, not the {expected_parts} that config.json describes"
    n_narrow = sum(piece.stored.dtype == FP8 for piece in weights)
    if n_narrow and len(scales) != n_narrow:
        return "is stored in 8 bits without a scale"
    return ""


# --- Read the weights


def fill(model: Any, listed: Inventory, device: str, precision: Precision, dtype: torch.dtype, meter: Meter) -> None:
    """Fill an empty model with its weights on a device, in `dtype` or narrower as `precision` says. Raises CheckpointError."""
    from safetensors import SafetensorError, safe_open

    names: dict[str, list[str]] = {}
    for name, first in aliases(model).items():
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
                        attach(model, names[target], weight, precision, dtype, shapes[target])
                        del weight
                    meter.add(piece.stored.n_bytes)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} can't be read ({error}); download it again") from error
    fill_buffers(model, device)


class _Gathered:
    """The pieces of one weight that are already read."""

    def __init__(self, pieces: tuple[Piece, ...], shape: tuple[int, ...], device: str, dtype: torch.dtype) -> None:
        self._n_missing = len(pieces)
        self._shape, self._device = shape, device
        narrow = any(piece.stored.dtype == FP8 for piece in pieces)
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


def attach(
    model: Any, names: list[str], weight: Tensor | Fp8Weight, precision: Precision, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Set a weight [..., O, I] under all its names in the model, quantised if the precision and the weight allow it."""
    first = names[0]
    # bitsandbytes 0.50 is wrong on rows of incomplete blocks.
    fits = precision != "int4" or shape[-1] % quantised.NF4_BLOCK == 0
    narrow = precision in QUANTISED and quantised.is_narrow(first) and fits
    if isinstance(weight, Fp8Weight) and not (narrow and precision == "fp8"):
        weight = weight.dense(dtype)
    if not narrow:
        assert isinstance(weight, Tensor)
        set_weight(model, names, weight)
        return
    attached: NarrowWeight = (
        weight if isinstance(weight, Fp8Weight) else (Fp8Weight if precision == "fp8" else Int4Weight).of(weight)
    )
    for name in names:
        quantised.attach(model, name, attached, shape)
    # Both passes share one module for a layer's experts.
    paths = [name.rpartition(".")[0] for name in names]
    experts = model.get_submodule(paths[0])
    for path in paths[1:] if isinstance(experts, NarrowExperts) else ():
        model.set_submodule(path, experts)
