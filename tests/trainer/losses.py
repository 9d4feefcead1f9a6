"""Cross-entropy of the softcapped head, computed without holding all logits at once.

This module knows one matrix product and its gradient, and nothing of models or data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 512  # rows whose logits fit the cache of a core


class _HeadLoss(torch.autograd.Function):
    """Compute loss and gradients in one pass over chunks of rows.

    This is fused linear cross-entropy, as in Liger (arXiv 2410.10989).
    """

    @staticmethod
    def forward(context: Any, hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor, cap: float) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        grad_hidden = torch.empty_like(hidden)
        # A head that is not trained needs no gradient, which would take as much memory as itself twice.
        grad_head = torch.zeros_like(head, dtype=torch.float32) if context.needs_input_grad[1] else None
        small = head.to(hidden.dtype)
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            capped = torch.tanh((hidden[rows] @ small.t()).float().div_(cap))
            grad = capped.mul(cap)
            normaliser = grad.logsumexp(-1, keepdim=True)
            weight, target = weights[rows, None], targets[rows, None]
            total += ((normaliser - grad.gather(1, target)) * weight).sum()
            grad.sub_(normaliser).exp_()
            grad.scatter_add_(1, target, torch.full_like(target, -1, dtype=grad.dtype))
            grad = grad.mul_(capped.square_().neg_().add_(1)).mul_(weight).to(hidden.dtype)
            grad_hidden[rows] = grad @ small
            if grad_head is not None:
                grad_head += (grad.t() @ hidden[rows]).float()
        context.save_for_backward(grad_hidden, grad_head)
        return total

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_head = context.saved_tensors
        return grad_hidden * grads[0], None if grad_head is None else grad_head * grads[0], None, None, None


def head_loss(hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor, cap: float) -> Tensor:
    """Return the sum of `weights` [N] times the cross-entropy of `targets` [N] given `hidden` [N, H] and `head` [V, H]."""
    return _HeadLoss.apply(hidden, head, targets, weights, cap)  # type: ignore[no-any-return,no-untyped-call]


@torch.no_grad()
def token_losses(hidden: Tensor, head: Tensor, targets: Tensor, cap: float) -> Tensor:
    """Return the cross-entropy [N] of each of `targets` [N] given `hidden` [N, H] and `head` [V, H]."""
    small = head.to(hidden.dtype)
    losses = []
    for start in range(0, len(hidden), CHUNK):
        rows = slice(start, start + CHUNK)
        logits = torch.tanh((hidden[rows] @ small.t()).float() / cap) * cap
        losses.append(torch.nn.functional.cross_entropy(logits, targets[rows], reduction="none"))
    return torch.cat(losses)
