"""DiffusionGemma's mathematics for a small text-only, dense checkpoint, without what such a checkpoint never uses.

Reads the weights of a `DiffusionGemmaForBlockDiffusion` in place and computes what its encoder and decoder compute
(transformers 5.23, `modeling_diffusion_gemma.py`), less the vision tower, the mixture-of-experts branch that a dense
checkpoint has switched off (its output norm is zero), the mask construction and the 32-bit detours of each norm.
A test holds it equal to the library. Differentiable, so the trainer uses it too. Knows nothing of tokens' meaning.

Shapes: B rows, C canvas positions, L encoder positions, H hidden, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KV = list[tuple[Tensor, Tensor]]  # per layer: keys and values, each [B, kv heads, L, D]


def is_lean(model: Any) -> bool:
    """Return whether the checkpoint is dense: every expert branch ends in a norm whose weight is zero."""
    layers = model.model.decoder.layers
    return all(not layer.post_feedforward_layernorm_2.weight.any() for layer in layers)


def encode(model: Any, ids: Tensor, positions: Tensor, past: KV | None = None, mask: Tensor | None = None) -> tuple[Tensor, KV]:
    """Return the last hidden states [B, L, H] and the keys and values of past and new tokens together.

    `mask` is a boolean [B or 1, 1, L, past + L]; without one and without a past the pass is causal.
    """
    text = model.model.encoder.language_model
    hidden = text.embed_tokens(ids)
    causal = mask is None and past is None
    if mask is None and past is not None:
        n_past, n_new = past[0][0].shape[2], ids.shape[1]
        mask = torch.ones(n_new, n_past + n_new, dtype=torch.bool, device=ids.device).tril(n_past)[None, None]
    return _layers(text, model.config.text_config, hidden, positions, past, mask, causal=causal)


def decode(
    model: Any, canvas: Tensor, positions: Tensor, kv: KV, soft: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Return the decoder's last hidden states [B, C, H] for a canvas [B, C] that sees all of `kv`.

    `soft` [B, C, H] is the self-conditioning signal, embeddings weighted by the last step's probabilities.
    """
    text = model.model.decoder
    hidden = text.embed_tokens(canvas)
    conditioning = text.self_conditioning
    if soft is not None:
        hidden = hidden + _mlp(conditioning, _norm(soft, conditioning.pre_norm))
    hidden = _norm(hidden, conditioning.post_norm)
    return _layers(text, model.config.text_config, hidden, positions, kv, mask, causal=False)[0]


def logits(model: Any, hidden: Tensor) -> Tensor:
    """Return the softcapped logits [..., V] in 32 bits."""
    cap: float = model.final_logit_softcapping
    return torch.tanh(model.lm_head(hidden).float() / cap) * cap


def _layers(
    text: Any, config: Any, hidden: Tensor, positions: Tensor, past: KV | None, mask: Tensor | None, *, causal: bool
) -> tuple[Tensor, KV]:
    rotary = {kind: text.rotary_emb(hidden, positions, kind) for kind in set(config.layer_types)}
    kv: KV = []
    for index, layer in enumerate(text.layers):
        cos, sin = rotary[config.layer_types[index]]
        attended, keys, values = _attend(
            layer.self_attn, _norm(hidden, layer.input_layernorm), cos, sin, past[index] if past else None, mask, causal=causal
        )
        hidden = hidden + _norm(attended, layer.post_attention_layernorm)
        fed = _mlp(layer.mlp, _norm(hidden, layer.pre_feedforward_layernorm))
        fed = _norm(_norm(fed, layer.post_feedforward_layernorm_1), layer.post_feedforward_layernorm)
        hidden = hidden + fed
        if not _is_one(layer):
            hidden = hidden * layer.layer_scalar
        kv.append((keys, values))
    return _norm(hidden, text.norm), kv


def _attend(
    attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows, length = hidden.shape[:2]
    shape = (rows, length, -1, attention.head_dim)
    queries = _rotate(_norm(attention.q_proj(hidden).view(shape), attention.q_norm), cos, sin).transpose(1, 2)
    raw = attention.k_proj(hidden).view(shape)
    keys = _rotate(_norm(raw, attention.k_norm), cos, sin).transpose(1, 2)
    values = raw if attention.v_proj is None else attention.v_proj(hidden).view(shape)
    values = _norm(values, attention.v_norm).transpose(1, 2)
    if past is not None:
        keys = torch.cat([past[0].expand(rows, -1, -1, -1), keys], dim=2)
        values = torch.cat([past[1].expand(rows, -1, -1, -1), values], dim=2)
    mixed = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=causal, scale=attention.scaling, enable_gqa=True
    )
    return attention.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1)), keys, values


def _mlp(mlp: Any, hidden: Tensor) -> Tensor:
    return mlp.down_proj(F.gelu(mlp.gate_proj(hidden), approximate="tanh") * mlp.up_proj(hidden))  # type: ignore[no-any-return]


def _norm(hidden: Tensor, norm: Any) -> Tensor:
    scaled = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + norm.eps)
    return scaled * norm.weight.to(scaled.dtype) if norm.with_scale else scaled


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = heads.chunk(2, dim=-1)
    return heads * cos.unsqueeze(2) + torch.cat((-right, left), dim=-1) * sin.unsqueeze(2)


def _is_one(layer: Any) -> bool:
    return float(layer.layer_scalar) == 1.0
