"""Predict each token of a window from the text before it, as the engine's file model does while it fills a hole.

This module knows token ids, and nothing of batches or models.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dg_lsp.engine.file_model import MAX_MATCH
from dg_lsp.train.windows import N_SPECIAL

# What a place that agrees in so many tokens less than the best one counts.
_SHARES = 4.0 ** -np.arange(MAX_MATCH + 1, dtype=np.float32)


def chances(ids: npt.NDArray[np.int64], *, full: float, half_at: float) -> npt.NDArray[np.float32]:
    """Return the weight of the guess of each of `ids` [T], and that weight times the guess's share for that token, as [2, T].

    `full` and `half_at` are those of `engine.file_model.FileModel`, whose guesses these are, with the tokens before each
    one as the whole file. A control token matches nothing and is never guessed.
    """
    n = len(ids)
    found = np.zeros((2, n), np.float32)
    is_text = ids >= N_SPECIAL
    same = np.tril(ids[:, None] == ids, -1) & is_text
    lengths, run = np.zeros((n, n), np.int8), same
    for _ in range(MAX_MATCH):
        if not run.any():
            break
        lengths += run
        longer = np.zeros_like(run)
        longer[1:, 1:] = run[:-1, :-1] & same[1:, 1:]
        run = longer
    places = same[:-1, :-1] & is_text[1:]  # [last token of a text, place of the same token whose next token is text]
    lengths = np.where(places, lengths[:-1, :-1], 0)
    best = lengths.max(1, initial=0)
    distinct, numbers = np.unique(ids[1:], return_inverse=True)
    following = np.zeros((n - 1, len(distinct)), np.float32)
    following[np.arange(n - 1), numbers] = 1
    counts = np.where(places, _SHARES[best[:, None] - lengths], 0) @ following
    known = best > 0
    total, best = counts[known].sum(1), best[known]
    weight = full * best / (best + half_at) * counts[known].max(1) / total
    found[0, 1:][known] = weight
    found[1, 1:][known] = weight * counts[known, numbers[known]] / total
    return found
