"""Compute attention over cached keys and values with few operations, and make its masks. Knows tensors alone.

Shapes: R rows, T tokens, L places of the keys, D head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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


def additive(mask: Tensor | None, groups: int, dtype: torch.dtype) -> Tensor | None:
    """Return a boolean mask as numbers to add to the scores, with a row for each query, or None."""
    if mask is None:
        return None
    return widened(torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf), groups)


def widened(mask: Tensor | None, groups: int) -> Tensor | None:
    """Return a mask [R, 1, T, L] with each token's row repeated for its `groups` queries."""
    return mask if mask is None or groups == 1 else mask.repeat_interleave(groups, dim=-2)
