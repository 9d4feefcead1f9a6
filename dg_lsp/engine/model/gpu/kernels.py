"""Triton kernels for what a layer does between its products. Imports triton, which not every machine has.

With torch's own operations a layer takes some 25 launches, and a small one takes 2 microseconds even in a recorded graph. With
these it takes ten. This package has the functions that start them, and the same functions without triton.

Numbers of rows and slots are not specialized, because each specialization is compiled at its first use.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING_SEEN = tl.constexpr(-1.0e30)  # finite, so that the difference of two of them is not NaN


@triton.jit
def norm(hidden, more, weight, out, eps, N: tl.constexpr, HAS_MORE: tl.constexpr, BLOCK: tl.constexpr):
    """Add `more` to a row of `hidden` in place, and write the row's RMS norm times `weight`."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    is_there = columns < N
    values = tl.load(hidden + row * N + columns, mask=is_there, other=0.0)
    if HAS_MORE:
        values += tl.load(more + row * N + columns, mask=is_there, other=0.0).to(tl.float32)
        tl.store(hidden + row * N + columns, values, mask=is_there)
    factor = 1.0 / tl.sqrt_rn(tl.sum(values * values, 0) / N + eps)
    normed = values * factor * tl.load(weight + columns, mask=is_there, other=0.0)
    tl.store(out + row * N + columns, normed.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def rotate(
    heads, positions, slots, table, queries, kv,
    N_QUERIES: tl.constexpr, N_KV: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotate one head of a row of queries, keys or values (which turn by nothing); write it to the queries or its slot."""
    row, head, pair = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK)
    is_there = pair < HALF
    source = heads + row * (N_QUERIES + 2 * N_KV) * 2 * HALF + head * 2 * HALF + 2 * pair
    even = tl.load(source, mask=is_there, other=0.0).to(tl.float32)
    odd = tl.load(source + 1, mask=is_there, other=0.0).to(tl.float32)
    turns = is_there & (head < N_QUERIES + N_KV)
    angle = table + (tl.load(positions + row) * HALF + pair) * 2
    cos, sin = tl.load(angle, mask=turns, other=1.0), tl.load(angle + 1, mask=turns, other=0.0)
    new_even, new_odd = even * cos - odd * sin, even * sin + odd * cos
    if head < N_QUERIES:
        target = queries + (row * N_QUERIES + head) * 2 * HALF + 2 * pair
        tl.store(target, new_even.to(queries.dtype.element_ty), mask=is_there)
        tl.store(target + 1, new_odd.to(queries.dtype.element_ty), mask=is_there)
    else:
        target = kv + tl.load(slots + row) * 4 * N_KV * HALF + (head - N_QUERIES) * 2 * HALF + 2 * pair
        tl.store(target, new_even.to(kv.dtype.element_ty), mask=is_there)
        tl.store(target + 1, new_odd.to(kv.dtype.element_ty), mask=is_there)


@triton.jit(do_not_specialize=["n_rows", "n_slots"])
def attend(
    queries, kv, visible, sums, most, weights, scaling, n_rows, n_slots,
    GROUPS: tl.constexpr, N_KV: tl.constexpr, SIZE: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Attend with a block of queries that share a key over one part of the slots.

    Writes the weighted sum of values, the largest score and the sum of weights for each query of the part.
    """
    kv_head, part, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    index, column = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    row, own = index // GROUPS, kv_head * GROUPS + index % GROUPS
    is_row, is_column = row < n_rows, column < SIZE
    offsets = (row * N_KV * GROUPS + own)[:, None] * SIZE + column[None]
    asked = tl.load(queries + offsets, mask=is_row[:, None] & is_column[None], other=0.0)
    largest = tl.full([ROWS], NOTHING_SEEN, tl.float32)
    total, mixed = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, SPLIT, KEYS):
        at = part * SPLIT + start + tl.arange(0, KEYS)
        is_slot = at < n_slots
        source = kv + at[:, None].to(tl.int64) * 2 * N_KV * SIZE + kv_head * SIZE + column[None]
        loads = is_slot[:, None] & is_column[None]
        keys = tl.load(source, mask=loads, other=0.0)
        scores = tl.dot(asked, tl.trans(keys), input_precision="ieee") * scaling
        sees = is_row[:, None] & is_slot[None]
        seen = tl.load(visible + row[:, None] * n_slots + at[None], mask=sees, other=0) != 0
        scores = tl.where(seen, scores, NOTHING_SEEN)
        now = tl.maximum(largest, tl.max(scores, 1))
        chances = tl.where(seen, tl.exp(scores - now[:, None]), 0.0)
        shrink = tl.exp(largest - now)
        values = tl.load(source + N_KV * SIZE, mask=loads, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(chances.to(values.dtype), values, input_precision="ieee")
        total = total * shrink + tl.sum(chances, 1)
        largest = now
    target = part * n_rows * N_KV * GROUPS + row * N_KV * GROUPS + own
    tl.store(sums + target[:, None] * SIZE + column[None], mixed, mask=is_row[:, None] & is_column[None])
    tl.store(most + target, largest, mask=is_row)
    tl.store(weights + target, total, mask=is_row)


@triton.jit(do_not_specialize=["n_queries", "n_parts"])
def join(sums, most, weights, out, n_queries, n_parts, SIZE: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Join what one query found in all parts of the slots."""
    query, part, column = tl.program_id(0), tl.arange(0, PARTS), tl.arange(0, WIDTH)
    is_part, is_column = part < n_parts, column < SIZE
    at = part * n_queries + query
    largest = tl.load(most + at, mask=is_part, other=NOTHING_SEEN)
    factors = tl.where(is_part, tl.exp(largest - tl.max(largest, 0)), 0.0)
    total = tl.sum(factors * tl.load(weights + at, mask=is_part, other=0.0), 0)
    loads = is_part[:, None] & is_column[None]
    parts = tl.load(sums + at[:, None] * SIZE + column[None], mask=loads, other=0.0)
    mixed = tl.sum(parts * factors[:, None], 0) / total
    tl.store(out + query * SIZE + column, mixed.to(out.dtype.element_ty), mask=is_column)


@triton.jit(do_not_specialize=["n"])
def gated(gate_up, out, n, N: tl.constexpr, BLOCK: tl.constexpr):
    """Write SiLU of the first half of a row, times the second half."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < n
    source = gate_up + at // N * 2 * N + at % N
    gate = tl.load(source, mask=is_there, other=0.0).to(tl.float32)
    up = tl.load(source + N, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + at, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=is_there)


@triton.jit(do_not_specialize=["n_rows"])
def narrow_product(
    inputs, values, scales, bias, out, n_rows,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, SPLIT: tl.constexpr, HAS_BIAS: tl.constexpr, IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """Multiply a block of rows by some rows of a matrix in 8 bits, which are widened in registers.

    With several parts of the inputs (`IS_WHOLE` is False), it writes their sums without scales and bias, for `sum_parts`.
    """
    column, part, block = tl.program_id(0) * OUT + tl.arange(0, OUT), tl.program_id(1), tl.program_id(2)
    row, step = block * ROWS + tl.arange(0, ROWS), tl.arange(0, IN)
    is_row, is_column = row < n_rows, column < N_OUT
    total = tl.zeros([ROWS, OUT], tl.float32)
    for start in range(0, SPLIT, IN):
        at = part * SPLIT + start + step
        is_in = (at < N_IN) & (start + step < SPLIT)
        given = tl.load(inputs + row[:, None] * N_IN + at[None], mask=is_row[:, None] & is_in[None], other=0.0)
        source = values + column[:, None].to(tl.int64) * N_IN + at[None]
        narrow = tl.load(source, mask=is_column[:, None] & is_in[None], other=0)
        total += tl.dot(given, tl.trans(narrow.to(given.dtype)), input_precision="ieee")
    if IS_WHOLE:
        total *= tl.load(scales + column, mask=is_column, other=0.0)[None]
        if HAS_BIAS:
            total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None]
    target = out + (part * n_rows + row)[:, None].to(tl.int64) * N_OUT + column[None]
    tl.store(target, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None])


@triton.jit(do_not_specialize=["n_rows"])
def sum_parts(
    parts, scales, bias, out, n_rows,
    N_OUT: tl.constexpr, N_PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Add the parts of a row's products, and apply the scales and the bias."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * OUT + tl.arange(0, OUT)
    is_column = column < N_OUT
    total = tl.zeros([OUT], tl.float32)
    for part in range(N_PARTS):
        total += tl.load(parts + (part * n_rows + row) * N_OUT + column, mask=is_column, other=0.0)
    total *= tl.load(scales + column, mask=is_column, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * N_OUT + column, total.to(out.dtype.element_ty), mask=is_column)
