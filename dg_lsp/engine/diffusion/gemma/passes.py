"""Compute DiffusionGemma's encoder and decoder passes with the weights of a loaded model.

`Passes` uses the weights of a `DiffusionGemmaForBlockDiffusion` in place and computes the same results as its encoder and
decoder (transformers 5.23, `modeling_diffusion_gemma.py`). It can do what the library's own forward can't: keep full-length
keys and values on every layer and crop them anywhere, take a sparse self-conditioning signal, compute the logits of a few
positions only, and skip the vision tower and a disabled expert branch. A test checks that it equals the library.

Shapes: R rows, C canvas positions, L encoder positions, H hidden, D head dimension, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dg_lsp.engine.diffusion.gemma import fused, quantised
from dg_lsp.engine.model import fit, memory
from dg_lsp.engine.model.kv import KV, Tokens, copy_into, crop, zeros
from dg_lsp.engine.model.matmul import attention_over, put, widened
from dg_lsp.engine.model.recording import ROWS, Buffers


class Store(NamedTuple):
    """The keys and values of a room, and the positions of their tokens, which decide what a sliding window shows."""

    kv: KV
    positions: Tensor


class Passes:
    """The encoder passes (`recording.FixedPasses`) and the decoder pass of one loaded model.

    `buffers` are those of a GPU; None elsewhere. `n_vocabulary` is the number of logits, which may exceed that of the
    tokenizer's tokens; `value_bytes` are those of one number in the keys and values; `products_dtype` is the precision of the
    products with the weights, which may be narrower than that of the weights.
    """

    buffers: Buffers | None = None
    most_rows = sys.maxsize  # a pass of many tokens reads each expert once, recorded or not

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config.text_config
        self.encoder, self.decoder = model.model.encoder.language_model, model.model.decoder
        self.kinds: list[str] = list(self.config.layer_types)
        self.window: int = self.config.sliding_window
        # The number of queries that share a key; the same in all layers of a kind.
        self._groups = {
            kind: layer.self_attn.num_key_value_groups for kind, layer in zip(self.kinds, self.decoder.layers, strict=True)
        }
        # A dense checkpoint disables its expert branch with a norm of zero weight. The library's class has no other way.
        self.expert = [bool(layer.post_feedforward_layernorm_2.weight.any()) for layer in self.decoder.layers]
        self.geometry, embedding = fit.of_config(model.config.to_dict()), self.decoder.embed_tokens.weight
        self.n_vocabulary: int = model.lm_head.weight.shape[0]
        self.value_bytes: int = embedding.element_size()
        self.device, self.hidden_dtype, self.n_hidden = embedding.device, embedding.dtype, int(self.config.hidden_size)
        self.products_dtype = str(embedding.dtype).removeprefix("torch.")

    def n_bytes(self) -> int:
        """Return the bytes of the weights and buffers; shared ones count once."""
        return quantised.n_bytes(self.model)

    def decode(self, canvas: Tensor, kv: KV, soft: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Return the decoder's last hidden states [R, C, H] for a canvas [R, C], whose keys and values go to the end of `kv`.

        `soft` [R, C, H] is the self-conditioning signal: embeddings weighted by the last step's probabilities. `mask` is a
        boolean [R, 1, C, L + C]. A sliding layer sees the last window - 1 encoder positions, like the library's cache.
        """
        dropped = max(0, kv[0][0].shape[2] - canvas.shape[1] - (self.window - 1))
        near = [(keys[:, :, dropped:], values[:, :, dropped:]) for keys, values in kv]
        kv_by_layer = [near[index] if kind == "sliding_attention" else kv[index] for index, kind in enumerate(self.kinds)]
        masks: dict[str, Tensor | None] = {"full_attention": mask, "sliding_attention": mask[..., dropped:]}
        conditioning = self.decoder.self_conditioning
        condition = _mlp(conditioning, _norm(soft, conditioning.pre_norm))
        hidden = _norm(self.decoder.embed_tokens(canvas) + condition, conditioning.post_norm)
        return self._layers(self.decoder, hidden, positions, kv_by_layer, slice(-canvas.shape[1], None), masks)

    def logits(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        cap: float = self.model.final_logit_softcapping
        raw = F.linear(hidden, self.model.lm_head.weight[first:last]).float()
        return raw.div_(cap).tanh_().mul_(cap)  # the logits of a large vocabulary must be in memory only once

    def soft(self, ids: Tensor, probabilities: Tensor) -> Tensor:
        """Return the embeddings [R, C, H] of the tokens `ids` [R, C, K] weighted by their probabilities [R, C, K]."""
        embed = self.decoder.embed_tokens
        vectors = F.embedding(ids, embed.weight)
        weighted = (vectors * probabilities[..., None].to(vectors.dtype)).sum(-2)
        scale: Tensor = embed.embed_scale
        return weighted * scale.to(vectors.dtype)

    def read(self, tokens: Tokens, store: Store) -> Tensor:
        """Do what `recording.Encoder` says. A layer with a sliding window sees as many positions before a token's own."""
        slots, positions, visible = tokens.slots, tokens.positions, tokens.visible
        if isinstance(slots, slice):
            keys, kv = store.positions[: slots.stop], crop(store.kv, slots.stop)
            keys[slots] = positions
            if visible is None and (slots.start or len(keys) > self.window):
                visible = keys[None] <= positions[:, None]
        else:
            keys, kv = store.positions.index_copy_(0, slots, positions), store.kv
        masks: dict[str, Tensor | None] = {"full_attention": None, "sliding_attention": None}
        if visible is not None:
            near = visible if len(keys) < self.window else visible & (keys[None] > positions[:, None] - self.window)
            masks = {"full_attention": visible[None, None], "sliding_attention": near[None, None]}
        hidden = self.encoder.embed_tokens(tokens.ids)[None]
        return self._layers(self.encoder, hidden, positions[None], kv, slots, masks)[0]

    def store(self, n_slots: int) -> Store:
        kv = zeros(self.geometry, n_slots, self.hidden_dtype, self.device)
        return Store(kv, torch.zeros(n_slots, dtype=torch.long, device=self.device))

    def store_bytes(self, n_slots: int) -> int:
        """Return the bytes of a store, and of what a pass over it needs."""
        cost = memory.cost(self)
        of_rows = ROWS[-1] * (cost.canvas_token - cost.logit_token + n_slots * memory.MASK_BYTES)
        return n_slots * cost.prefix_token + of_rows

    def fill(self, store: Store, kv: KV, first: int, positions: Sequence[int]) -> None:
        store.positions[first : first + len(positions)] = torch.tensor(positions, dtype=torch.long, device=self.device)
        copy_into(kv, store.kv, first)

    def pairs(self, store: Store) -> KV:
        return store.kv

    def _layers(
        self, stack: Any, hidden: Tensor, positions: Tensor, kv: KV, slots: slice | Tensor, masks: dict[str, Tensor | None]
    ) -> Tensor:
        rotary = {kind: _signed(*stack.rotary_emb(hidden, positions, kind)) for kind in set(self.kinds)}
        masks = {kind: widened(masks[kind], groups) for kind, groups in self._groups.items()}
        for index, layer in enumerate(stack.layers):
            kind = self.kinds[index]
            normed = _norm(hidden, layer.input_layernorm)
            attended = _attend(layer.self_attn, normed, rotary[kind], kv[index], slots, masks[kind])
            hidden = hidden + _norm(attended, layer.post_attention_layernorm)
            fed = _norm(_mlp(layer.mlp, _norm(hidden, layer.pre_feedforward_layernorm)), layer.post_feedforward_layernorm_1)
            if self.expert[index]:
                fed = fed + experts(layer, hidden)
            hidden = (hidden + _norm(fed, layer.post_feedforward_layernorm)) * layer.layer_scalar
        return _norm(hidden, stack.norm)


def _attend(
    attention: Any,
    hidden: Tensor,
    rotary: tuple[Tensor, Tensor],
    kv: tuple[Tensor, Tensor],
    slots: slice | Tensor,
    mask: Tensor | None,
) -> Tensor:
    rows, length = hidden.shape[:2]
    shape = (rows, length, -1, attention.head_dim)
    queries = _rotate(_norm(attention.q_proj(hidden).view(shape), attention.q_norm), rotary)
    raw = attention.k_proj(hidden).view(shape)
    keys = _rotate(_norm(raw, attention.k_norm), rotary).transpose(1, 2)
    values = raw if attention.v_proj is None else attention.v_proj(hidden).view(shape)
    values = _norm(values, attention.v_norm).transpose(1, 2)
    keys, values = put(kv[0], slots, keys), put(kv[1], slots, values)
    mixed = attention_over(queries, keys, values, mask, attention.scaling, causal=mask is None)
    return attention.o_proj(mixed.reshape(rows, length, -1))  # type: ignore[no-any-return]


def _mlp(mlp: Any, hidden: Tensor) -> Tensor:
    return mlp.down_proj(F.gelu(mlp.gate_proj(hidden), approximate="tanh") * mlp.up_proj(hidden))  # type: ignore[no-any-return]


def experts(layer: Any, hidden: Tensor) -> Tensor:
    """Return the output of a layer's experts for each token [R, T, H]."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    expert_ids, weights = _routing(layer.router, flat)
    normed, bank = _norm(flat, layer.pre_feedforward_layernorm_2), layer.experts
    mixed = None
    if not isinstance(bank, quantised.NarrowExperts):
        mixed = fused.experts(normed, expert_ids, weights, fused.Bank(bank.gate_up_proj), fused.Bank(bank.down_proj))
    if mixed is None:
        mixed = bank(normed, expert_ids, weights)
    return _norm(mixed.reshape(hidden.shape), layer.post_feedforward_layernorm_2)


def _routing(router: Any, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Return the experts [T, K] of each token [T, H], and their weights [T, K] in 32 bits.

    The library normalises the probabilities of all experts first. The weights are the same, in fewer operations.
    """
    scores = router.proj(_norm(flat, router.norm) * router.scale * router.scalar_root_size)
    best, expert_ids = scores.float().topk(router.config.top_k_experts, dim=-1)
    return expert_ids, best.softmax(-1) * router.per_expert_scale[expert_ids]


def _norm(hidden: Tensor, norm: Any) -> Tensor:
    if hidden.is_cuda:  # one kernel instead of nine
        return F.rms_norm(hidden, hidden.shape[-1:], norm.weight if norm.with_scale else None, norm.eps)
    wide = hidden.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
    if norm.with_scale:
        scaled = scaled * norm.weight.float()
    return scaled.to(hidden.dtype)


def _signed(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [R, L, 1, D], with the sign of the rotation in the first half of the sines."""
    first, second = sin.chunk(2, dim=-1)
    return cos.unsqueeze(2), torch.cat((-first, second), dim=-1).unsqueeze(2)


def _rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotary
    return heads * cos + heads.roll(heads.shape[-1] // 2, -1) * sin
