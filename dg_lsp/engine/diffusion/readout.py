"""Read what a step needs from the logits: the likeliest tokens, the entropy and a sampled token of each position.

The vocabulary is read in slices with an online softmax (Milakov and Gimelshein, arXiv 1805.02867), so the logits of a large one
are in memory at most once, and a slice stays in the cache of a GPU while the temperature, the mask, the exponentials and their
sums are computed. `plain_readout` in `tests/engine/reference.py` reads it at once; a test checks that both return the same, up
to rounding. Knows tensors. Knows nothing of models.

Shapes: G positions, V vocabulary, S slice, K tokens of the self-conditioning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dg_lsp.engine.model.fit import VOCABULARY_SLICE

NEVER = -1e9  # the logit of a forbidden token, whose probability becomes exactly 0
POSITIONS = 512  # positions whose slices are in memory at once, when the logits are computed slice by slice

# Returns the logits [G, last - first] of the tokens from `first` to `last`, in 32 bits. The caller may overwrite them.
LogitSlice = Callable[[int, int], Tensor]


@dataclass(frozen=True, slots=True)
class Constraints:
    """How the logits of G positions become probabilities.

    `heat` [G] are the temperatures. Tokens in `forbidden` [V] are never written, and those in `first` [V] not at the positions
    in `starts` [G]. `draws` [G] in [0, 1) are the random numbers that sample a token; None samples none.
    """

    heat: Tensor
    forbidden: Tensor
    first: Tensor
    starts: Tensor
    draws: Tensor | None = None

    def part(self, positions: slice) -> Constraints:
        """Return the constraints of some of the positions."""
        draws = None if self.draws is None else self.draws[positions]
        return Constraints(self.heat[positions], self.forbidden, self.first, self.starts[positions], draws)


@dataclass(frozen=True, slots=True)
class Readout:
    """The likeliest tokens [G, K] of each position, their probabilities, the entropies [G] in nats, and a sample [G]."""

    top_ids: Tensor
    top_chances: Tensor
    entropies: Tensor
    sampled: Tensor | None


def read_hidden(
    logits: Callable[[Tensor, int, int], Tensor], hidden: Tensor, n_vocabulary: int, constraints: Constraints, k: int
) -> Readout:
    """Return the readout of hidden states [G, H]; `logits` returns a slice [G', S] of the logits of some of them.

    No tensor of [G, V] is made, unless tokens are sampled: then the logits of at most `POSITIONS` positions are stored once.
    It reads no value back from the device, so that a GPU can record it as a graph.
    """
    parts: list[Readout] = []
    for at in range(0, len(hidden), POSITIONS):
        part = slice(at, at + POSITIONS)
        own = hidden[part]
        parts.append(sliced(partial(logits, own), n_vocabulary, constraints.part(part), k))
    if len(parts) == 1:
        return parts[0]
    samples = [part.sampled for part in parts if part.sampled is not None]
    return Readout(
        torch.cat([part.top_ids for part in parts]),
        torch.cat([part.top_chances for part in parts]),
        torch.cat([part.entropies for part in parts]),
        torch.cat(samples) if samples else None,
    )


def sliced(
    logit_slice: LogitSlice, n_vocabulary: int, constraints: Constraints, k: int, size: int = VOCABULARY_SLICE
) -> Readout:
    """Return the readout of logits that `logit_slice` returns in slices of `size` tokens.

    The slices are copied if a token is sampled, because its slice is known only after the last one.
    """
    n_positions, draws = len(constraints.heat), constraints.draws
    running: _Running | None = None
    masses, peaks = [], []
    stored = None if draws is None else torch.empty(n_positions, n_vocabulary, device=constraints.heat.device)
    for first in range(0, n_vocabulary, size):
        last = min(first + size, n_vocabulary)
        logits = logit_slice(first, last)
        logits /= constraints.heat[:, None]
        blocked = torch.where(constraints.starts[:, None], constraints.first[first:last], constraints.forbidden[first:last])
        logits.masked_fill_(blocked, NEVER)
        running, mass = _with_slice(running, logits, first, k)
        masses.append(mass)
        peaks.append(running.peak)
        if stored is not None:
            stored[:, first:last] = logits
    assert running is not None  # a vocabulary is never empty
    sampled = None
    if draws is not None and stored is not None:
        scales = (torch.stack(peaks, 1) - running.peak[:, None]).exp_()
        sampled = _drawn(stored, torch.stack(masses, 1) * scales, running.peak, draws, size)
    entropies = running.peak + running.total.log() - running.weighted / running.total
    chances = (running.top - running.peak[:, None]).exp_() / running.total[:, None]
    return Readout(running.top_ids, chances, entropies.clamp_(min=0.0), sampled)


@dataclass(frozen=True, slots=True)
class _Running:
    """The sums over the slices so far. `total` and `weighted` are relative to `peak`: exponentials of logits less the peak."""

    top: Tensor  # [G, K] the largest logits
    top_ids: Tensor  # [G, K]
    peak: Tensor  # [G] the largest logit
    total: Tensor  # [G] sum of exponentials
    weighted: Tensor  # [G] sum of exponentials times logits


def _with_slice(before: _Running | None, logits: Tensor, first: int, k: int) -> tuple[_Running, Tensor]:
    """Return the sums with one more slice [G, S], and the slice's own sum of exponentials, both relative to the new peak."""
    own = logits.topk(min(k, logits.shape[-1]), dim=-1)
    top, top_ids, peak = own.values, own.indices + first, own.values[:, 0]
    if before is not None:
        peak = torch.maximum(before.peak, peak)
        both = torch.cat([before.top, top], 1)
        merged = both.topk(min(k, both.shape[-1]), dim=-1)
        top, top_ids = merged.values, torch.cat([before.top_ids, top_ids], 1).gather(1, merged.indices)
    weights = (logits - peak[:, None]).exp_()
    mass = total = weights.sum(-1)
    weighted = torch.linalg.vecdot(weights, logits)
    if before is not None:
        scale = (before.peak - peak).exp_()
        total, weighted = before.total * scale + mass, before.weighted * scale + weighted
    return _Running(top, top_ids, peak, total, weighted), mass


def _drawn(stored: Tensor, masses: Tensor, peak: Tensor, draws: Tensor, size: int) -> Tensor:
    """Return one token per position by inverse sampling: the slice by its mass [G, N], then the token within it."""
    cumulative = masses.cumsum(-1)
    target = draws * cumulative[:, -1]
    chosen = _inverse(masses, cumulative, target)
    below = cumulative.gather(1, chosen[:, None])[:, 0] - masses.gather(1, chosen[:, None])[:, 0]
    places = chosen[:, None] * size + torch.arange(size, device=stored.device)
    weights = (stored.gather(1, places.clamp(max=stored.shape[1] - 1)) - peak[:, None]).exp_()
    weights = weights.masked_fill_(places >= stored.shape[1], 0.0)
    return chosen * size + _inverse(weights, weights.cumsum(-1), target - below)


def _inverse(weights: Tensor, cumulative: Tensor, target: Tensor) -> Tensor:
    """Return the first index [G] whose cumulative weight exceeds the target, but never one of weight 0."""
    picked = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    indexes = torch.arange(weights.shape[1], device=weights.device)
    # Rounding may put the target at the total, after which only tokens of weight 0 may follow.
    return torch.minimum(picked, torch.where(weights > 0, indexes, 0).amax(1))
