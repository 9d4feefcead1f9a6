"""Compute the passes of SmolLM2, Llama, Qwen2 and Qwen2.5-Coder checkpoints, for inference only.

The causal pass equals that of transformers' `LlamaForCausalLM` and `Qwen2ForCausalLM`; a test checks it. A canvas pass sees
the prefix's keys and values and its own positions in both directions. An optional low-rank adapter acts there only, so the
causal pass stays exactly that of the pretrained model. Position i predicts token i + 1 in both passes.
Published models of masks, such as Open-dCoder, attend in both directions to everything: their canvas is the whole text.

As in `packed`, the time of a pass over few tokens depends on the number of operations: the projections to queries, keys and
values form one matrix, gate and up another, and heads are rotated as complex numbers, which needs the rows of queries and
keys in pairs. So the cached keys have another order than the library's. Knows nothing of the tokens' meaning.

Shapes: R rows, T tokens of a row, N = R * T, L encoder positions, H hidden, D head dimension, F feed-forward, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dg_lsp.engine.model import int8, products
from dg_lsp.engine.model.family import KV
from dg_lsp.engine.model.fit.geometry import PROJECTIONS, LlamaSizes
from dg_lsp.engine.model.fit.needs import VOCABULARY_SLICE
from dg_lsp.engine.model.int8 import Int8Matrix, Quantised, QuantisedRows
from dg_lsp.engine.model.passes import attention_over, widened
from dg_lsp.engine.model.products import OneDnnMatrix, with_rows

Weight = Tensor | Quantised
# The most queries times groups of one attention: from 768 on, torch's kernel takes blocks that do not fit the cache.
FOLDED = 480
FEW = 4  # tokens whose attention torch's kernel computes as fast as `attention_in_blocks`
BLOCK = 64  # rows of the feed-forward that are gated and quantised at once; the fastest of 16, 32, 64, 128 and 256
ALL = slice(None)  # rows
FUSED = ("qkv", "o", "gu", "d")  # the letters of the projections in each of a layer's fused matrices


class Matrix(Protocol):
    """A weight matrix [O, I] in the form that its products need."""

    def times(self, inputs: Inputs, more: Tensor | None = None) -> Tensor:
        """Return the products [N, O] of inputs [N, I] in 32 bits, plus `more` [O] or [N, O]."""

    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return numbers [N, O], and the factors [N, 1] by which they become the products, or None for one."""

    def n_bytes(self) -> int:
        """Return the bytes of the weights."""


class Inputs:
    """Rows [N, I] in 32 bits, to multiply by `factors` [N, 1].

    They are quantised once, for all matrices in 8 bits that read them. A factor changes only the scale of a quantised row, so
    the rows themselves are multiplied only if a matrix needs them wide. The `fine` rows are quantised in 16 bits: 8 bits, and
    8 bits of the remainder as another row at the end.
    """

    def __init__(self, rows: Tensor, factors: Tensor | None = None, fine: slice | None = None) -> None:
        self._rows, self._factors, self.fine = rows, factors, fine
        self.n_rows = rows.shape[0]  # `len` of a tensor takes as long as a small operation
        self._quantised: QuantisedRows | None = None

    @property
    def rows(self) -> Tensor:
        """The rows in 32 bits, times their factors."""
        if self._factors is not None:
            self._rows, self._factors = self._rows * self._factors, None
        return self._rows

    @property
    def quantised(self) -> QuantisedRows:
        """The rows in 8 bits."""
        if self._quantised is None:
            values, scales = int8.quantised_rows(self._rows)
            if self.fine is not None:
                more = int8.remainders(*(_of(one, self.fine) for one in (self._rows, values, scales)))
                if self._factors is not None:
                    more.scales.mul_(_of(self._factors, self.fine))
            if self._factors is not None:
                scales.mul_(self._factors)
            if self.fine is not None:
                values, scales = torch.cat([values, more.values]), torch.cat([scales, more.scales])
            self._quantised = QuantisedRows(values, scales)
        return self._quantised


def _of(rows: Tensor, some: slice) -> Tensor:
    """Return some rows. An index that takes all of them is a small operation too."""
    return rows if some == ALL else rows[some]


class JoinedInputs(Inputs):
    """Blocks of rows that were made one after another, because the steps of a block find it in the processor's cache."""

    def __init__(self, blocks: Sequence[Inputs], fine: slice | None) -> None:
        self._blocks, self.fine, self.n_rows = blocks, fine, sum(block.n_rows for block in blocks)

    @property
    def rows(self) -> Tensor:
        """The rows in 32 bits, times their factors."""
        return torch.cat([block.rows for block in self._blocks])

    @property
    def quantised(self) -> QuantisedRows:
        """The rows in 8 bits, and the remainders of the fine ones."""
        parts = [(block.quantised, block.n_rows) for block in self._blocks]
        values = [part.values[:n] for part, n in parts] + [part.values[n:] for part, n in parts]
        scales = [part.scales[:n] for part, n in parts] + [part.scales[n:] for part, n in parts]
        return QuantisedRows(torch.cat(values), torch.cat(scales))


class WideMatrix:
    """A matrix for torch's own product, on any device."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def times(self, inputs: Inputs, more: Tensor | None = None) -> Tensor:
        """Return the products [N, O] of inputs [N, I] in 32 bits, plus `more` [O] or [N, O]."""
        result = F.linear(inputs.rows.to(self.weight.dtype), self.weight).float()
        return result if more is None else result + more

    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return the products [N, O] of inputs [N, I], and None."""
        return self.times(inputs), None

    def n_bytes(self) -> int:
        """Return the bytes of the weights."""
        return self.weight.numel() * self.weight.element_size()


class ByRow:
    """A matrix in 8 bits, with scales by row for its inputs."""

    def __init__(self, weight: Quantised) -> None:
        self._matrix = Int8Matrix(weight)

    def times(self, inputs: Inputs, more: Tensor | None = None) -> Tensor:
        """Return the products [N, O] of inputs [N, I] in 32 bits, plus `more` [O] or [N, O]."""
        rows = inputs.quantised
        result = self._matrix.times(rows)
        if inputs.fine is not None:
            result.mul_(rows.scales)
            whole, remainders = result[: inputs.n_rows], result[inputs.n_rows :]
            _of(whole, inputs.fine).add_(remainders)
            return whole if more is None else whole + more
        return result.mul_(rows.scales) if more is None else torch.addcmul(more, result, rows.scales)

    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return the products [N, O] of inputs [N, I] without the scales of the inputs, and these scales [N, 1]."""
        rows = inputs.quantised
        return self._matrix.times(rows), rows.scales

    def n_bytes(self) -> int:
        """Return the bytes of the weights."""
        return self._matrix.n_bytes()


class OneDnn:
    """A matrix in oneDNN's layout, in 32 or 16 bits."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self._matrix = OneDnnMatrix(weight, dtype)
        self._n_bytes = weight.numel() * dtype.itemsize

    def times(self, inputs: Inputs, more: Tensor | None = None) -> Tensor:
        """Return the products [N, O] of inputs [N, I] in 32 bits, plus `more` [O] or [N, O]."""
        result = self.unscaled(inputs)[0]
        return result if more is None else result.add_(more)

    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return the products [N, O] of inputs [N, I], and None."""
        rows = inputs.rows
        # oneDNN generates code for each number of rows, which takes longer than a small product.
        return self._matrix.times(with_rows(rows, products.padded(len(rows), "onednn")))[: len(rows)], None

    def n_bytes(self) -> int:
        """Return the bytes of the weights."""
        return self._n_bytes


def matrix(weight: Weight, kind: products.Kind) -> Matrix:
    """Return a weight matrix [O, I] in the form for this kind of product."""
    if kind == "int8":
        return ByRow(weight if isinstance(weight, Quantised) else int8.quantised(weight.float()))
    wide = weight.dense() if isinstance(weight, Quantised) else weight
    if kind == "plain":
        return WideMatrix(wide)
    return OneDnn(wide, torch.bfloat16 if kind == "onednn-bf16" else torch.float32)


class Adapted(Protocol):
    """A fused matrix [O, I] with its part of an adapter."""

    def times(self, matrix: Matrix, inputs: Inputs, more: Tensor | None) -> Tensor:
        """Return the adapted matrix's products [N, O] of inputs [N, I] in 32 bits, plus `more` [O] or [N, O]."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The sum of a matrix and its part of an adapter, so that adapted rows cost what others do."""

    merged: Matrix

    def times(self, matrix: Matrix, inputs: Inputs, more: Tensor | None) -> Tensor:
        """Return the sum's products [N, O] of inputs [N, I], plus `more` [O] or [N, O]."""
        return self.merged.times(inputs, more)


@dataclass(frozen=True, slots=True)
class Linear:
    """One matrix of a layer, with its bias, and its part of the adapter."""

    matrix: Matrix
    bias: Tensor | None = None
    adapted: Adapted | None = None

    def times(self, inputs: Inputs, *, adapted: bool) -> Tensor:
        """Return the products [N, O] of inputs [N, I]."""
        if adapted and self.adapted is not None:
            return self.adapted.times(self.matrix, inputs, self.bias)
        return self.matrix.times(inputs, self.bias)

    def added(self, hidden: Tensor, inputs: Inputs, *, adapted: bool) -> Tensor:
        """Return the hidden states [N, O] plus the products of inputs [N, I]."""
        more = hidden if self.bias is None else hidden + self.bias
        if adapted and self.adapted is not None:
            return self.adapted.times(self.matrix, inputs, more)
        return self.matrix.times(inputs, more)

    def feed(self, inputs: Inputs, fine: slice | None, *, adapted: bool) -> Inputs:
        """Return SiLU of the first half of the products, times the second half: [N, O / 2], with `fine` rows."""
        if adapted or self.bias is not None:
            result, factors = self.times(inputs, adapted=adapted), None
        else:
            result, factors = self.matrix.unscaled(inputs)
        if factors is None or result.shape[0] <= BLOCK:
            return _gated(result, factors, fine)
        blocks = []
        for start in range(0, result.shape[0], BLOCK):
            own = None if fine is None else slice(-start % fine.step, None, fine.step)
            blocks.append(_gated(result[start : start + BLOCK], factors[start : start + BLOCK], own))
        return JoinedInputs(blocks, fine)


def _gated(gate_up: Tensor, factors: Tensor | None, fine: slice | None) -> Inputs:
    gate, up = gate_up.chunk(2, dim=1)
    # The factor of `up` remains one of the result.
    gated = F.silu(gate) if factors is None else F.silu(gate * factors, inplace=True)
    return Inputs(gated.mul_(up), factors, fine)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights."""

    before_attention: Tensor
    queries_keys_values: Linear  # [(heads + 2 * kv heads) * D, H]
    out: Linear  # [H, heads * D]
    before_mlp: Tensor
    gate_up: Linear  # [2 * F, H]
    down: Linear  # [H, F]


class Embedding:
    """The embedding table [V, H], in 8 bits or wide, and the vectors of the canvas's own tokens after it."""

    def __init__(self, table: Weight, more: Tensor | None = None) -> None:
        self.table, self.more = table, more
        self.n_tokens = len(table.values if isinstance(table, Quantised) else table)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the vectors [N, H] of ids [N], in 32 bits."""
        own = ids if self.more is None else ids.clamp(max=self.n_tokens - 1)
        if isinstance(self.table, Quantised):
            vectors = self.table.values[own].float().mul_(self.table.scales[own])
        else:
            vectors = F.embedding(own, self.table).float()
        if self.more is None:
            return vectors
        extra = self.more[(ids - self.n_tokens).clamp(min=0)]
        return torch.where((ids >= self.n_tokens)[:, None], extra, vectors)

    def n_bytes(self) -> int:
        """Return the bytes of the table."""
        parts = [*self.table] if isinstance(self.table, Quantised) else [self.table]
        return sum(part.numel() * part.element_size() for part in parts)


class Head:
    """The output matrix [V, H], in slices, so that the logits of some tokens can be computed alone."""

    def __init__(self, weight: Weight, kind: products.Kind) -> None:
        self.n_tokens = len(weight.values if isinstance(weight, Quantised) else weight)
        self._slices = [
            matrix(_rows(weight, start, start + VOCABULARY_SLICE), kind) for start in range(0, self.n_tokens, VOCABULARY_SLICE)
        ]

    def logits(self, hidden: Tensor, first: int, last: int) -> Tensor:
        """Return the logits [N, last - first] of the tokens from `first` to `last`, in 32 bits."""
        inputs = Inputs(hidden)
        logits = torch.empty(len(hidden), last - first, device=hidden.device)
        for index in range(first // VOCABULARY_SLICE, -(-last // VOCABULARY_SLICE)):
            start = index * VOCABULARY_SLICE
            part, factors = self._slices[index].unscaled(inputs)
            part = part[:, max(0, first - start) : last - start]
            place = logits[:, max(0, start - first) :][:, : part.shape[1]]
            # The logits of a large vocabulary are written only once.
            _ = place.copy_(part) if factors is None else torch.mul(part, factors, out=place)
        return logits

    def n_bytes(self) -> int:
        """Return the bytes of the weights."""
        return sum(part.n_bytes() for part in self._slices)


class LlamaPasses:
    """The causal pass and the canvas pass of one loaded model.

    `weights` has the library's names. `kind` is the kind of the products. The tensors of an `adapter` are those that
    `canvas_adapter` describes. With one, canvas ids may be `delete`, the id after the vocabulary, and those after it, which
    are the open positions of a gap by their distance from its start (`open_ids`).
    """

    def __init__(
        self,
        sizes: LlamaSizes,
        weights: Mapping[str, Weight],
        kind: products.Kind,
        adapter: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.sizes, self.kind, self.geometry = sizes, kind, sizes.geometry()
        self.n_vocabulary = sizes.vocabulary
        self.delete, self.mask = sizes.vocabulary, sizes.vocabulary + 1
        with torch.no_grad():
            table = weights["model.embed_tokens.weight"]
            if kind == "int8" and isinstance(table, Tensor):
                table = int8.quantised(table.float())
            self._device = (table.values if isinstance(table, Quantised) else table).device
            self._extra = canvas_vectors(adapter) if adapter else None
            self._hint = adapter["hint"].float() if adapter else None
            self._embed = Embedding(table, self._extra)
            self._head = Head(table if sizes.tied else weights["lm_head.weight"], kind)
            self.layers = [_layer(sizes, weights, index, kind, adapter) for index in range(sizes.layers)]
            self._norm = _norm_of(weights["model.norm.weight"], sizes)
            self._least = torch.tensor((sizes.eps * sizes.hidden) ** 0.5, device=self._device)
        self.kv_dtype = _kv_dtype(table)
        self._in_blocks = self.kv_dtype is torch.bfloat16 and self._device.type == "cpu" and products.are_blocks_faster()
        self._rotations = torch.empty(0)

    @property
    def has_adapter(self) -> bool:
        """Whether canvas passes have an adapter, and the canvas may hold `delete` and open positions."""
        return self._extra is not None

    def open_ids(self, n_tokens: int) -> list[int]:
        """Return the ids of the open positions of a gap of `n_tokens`. Far from its start, they are the same."""
        assert self._extra is not None
        return [self.mask + min(distance, len(self._extra) - 2) for distance in range(n_tokens)]

    @property
    def value_bytes(self) -> int:
        """The bytes of one number in the keys and values."""
        return self.kv_dtype.itemsize

    def n_bytes(self) -> int:
        """Return the bytes of the weights, with those of the adapted matrices and without the norms."""
        linears = [one for layer in self.layers for one in (layer.queries_keys_values, layer.out, layer.gate_up, layer.down)]
        merged = sum(one.adapted.merged.n_bytes() for one in linears if isinstance(one.adapted, Merged))
        return self._embed.n_bytes() + self._head.n_bytes() + sum(one.matrix.n_bytes() for one in linears) + merged

    def encode(self, ids: Tensor, past: KV | None = None) -> tuple[Tensor, KV]:
        """Return the last hidden states [R, L, H] of new tokens [R, L], and the keys and values of past and new tokens."""
        n_past, n_new = past[0][0].shape[2] if past else 0, ids.shape[1]
        positions = torch.arange(n_past, n_past + n_new, device=ids.device)
        mask = None
        causal = n_new > 1 and (n_past == 0 or (self._in_blocks and n_new > FEW))
        if n_new > 1 and not causal:
            mask = torch.arange(n_past + n_new, device=ids.device)[None] <= positions[:, None]
            mask = mask[None, None]
        with torch.no_grad():
            return self._pass(ids, positions[None], past, mask, causal=causal)

    def extend(
        self, ids: Tensor, positions: Tensor, kv: KV, mask: Tensor, key_positions: Tensor, *, adapted: bool = False
    ) -> Tensor:
        """Return the last hidden states [N, H] of new tokens [N], each at its own position [N].

        The pass overwrites the last N places of `kv` with the new tokens' keys and values. Token n sees the places in
        `mask` [N, L], whose positions are `key_positions` [L]. The adapter acts on the new tokens if `adapted`.
        """
        del key_positions  # every layer sees the whole prefix
        with torch.no_grad():
            return self._pass(ids[None], positions[None], kv, mask[None, None], with_room=True, adapted=adapted)[0][0]

    def decode(
        self,
        canvas: Tensor,
        kv: KV,
        soft: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        with_room: bool = False,
        adapted: bool = True,
    ) -> Tensor:
        """Return the last hidden states [R, C, H] of a canvas [R, C] that attends to `kv` and, in both directions, to itself.

        `kv` is empty if nothing is before the canvas. `mask` is a boolean [R, 1, C, L + C]; without it, everything is visible.
        With `with_room`, the pass overwrites the last C positions of `kv` with the canvas's own keys and values. The adapter
        acts if there is one and `adapted`. Only then, `soft` [R, C, H] is read, at open positions: it is a hint of the tokens
        there, such as a draft's.
        """
        with torch.no_grad():
            return self._decode(canvas, kv, soft, positions, mask, with_room=with_room, adapted=adapted and self.has_adapter)

    def _decode(
        self,
        canvas: Tensor,
        kv: KV,
        soft: Tensor | None,
        positions: Tensor | None,
        mask: Tensor | None,
        *,
        with_room: bool,
        adapted: bool,
    ) -> Tensor:
        n_past = (kv[0][0].shape[2] if kv else 0) - (canvas.shape[1] if with_room else 0)
        if positions is None:
            positions = torch.arange(n_past, n_past + canvas.shape[1], device=canvas.device)[None]
        hints = None
        if adapted and soft is not None and self._hint is not None:
            hints = torch.where((canvas >= self.mask)[..., None], self._hint * soft, 0.0).flatten(0, 1)
        return self._pass(canvas, positions, kv, mask, hints, with_room=with_room, adapted=adapted)[0]

    def soft(self, ids: Tensor, probabilities: Tensor) -> Tensor:
        """Return the embeddings [R, C, H] of `ids` weighted by `probabilities`, both [R, C, K]; zeros without an adapter."""
        if not self.has_adapter:
            return probabilities.new_zeros(*ids.shape[:-1], self.sizes.hidden)
        with torch.no_grad():
            vectors = self._embed(ids.reshape(-1)).view(*ids.shape, -1)
            return (vectors * probabilities[..., None]).sum(-2)

    def logits(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        """Return the logits [..., V] in 32 bits, or only those of the tokens from `first` to `last`."""
        with torch.no_grad():
            flat = hidden.reshape(-1, hidden.shape[-1])
            found = self._head.logits(flat, first, self.n_vocabulary if last is None else min(last, self.n_vocabulary))
            return found.view(*hidden.shape[:-1], -1)

    def _pass(
        self,
        ids: Tensor,
        positions: Tensor,
        past: KV | None,
        mask: Tensor | None,
        hints: Tensor | None = None,
        *,
        causal: bool = False,
        with_room: bool = False,
        adapted: bool = False,
    ) -> tuple[Tensor, KV]:
        sizes, (rows, length) = self.sizes, ids.shape
        hidden = self._embed(ids.reshape(-1))
        if hints is not None:
            hidden = hidden + hints
        rotation = self._rotation(positions, rows)
        # Blocks add the mask to scores in 32 bits.
        in_blocks = self._in_blocks and length > FEW
        added = _additive(mask, sizes.groups, torch.float32 if in_blocks else self.kv_dtype)
        # A text's first token has inputs that are a thousand times larger than the rest of its row, in a few places that are
        # the same for all texts. Every other token attends to it.
        fine = None if past else slice(None, None, length)
        kv: KV = []
        for index, layer in enumerate(self.layers):
            # In 16 bits, because rounding these inputs costs more in nats than the rest, and their products are the smallest.
            normed = self._normed(hidden, layer.before_attention, ALL)
            heads = layer.queries_keys_values.times(normed, adapted=adapted)
            queries, keys, values = self._split(heads, rotation, rows, length)
            before = past[index] if past else None
            keys, values = self._with_past(keys, values, before, with_room=with_room)
            mixed = self._attention(queries, keys, values, added, causal=causal)
            hidden = layer.out.added(hidden, Inputs(mixed), adapted=adapted)
            fed = layer.gate_up.feed(self._normed(hidden, layer.before_mlp), fine, adapted=adapted)
            hidden = layer.down.added(hidden, fed, adapted=adapted)
            kv.append((keys, values))
        return self._normed(hidden, self._norm).rows.view(rows, length, -1), kv

    def _attention(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
        """Return the attention of queries [R, T, heads, D] over keys and values [R, kv heads, L, D]: [N, heads * D]."""
        (rows, length), scaling, groups = queries.shape[:2], self.sizes.head_dim**-0.5, self.sizes.groups
        if self._in_blocks and length > FEW:
            mixed = products.attention_in_blocks(queries, keys, values, scaling, mask, causal=causal)
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

    def _split(self, heads: Tensor, rotation: Tensor, rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [R, T, heads, D] and keys, and values, each [R, kv heads, T, D]."""
        sizes, n_rotated = self.sizes, self.sizes.heads + self.sizes.kv_heads
        shape = (rows, length, -1, sizes.head_dim)
        turning, values = torch.split(heads, [n_rotated * sizes.head_dim, sizes.kv_heads * sizes.head_dim], 1)
        pairs = torch.view_as_complex(turning.view(rows * length, n_rotated, -1, 2)) * rotation
        queries, keys = torch.split(torch.view_as_real(pairs).view(shape), [sizes.heads, sizes.kv_heads], 2)
        return queries, keys.transpose(1, 2), values.view(shape).transpose(1, 2)

    def _with_past(
        self, keys: Tensor, values: Tensor, past: tuple[Tensor, Tensor] | None, *, with_room: bool
    ) -> tuple[Tensor, Tensor]:
        """Return all keys and values [R, kv heads, L, D]: the new ones after the past, or in its last places."""
        rows, _, length, _ = keys.shape
        if past is not None and with_room:  # the copy converts the type
            past[0][:, :, -length:], past[1][:, :, -length:] = keys, values
            return past
        keys, values = keys.to(self.kv_dtype), values.to(self.kv_dtype)
        if past is None:
            return keys, values
        sides = [side.expand(rows, -1, -1, -1) for side in past]
        return torch.cat([sides[0], keys], dim=2), torch.cat([sides[1], values], dim=2)

    def _normed(self, hidden: Tensor, weight: Tensor, fine: slice | None = None) -> Inputs:
        """Return the hidden states divided by the root of their mean square plus epsilon, times a weight of `_norm_of`."""
        lengths = torch.hypot(torch.linalg.vector_norm(hidden, dim=-1, keepdim=True), self._least)
        return Inputs(hidden * weight, lengths.reciprocal(), fine)

    def _rotation(self, positions: Tensor, rows: int) -> Tensor:
        """Return the complex rotation of each pair of a head at each position: [R * T, 1, D / 2]."""
        last = int(positions.max())
        if len(self._rotations) <= last:
            size = self.sizes.head_dim
            frequencies = 1.0 / self.sizes.theta ** (torch.arange(0, size, 2, dtype=torch.float) / size)
            angles = torch.arange(max(1024, 2 * last), dtype=torch.float)[:, None] * frequencies
            self._rotations = torch.complex(angles.cos(), angles.sin())[:, None].to(self._device)
        rotation = self._rotations[positions.reshape(-1)]
        return rotation.repeat(rows, 1, 1) if len(positions) < rows else rotation


def _kv_dtype(table: Weight) -> torch.dtype:
    """Return the type of keys and values: 16 bits where the weights are narrower than 32, and attention is faster so."""
    if isinstance(table, Quantised):
        return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    return table.dtype


def _additive(mask: Tensor | None, groups: int, dtype: torch.dtype) -> Tensor | None:
    """Return a boolean mask as numbers to add to the scores, with a row for each query, or None."""
    if mask is None:
        return None
    return widened(torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf), groups)


def _layer(
    sizes: LlamaSizes,
    weights: Mapping[str, Weight],
    index: int,
    kind: products.Kind,
    adapter: Mapping[str, Tensor] | None,
) -> Layer:
    start = f"model.layers.{index}."

    def fused(letters: str) -> Linear:
        parts = [_cased(weights[f"{start}{PROJECTIONS[letter]}.weight"], kind) for letter in letters]
        biases = [weights.get(f"{start}{PROJECTIONS[letter]}.bias") for letter in letters]
        rows, whole = fused_order(sizes, letters).to(_values(parts[0]).device), _concatenated(parts)
        bias = None if biases[0] is None else torch.cat([_wide(one) for one in biases if one is not None])[rows]
        own = _rows(whole, 0, len(rows), rows) if "q" in letters else whole
        adapted = None
        if adapter:
            merged = _wide(own) + _low_rank(adapter, index, letters, rows)
            adapted = Merged(matrix(merged.to(own.dtype) if isinstance(own, Tensor) else merged, kind))
        return Linear(matrix(own, kind), bias, adapted)

    qkv, out, gate_up, down = (fused(letters) for letters in FUSED)
    names = ("input_layernorm", "post_attention_layernorm")
    before_attention, before_mlp = (_norm_of(weights[f"{start}{name}.weight"], sizes) for name in names)
    return Layer(before_attention, qkv, out, before_mlp, gate_up, down)


def fused_order(sizes: LlamaSizes, letters: str) -> Tensor:
    """Return the order of the projections' rows in a fused matrix: the two halves of each rotated pair are side by side."""
    pairs, start = torch.arange(sizes.head_dim).view(2, -1).t().reshape(-1), 0
    parts = []
    for letter in letters:
        n_rows = sizes.projection(PROJECTIONS[letter])[0]
        rotated = torch.arange(0, n_rows, sizes.head_dim)[:, None] + pairs
        parts.append(start + (rotated.reshape(-1) if letter in "qk" else torch.arange(n_rows)))
        start += n_rows
    return torch.cat(parts)


def canvas_vectors(adapter: Mapping[str, Tensor]) -> Tensor:
    """Return the vectors of the canvas's own ids: `delete`, then an open position at each distance from the gap's start."""
    return torch.cat([adapter["del"][None], adapter["mask"] + adapter["dist"]]).float()


def _low_rank(adapter: Mapping[str, Tensor], index: int, letters: str, rows: Tensor) -> Tensor:
    """Return B A [O, I] of a fused matrix, whose rows are in the order `rows`."""
    a = torch.cat([adapter[f"{index}{letter}_a"] for letter in letters]).float()
    b = _block_diagonal([adapter[f"{index}{letter}_b"].float() for letter in letters])
    return (b @ a).to(rows.device)[rows]


def _block_diagonal(blocks: list[Tensor]) -> Tensor:
    whole = torch.zeros(sum(len(block) for block in blocks), sum(block.shape[1] for block in blocks))
    row = column = 0
    for block in blocks:
        n_rows, n_columns = block.shape
        whole[row : row + n_rows, column : column + n_columns] = block
        row, column = row + n_rows, column + n_columns
    return whole


def _cased(weight: Weight, kind: products.Kind) -> Weight:
    """Return a weight in the form in which several can be concatenated."""
    if kind == "int8":
        return weight if isinstance(weight, Quantised) else int8.quantised(weight.float())
    return weight.dense() if isinstance(weight, Quantised) else weight


def _values(weight: Weight) -> Tensor:
    return weight.values if isinstance(weight, Quantised) else weight


def _wide(weight: Weight) -> Tensor:
    return (weight.dense() if isinstance(weight, Quantised) else weight).float()


def _norm_of(weight: Weight, sizes: LlamaSizes) -> Tensor:
    """Return a norm's weight for hidden states that are divided by their length, not by the root of their mean square."""
    return _wide(weight) * math.sqrt(sizes.hidden)


def _rows(weight: Weight, start: int, end: int, order: Tensor | None = None) -> Weight:
    """Return the rows of a matrix from `start` to `end`, or in an order."""
    if isinstance(weight, Quantised):
        if order is None:
            return Quantised(weight.values[start:end], weight.scales[start:end])
        return Quantised(weight.values[order], weight.scales[order])
    return weight[start:end] if order is None else weight[order]


def _concatenated(parts: list[Weight]) -> Weight:
    if len(parts) == 1:
        return parts[0]
    narrow = [part for part in parts if isinstance(part, Quantised)]
    if narrow:
        return Quantised(torch.cat([part.values for part in narrow]), torch.cat([part.scales for part in narrow]))
    return torch.cat([_values(part) for part in parts])
