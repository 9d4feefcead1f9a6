"""Passes of Llama and Qwen2 models over few tokens on a GPU, in fixed buffers that graphs can be recorded of.

First what a layer does between its products, by torch's own operations or by Triton's kernels; both compute the same. Then a
pass over the layers. Neither reads a value back. `llama` has the passes of a processor; both compute the same to the rounding
of their products. Here hidden states have 32 bits, and the products and the keys and values the type of the weights, or 16 bits
for weights in 8. Knows weights, keys and values. Knows nothing of trees, requests or the meaning of tokens.

Shapes: N rows, H hidden, D head dimension, L slots, F feed-forward, I inputs, O outputs, P positions.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dg_lsp.core.place import last_line
from dg_lsp.engine.model.fit import LlamaSizes
from dg_lsp.engine.model.kv import KV, Tokens, copy_into
from dg_lsp.engine.model.matmul import Matrix, NarrowMatrix, Quantised, Weight, WideMatrix, additive, attention_over, quantised
from dg_lsp.engine.model.recording import ROWS
from dg_lsp.engine.model.weights.llama import Layer, embedded, rotations

log = logging.getLogger("dg_lsp.engine")

MOST_SPLIT_ROWS = 64  # more rows keep a GPU busy without splitting the slots, which costs memory for each part
PARTS = 16  # of the slots, at most; a power of two
KEYS = 64  # slots that one block of the attention reads at once
BUSY = 264  # blocks of a product that keep a large card busy: two for each of its 132 processors
IN, OUT = 128, 32  # the block of a narrow matrix that is multiplied at once
MOST_NARROW_ROWS = 128  # with more rows, widening a matrix once costs less than widening it for each block of rows


class Operations:
    """What a layer does between its products, by torch's own operations, on any device.

    Numbers have 16 bits, and hidden states 32, unless the weights are wide.
    """

    def norm(self, hidden: Tensor, more: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        """Add `more` [N, H] to the hidden states [N, H] in place; return their RMS norm times a weight, in `dtype`."""
        if more is not None:
            hidden.add_(more)
        return F.rms_norm(hidden, hidden.shape[-1:], weight, eps).to(dtype)

    def rotate(self, heads: Tensor, positions: Tensor, slots: Tensor, table: Tensor, kv: Tensor, sizes: LlamaSizes) -> Tensor:
        """Rotate rows of queries, keys and values [N, (heads + 2 kv heads) * D] at their positions [N].

        Return the queries [N, heads, D], and write keys and values to their slots [N] in `kv` [L, 2, kv heads, D]. `table`
        [P, D / 2] has the complex rotations of all positions.
        """
        n_queries, n_rotated = sizes.heads * sizes.head_dim, (sizes.heads + sizes.kv_heads) * sizes.head_dim
        pairs = torch.view_as_complex(heads[:, :n_rotated].float().view(len(heads), -1, sizes.head_dim // 2, 2))
        turned = torch.view_as_real(pairs * table[positions][:, None]).flatten(1).to(kv.dtype)
        new = torch.cat([turned[:, n_queries:], heads[:, n_rotated:].to(kv.dtype)], 1)
        kv.index_copy_(0, slots, new.view(len(heads), *kv.shape[1:]))
        return turned[:, :n_queries].view(len(heads), sizes.heads, sizes.head_dim)

    def attend(self, queries: Tensor, kv: Tensor, visible: Tensor, sizes: LlamaSizes) -> Tensor:
        """Return the attention [N, heads * D] of queries [N, heads, D] over the slots that are `visible` [N, L]."""
        keys, values = (side.transpose(0, 1)[None] for side in kv.unbind(1))
        mask = additive(visible[None, None], sizes.groups, queries.dtype)
        mixed = attention_over(queries[None], keys, values, mask, sizes.head_dim**-0.5, causal=False)
        return mixed.reshape(len(queries), -1)

    def gated(self, gate_up: Tensor) -> Tensor:
        """Return SiLU of the first half of rows [N, 2 * F], times the second half."""
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate) * up

    def narrow_product(self, inputs: Tensor, weight: Quantised, bias: Tensor | None) -> Tensor:
        """Return the products [N, O] of inputs [N, I], which keep their type, and a weight in 8 bits."""
        wide = weight.values.to(inputs.dtype)
        products = F.linear(inputs, wide).float() * weight.scales.reshape(-1)
        return (products if bias is None else products + bias).to(inputs.dtype)


class Fused(Operations):
    """Triton's kernels. `kernels` is their module, which is imported only where triton is installed."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def norm(self, hidden: Tensor, more: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        n_rows, size = hidden.shape
        out = torch.empty(n_rows, size, dtype=dtype, device=hidden.device)
        given = hidden if more is None else more
        warps = 8 if size > 2048 else 4
        self._kernels.norm[(n_rows,)](
            hidden, given, weight, out, eps, N=size, HAS_MORE=more is not None, BLOCK=_power(size), num_warps=warps
        )
        return out

    def rotate(self, heads: Tensor, positions: Tensor, slots: Tensor, table: Tensor, kv: Tensor, sizes: LlamaSizes) -> Tensor:
        queries, half = kv.new_empty(len(heads), sizes.heads, sizes.head_dim), sizes.head_dim // 2
        self._kernels.rotate[(len(heads), sizes.heads + 2 * sizes.kv_heads)](
            heads, positions, slots, torch.view_as_real(table), queries, kv,
            N_QUERIES=sizes.heads, N_KV=sizes.kv_heads, HALF=half, BLOCK=_power(half), num_warps=1,
        )  # fmt: skip
        return queries

    def attend(self, queries: Tensor, kv: Tensor, visible: Tensor, sizes: LlamaSizes) -> Tensor:
        """Return the attention [N, heads * D] over the visible slots, whose parts are read side by side."""
        n_rows, n_slots = visible.shape
        if n_rows > MOST_SPLIT_ROWS:
            return super().attend(queries, kv, visible, sizes)
        split = KEYS * max(1, -(-n_slots // (KEYS * PARTS)))
        n_parts, n_queries = -(-n_slots // split), n_rows * sizes.heads
        sums = torch.empty(n_parts, n_queries, sizes.head_dim, device=kv.device)
        most, weights = torch.empty(2, n_parts, n_queries, device=kv.device).unbind()
        width, rows = _power(sizes.head_dim, 16), min(64, _power(n_rows * sizes.groups, 16))
        self._kernels.attend[(sizes.kv_heads, n_parts, -(-n_rows * sizes.groups // rows))](
            queries, kv, visible.view(torch.uint8), sums, most, weights, sizes.head_dim**-0.5, n_rows, n_slots,
            GROUPS=sizes.groups, N_KV=sizes.kv_heads, SIZE=sizes.head_dim, SPLIT=split, ROWS=rows, KEYS=KEYS, WIDTH=width,
            num_stages=2,  # with three, 128 numbers a head do not fit the shared memory of a card for games
        )  # fmt: skip
        out = queries.new_empty(n_rows, sizes.heads * sizes.head_dim)
        self._kernels.join[(n_queries,)](
            sums, most, weights, out, n_queries, n_parts, SIZE=sizes.head_dim, PARTS=PARTS, WIDTH=width, num_warps=1
        )
        return out

    def gated(self, gate_up: Tensor) -> Tensor:
        n_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(n_rows, size)
        self._kernels.gated[(-(-out.numel() // 1024),)](gate_up, out, out.numel(), N=size, BLOCK=1024)
        return out

    def narrow_product(self, inputs: Tensor, weight: Quantised, bias: Tensor | None) -> Tensor:
        """Return the products [N, O]; a weight widened in registers lets a pass over few rows read half of the bytes."""
        (n_rows, n_in), n_out, device = inputs.shape, len(weight.values), inputs.device
        if n_rows > MOST_NARROW_ROWS:
            return super().narrow_product(inputs, weight, bias)
        out, scales = inputs.new_empty(n_rows, n_out), weight.scales.reshape(-1)
        n_blocks = -(-n_out // OUT)
        n_parts = max(1, min(8, BUSY // n_blocks, n_in // (2 * IN)))
        split = -(-n_in // (n_parts * IN)) * IN
        n_parts = -(-n_in // split)
        target = out if n_parts == 1 else torch.empty(n_parts, n_rows, n_out, device=device)
        rows, given = min(64, _power(n_rows, 16)), scales if bias is None else bias
        self._kernels.narrow_product[(n_blocks, n_parts, -(-n_rows // rows))](
            inputs, weight.values, scales, given, target, n_rows, N_IN=n_in, N_OUT=n_out, SPLIT=split,
            HAS_BIAS=bias is not None, IS_WHOLE=n_parts == 1, ROWS=rows, OUT=OUT, IN=IN, num_stages=4,
        )  # fmt: skip
        if n_parts > 1:
            self._kernels.sum_parts[(n_rows, -(-n_out // 512))](
                target, scales, given, out, n_rows, N_OUT=n_out, N_PARTS=n_parts, HAS_BIAS=bias is not None, OUT=512
            )
        return out


PLAIN = Operations()


@functools.cache
def best(device: str) -> Operations:
    """Return the kernels of Triton for a GPU that has them, and which compute what torch computes; else torch's operations.

    Triton compiles them at their first use, for which it needs a C compiler. One sentence in the log says what is missing.
    """
    if not device.startswith("cuda"):
        return PLAIN
    try:
        from dg_lsp.engine.model.gpu import kernels

        fused = Fused(kernels)
        if (name := wrong_operation(fused, device)) is None:
            return fused
        reason = f"{name} gives other numbers here"
    except Exception as error:  # whatever Triton, its compiler or the driver raises
        reason = f"{type(error).__name__}: {last_line(str(error).strip()) or 'no reason given'}"
    log.warning("passes on the GPU are slower without Triton's kernels, which can't be used: %s", reason)
    return PLAIN


def wrong_operation(fused: Operations, device: str, dtype: torch.dtype = torch.bfloat16) -> str | None:
    """Return the name of the first operation that computes something else than torch, or None."""
    noise = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise).to(device, dtype)

    sizes, found = (
        LlamaSizes(1, 96, 160, 1, heads=6, kv_heads=2, head_dim=32, eps=1e-6, theta=1.0, tied=True),
        dict[str, list[Tensor]](),
    )
    hidden, more, heads, wide = some(3, 96).float(), some(3, 96), some(3, 10 * 32), some(48, 320)
    positions, slots = torch.tensor([7, 8, 8], device=device), torch.tensor([60, 61, 62], device=device)
    angles = torch.arange(16.0)[:, None] * torch.linspace(0.1, 1.0, 16)
    table, kv = torch.complex(angles.cos(), angles.sin()).to(device), some(100, 2, 2, 32)
    visible, narrow = torch.rand(3, 100, generator=noise).to(device) < 0.7, quantised(wide.float())
    for one in (PLAIN, fused):
        stored, states = kv.clone(), hidden.clone()
        results = {"norm": one.norm(states, more, hidden[0], 1e-6, dtype), "hidden states": states}
        results["queries"] = one.rotate(heads, positions, slots, table, stored, sizes)
        results["keys and values"] = stored
        results["attention"] = one.attend(results["queries"], stored, visible, sizes)
        results["gate"] = one.gated(heads)
        results["products in 8 bits"] = one.narrow_product(heads, narrow, None)
        for name, values in results.items():
            found.setdefault(name, []).append(values.float())
    names = (name for name, (ours, theirs) in found.items() if not torch.allclose(ours, theirs, atol=0.03, rtol=0.03))
    return next(names, None)


def _power(number: int, least: int = 1) -> int:
    return max(least, 1 << max(0, number - 1).bit_length())


# --- A pass


LEAST_POSITIONS = 4096  # that a table of rotations has
MORE_POSITIONS = 256  # than slots: a tree's tokens may stand behind a gap

Product = Callable[[Tensor], Tensor]


class Store(NamedTuple):
    """The keys and values of a room [layers, L, 2, kv heads, D], and the rotations [P, D / 2] that passes over it read."""

    kv: Tensor
    table: Tensor


class GpuPasses:
    """The layers of one loaded model, and a pass over them; for its methods see `recording.FixedPasses`."""

    most_rows = ROWS[-1]  # launching a pass kernel by kernel takes longer than several recorded ones
    hidden_dtype = torch.float32

    def __init__(
        self,
        sizes: LlamaSizes,
        embedding: Weight,
        layers: Sequence[Layer],
        last_norm: Tensor,
        head: Weight,
        dtype: torch.dtype,
        operations: Operations,
    ) -> None:
        """Raise TypeError if a matrix is in a layout of its own, as those of a processor are."""
        self.sizes, self.dtype, self.device, self.operations = sizes, dtype, last_norm.device, operations
        self.n_hidden = sizes.hidden
        self._embedding, self._head = embedding, head
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

    def _product(self, matrix: Matrix) -> Product:
        """Return the function that multiplies inputs [N, I] by a matrix and adds its bias: [N, O], in the inputs' type."""
        operations, bias = self.operations, None if matrix.bias is None else matrix.bias.to(self.dtype)
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

    def kv_shape(self, n_slots: int) -> tuple[int, ...]:
        return self.sizes.layers, n_slots, 2, self.sizes.kv_heads, self.sizes.head_dim

    def table(self, n_positions: int) -> Tensor:
        """Return the complex rotations [P, D / 2] of at least so many positions. A graph keeps the table it read."""
        if len(self._table) < n_positions:
            self._table = rotations(self.sizes, max(LEAST_POSITIONS, 2 * n_positions)).to(self.device)
        return self._table

    def read(self, tokens: Tokens, store: Store) -> Tensor:
        """Write the tokens' keys and values to their slots; return their last hidden states [N, H] in 32 bits.

        Without a past, the attention is the one for a whole text, which reads no mask.
        """
        operations, sizes, eps, dtype, (kv, table) = self.operations, self.sizes, self.sizes.eps, self.dtype, store
        slots, visible = tokens.slots, tokens.visible
        if isinstance(slots, slice):
            first, kv = slots.start, kv[:, : slots.stop]
            slots = torch.arange(first, slots.stop, device=self.device)
            if visible is None and first:
                visible = torch.arange(kv.shape[1], device=self.device)[None] <= slots[:, None]
        hidden = embedded(self._embedding, tokens.ids)
        more: Tensor | None = None
        for index, (before_attention, queries_keys_values, out, before_mlp, gate_up, down) in enumerate(self._layers):
            normed = operations.norm(hidden, more, before_attention, eps, dtype)
            heads = queries_keys_values(normed)
            queries = operations.rotate(heads, tokens.positions, slots, table, kv[index], sizes)
            if visible is None:
                mixed = _causal(queries, kv[index], sizes)
            else:
                mixed = operations.attend(queries, kv[index], visible, sizes)
            normed = operations.norm(hidden, out(mixed), before_mlp, eps, dtype)
            more = down(operations.gated(gate_up(normed)))
        return operations.norm(hidden, more, self._last_norm, eps, torch.float32)

    def store(self, n_slots: int) -> Store:
        # Zeros, because values that no token sees must be finite.
        kv = torch.zeros(self.kv_shape(n_slots), dtype=self.dtype, device=self.device)
        return Store(kv, self.table(n_slots + MORE_POSITIONS))

    def store_bytes(self, n_slots: int) -> int:
        return math.prod(self.kv_shape(n_slots)) * self.dtype.itemsize

    def fill(self, store: Store, kv: KV, first: int, positions: Sequence[int]) -> None:
        """Copy keys and values to slots. Each token sees all of them, wherever they stand."""
        copy_into(kv, as_pairs(store.kv), first)

    def pairs(self, store: Store) -> KV:
        return as_pairs(store.kv)


def as_pairs(kv: Tensor) -> KV:
    """Return keys and values [layers, L, 2, kv heads, D] as a pair of views for each layer."""
    pairs: KV = []
    for layer in kv.transpose(1, 3):  # [kv heads, 2, L, D]
        keys, values = layer.unbind(1)
        pairs.append((keys[None], values[None]))
    return pairs


def _causal(queries: Tensor, kv: Tensor, sizes: LlamaSizes) -> Tensor:
    """Return the attention [N, heads * D] of a whole text, whose keys and values are in the first slots."""
    keys, values = (side.transpose(0, 1)[None] for side in kv[: len(queries)].unbind(1))
    mixed = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys, values, is_causal=True, scale=sizes.head_dim**-0.5, enable_gqa=sizes.groups > 1
    )
    return mixed[0].transpose(0, 1).reshape(len(queries), -1)
