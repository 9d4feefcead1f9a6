"""The parts of one denoising step, as pure functions of tensors.

Temperature, entropy and entropy-bound acceptance follow DiffusionGemma's sampler (transformers 5.23,
`generation_diffusion_gemma.py`; EB-sampler, arXiv 2505.24857). Infilling needs two differences: everything is computed on
the gap only, and each row has its own budget. Knows tensors. Knows nothing of models.

Shapes: R rows, C canvas positions, G gap positions of all rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dg_lsp.engine.model.profile import Sampling

NEVER = -1e9  # the logit of a forbidden token, whose probability becomes exactly 0


def temperature(sampling: Sampling, step: int, n_steps: int) -> float:
    """Return the temperature of step 0, 1, … of `n_steps`, which falls from `t_max` towards `t_min`."""
    return sampling.t_min + (sampling.t_max - sampling.t_min) * (n_steps - step) / n_steps


def read(logits: Tensor, k: int) -> tuple[Tensor, torch.return_types.topk, Tensor]:
    """Return probabilities [G, V] of logits, the `k` largest, and entropies [G] in nats.

    The entropy is the log of the normaliser minus the mean logit, which avoids a logarithm of each probability. Forbidden
    tokens have the logit `NEVER`, because zero times minus infinity is not a number.
    """
    chances = logits.softmax(-1)
    top = chances.topk(k, dim=-1)
    normalizer = logits.gather(-1, top.indices[:, :1])[:, 0] - top.values[:, 0].log()
    return chances, top, (normalizer - torch.linalg.vecdot(chances, logits)).clamp_(min=0.0)


def accept(entropies: Tensor, free: Tensor, bound: float) -> Tensor:
    """Return which free positions [R, C] are accepted: those of lowest entropy in each row.

    The sum of the entropies before each accepted position is within the bound. So each row with free positions gets at
    least one.
    """
    ordered, order = entropies.masked_fill(~free, torch.inf).sort(dim=1, stable=True)
    finite = ordered.nan_to_num(posinf=0.0)
    within = (finite.cumsum(1) - finite) <= bound
    return torch.zeros_like(free).scatter(1, order, within) & free


def draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return one token per row of probabilities [G, V], by inverse sampling with `uniform` [G] in [0, 1)."""
    cumulative = probabilities.cumsum(-1)
    picked = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
    return picked.clamp(max=probabilities.shape[-1] - 1)
