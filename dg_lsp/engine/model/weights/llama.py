"""Validate and read the weights of a Llama or Qwen2 folder, and join them to layers in the form that their products need.

A folder holds wide weights, or the format that `dg-lsp engine pull` writes: matrices in 8-bit integers, with a scale per row
under the name of the weight and `_scale`. Nothing is allocated until the headers of the files match `config.json`. It needs no
transformers, whose import takes seconds.

The projections to queries, keys and values form one matrix, gate and up another, because the time of a pass over few tokens
depends on the number of operations. The rows of queries and keys are in rotated pairs. Knows nothing of passes.

Shapes: N rows, I inputs, O outputs, H hidden, D head dimension, F feed-forward, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dg_lsp.engine.model import matmul
from dg_lsp.engine.model.fit import VOCABULARY_SLICE, LlamaSizes
from dg_lsp.engine.model.matmul import Inputs, Matrix, Quantised, Weight, for_kind, matrix, quantised
from dg_lsp.engine.model.weights import checkpoint
from dg_lsp.engine.model.weights.checkpoint import CONFIG, WIDE, CheckpointError, Stored
from dg_lsp.engine.model.weights.fetch import Meter

FORMAT_KEY, FORMAT = "dg_lsp_quantisation", "int8-rows"
SCALE = "_scale"
MAX_MAPPED = 64 << 20  # bytes read from one mapping of a file
# Older checkpoints store the rotary frequencies, and some store a tied head. A DiffusionGemma has a decoder and images too, and
# an expert branch that a small one does not use.
_UNUSED = re.compile(
    r".+\.rotary_emb\.inv_freq|lm_head\.weight"
    r"|model\.decoder\.(self_conditioning\.|layers\.\d+\.(layer_scalar|router|experts|pre_feedforward_layernorm_2)\b).*"
    r"|model\.encoder\.(embed_vision|vision_tower)\..*"
)


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
    return {llama_name(name): stored[name] for name in shapes}


def llama_name(name: str) -> str:
    """Return the name that a weight has in a Llama model. A DiffusionGemma's encoder shares most of the decoder's."""
    return name.replace("model.decoder.", "model.").replace("model.encoder.language_model.", "model.")


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


# --- The layers


@dataclass(frozen=True, slots=True)
class Layer:
    before_attention: Tensor
    queries_keys_values: Matrix  # [(heads + 2 * kv heads) * D, H]
    out: Matrix  # [H, heads * D]
    before_mlp: Tensor
    gate_up: Matrix  # [2 * F, H]
    down: Matrix  # [H, F]
    gemma: GemmaNorms | None = None


@dataclass(frozen=True, slots=True)
class GemmaNorms:
    """What a layer of a DiffusionGemma has besides: norms, and the factor of its output."""

    heads: Tensor  # [heads + 2 * kv heads, D]
    after_attention: Tensor
    after_mlp: Tensor
    after_layer: Tensor
    scalar: float


def embedded(table: Weight, ids: Tensor) -> Tensor:
    """Return the vectors [N, H] of ids [N] in an embedding table [V, H], in 32 bits."""
    if isinstance(table, Quantised):
        return table.values[ids].float().mul_(table.scales[ids])
    return F.embedding(ids, table).float()


class Head:
    """The output matrix [V, H], in slices, so that memory holds few of its rows twice while it is loaded."""

    def __init__(self, weight: Weight, kind: matmul.Kind) -> None:
        self._n_tokens = len(_values(weight))
        starts = range(0, self._n_tokens, VOCABULARY_SLICE)
        self._slices = [matrix(_rows(weight, slice(start, start + VOCABULARY_SLICE)), kind) for start in starts]
        # What passes on a GPU multiply by; the slices are views of it. Other kinds have copies in their own layouts.
        self.whole = weight if kind in ("plain", "int8-weights") else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, V] in 32 bits."""
        inputs = Inputs(hidden)
        logits = torch.empty(len(hidden), self._n_tokens, device=hidden.device)
        for part, place in zip(self._slices, torch.split(logits, VOCABULARY_SLICE, 1), strict=True):
            # The logits of a large vocabulary are written only once.
            products, factors = part.unscaled(inputs)
            _ = place.copy_(products) if factors is None else torch.mul(products, factors, out=place)
        return logits


def layer_of(sizes: LlamaSizes, weights: Mapping[str, Weight], index: int, kind: matmul.Kind) -> Layer:
    """Return a layer's norms, and its projections in four matrices. `weights` has the library's names."""
    start = f"model.layers.{index}."

    def linear(*names: str, order: Tensor | None = None) -> Matrix:
        whole = _concatenated([for_kind(weights[f"{start}{name}.weight"], kind) for name in names])
        biases = [_wide(bias) for name in names if (bias := weights.get(f"{start}{name}.bias")) is not None]
        bias = torch.cat(biases) if biases else None
        if order is not None:
            order = order.to(_values(whole).device)
            whole, bias = _rows(whole, order), None if bias is None else bias[order]
        made = matrix(whole, kind)
        made.bias = bias
        return made

    def norm(name: str) -> Tensor:
        return norm_of(weights[f"{start}{name}.weight"], sizes)

    values = "self_attn.v_proj" if not sizes.gemma or sizes.gemma[index].has_values else "self_attn.k_proj"
    return Layer(
        norm("input_layernorm"),
        linear("self_attn.q_proj", "self_attn.k_proj", values, order=_in_pairs(sizes)),
        linear("self_attn.o_proj"),
        norm("pre_feedforward_layernorm" if sizes.gemma else "post_attention_layernorm"),
        linear("mlp.gate_proj", "mlp.up_proj"),
        linear("mlp.down_proj"),
        _gemma_norms(sizes, weights, start) if sizes.gemma else None,
    )


def _gemma_norms(sizes: LlamaSizes, weights: Mapping[str, Weight], start: str) -> GemmaNorms:
    """Return the other norms of a layer; raise CheckpointError unless a norm of zero weight disables its expert branch."""

    def norm(name: str) -> Tensor:
        return norm_of(weights[f"{start}{name}.weight"], sizes)

    if bool(norm("post_feedforward_layernorm_2").any()):
        raise CheckpointError("the model's layers have experts, so its encoder is no causal model for dg-lsp")
    pairs = _pairs(sizes)
    heads = [
        _wide(weights[f"{start}self_attn.q_norm.weight"])[pairs].expand(sizes.heads, -1),
        _wide(weights[f"{start}self_attn.k_norm.weight"])[pairs].expand(sizes.kv_heads, -1),
    ]
    values = torch.ones(sizes.kv_heads, sizes.head_dim, device=heads[0].device)
    return GemmaNorms(
        torch.cat([*heads, values]) * math.sqrt(sizes.head_dim),
        norm("post_attention_layernorm"),
        norm("post_feedforward_layernorm_1"),
        norm("post_feedforward_layernorm"),
        float(_wide(weights[f"{start}layer_scalar"])),
    )


def _in_pairs(sizes: LlamaSizes) -> Tensor:
    """Return the order of the rows of queries, keys and values: the two halves of each rotated pair are side by side."""
    n_rotated, n_values = ((sizes.heads + sizes.kv_heads) * sizes.head_dim), sizes.kv_heads * sizes.head_dim
    rotated = torch.arange(0, n_rotated, sizes.head_dim)[:, None] + _pairs(sizes)
    return torch.cat([rotated.reshape(-1), torch.arange(n_rotated, n_rotated + n_values)])


def _pairs(sizes: LlamaSizes) -> Tensor:
    return torch.arange(sizes.head_dim).view(2, -1).t().reshape(-1)


def rotations(sizes: LlamaSizes, n_positions: int, theta: float = 0.0, turned: float = 1.0) -> Tensor:
    """Return the complex rotation [P, D / 2] of each pair of a head at each position; only the share `turned` of them turns."""
    frequencies = 1.0 / (theta or sizes.theta) ** (torch.arange(0, sizes.head_dim, 2, dtype=torch.float) / sizes.head_dim)
    frequencies[int(turned * sizes.head_dim // 2) :] = 0.0
    angles = torch.arange(n_positions, dtype=torch.float)[:, None] * frequencies
    return torch.complex(angles.cos(), angles.sin())


def _values(weight: Weight) -> Tensor:
    return weight.values if isinstance(weight, Quantised) else weight


def _wide(weight: Weight) -> Tensor:
    return (weight.dense() if isinstance(weight, Quantised) else weight).float()


def norm_of(weight: Weight, sizes: LlamaSizes) -> Tensor:
    """Return a norm's weight [H] for hidden states that are divided by their length, not by the root of their mean square."""
    return _wide(weight) * math.sqrt(sizes.hidden)


def _rows(weight: Weight, rows: slice | Tensor) -> Weight:
    return Quantised(weight.values[rows], weight.scales[rows]) if isinstance(weight, Quantised) else weight[rows]


def _concatenated(parts: list[Weight]) -> Weight:
    if len(parts) == 1:
        return parts[0]
    narrow = [part for part in parts if isinstance(part, Quantised)]
    if narrow:
        return Quantised(torch.cat([part.values for part in narrow]), torch.cat([part.scales for part in narrow]))
    return torch.cat([_values(part) for part in parts])
