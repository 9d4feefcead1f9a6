"""The rule of one denoising step, as pure functions of tensors.

Temperature, entropy and entropy-bound acceptance follow DiffusionGemma's sampler (transformers 5.23,
`generation_diffusion_gemma.py`; EB-sampler, arXiv 2505.24857), with two differences that infilling needs: everything
is counted on the gap alone, and each row has its own budget. Knows nothing of models.

Shapes: R rows, C canvas positions, G gap positions of all rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dg_lsp.engine.profile import Sampling


def temperature(sampling: Sampling, step: int, n_steps: int) -> float:
    """Return the temperature of step 0, 1, … of `n_steps`: from `t_max` down towards `t_min`."""
    return sampling.t_min + (sampling.t_max - sampling.t_min) * (n_steps - step) / n_steps


def entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy in nats along the last dimension."""
    entropies: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropies


def accept(entropies: Tensor, free: Tensor, bound: float) -> Tensor:
    """Return which free positions [R, C] are accepted: the surest of each row, while the sum of their entropies
    less the last one's stays within the bound. At least one of each row that has any.
    """
    ordered, order = entropies.masked_fill(~free, torch.inf).sort(dim=1, stable=True)
    known = ordered.nan_to_num(posinf=0.0)
    within = (known.cumsum(1) - known) <= bound
    return torch.zeros_like(free).scatter(1, order, within) & free


def draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return one token for each row of probabilities [G, V] by inverting its distribution at `uniform` [G] in [0, 1)."""
    cumulative = probabilities.cumsum(-1)
    picked = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
    return picked.clamp(max=probabilities.shape[-1] - 1)
