"""DiffusionGemma's two passes, computed with the weights that transformers loaded.

`Passes` reads a `DiffusionGemmaForBlockDiffusion` in place and computes what its encoder and decoder compute
(transformers 5.23, `modeling_diffusion_gemma.py`), so that the loop around it can do what the library's own forward
can't: keep full-length keys and values on every layer and crop them anywhere, take a sparse self-conditioning
signal, ask for the logits of a few positions only, and skip the vision tower and an expert branch that is switched
off. A test holds it equal to the library. Differentiable, so the trainer uses it too. Knows nothing of what tokens mean.

Shapes: R rows, C canvas positions, L encoder positions, H hidden, D head dimension, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KV = list[tuple[Tensor, Tensor]]  # per layer: keys and values, each [R or 1, kv heads, L, D]


class Passes:
    """The encoder's and the decoder's pass over one loaded model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config.text_config
        self.encoder, self.decoder = model.model.encoder.language_model, model.model.decoder
        self.kinds: list[str] = list(self.config.layer_types)
        self.window: int = self.config.sliding_window
        # A dense checkpoint switches its expert branch off with a norm of weight zero: the class has no other way.
        self.expert = [bool(layer.post_feedforward_layernorm_2.weight.any()) for layer in self.decoder.layers]

    def compile(self) -> None:
        """Compile both passes' layers; the first call of each shape then takes long."""
        # Few shapes, each met thousands of times: code for one shape is faster than code for any.
        self._layers = torch.compile(self._layers, dynamic=False)  # type: ignore[method-assign]

    def encode(self, ids: Tensor, past: KV | None = None) -> tuple[Tensor, KV]:
        """Return the last hidden states [R, L, H] of new tokens [R, L] and the keys and values of past and new together."""
        n_past, n_new = past[0][0].shape[2] if past else 0, ids.shape[1]
        positions = torch.arange(n_past, n_past + n_new, device=ids.device)
        masks: dict[str, Tensor | None] = {"full_attention": None, "sliding_attention": None}
        if n_past or n_past + n_new > self.window:
            keys = torch.arange(n_past + n_new, device=ids.device)
            seen = keys[None] <= positions[:, None]
            masks["full_attention"] = seen[None, None]
            masks["sliding_attention"] = (seen & (keys[None] > positions[:, None] - self.window))[None, None]
        hidden = self.encoder.embed_tokens(ids)
        return self._layers(self.encoder, hidden, positions[None], past, masks)

    def decode(
        self,
        canvas: Tensor,
        kv: KV,
        soft: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        with_room: bool = False,
    ) -> Tensor:
        """Return the decoder's last hidden states [R, C, H] for a canvas [R, C] that sees `kv` and itself.

        `soft` [R, C, H] is the self-conditioning signal: embeddings weighted by the last step's probabilities. `mask`
        is a boolean [R, 1, C, L + C]; without one everything is seen. A sliding layer sees the last window - 1
        encoder positions, as the library's cache keeps them. `with_room` says that the last C positions of `kv` are
        there to be written over by the canvas's own keys and values, at each pass anew.
        """
        n_past = kv[0][0].shape[2] - (canvas.shape[1] if with_room else 0)
        if positions is None:
            positions = torch.arange(n_past, n_past + canvas.shape[1], device=canvas.device)[None]
        hidden, conditioning = self.decoder.embed_tokens(canvas), self.decoder.self_conditioning
        if soft is not None:
            hidden = hidden + _mlp(conditioning, _norm(soft, conditioning.pre_norm))
        hidden = _norm(hidden, conditioning.post_norm)
        near, near_mask = kv, mask
        if (dropped := n_past - (self.window - 1)) > 0:
            near = [(keys[:, :, dropped:], values[:, :, dropped:]) for keys, values in kv]
            near_mask = None if mask is None else mask[..., dropped:]
        seen = [near[index] if kind == "sliding_attention" else kv[index] for index, kind in enumerate(self.kinds)]
        masks = {"full_attention": mask, "sliding_attention": near_mask}
        return self._layers(self.decoder, hidden, positions, seen, masks, bidirectional=True, with_room=with_room)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the softcapped logits [..., V] in 32 bits."""
        cap: float = self.model.final_logit_softcapping
        return torch.tanh(self.model.lm_head(hidden).float() / cap) * cap

    def soft(self, ids: Tensor, probabilities: Tensor) -> Tensor:
        """Return the embeddings [R, C, H] of the tokens `ids` [R, C, K] weighted by their probabilities [R, C, K]."""
        embed = self.decoder.embed_tokens
        vectors = F.embedding(ids, embed.weight)
        weighted = (vectors * probabilities[..., None].to(vectors.dtype)).sum(-2)
        scale: Tensor = embed.embed_scale
        return weighted * scale.to(vectors.dtype)

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
        rotary = {kind: stack.rotary_emb(hidden, positions, kind) for kind in set(self.kinds)}
        kv: KV = []
        for index, layer in enumerate(stack.layers):
            kind = self.kinds[index]
            normed = _norm(hidden, layer.input_layernorm)
            causal = not bidirectional and masks[kind] is None
            attended, keys, values = _attend(
                layer.self_attn, normed, rotary[kind], past[index] if past else None, masks[kind], causal, with_room=with_room
            )
            hidden = hidden + _norm(attended, layer.post_attention_layernorm)
            fed = _norm(_mlp(layer.mlp, _norm(hidden, layer.pre_feedforward_layernorm)), layer.post_feedforward_layernorm_1)
            if self.expert[index]:
                fed = fed + _experts(layer, hidden)
            hidden = (hidden + _norm(fed, layer.post_feedforward_layernorm)) * layer.layer_scalar
            kv.append((keys, values))
        return _norm(hidden, stack.norm), kv


def crop(kv: KV, length: int) -> KV:
    """Return the keys and values of the first `length` positions, as views."""
    return [(keys[:, :, :length], values[:, :, :length]) for keys, values in kv]


def widen(kv: KV, rows: int) -> KV:
    """Return one row's keys and values for `rows` rows, as views."""
    return [(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1)) for keys, values in kv]


def _attend(
    attention: Any,
    hidden: Tensor,
    rotary: tuple[Tensor, Tensor],
    past: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
    causal: bool,
    *,
    with_room: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, length = hidden.shape[:2]
    shape = (rows, length, -1, attention.head_dim)
    queries = _rotate(_norm(attention.q_proj(hidden).view(shape), attention.q_norm), rotary).transpose(1, 2)
    raw = attention.k_proj(hidden).view(shape)
    keys = _rotate(_norm(raw, attention.k_norm), rotary).transpose(1, 2)
    values = raw if attention.v_proj is None else attention.v_proj(hidden).view(shape)
    values = _norm(values, attention.v_norm).transpose(1, 2)
    if past is not None and with_room:
        past[0][:, :, -length:], past[1][:, :, -length:] = keys, values
        keys, values = past
    elif past is not None:
        keys = torch.cat([past[0].expand(rows, -1, -1, -1), keys], dim=2)
        values = torch.cat([past[1].expand(rows, -1, -1, -1), values], dim=2)
    mixed = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=causal, scale=attention.scaling, enable_gqa=True
    )
    return attention.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1)), keys, values


def _mlp(mlp: Any, hidden: Tensor) -> Tensor:
    return mlp.down_proj(F.gelu(mlp.gate_proj(hidden), approximate="tanh") * mlp.up_proj(hidden))  # type: ignore[no-any-return]


def _experts(layer: Any, hidden: Tensor) -> Tensor:
    flat = hidden.reshape(-1, hidden.shape[-1])
    _, weights, chosen = layer.router(flat)
    mixed = layer.experts(_norm(flat, layer.pre_feedforward_layernorm_2), chosen, weights)
    return _norm(mixed.reshape(hidden.shape), layer.post_feedforward_layernorm_2)


def _norm(hidden: Tensor, norm: Any) -> Tensor:
    wide = hidden.float() if hidden.dtype is torch.float32 or not torch.is_autocast_enabled("cpu") else hidden
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
    if norm.with_scale:
        scaled = scaled * norm.weight.to(scaled.dtype)
    return scaled.to(hidden.dtype)


def _rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotary
    left, right = heads.chunk(2, dim=-1)
    return heads * cos.unsqueeze(2) + torch.cat((-right, left), dim=-1) * sin.unsqueeze(2)
