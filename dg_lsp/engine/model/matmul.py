"""Multiply tokens by a model's weight matrices on a CPU, with the kernels that are fastest there, for inference only.

torch multiplies 32-bit matrices with MKL, which does not use the AVX-512 instructions of AMD's processors. oneDNN uses those
of every processor. It generates code for each new shape, which takes
longer than a small product. So the number of tokens is rounded up to a few sizes (`padded`), and the added rows are ignored.

In 8-bit integers, weights have one scale per output channel, and inputs one scale per row. A scale per tensor, as in torch's
own dynamic quantisation, is useless here: some inputs are a thousand times larger than the others, and one such row would round
all others to zero. The integer products are exact, so a row's result does not depend on the rows beside it. oneDNN multiplies
with VNNI or AMX instructions, from weights in its own layout. VNNI multiplies unsigned inputs by signed weights, so the inputs
are stored with 128 added. For signed inputs, oneDNN has kernels with AMX only, and elsewhere its reference code, which is a
thousand times slower.

The operations of torch are not public, so they are checked before they are used. The choice depends on the processor's
instructions, never on a measured time, so the same machine always gives the same text.

Shapes: N tokens, I inputs, O outputs, D head dimension; for `attention_over` R rows, T tokens, L slots of the keys.
"""

from __future__ import annotations

import functools
import platform
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["plain", "onednn", "onednn-bf16", "int8", "int8-weights"]
NARROW: tuple[Kind, ...] = ("int8", "int8-weights")  # whose weights are stored in 8 bits

EXPLAINED: dict[Kind, str] = {
    "plain": "products are computed in 32 bits",
    "onednn": "products are computed in 32 bits by oneDNN",
    "onednn-bf16": "products are computed in 16 bits by oneDNN, because this processor has instructions for it",
    "int8": "products are computed in 8 bits by oneDNN, because this processor has instructions for it",
    "int8-weights": "weights have 8 bits, and are widened to 16 when they are multiplied",
}

X86 = ("x86_64", "amd64")
SCORES = 1 << 19  # of a block of `attention_in_blocks`; with more, 2 MB in all, some shapes take twice as long


@functools.cache
def best_kind(*, in_16_bits: bool = True) -> Kind:
    """Return the fastest kind of product that this processor and this torch have, in 16 bits only if that is allowed."""
    if platform.machine().lower() not in X86 or not torch._C._has_mkldnn or not _computes():
        return "plain"
    has_16_bits = in_16_bits and torch.cpu._is_avx512_bf16_supported() and _computes(torch.bfloat16, error=0.05)
    return "onednn-bf16" if has_16_bits else "onednn"


def padded(n_tokens: int) -> int:
    """Return the number of rows to compute for a number of tokens, so that oneDNN generates code for few shapes."""
    step = 8 if n_tokens <= 64 else 16 if n_tokens <= 128 else 32 if n_tokens <= 256 else 64
    return -(-n_tokens // step) * step


def are_blocks_faster() -> bool:
    """Return whether `attention_in_blocks` is faster here than torch's own attention, which needs AMX in 16 bits."""
    return best_kind() == "onednn-bf16" and not torch.cpu._is_amx_tile_supported()


def attention_in_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None, *, causal: bool
) -> Tensor:
    """Return the attention of queries [R, T, heads, D] in 32 bits over 16-bit keys and values [R, kv heads, L, D].

    The result is [R, T, heads, D] in 32 bits. If `causal`, the last T keys are the queries' own, and no query sees a later
    one. Else `mask` [R or 1, 1, T * heads / kv heads, L] is added to the scores. A block of queries has at most `SCORES`
    scores. They are sums in 32 bits, of products in 16 bits.
    """
    (rows, length, _, size), (_, n_kv, n_keys, _) = queries.shape, keys.shape
    folded = queries.view(rows, length, n_kv, -1, size).transpose(1, 2).reshape(rows * n_kv, -1, size) * scaling
    groups = folded.shape[1] // length
    wide_keys, narrow = keys.flatten(0, 1).float().transpose(1, 2), values.flatten(0, 1)
    step = max(1, min(length, SCORES // (rows * n_kv * n_keys * groups)))
    if causal:
        later = torch.ones(step, step, dtype=torch.bool).triu_(1).repeat_interleave(groups, 0)
        bias = torch.zeros(later.shape).masked_fill_(later, -torch.inf)
    blocks = []
    with _products_in_16_bits():
        for start in range(0, length, step):
            end = min(start + step, length)
            seen, own = n_keys - length + end if causal else n_keys, slice(start * groups, end * groups)
            scores = torch.bmm(folded[:, own], wide_keys[:, :, :seen])
            if causal:
                scores[:, :, seen - (end - start) :] += bias[: (end - start) * groups, : end - start]
            elif mask is not None:
                scores.view(rows, n_kv, -1, n_keys).add_(mask[:, :, own])
            blocks.append(torch.bmm(scores.softmax(-1).to(narrow.dtype), narrow[:, :seen]))
    mixed = torch.cat(blocks, 1).view(rows, n_kv, length, groups, size)
    return mixed.transpose(1, 2).reshape(rows, length, -1, size).float()


@contextmanager
def _products_in_16_bits() -> Iterator[None]:
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def with_rows(tokens: Tensor, n_rows: int) -> Tensor:
    """Return tokens [N, ...] with zeros added up to `n_rows`."""
    if len(tokens) == n_rows:
        return tokens
    return torch.cat([tokens, tokens.new_zeros(n_rows - len(tokens), *tokens.shape[1:])])


def _computes(dtype: torch.dtype = torch.float32, error: float = 1e-4) -> bool:
    """Return whether torch has the operations of `OneDnnMatrix`, which are not public, and they compute the products.

    `error` is the largest allowed share of the result.
    """
    weight, inputs = (torch.linspace(-1.0, 1.0, 64).view(8, 8).roll(turns, 0) for turns in range(2))
    try:
        products = OneDnnMatrix(weight, dtype).times(Inputs(inputs))
    except (AttributeError, RuntimeError, TypeError):
        return False
    exact = inputs @ weight.t()
    return bool((products - exact).norm() <= error * exact.norm())


def attention_over(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, *, causal: bool
) -> Tensor:
    """Return the attention of queries [R, T, heads, D] over keys and values [R, kv heads, L, D], as [R, T, heads, D].

    Unless `causal`, the queries that share a key are folded into the query axis. Then no key is copied, and equal rows need
    no mask, so that fast kernels apply. `mask` is a result of `widened`.
    """
    rows, length, n_heads, size = queries.shape
    n_kv = keys.shape[1]
    if causal:  # folding would give a token's queries different numbers of visible keys
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, is_causal=True, scale=scaling, enable_gqa=n_heads > n_kv
        )
        return mixed.transpose(1, 2)
    folded = queries.view(rows, length, n_kv, -1, size).transpose(1, 2).reshape(rows, n_kv, -1, size)
    mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
    return mixed.view(rows, n_kv, length, -1, size).transpose(1, 2).flatten(2, 3)


def put(side: Tensor, slots: slice | Tensor, new: Tensor) -> Tensor:
    """Write new keys or values [R, kv heads, N, D] to their slots [N] of all of them [R, kv heads, L, D], and return these."""
    if isinstance(slots, Tensor):
        return side.index_copy_(2, slots, new)
    side[:, :, slots] = new
    return side


def additive(mask: Tensor | None, groups: int, dtype: torch.dtype) -> Tensor | None:
    """Return a boolean mask [R, 1, T, L] as numbers to add to scores, with a row for each query: [R, 1, T * groups, L]."""
    if mask is None:
        return None
    return widened(torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf), groups)


def widened(mask: Tensor | None, groups: int) -> Tensor | None:
    """Return a mask [R, 1, T, L] with each token's row repeated for its `groups` queries."""
    return mask if mask is None or groups == 1 else mask.repeat_interleave(groups, dim=-2)


# --- In 8-bit integers


LARGEST = 127
ZERO = 128  # the stored value of an input of zero
_OFFSET = torch.tensor(-ZERO, dtype=torch.int8)
LEAST_SCALE = 1e-30  # of a row of zeros, which must not be divided by zero


class Quantised(NamedTuple):
    """A weight matrix in 8 bits: `values` [N, I], to multiply by `scales` [N, 1]."""

    values: Tensor
    scales: Tensor

    def dense(self) -> Tensor:
        """Return the matrix [N, I] in 32 bits."""
        return self.values.float().mul_(self.scales)


class QuantisedRows(NamedTuple):
    """Rows of inputs in 8 bits: unsigned `values` [N, I] less `ZERO`, to multiply by `scales` [N, 1]."""

    values: Tensor
    scales: Tensor


Weight = Tensor | Quantised


def quantised(weight: Tensor) -> Quantised:
    """Return a weight matrix [N, I] in 8 bits, with one scale per row."""
    scales = _scales(weight)
    return Quantised((weight / scales).round_().to(torch.int8), scales)


def quantised_rows(rows: Tensor) -> QuantisedRows:
    """Return rows of inputs [N, I] in 8 bits, with one scale per row."""
    scales = _scales(rows)
    # The fastest of several ways: torch converts to unsigned numbers one by one. The sum is taken modulo 256.
    return QuantisedRows((rows / scales).round_().to(torch.int8).add_(_OFFSET).view(torch.uint8), scales)


def remainders(rows: Tensor, values: Tensor, scales: Tensor) -> QuantisedRows:
    """Return in 8 bits what rows [N, I] are more than their quantised values times their scales."""
    return quantised_rows(torch.addcmul(rows, values.float().sub_(ZERO), scales, value=-1))


def _scales(rows: Tensor) -> Tensor:
    # `vector_norm` with an infinite order and `aminmax` are ten times slower than these two operations.
    return rows.abs().amax(-1, keepdim=True).mul_(1 / LARGEST).clamp_(min=LEAST_SCALE)


@functools.cache
def int8_is_supported() -> bool:
    """Return whether this processor has instructions for 8-bit products, and torch has correct operations for them."""
    if platform.machine().lower() not in X86 or not torch._C._has_mkldnn:
        return False
    # Without these instructions, oneDNN adds pairs of products in 16 bits, where they overflow.
    if not (
        torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported() or torch.cpu.get_capabilities().get("avx_vnni")
    ):
        return False
    values = torch.full((32, 64), LARGEST, dtype=torch.int8)
    values[::2, ::3] = -LARGEST
    rows = QuantisedRows((values[:3].short() + ZERO).to(torch.uint8), torch.ones(3, 1))
    try:
        products = Int8Matrix(Quantised(values, torch.ones(32, 1))).product(rows)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(products, values[:3].float() @ values.float().t())


# --- Weight matrices, each in the form that its products need


BLOCK = 64  # rows of the feed-forward that are gated and quantised at once; the fastest of 16, 32, 64, 128 and 256


class Matrix:
    """A weight matrix [O, I] in the form that its products need, with the `bias` [O] that they may have."""

    bias: Tensor | None = None

    @abstractmethod
    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return numbers [N, O], and the factors [N, 1] by which they become the products without a bias, or None for one."""

    def times(self, inputs: Inputs, more: Tensor | None = None) -> Tensor:
        """Return the products [N, O] of inputs [N, I] in 32 bits, with their bias, plus `more` [N, O]."""
        more = self.bias if more is None else more if self.bias is None else more + self.bias
        return self._plus(inputs, more)

    def _plus(self, inputs: Inputs, more: Tensor | None) -> Tensor:
        result = self.unscaled(inputs)[0]
        return result if more is None else result + more

    def fed(self, inputs: Inputs, n_fine: int, *, gelu: bool = False) -> Inputs:
        """Return SiLU or GELU of the first half of the products, times the second half: [N, O / 2]."""
        result, factors = self.unscaled(inputs) if self.bias is None else (self.times(inputs), None)
        if factors is None or result.shape[0] <= BLOCK:
            return _gated(result, factors, n_fine, gelu=gelu)
        blocks = []
        for start in range(0, result.shape[0], BLOCK):
            own = slice(start, start + BLOCK)
            blocks.append(_gated(result[own], factors[own], max(0, n_fine - start), gelu=gelu))
        return JoinedInputs(blocks, n_fine)


def _gated(gate_up: Tensor, factors: Tensor | None, n_fine: int, *, gelu: bool) -> Inputs:
    gate, up = gate_up.chunk(2, dim=1)
    # The factor of `up` remains one of the result.
    gate = gate if factors is None else gate * factors
    gated = F.gelu(gate, approximate="tanh") if gelu else F.silu(gate, inplace=factors is not None)
    return Inputs(gated.mul_(up), factors, n_fine)


class Inputs:
    """Rows [N, I] in 32 bits, to multiply by `factors` [N, 1].

    They are quantised once, for all matrices in 8 bits that read them. A factor changes only the scale of a quantised row, so
    the rows themselves are multiplied only if a matrix needs them wide. The first `n_fine` are quantised in 16 bits: 8 bits,
    and 8 bits of the remainder as another row at the end.
    """

    def __init__(self, rows: Tensor, factors: Tensor | None = None, n_fine: int = 0) -> None:
        self._rows, self._factors = rows, factors
        self.n_rows = rows.shape[0]  # `len` of a tensor takes as long as a small operation
        self.n_fine = min(n_fine, self.n_rows)
        self._quantised: QuantisedRows | None = None

    @property
    def rows(self) -> Tensor:
        """The rows [N, I] in 32 bits, times their factors."""
        if self._factors is not None:
            self._rows, self._factors = self._rows * self._factors, None
        return self._rows

    @property
    def quantised(self) -> QuantisedRows:
        """The rows in 8 bits."""
        if self._quantised is None:
            values, scales = quantised_rows(self._rows)
            if self.n_fine:
                more = remainders(*(self.fine_of(one) for one in (self._rows, values, scales)))
                if self._factors is not None:
                    more.scales.mul_(self.fine_of(self._factors))
            if self._factors is not None:
                scales.mul_(self._factors)
            if self.n_fine:
                values, scales = torch.cat([values, more.values]), torch.cat([scales, more.scales])
            self._quantised = QuantisedRows(values, scales)
        return self._quantised

    def fine_of(self, rows: Tensor) -> Tensor:
        """Return the fine ones of rows [N, I]. An index that takes all of them is a small operation too."""
        return rows if self.n_fine == self.n_rows else rows[: self.n_fine]


class JoinedInputs(Inputs):
    """Blocks of rows that were made one after another, because the steps of a block find it in the processor's cache."""

    def __init__(self, blocks: Sequence[Inputs], n_fine: int) -> None:
        self._blocks, self.n_fine, self.n_rows = blocks, n_fine, sum(block.n_rows for block in blocks)

    @property
    def rows(self) -> Tensor:
        return torch.cat([block.rows for block in self._blocks])

    @property
    def quantised(self) -> QuantisedRows:
        parts = [(block.quantised, block.n_rows) for block in self._blocks]
        values = [part.values[:n] for part, n in parts] + [part.values[n:] for part, n in parts]
        scales = [part.scales[:n] for part, n in parts] + [part.scales[n:] for part, n in parts]
        return QuantisedRows(torch.cat(values), torch.cat(scales))


class WideMatrix(Matrix):
    """A matrix for torch's own product, on any device."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        return F.linear(inputs.rows.to(self.weight.dtype), self.weight).float(), None


class NarrowMatrix(Matrix):
    """A matrix in 8 bits whose inputs have 16, on any device. `gpu` multiplies by it without widening it as a whole."""

    def __init__(self, narrow: Quantised) -> None:
        self.narrow = narrow

    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        return WideMatrix(self.narrow.dense().bfloat16()).unscaled(inputs)


class Int8Matrix(Matrix):
    """A matrix in 8 bits in oneDNN's own layout, with scales by row for its inputs."""

    def __init__(self, weight: Quantised) -> None:
        self._scales = weight.scales.reshape(-1).contiguous()
        self._zeros = torch.zeros(len(self._scales), dtype=torch.long)
        self._weight: Tensor = torch.ops.onednn.qlinear_prepack(weight.values.contiguous(), None)

    def product(self, rows: QuantisedRows) -> Tensor:
        """Return the products [N, O] of quantised rows [N, I], in 32 bits, before they are multiplied by the rows' scales."""
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows.values, 1.0, ZERO, self._weight, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return result

    def _plus(self, inputs: Inputs, more: Tensor | None) -> Tensor:
        rows = inputs.quantised
        result = self.product(rows)
        if inputs.n_fine:
            result.mul_(rows.scales)
            whole, remainders = result[: inputs.n_rows], result[inputs.n_rows :]
            inputs.fine_of(whole).add_(remainders)
            return whole if more is None else whole + more
        return result.mul_(rows.scales) if more is None else torch.addcmul(more, result, rows.scales)

    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        rows = inputs.quantised
        return self.product(rows), rows.scales


class OneDnnMatrix(Matrix):
    """A matrix in oneDNN's own layout. In bfloat16, it is multiplied in 16 bits and summed in 32."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous(), 64)

    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        # oneDNN generates code for each number of rows, which takes longer than a small product.
        rows = with_rows(inputs.rows, padded(inputs.n_rows)).to(self._dtype)
        products: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, None, "none", [], "")
        return products.float()[: inputs.n_rows], None


def matrix(weight: Weight, kind: Kind) -> Matrix:
    """Return a weight matrix [O, I] in the form for this kind of product, without a bias."""
    cased = for_kind(weight, kind)
    if isinstance(cased, Quantised):
        return NarrowMatrix(cased) if kind == "int8-weights" else Int8Matrix(cased)
    if kind == "plain":
        return WideMatrix(cased)
    return OneDnnMatrix(cased, torch.bfloat16 if kind == "onednn-bf16" else torch.float32)


def for_kind(weight: Weight, kind: Kind) -> Weight:
    """Return a weight in the form in which several can be concatenated."""
    if kind in NARROW:
        return weight if isinstance(weight, Quantised) else quantised(weight.float())
    return weight.dense() if isinstance(weight, Quantised) else weight
