"""Validate a DiffusionGemma folder before it is loaded, and find the pieces of each weight in its files.

The configuration can't select code.

A stored tensor is a weight under one of its names, or a piece of one. Published 8-bit checkpoints (compressed-tensors,
"float-quantized", and the hub's "fp8") store a scale with each matrix and split the experts' banks into matrices.
Nothing is allocated until the weight headers match `config.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dg_lsp.engine.model.fit import VLLM_NVFP4
from dg_lsp.engine.model.weights.checkpoint import CONFIG, WIDE, CheckpointError, Stored, check_names, stated_values, stored

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
    """Set a parameter or buffer to a tensor, under all its names in the model."""
    parameter = nn.Parameter(value, requires_grad=False)
    for name in names:
        path, _, attribute = name.rpartition(".")
        module: nn.Module = model.get_submodule(path)
        if attribute in module._buffers:
            module._buffers[attribute] = value
        else:
            module._parameters[attribute] = parameter


def left_empty(model: Any) -> list[str]:
    """Return the names of the tensors that still have no memory."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return [name for name, tensor in tensors if tensor.device == META]


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
    try:
        return DiffusionGemmaConfig.from_dict(_without_code(values))
    except Exception as error:  # the library may raise anything for values that it has not checked
        raise CheckpointError(f"{CONFIG} of {folder} describes no model: {error}") from error


def check(folder: Path, config: Any) -> tuple[Any, Inventory]:
    """Return the model without memory, and the inventory of its stored weights.

    Raises CheckpointError unless the folder holds exactly the weights that the configuration describes.
    """
    try:
        model = build(config)
    except Exception as error:
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
        """The number of bytes to read."""
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
