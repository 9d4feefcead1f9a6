"""The layers of Llama, Qwen2 and Dream checkpoints and of a small DiffusionGemma's encoder, and one pass over them.

The time of a pass over few tokens depends on the number of operations. So `weights.llama` joins matrices, and heads are
rotated as complex numbers. That needs the rows of queries and keys in pairs, so the cached keys have another order than the
library's. Each kind of model says what a pass sees. For inference only. Knows nothing of the tokens' meaning.

Shapes: R rows, T tokens of a row, N = R * T, L slots of the keys, H hidden, D head dimension, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dg_lsp.engine.model import cores, fit, matmul
from dg_lsp.engine.model.fit import LlamaSizes
from dg_lsp.engine.model.kv import KV
from dg_lsp.engine.model.matmul import ALL, Inputs, Quantised, Weight, additive, attention_over, put
from dg_lsp.engine.model.weights.llama import GemmaNorms, Head, embedded, layer_of, norm_of, rotations

# The most queries times groups of one attention: from 768 on, torch's kernel takes blocks that do not fit the cache.
FOLDED = 480
FEW = 4  # tokens whose attention torch's kernel computes as fast as `attention_in_blocks`


class Llama:
    """The weights of one loaded model, and a pass over them.

    `weights` has the library's names. `kind` is the kind of the products. Besides the weights, its attributes are what follows
    from them and the sizes, because a pass over few tokens has no time to derive it again. `value_bytes` and `products_dtype`
    are those of `gemma.Passes`. A DiffusionGemma's layers have norms of heads and of each part's result, GELU in place of SiLU,
    and logits that are bounded (`GemmaNorms`).
    """

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

    def logits(self, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self._head.logits(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:-1], -1)
            return logits.div_(fit.SOFTCAP).tanh_().mul_(fit.SOFTCAP) if self.sizes.gemma else logits

    def _pass(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        kv: KV | None = None,
        slots: slice = ALL,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Return the last hidden states [R, T, H] of tokens [R, T] at positions [R or 1, T].

        The keys and values of a single row go to their slots of `kv`, all of which are read, if given.
        """
        rows, length = ids.shape
        hidden = embedded(self._embedding, ids.reshape(-1))
        if self.sizes.gemma:
            hidden = hidden * self.sizes.hidden**0.5
        tables = self._rotation(positions, rows)
        in_blocks = self.takes_blocks(length)
        # Blocks add the mask to scores in 32 bits.
        added = additive(mask, self._groups, torch.float32 if in_blocks else self.kv_dtype)
        # A text's first token has inputs that are a thousand times larger than the rest of its row, in a few places that are
        # the same for all texts. Every other token attends to it.
        fine = None if kv is not None and slots.start else slice(None, None, length)
        for index, layer in enumerate(self.layers):
            cores.before_layer(index)
            # In 16 bits, because rounding these inputs costs more in nats than the rest, and their products are the smallest.
            normed = self._normed(hidden, layer.before_attention, ALL)
            heads = layer.queries_keys_values.times(normed)
            queries, keys, values = self._split(heads, layer.gemma, tables[self._table_of[index]], rows, length)
            if kv is None:
                keys, values = keys.to(self.kv_dtype), values.to(self.kv_dtype)
            else:
                keys, values = put(kv[index][0], slots, keys), put(kv[index][1], slots, values)
            mixed = self._attention(queries, keys, values, added, causal=causal, in_blocks=in_blocks)
            if (gemma := layer.gemma) is None:
                hidden = layer.out.times(Inputs(mixed), hidden)
                fed = layer.gate_up.fed(self._normed(hidden, layer.before_mlp), fine)
                hidden = layer.down.times(fed, hidden)
                continue
            hidden = hidden + self._normed(layer.out.times(Inputs(mixed)), gemma.after_attention).rows
            fed = layer.gate_up.fed(self._normed(hidden, layer.before_mlp), fine, gelu=True)
            mixed = self._normed(layer.down.times(fed), gemma.after_mlp).rows
            hidden = (hidden + self._normed(mixed, gemma.after_layer).rows) * gemma.scalar
        return self._normed(hidden, self._norm).rows.view(rows, length, -1)

    def takes_blocks(self, length: int) -> bool:
        """Return whether the attention of so many tokens is computed in blocks."""
        return self._in_blocks and length > FEW

    def _attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, causal: bool, in_blocks: bool
    ) -> Tensor:
        """Return the attention of queries [R, T, heads, D] over keys and values [R, kv heads, L, D]: [N, heads * D]."""
        (rows, length), scaling, groups = queries.shape[:2], self._scaling, self._groups
        if in_blocks:
            mixed = matmul.attention_in_blocks(queries, keys, values, scaling, mask, causal=causal)
            return mixed.reshape(rows * length, -1)
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
        return mixed.reshape(rows * length, -1).float()

    def _split(
        self, heads: Tensor, gemma: GemmaNorms | None, rotation: Tensor, rows: int, length: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [R, T, heads, D] and keys, and values, each [R, kv heads, T, D]."""
        sizes, n_rotated = self.sizes, self.sizes.heads + self.sizes.kv_heads
        if gemma is not None:
            split = heads.view(len(heads), -1, sizes.head_dim)
            lengths = torch.hypot(torch.linalg.vector_norm(split, dim=-1, keepdim=True), self._least_head)
            heads = (split / lengths).mul_(gemma.heads).view(len(heads), -1)
        shape = (rows, length, -1, sizes.head_dim)
        turning, values = torch.split(heads, [n_rotated * sizes.head_dim, sizes.kv_heads * sizes.head_dim], 1)
        pairs = torch.view_as_complex(turning.view(rows * length, n_rotated, -1, 2)) * rotation
        queries, keys = torch.split(torch.view_as_real(pairs).view(shape), [sizes.heads, sizes.kv_heads], 2)
        return queries, keys.transpose(1, 2), values.view(shape).transpose(1, 2)

    def _normed(self, hidden: Tensor, weight: Tensor, fine: slice | None = None) -> Inputs:
        """Return the hidden states divided by the root of their mean square plus epsilon, times a weight of `norm_of`."""
        lengths = torch.hypot(torch.linalg.vector_norm(hidden, dim=-1, keepdim=True), self._least)
        return Inputs(hidden * weight, lengths.reciprocal(), fine)

    def _rotation(self, positions: Tensor, rows: int) -> list[Tensor]:
        """Return the complex rotation of each pair of a head at each position, by each table: [R * T, 1, D / 2]."""
        last, at = int(positions.max()), positions.reshape(-1)
        if len(self._rotations[0]) <= last:
            n_positions = max(1024, 2 * last)
            self._rotations = [rotations(self.sizes, n_positions, *table)[:, None].to(self._device) for table in self._tables]
        rotated = [table[at] for table in self._rotations]
        return [rotation.repeat(rows, 1, 1) for rotation in rotated] if len(positions) < rows else rotated


def _kv_dtype(table: Weight) -> torch.dtype:
    """Return the type of keys and values: 16 bits where the weights are narrower than 32, and attention is faster so."""
    if isinstance(table, Quantised):
        return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    return table.dtype
