"""Llama, Qwen2 and Dream checkpoints and a small DiffusionGemma's encoder: their layers, and passes over one row of tokens.

The time of a pass over few tokens depends on the number of operations. So `weights.llama` joins matrices, and heads are
rotated as complex numbers. That needs the rows of queries and keys in pairs, so the cached keys have another order than the
library's. For inference only. Knows nothing of the tokens' meaning.

Shapes: N tokens, L slots of the keys, H hidden, D head dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dg_lsp.engine.model import cores, fit, matmul
from dg_lsp.engine.model.fit import LlamaSizes
from dg_lsp.engine.model.gpu import GpuPasses, Operations
from dg_lsp.engine.model.kv import KV, Tokens, copy_into, crop, zeros
from dg_lsp.engine.model.matmul import Inputs, Quantised, Weight, additive, attention_over, put
from dg_lsp.engine.model.recording import Buffers, Recorder
from dg_lsp.engine.model.weights.llama import GemmaNorms, Head, embedded, layer_of, norm_of, rotations

# The most queries times groups of one attention: from 768 on, torch's kernel takes blocks that do not fit the cache.
FOLDED = 480
FEW = 4  # tokens whose attention torch's kernel computes as fast as `attention_in_blocks`


class Llama:
    """The weights of one loaded model, and its passes (`kv.Encoder`). `buffers` are those of a GPU; None elsewhere.

    They equal those of transformers' `LlamaForCausalLM` and `Qwen2ForCausalLM`, and of the encoder of a small dense
    `DiffusionGemmaForBlockDiffusion`; a test checks it. A DiffusionGemma's layers have norms of heads and of each part's
    result, GELU in place of SiLU, and logits that are bounded (`GemmaNorms`).

    `weights` has the library's names. `kind` is the kind of the products. Besides the weights, the attributes are what follows
    from them and the sizes, because a pass over few tokens has no time to derive it again. `value_bytes` and `products_dtype`
    are those of `gemma.Passes`.
    """

    buffers: Buffers | None = None
    _gpu: GpuPasses | None = None

    def __init__(self, sizes: LlamaSizes, weights: Mapping[str, Weight], kind: matmul.Kind) -> None:
        self.sizes, self.kind, self.geometry = sizes, kind, sizes.geometry()
        self.n_vocabulary, self._groups = sizes.vocabulary, sizes.groups
        # Where heads are normed, their products need no other scale.
        self._scaling = 1.0 if sizes.gemma else sizes.head_dim**-0.5
        with torch.no_grad():
            table = weights["model.embed_tokens.weight"]
            if kind in matmul.NARROW and isinstance(table, Tensor):
                table = matmul.quantised(table.float())
            self._device = (table.values if isinstance(table, Quantised) else table).device
            self._embedding = table
            # A small model's logits are computed in 32 bits, which takes hardly longer.
            head_kind: matmul.Kind = "onednn" if sizes.gemma and kind == "onednn-bf16" else kind
            self._head = Head(table if sizes.tied else weights["lm_head.weight"], head_kind)
            # One layer after another, so that memory holds few of the weights twice.
            self.layers = [layer_of(sizes, weights, index, kind) for index in range(sizes.layers)]
            self._norm = norm_of(weights["model.norm.weight"], sizes)
            self._least, self._least_head = (
                torch.tensor((sizes.eps * n) ** 0.5, device=self._device) for n in (sizes.hidden, sizes.head_dim)
            )
        self.kv_dtype = torch.bfloat16 if kind == "int8-weights" else _kv_dtype(table)
        self.value_bytes = self.kv_dtype.itemsize
        names = {"int8": "int8", "onednn-bf16": "bfloat16"}
        self.products_dtype = names.get(kind, str(self.kv_dtype).removeprefix("torch."))
        self._in_blocks = self.kv_dtype is torch.bfloat16 and self._device.type == "cpu" and matmul.are_blocks_faster()
        self._tables = list(dict.fromkeys((one.theta, one.turned) for one in sizes.gemma)) or [(sizes.theta, 1.0)]
        self._table_of = [self._tables.index((one.theta, one.turned)) for one in sizes.gemma] or [0] * sizes.layers
        self._rotations = [torch.empty(0) for _ in self._tables]

    def n_bytes(self) -> int:
        wide: fit.Precision = "float32" if self.kv_dtype is torch.float32 else "bfloat16"
        return fit.weight_bytes(self.geometry, "int8" if self.kind in matmul.NARROW else wide)

    def use_buffers(self, chosen: Operations, free: Callable[[], int | None], recorder: Recorder | None) -> None:
        """Let passes be those of a GPU, in buffers. `free` returns the device's free bytes if known."""
        if self._head.whole is not None and not self.sizes.gemma:
            self._gpu = GpuPasses(self.sizes, self._embedding, self.layers, self._norm, self._head.whole, self.kv_dtype, chosen)
            self.buffers = Buffers(self._gpu, free, recorder)

    def logits(self, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            logits = (self._gpu or self._head).logits(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:-1], -1)
            return logits.div_(fit.SOFTCAP).tanh_().mul_(fit.SOFTCAP) if self.sizes.gemma else logits

    def store(self, n_slots: int) -> KV:
        return zeros(self.geometry, n_slots, self.kv_dtype, self._device)

    def fill(self, store: KV, kv: KV, first: int, positions: Sequence[int]) -> None:
        copy_into(kv, store, first)

    def pairs(self, store: KV) -> KV:
        return store

    def read(self, tokens: Tokens, store: KV) -> Tensor:
        slots, n_new, visible = tokens.slots, len(tokens.ids), tokens.visible
        assert isinstance(slots, slice)
        causal = visible is None and n_new > 1 and (slots.start == 0 or self.takes_blocks(n_new))
        if visible is None and n_new > 1 and not causal:
            visible = torch.arange(slots.stop, device=tokens.ids.device)[None] <= tokens.positions[:, None]
        return self._pass(tokens.ids, tokens.positions, crop(store, slots.stop), slots, visible, causal=causal)

    def read_both_ways(self, ids: Tensor) -> Tensor:
        """Return the last hidden states [N, H] of a text [N] in which each token sees all others."""
        positions, slots = torch.arange(len(ids), device=ids.device), slice(0, len(ids))
        return self._pass(ids, positions, self.store(len(ids)), slots, None, causal=False)

    @torch.no_grad()
    def _pass(self, ids: Tensor, positions: Tensor, kv: KV, slots: slice, visible: Tensor | None, *, causal: bool) -> Tensor:
        """Return the last hidden states [N, H] of tokens [N], whose keys and values go to their slots of `kv`.

        They see the `visible` [N, L] of all L slots, or if `causal`, all before their own.
        """
        length = len(ids)
        hidden = embedded(self._embedding, ids)
        if self.sizes.gemma:
            hidden = hidden * self.sizes.hidden**0.5
        tables = self._rotation(positions)
        in_blocks = self.takes_blocks(length)
        # Blocks add the mask to scores in 32 bits.
        mask = None if visible is None else visible[None, None]
        added = additive(mask, self._groups, torch.float32 if in_blocks else self.kv_dtype)
        # A text's first token has inputs that are a thousand times larger than the rest of its row, in a few places that are
        # the same for all texts. Every other token attends to it.
        n_fine = int(slots.start == 0)
        for index, layer in enumerate(self.layers):
            cores.before_layer(index)
            # In 16 bits, because rounding these inputs costs more in nats than the rest, and their products are the smallest.
            normed = self._normed(hidden, layer.before_attention, length)
            heads = layer.queries_keys_values.times(normed)
            queries, keys, values = self._split(heads, layer.gemma, tables[self._table_of[index]])
            keys, values = put(kv[index][0], slots, keys), put(kv[index][1], slots, values)
            mixed = self._attention(queries, keys, values, added, causal=causal, in_blocks=in_blocks)
            if (gemma := layer.gemma) is None:
                hidden = layer.out.times(Inputs(mixed), hidden)
                fed = layer.gate_up.fed(self._normed(hidden, layer.before_mlp), n_fine)
                hidden = layer.down.times(fed, hidden)
                continue
            hidden = hidden + self._normed(layer.out.times(Inputs(mixed)), gemma.after_attention).rows
            fed = layer.gate_up.fed(self._normed(hidden, layer.before_mlp), n_fine, gelu=True)
            mixed = self._normed(layer.down.times(fed), gemma.after_mlp).rows
            hidden = (hidden + self._normed(mixed, gemma.after_layer).rows) * gemma.scalar
        return self._normed(hidden, self._norm).rows

    def takes_blocks(self, length: int) -> bool:
        """Return whether the attention of so many tokens is computed in blocks."""
        return self._in_blocks and length > FEW

    def _attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, causal: bool, in_blocks: bool
    ) -> Tensor:
        """Return the attention of queries [1, N, heads, D] over keys and values [1, kv heads, L, D]: [N, heads * D]."""
        length, scaling, groups = queries.shape[1], self._scaling, self._groups
        if in_blocks:
            mixed = matmul.attention_in_blocks(queries, keys, values, scaling, mask, causal=causal)
            return mixed.reshape(length, -1)
        queries = queries.to(keys.dtype)
        most = FOLDED // groups
        if causal or length <= most:
            mixed = attention_over(queries, keys, values, mask, scaling, causal=causal)
        else:
            parts = []
            for start in range(0, length, most):
                own = None if mask is None else mask[:, :, start * groups : (start + most) * groups]
                parts.append(attention_over(queries[:, start : start + most], keys, values, own, scaling, causal=False))
            mixed = torch.cat(parts, 1)
        return mixed.reshape(length, -1).float()

    def _split(self, heads: Tensor, gemma: GemmaNorms | None, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [1, N, heads, D] and keys, and values, each [1, kv heads, N, D]."""
        sizes, length, n_rotated = self.sizes, len(heads), self.sizes.heads + self.sizes.kv_heads
        if gemma is not None:
            split = heads.view(len(heads), -1, sizes.head_dim)
            lengths = torch.hypot(torch.linalg.vector_norm(split, dim=-1, keepdim=True), self._least_head)
            heads = (split / lengths).mul_(gemma.heads).view(len(heads), -1)
        shape = (1, length, -1, sizes.head_dim)
        turning, values = torch.split(heads, [n_rotated * sizes.head_dim, sizes.kv_heads * sizes.head_dim], 1)
        pairs = torch.view_as_complex(turning.view(length, n_rotated, -1, 2)) * rotation
        queries, keys = torch.split(torch.view_as_real(pairs).view(shape), [sizes.heads, sizes.kv_heads], 2)
        return queries, keys.transpose(1, 2), values.view(shape).transpose(1, 2)

    def _normed(self, hidden: Tensor, weight: Tensor, n_fine: int = 0) -> Inputs:
        """Return the hidden states divided by the root of their mean square plus epsilon, times a weight of `norm_of`."""
        lengths = torch.hypot(torch.linalg.vector_norm(hidden, dim=-1, keepdim=True), self._least)
        return Inputs(hidden * weight, lengths.reciprocal(), n_fine)

    def _rotation(self, positions: Tensor) -> list[Tensor]:
        """Return the complex rotation of each pair of a head at each position, by each table: [N, 1, D / 2]."""
        last = int(positions.max())
        if len(self._rotations[0]) <= last:
            n_positions = max(1024, 2 * last)
            self._rotations = [rotations(self.sizes, n_positions, *table)[:, None].to(self._device) for table in self._tables]
        return [table[positions] for table in self._rotations]


def _kv_dtype(table: Weight) -> torch.dtype:
    """Return the type of keys and values: 16 bits where the weights are narrower than 32, and attention is faster so."""
    if isinstance(table, Quantised):
        return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    return table.dtype
