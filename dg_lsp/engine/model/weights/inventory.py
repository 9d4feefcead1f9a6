"""Match the tensors in a model folder's files to the model's weights, by the files' headers.

A stored tensor is a weight under one of its names, or a piece of one. Published 8-bit checkpoints (compressed-tensors,
"float-quantized", and the hub's "fp8") store a scale with each matrix and split the experts' banks into matrices. Reads no
weight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

WIDE = {"F32": 4, "F16": 2, "BF16": 2}
FP8 = "F8_E4M3"
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.(weight|weight_scale|weight_scale_inv)")
_SCALE = re.compile(r"(.+)\.(?:weight_scale|weight_scale_inv)")
# Scales of activations: dg-lsp computes in 16 bits and does not need them.
_UNUSED = re.compile(r".+\.(?:input_scale|output_scale|k_scale|v_scale)")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file, as the file's header describes it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def n_bytes(self) -> int:
        """The tensor's number of bytes in the file."""
        n = 1
        for length in self.shape:
            n *= length
        return n * WIDE.get(self.dtype, 1)


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
    pieces: dict[str, list[Piece]] = {}
    unplaced = []
    for one in stored:
        if one.name.startswith(VISION) or (one.name not in aliases and _UNUSED.fullmatch(one.name)):
            continue
        piece = _placed(one, aliases)
        if piece is None:
            unplaced.append(one)
        else:
            pieces.setdefault(piece.target, []).append(piece)
    # A file may store one weight under two names. The first one is used.
    return Inventory({target: tuple(_once(group)) for target, group in pieces.items()}, tuple(unplaced))


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


def _once(group: list[Piece]) -> list[Piece]:
    unique: dict[tuple[bool, int | None, int | None], Piece] = {}
    for piece in group:
        unique.setdefault((piece.is_scale, piece.expert, piece.half), piece)
    return list(unique.values())


def problem(group: tuple[Piece, ...], shape: tuple[int, ...]) -> str:
    """Return the problem with a weight's pieces, as the end of a sentence that starts with its name; "" if there is none."""
    weights = [piece for piece in group if not piece.is_scale]
    scales = [piece for piece in group if piece.is_scale]
    if not weights:
        return "is missing; only its scale is stored"
    for piece in weights:
        if piece.stored.dtype not in WIDE and piece.stored.dtype != FP8:
            return f"is stored as {piece.stored.dtype}, which dg-lsp does not read"
        expected = _piece_shape(piece, shape)
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


def _piece_shape(piece: Piece, shape: tuple[int, ...]) -> tuple[int, ...]:
    if piece.expert is None:
        return shape
    return (shape[1] // 2 if piece.half is not None else shape[1], *shape[2:])
