"""Compute both passes of a small dense model on a CPU with few large operations on packed weights, for inference only.

The time of a pass over a few tokens depends on the number of operations, not on their arithmetic. So projections of the
same input form one matrix, transposed once, and norm weights are multiplied into the next matrix. Heads are rotated as
complex numbers, which needs the rows of queries and keys in pairs. So the cached keys have another order than those of
`Passes`. A test checks that both passes equal the plain ones. Knows nothing of the tokens' meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dg_lsp.engine import passes
from dg_lsp.engine.passes import KV, Passes

MAX_BYTES = 512 << 20  # the most weights to store a second time


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights, transposed and packed. `heads` scales queries, keys and values after their norm."""

    queries_keys_values: Tensor  # [H, all heads * D]
    heads: Tensor  # [all heads, D]
    out: Tensor  # [query heads * D, H]
    after_attention: Tensor
    gate_up: Tensor  # [H, 2F]
    down: Tensor  # [F, H]
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
    """`Passes` on packed weights, which are a second copy of the model's own weights."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        with torch.no_grad():
            self._packed = [_pack(layer) for layer in self.decoder.layers]  # both stacks share them
            self._head = (model.lm_head.weight / model.final_logit_softcapping).t().contiguous()
            conditioning = self.decoder.self_conditioning
            self._conditioning_in = _packed(conditioning.pre_norm, conditioning.gate_proj, conditioning.up_proj)
            self._conditioning_out = conditioning.down_proj.weight.t().contiguous()
            self._scalars = {
                id(stack): [float(layer.layer_scalar) for layer in stack.layers] for stack in (self.encoder, self.decoder)
            }
        self._turns: dict[str, Tensor] = {}

    def logits(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        """Return the softcapped logits [..., V] in 32 bits, or only those of the tokens from `first` to `last`."""
        return torch.matmul(hidden, self._head[:, first:last]).tanh_().mul_(self.model.final_logit_softcapping)

    def soft(self, ids: Tensor, probabilities: Tensor) -> Tensor:
        """Return the embeddings [R, C, H] of the tokens `ids` [R, C, K] weighted by their probabilities [R, C, K]."""
        embed = self.decoder.embed_tokens
        k = ids.shape[-1]
        bags = F.embedding_bag(ids.reshape(-1, k), embed.weight, per_sample_weights=probabilities.reshape(-1, k), mode="sum")
        return bags.view(*ids.shape[:-1], -1).mul_(embed.embed_scale)

    def _condition(self, soft: Tensor) -> Tensor:
        return _feed(_rms(soft, self.decoder.self_conditioning.pre_norm.eps), self._conditioning_in, self._conditioning_out)

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
    ) -> tuple[Tensor, KV]:
        rows, length = hidden.shape[:2]
        hidden = hidden.reshape(rows * length, -1)
        last = int(positions.max())
        turns = {kind: self._turn(kind, positions, last, rows) for kind in set(self.kinds)}
        additive_masks = {kind: _additive_mask(masks[kind], groups) for kind, groups in self._groups.items()}
        kv: KV = []
        for index, (layer, packed) in enumerate(zip(stack.layers, self._packed, strict=True)):
            kind = self.kinds[index]
            eps = layer.input_layernorm.eps
            causal = not bidirectional and masks[kind] is None and length > 1
            before = past[index] if past else None
            attended, pair = _attend(
                packed, _rms(hidden, eps), turns[kind], before, additive_masks[kind], causal, rows, eps, with_room=with_room
            )
            hidden = hidden + _rms(attended @ packed.out, eps, packed.after_attention)
            fed = _rms(_feed(_rms(hidden, eps), packed.gate_up, packed.down), eps, packed.after_mlp)
            if self.expert[index]:
                fed = fed + passes.experts(layer, hidden)
            hidden = (hidden + _rms(fed, eps, packed.after_layer)) * self._scalars[id(stack)][index]
            kv.append(pair)
        return _rms(hidden, stack.norm.eps, stack.norm.weight).view(rows, length, -1), kv

    def _turn(self, kind: str, positions: Tensor, last: int, rows: int) -> Tensor:
        """Return the complex rotation of each pair of a head at each position: [R * T, 1, D / 2]."""
        table = self._turns.get(kind)
        if table is None or len(table) <= last:
            table_positions = torch.arange(max(1024, 2 * last))
            cos, sin = self.decoder.rotary_emb(self._head, table_positions[None], kind)
            half = cos.shape[-1] // 2
            table = self._turns[kind] = torch.complex(cos[0, :, None, :half].float(), sin[0, :, None, :half].float())
        turn = table[positions.reshape(-1)]
        return turn.repeat(rows, 1, 1) if len(positions) < rows else turn


def _attend(
    layer: _Layer,
    hidden: Tensor,
    turn: Tensor,
    past: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
    causal: bool,
    rows: int,
    eps: float,
    *,
    with_room: bool,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the attention output of each token [R * T, query heads * D], and the keys and values."""
    n_kv, size = layer.n_kv, layer.size
    heads = _rms((hidden @ layer.queries_keys_values).view(len(hidden), -1, size), eps, layer.heads)
    n_turned = heads.shape[1] - n_kv
    turned = torch.view_as_complex(heads[:, :n_turned].view(-1, n_turned, size // 2, 2)) * turn
    turned = torch.view_as_real(turned).view(rows, -1, n_turned, size)
    queries, keys = turned[:, :, : n_turned - n_kv], turned[:, :, n_turned - n_kv :].transpose(1, 2)
    values = heads[:, n_turned:].view(rows, -1, n_kv, size).transpose(1, 2)
    if past is not None and with_room:
        length = keys.shape[2]
        past[0][:, :, -length:], past[1][:, :, -length:] = keys, values
        keys, values = past
    elif past is not None:
        keys = torch.cat([past[0].expand(rows, -1, -1, -1), keys], dim=2)
        values = torch.cat([past[1].expand(rows, -1, -1, -1), values], dim=2)
    mixed = passes.attention_over(queries, keys, values, mask, layer.scaling, causal=causal)
    return mixed.reshape(len(hidden), -1), (keys, values)


def _feed(normed: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (normed @ gate_up).chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up) @ down


def _rms(hidden: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    scaled = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True).add_(eps))
    return scaled if weight is None else scaled.mul_(weight)


def _pack(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    size = attention.head_dim
    order = torch.arange(size).view(2, size // 2).t().reshape(-1)  # the two halves of each rotated pair, side by side
    norm = layer.input_layernorm.weight
    rows = [_paired(attention.q_proj.weight, size, order), _paired(attention.k_proj.weight, size, order)]
    rows.append((attention.k_proj if attention.v_proj is None else attention.v_proj).weight)
    n_queries, n_kv = len(rows[0]) // size, len(rows[1]) // size
    heads = [
        attention.q_norm.weight[order].expand(n_queries, -1),
        attention.k_norm.weight[order].expand(n_kv, -1),
        torch.ones(n_kv, size),
    ]
    return _Layer(
        (torch.cat(rows) * norm).t().contiguous(),
        torch.cat(heads).contiguous(),
        attention.o_proj.weight.t().contiguous(),
        layer.post_attention_layernorm.weight,
        _packed(layer.pre_feedforward_layernorm, mlp.gate_proj, mlp.up_proj),
        mlp.down_proj.weight.t().contiguous(),
        layer.post_feedforward_layernorm_1.weight,
        layer.post_feedforward_layernorm.weight,
        n_kv,
        size,
        float(attention.scaling),
    )


def _packed(norm: Any, *projections: Any) -> Tensor:
    """Return the projections after a norm as one transposed matrix that includes the norm's weight."""
    weight: Tensor = torch.cat([projection.weight for projection in projections]) * norm.weight
    return weight.t().contiguous()


def _paired(weight: Tensor, size: int, order: Tensor) -> Tensor:
    return weight.view(-1, size, weight.shape[1])[:, order].reshape(weight.shape)


def _projections(layer: Any) -> list[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    return [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


def _additive_mask(mask: Tensor | None, groups: int) -> Tensor | None:
    """Return a boolean mask as numbers to add to the scores, or None."""
    if mask is None:
        return None
    return passes.widened(torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf), groups)
