"""Triton kernels for a layer's experts, and for a product with 8-bit weights. Imports triton, which not every machine has.

A pair is a token and one of its experts. The pairs are sorted by expert, and cut into tiles of rows that have one expert. So a
tile reads its part of the expert's weights once. The grid has as many tiles as there can be, and a program without a tile ends
at once: a recorded graph can replay such a launch, whatever the routing. Nothing is added atomically, so sums are reproducible.

Weights in 8 bits (e4m3) have a scale for each row of their matrix. They are widened to the type of the inputs in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(bounds, N_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """Return this program's expert, and the range of its tile's sorted pairs; the expert is `EXPERTS` if it has no tile."""
    number = tl.program_id(0)
    experts = tl.arange(0, EXPERTS)  # the number of experts, rounded up to a power of two
    starts = tl.load(bounds + experts, mask=experts < N_EXPERTS, other=0)
    ends = tl.load(bounds + experts + 1, mask=experts < N_EXPERTS, other=0)
    n_tiles = (ends - starts + ROWS - 1) // ROWS
    expert = tl.sum((tl.cumsum(n_tiles, 0) <= number).to(tl.int32), 0)
    n_before = tl.sum(tl.where(experts < expert, n_tiles, 0), 0)
    start = tl.sum(tl.where(experts == expert, starts, 0), 0) + (number - n_before) * ROWS
    end = tl.sum(tl.where(experts == expert, ends, 0), 0)
    return expert, start, end


@triton.jit
def _as(weights, dtype: tl.constexpr, IS_NARROW: tl.constexpr):
    """Return weights in the type of the inputs. 8 bits take a detour, because sm_89 can't convert them to bf16 directly."""
    return weights.to(tl.float16).to(dtype) if IS_NARROW else weights


@triton.jit
def gate_up(
    hidden, bank, scales, order, bounds, out,
    N_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr,
    IS_NARROW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write gelu(gate) * up of each sorted pair to `out` [P, INNER].

    `hidden` is [T, HIDDEN], `bank` [experts, 2 * INNER, HIDDEN], `scales` [experts, 2 * INNER].
    """
    expert, start, end = _tile(bounds, N_EXPERTS, EXPERTS, ROWS)
    if expert < N_EXPERTS:
        rows = start + tl.arange(0, ROWS)
        is_row = rows < end
        tokens = tl.load(order + rows, mask=is_row, other=0) // TOP_K
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = (columns < INNER) | (INNER % COLUMNS == 0)
        depth = tl.arange(0, DEPTH)
        own = bank + expert.to(tl.int64) * (2 * INNER * HIDDEN)
        inputs = hidden + tokens[:, None] * HIDDEN + depth[None, :]
        gates = own + columns[None, :] * HIDDEN + depth[:, None]
        ups = gates + INNER * HIDDEN
        gate = tl.zeros((ROWS, COLUMNS), tl.float32)
        up = tl.zeros((ROWS, COLUMNS), tl.float32)
        for at in range(0, HIDDEN, DEPTH):
            is_in = (at + depth < HIDDEN) | (HIDDEN % DEPTH == 0)  # folds to true where the depth divides
            a = tl.load(inputs + at, mask=is_row[:, None] & is_in[None, :], other=0.0)
            g = tl.load(gates + at, mask=is_column[None, :] & is_in[:, None], other=0.0)
            u = tl.load(ups + at, mask=is_column[None, :] & is_in[:, None], other=0.0)
            gate = tl.dot(a, _as(g, a.dtype, IS_NARROW), gate)
            up = tl.dot(a, _as(u, a.dtype, IS_NARROW), up)
        if IS_NARROW:
            own_scales = scales + expert * (2 * INNER) + columns
            gate *= tl.load(own_scales, mask=is_column, other=0.0)[None, :]
            up *= tl.load(own_scales + INNER, mask=is_column, other=0.0)[None, :]
        # The approximation with tanh, as gate * sigmoid(2 u), because tanh(u) = 2 * sigmoid(2 u) - 1.
        activated = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
        target = out + rows[:, None] * INNER + columns[None, :]
        tl.store(target, activated.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def down(
    inner, bank, scales, order, bounds, weights, out,
    N_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr,
    IS_NARROW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write each pair's output, times its routing weight, to its own row of `out` [P, HIDDEN] in the order before sorting.

    `inner` is [P, INNER], `bank` [experts, HIDDEN, INNER], `scales` [experts, HIDDEN], `weights` [P].
    """
    expert, start, end = _tile(bounds, N_EXPERTS, EXPERTS, ROWS)
    if expert < N_EXPERTS:
        rows = start + tl.arange(0, ROWS)
        is_row = rows < end
        pairs = tl.load(order + rows, mask=is_row, other=0)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = (columns < HIDDEN) | (HIDDEN % COLUMNS == 0)
        depth = tl.arange(0, DEPTH)
        own = bank + expert.to(tl.int64) * (HIDDEN * INNER)
        inputs = inner + rows[:, None] * INNER + depth[None, :]
        matrix = own + columns[None, :] * INNER + depth[:, None]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for at in range(0, INNER, DEPTH):
            is_in = (at + depth < INNER) | (INNER % DEPTH == 0)
            a = tl.load(inputs + at, mask=is_row[:, None] & is_in[None, :], other=0.0)
            m = tl.load(matrix + at, mask=is_column[None, :] & is_in[:, None], other=0.0)
            total = tl.dot(a, _as(m, a.dtype, IS_NARROW), total)
        if IS_NARROW:
            total *= tl.load(scales + expert * HIDDEN + columns, mask=is_column, other=0.0)[None, :]
        total *= tl.load(weights + pairs, mask=is_row, other=0.0).to(tl.float32)[:, None]
        target = out + pairs[:, None] * HIDDEN + columns[None, :]
        tl.store(target, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def linear(
    inputs, matrix, scales, out, n_rows,
    N_OUT: tl.constexpr, N_IN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write the product of `inputs` [n_rows, N_IN] with an 8-bit `matrix` [N_OUT, N_IN] to `out` [n_rows, N_OUT]."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < n_rows
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = (columns < N_OUT) | (N_OUT % COLUMNS == 0)
    depth = tl.arange(0, DEPTH)
    given = inputs + rows[:, None] * N_IN + depth[None, :]
    weights = matrix + columns[None, :] * N_IN + depth[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for at in range(0, N_IN, DEPTH):
        is_in = (at + depth < N_IN) | (N_IN % DEPTH == 0)
        a = tl.load(given + at, mask=is_row[:, None] & is_in[None, :], other=0.0)
        m = tl.load(weights + at, mask=is_column[None, :] & is_in[:, None], other=0.0)
        total = tl.dot(a, _as(m, a.dtype, True), total)
    total *= tl.load(scales + columns, mask=is_column, other=0.0)[None, :]
    target = out + rows[:, None] * N_OUT + columns[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
