"""One pass over the layers of a Llama or Qwen2 model on a GPU, with few launches and no value that is read back.

`llama` has the passes of a processor; both compute the same to the rounding of their products. Here hidden states have 32 bits,
and the products and the keys and values the type of the weights, or 16 bits for weights in 8.

Shapes: N rows, L places, H hidden, D head dimension, P positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dg_lsp.engine.model.fit import LlamaSizes
from dg_lsp.engine.model.gpu.operations import Heads, Operations
from dg_lsp.engine.model.matmul import Quantised
from dg_lsp.engine.model.prefix_cache import KV, put
from dg_lsp.engine.model.recording import ROWS, Inputs
from dg_lsp.engine.model.weights.llama import Embedding, Layer, Linear, NarrowMatrix, Weight, WideMatrix, rotations

LEAST_POSITIONS = 4096  # that a table of rotations has
MORE_POSITIONS = 256  # than places: a tree's tokens may stand behind a gap

Product = Callable[[Tensor], Tensor]


class Room(NamedTuple):
    """The keys and values of a tree [layers, L, 2, kv heads, D], and the rotations [P, D / 2] that passes over it read."""

    kv: Tensor
    table: Tensor


class GpuPasses:
    """The layers of one loaded model, and a pass over them. For passes over trees, see `recording.TreePasses`."""

    most_rows = ROWS[-1]  # launching a pass kernel by kernel takes longer than several recorded ones
    hidden_dtype = torch.float32

    def __init__(
        self,
        sizes: LlamaSizes,
        embedding: Embedding,
        layers: Sequence[Layer],
        last_norm: Tensor,
        head: Weight,
        dtype: torch.dtype,
        operations: Operations,
    ) -> None:
        """Raise TypeError if a matrix is in a layout of its own, as those of a processor are."""
        self.sizes, self.dtype, self.device, self.operations = sizes, dtype, last_norm.device, operations
        self.n_hidden = sizes.hidden
        self._shape, self._embedding = Heads(sizes.heads, sizes.kv_heads, sizes.head_dim), embedding
        self._head = head
        root = math.sqrt(sizes.hidden)  # the layers' norms are for hidden states divided by their length
        self._layers = [
            (
                layer.before_attention / root,
                self._product(layer.queries_keys_values),
                self._product(layer.out),
                layer.before_mlp / root,
                self._product(layer.gate_up),
                self._product(layer.down),
            )
            for layer in layers
        ]
        self._last_norm = last_norm / root
        self._table = torch.empty(0)

    def _product(self, linear: Linear) -> Product:
        """Return the function that multiplies inputs [N, I] by a matrix and adds its bias: [N, O], in the inputs' type."""
        matrix, operations = linear.matrix, self.operations
        bias = None if linear.bias is None else linear.bias.to(self.dtype)
        if isinstance(matrix, NarrowMatrix):
            narrow = matrix.narrow
            return lambda inputs: operations.narrow_product(inputs, narrow, bias)
        if isinstance(matrix, WideMatrix):
            weight = matrix.weight
            return lambda inputs: F.linear(inputs, weight, bias)
        raise TypeError(f"{type(matrix).__name__} is a layout for processors")

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, V] of hidden states [N, H], in 32 bits."""
        inputs = hidden.to(self.dtype)
        if isinstance(self._head, Quantised):
            return self.operations.narrow_product(inputs, self._head, None).float()
        return F.linear(inputs, self._head).float()

    def kv_shape(self, n_places: int) -> tuple[int, ...]:
        return self.sizes.layers, n_places, 2, self.sizes.kv_heads, self.sizes.head_dim

    def table(self, n_positions: int) -> Tensor:
        """Return the complex rotations [P, D / 2] of at least so many positions. A graph keeps the table it read."""
        if len(self._table) < n_positions:
            self._table = rotations(self.sizes, max(LEAST_POSITIONS, 2 * n_positions)).to(self.device)
        return self._table

    def run(self, inputs: Inputs, kv: Tensor, table: Tensor) -> Tensor:
        """Write the tokens' keys and values to their places in `kv` [layers, L, 2, kv heads, D].

        Return their last hidden states [N, H] in 32 bits.
        """
        operations, shape, eps, dtype = self.operations, self._shape, self.sizes.eps, self.dtype
        hidden = self._embedding(inputs.ids)
        more: Tensor | None = None
        for index, (before_attention, queries_keys_values, out, before_mlp, gate_up, down) in enumerate(self._layers):
            normed = operations.norm(hidden, more, before_attention, eps, dtype)
            heads = queries_keys_values(normed)
            queries = operations.place(heads, inputs.positions, inputs.places, table, kv[index], shape)
            if inputs.visible is None:
                mixed = _causal(queries, kv[index], shape)
            else:
                mixed = operations.attend(queries, kv[index], inputs.visible, shape)
            normed = operations.norm(hidden, out(mixed), before_mlp, eps, dtype)
            more = down(operations.gated(gate_up(normed)))
        return operations.norm(hidden, more, self._last_norm, eps, torch.float32)

    def room(self, n_places: int, like: KV) -> Room:
        del like
        # Zeros, because values that no token sees must be finite.
        kv = torch.zeros(self.kv_shape(n_places), dtype=self.dtype, device=self.device)
        return Room(kv, self.table(n_places + MORE_POSITIONS))

    def room_bytes(self, n_places: int) -> int:
        return math.prod(self.kv_shape(n_places)) * self.dtype.itemsize

    def fill(self, room: Room, kv: KV, positions: Sequence[int]) -> None:
        """Copy keys and values to the first places of a room. Each token sees all of them, wherever they stand."""
        del positions
        if kv:
            put(kv, as_pairs(room.kv))

    def pairs(self, room: Room) -> KV:
        return as_pairs(room.kv)

    def read(self, inputs: Inputs, room: Room) -> Tensor:
        return self.run(inputs, room.kv, room.table)

    def encode(self, ids: Tensor, past: KV | None) -> tuple[Tensor, KV]:
        """Return the last hidden states [1, N, H] of the tokens [1, N] of one row, and the keys and values of all tokens.

        Without a past, the attention is the one for a whole text, which reads no mask.
        """
        n_past, n_new = past[0][0].shape[2] if past else 0, ids.shape[1]
        kv = torch.empty(self.kv_shape(n_past + n_new), dtype=self.dtype, device=self.device)
        places = torch.arange(n_past, n_past + n_new, device=self.device)
        if past:
            put(past, as_pairs(kv))
        visible = None
        if past:
            visible = torch.arange(n_past + n_new, device=self.device)[None] <= places[:, None]
        hidden = self.run(Inputs(ids[0], places, places, visible), kv, self.table(n_past + n_new))
        return hidden[None], as_pairs(kv)


def as_pairs(kv: Tensor) -> KV:
    """Return keys and values [layers, L, 2, kv heads, D] as a pair of views for each layer."""
    pairs: KV = []
    for layer in kv.transpose(1, 3):  # [kv heads, 2, L, D]
        keys, values = layer.unbind(1)
        pairs.append((keys[None], values[None]))
    return pairs


def _causal(queries: Tensor, kv: Tensor, shape: Heads) -> Tensor:
    """Return the attention [N, heads * D] of a whole text, whose keys and values are in the first places."""
    keys, values = (side.transpose(0, 1)[None] for side in kv[: len(queries)].unbind(1))
    mixed = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys, values, is_causal=True, scale=shape.size**-0.5, enable_gqa=shape.groups > 1
    )
    return mixed[0].transpose(0, 1).reshape(len(queries), -1)
