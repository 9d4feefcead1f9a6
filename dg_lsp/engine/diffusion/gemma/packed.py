"""Compute both passes of a small dense model on a CPU with few large operations on packed weights, for inference only.

The time of a pass over a few tokens depends on the number of operations, not on their arithmetic. So the projections to
queries, keys and values form one matrix, and norm weights are multiplied into the next matrix. `model.matmul` has the kernels.
Heads are rotated as complex numbers, which needs the rows of queries and keys in pairs. So the cached keys have another
order than those of `Passes`. A test checks that both passes equal the plain ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dg_lsp.engine.diffusion.gemma import passes
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model import matmul
from dg_lsp.engine.model.matmul import Kind, Matrix, additive, attention_over, with_rows
from dg_lsp.engine.model.prefix_cache import KV

MAX_BYTES = 512 << 20  # the most weights to store a second time


@dataclass(frozen=True, slots=True)
class _Layer:
    """All weights of one layer, in the form for their products. `heads` scales queries, keys and values after their norm."""

    queries_keys_values: Matrix  # [all heads * D, H]
    heads: Tensor  # [all heads, D]
    out: Matrix  # [H, query heads * D]
    after_attention: Tensor
    gate: Matrix  # [F, H]
    up: Matrix  # [F, H]
    down: Matrix  # [H, F]
    after_mlp: Tensor
    after_layer: Tensor
    n_kv: int
    size: int  # D
    scaling: float


def suits(model: Any) -> bool:
    """Return whether a model suits these passes: plain 32-bit weights on a CPU, of at most `MAX_BYTES`."""
    weights = [module for module in model.model.decoder.modules() if isinstance(module, nn.Linear)]
    plain = all(type(module.weight) is nn.Parameter and module.bias is None for module in weights)
    size = sum(module.weight.numel() * module.weight.element_size() for module in weights)
    first = model.lm_head.weight
    # A quantised projection is not a `Linear`, so the layer's count would be too low.
    n_expected = sum(7 - (layer.self_attn.v_proj is None) for layer in model.model.decoder.layers)
    n_actual = sum(isinstance(module, nn.Linear) for layer in model.model.decoder.layers for module in _projections(layer))
    return bool(
        plain and n_actual == n_expected and size <= MAX_BYTES and first.device.type == "cpu" and first.dtype is torch.float32
    )


class PackedPasses(Passes):
    """`Passes` on packed weights, which are a second copy of the model's own weights.

    `kind` is the kind of their products. The logits are always computed in 32 bits.
    """

    def __init__(self, model: Any, kind: Kind) -> None:
        super().__init__(model)
        self.kind = kind
        self.products_dtype = "bfloat16" if kind == "onednn-bf16" else "float32"
        with torch.no_grad():
            self._packed = [_pack(layer, self.kind) for layer in self.decoder.layers]  # both stacks share them
            head = model.lm_head.weight / model.final_logit_softcapping
            self._head: Matrix = matmul.matrix(head, "plain" if self.kind == "plain" else "onednn")
            self._conditioning = _feed_matrices(
                self.decoder.self_conditioning.pre_norm, self.decoder.self_conditioning, self.kind
            )
            self._scalars = {
                id(stack): [float(layer.layer_scalar) for layer in stack.layers] for stack in (self.encoder, self.decoder)
            }
        self._rotations: dict[str, Tensor] = {}

    def logits(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        if first or last is not None:
            return super().logits(hidden, first, last)
        flat = hidden.reshape(-1, hidden.shape[-1])
        ratios = self._head.tanh(with_rows(flat, matmul.padded(len(flat), self.kind)))[: len(flat)]
        return ratios.mul_(self.model.final_logit_softcapping).view(*hidden.shape[:-1], -1)

    def soft(self, ids: Tensor, probabilities: Tensor) -> Tensor:
        embed = self.decoder.embed_tokens
        k = ids.shape[-1]
        bags = F.embedding_bag(ids.reshape(-1, k), embed.weight, per_sample_weights=probabilities.reshape(-1, k), mode="sum")
        return bags.view(*ids.shape[:-1], -1).mul_(embed.embed_scale)

    def _condition(self, soft: Tensor) -> Tensor:
        flat = soft.reshape(-1, soft.shape[-1])
        normed = _rms(with_rows(flat, matmul.padded(len(flat), self.kind)), self.decoder.self_conditioning.pre_norm.eps)
        gate, up, down = self._conditioning
        return gate.feed(normed, up, down)[: len(flat)].view(soft.shape)

    def _layers(
        self,
        stack: Any,
        hidden: Tensor,
        positions: Tensor,
        past: KV | None,
        masks: dict[str, Tensor | None],
        *,
        bidirectional: bool = False,
        with_room: bool = False,
        places: Tensor | None = None,
    ) -> tuple[Tensor, KV]:
        assert places is None  # only the buffers of a GPU have them
        rows, length, size = hidden.shape
        n_tokens = rows * length
        hidden = with_rows(hidden.reshape(n_tokens, size), matmul.padded(n_tokens, self.kind))
        last = int(positions.max())
        rotations = {kind: with_rows(self._rotation(kind, positions, last, rows), len(hidden)) for kind in set(self.kinds)}
        additive_masks = {kind: additive(masks[kind], groups, torch.float32) for kind, groups in self._groups.items()}
        kv: KV = []
        for index, (layer, packed) in enumerate(zip(stack.layers, self._packed, strict=True)):
            kind = self.kinds[index]
            eps = layer.input_layernorm.eps
            causal = not bidirectional and masks[kind] is None and length > 1
            before = past[index] if past else None
            heads = _heads(packed, _rms(hidden, eps), rotations[kind], eps)
            if causal and before is None and rows == packed.n_kv == 1 and self.kind != "plain":
                attended, pair = _attend_causally(packed, heads, n_tokens)
            else:
                own = tuple(part[:n_tokens].view(rows, length, -1, packed.size) for part in heads)
                attended, pair = _attend(packed, own, before, additive_masks[kind], causal, self.kind, with_room=with_room)
                attended = with_rows(attended, len(hidden))
            hidden = hidden + _rms(packed.out.times(attended), eps, packed.after_attention)
            fed = _rms(packed.gate.feed(_rms(hidden, eps), packed.up, packed.down), eps, packed.after_mlp)
            if self.expert[index]:
                fed = fed + passes.experts(layer, hidden)
            hidden = (hidden + _rms(fed, eps, packed.after_layer)) * self._scalars[id(stack)][index]
            kv.append(pair)
        return _rms(hidden[:n_tokens], stack.norm.eps, stack.norm.weight).view(rows, length, -1), kv

    def _rotation(self, kind: str, positions: Tensor, last: int, rows: int) -> Tensor:
        """Return the complex rotation of each pair of a head at each position: [R * T, 1, D / 2]."""
        table = self._rotations.get(kind)
        if table is None or len(table) <= last:
            table_positions = torch.arange(max(1024, 2 * last))
            cos, sin = self.decoder.rotary_emb(self.decoder.norm.weight, table_positions[None], kind)
            half = cos.shape[-1] // 2
            table = self._rotations[kind] = torch.complex(cos[0, :, None, :half].float(), sin[0, :, None, :half].float())
        rotation = table[positions.reshape(-1)]
        return rotation.repeat(rows, 1, 1) if len(positions) < rows else rotation


def _heads(layer: _Layer, hidden: Tensor, rotation: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rotated queries and keys, and the values, of each token: [N, heads or kv heads, D]."""
    n_kv, size = layer.n_kv, layer.size
    heads = _rms(layer.queries_keys_values.times(hidden).view(len(hidden), -1, size), eps, layer.heads)
    n_rotated = heads.shape[1] - n_kv
    rotated = torch.view_as_complex(heads[:, :n_rotated].view(-1, n_rotated, size // 2, 2)) * rotation
    rotated = torch.view_as_real(rotated).view(-1, n_rotated, size)
    return rotated[:, : n_rotated - n_kv], rotated[:, n_rotated - n_kv :], heads[:, n_rotated:]


def _attend(
    layer: _Layer,
    heads: tuple[Tensor, ...],
    past: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
    causal: bool,
    products_kind: Kind,
    *,
    with_room: bool,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the attention of queries over keys and values [R, T, heads or kv heads, D], and all keys and values.

    The attention is [R * T, query heads * D].
    """
    queries, (rows, length) = heads[0], heads[0].shape[:2]
    keys, values = matmul.with_past(heads[1].transpose(1, 2), heads[2].transpose(1, 2), past, with_room=with_room)
    is_many = layer.n_kv == 1 and length * queries.shape[2] >= matmul.MIN_SCORES
    if products_kind != "plain" and is_many and mask is None and not causal:
        each = zip(queries, keys[:, 0], values[:, 0], strict=True)
        mixed = torch.stack([matmul.attention(*row, layer.scaling) for row in each])
    else:
        mixed = attention_over(queries, keys, values, mask, layer.scaling, causal=causal)
    return mixed.reshape(rows * length, -1), (keys, values)


def _attend_causally(layer: _Layer, heads: tuple[Tensor, ...], n_tokens: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the same as `_attend` for one row without a past; rows after `n_tokens` are added ones that no token sees."""
    queries, keys, values = heads
    mixed = matmul.causal_attention(queries, keys[:, 0], values[:, 0], layer.scaling)
    pair = keys[None, :n_tokens].transpose(1, 2), values[None, :n_tokens].transpose(1, 2)
    return mixed.flatten(1), pair


def _rms(hidden: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """Return the hidden states divided by the root of their mean square plus `eps`, by as few operations as possible."""
    size = hidden.shape[-1]
    lengths = torch.hypot(torch.linalg.vector_norm(hidden, dim=-1, keepdim=True), _least_length(eps, size))
    scaled = hidden / lengths.mul_(size**-0.5)
    return scaled if weight is None else scaled.mul_(weight)


@lru_cache(maxsize=8)
def _least_length(eps: float, size: int) -> Tensor:
    return torch.tensor(math.sqrt(eps * size))


def _pack(layer: Any, kind: Kind) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    size = attention.head_dim
    order = torch.arange(size).view(2, size // 2).t().reshape(-1)  # the two halves of each rotated pair, side by side
    rows = [_paired(attention.q_proj.weight, size, order), _paired(attention.k_proj.weight, size, order)]
    rows.append((attention.k_proj if attention.v_proj is None else attention.v_proj).weight)
    n_queries, n_kv = len(rows[0]) // size, len(rows[1]) // size
    heads = [
        attention.q_norm.weight[order].expand(n_queries, -1),
        attention.k_norm.weight[order].expand(n_kv, -1),
        torch.ones(n_kv, size),
    ]
    return _Layer(
        matmul.matrix(torch.cat(rows) * layer.input_layernorm.weight, kind),
        torch.cat(heads).contiguous(),
        matmul.matrix(attention.o_proj.weight, kind),
        layer.post_attention_layernorm.weight,
        *_feed_matrices(layer.pre_feedforward_layernorm, mlp, kind),
        layer.post_feedforward_layernorm_1.weight,
        layer.post_feedforward_layernorm.weight,
        n_kv,
        size,
        float(attention.scaling),
    )


def _feed_matrices(norm: Any, mlp: Any, kind: Kind) -> tuple[Matrix, Matrix, Matrix]:
    """Return the gate, up and down projections of a gated layer; the first two include the weight of the norm before."""
    scaled = (mlp.gate_proj.weight * norm.weight, mlp.up_proj.weight * norm.weight)
    return matmul.matrix(scaled[0], kind), matmul.matrix(scaled[1], kind), matmul.matrix(mlp.down_proj.weight, kind)


def _paired(weight: Tensor, size: int, order: Tensor) -> Tensor:
    return weight.view(-1, size, weight.shape[1])[:, order].reshape(weight.shape)


def _projections(layer: Any) -> list[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    return [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
