"""Predict which part of an answer is still to come, as an auxiliary loss (Ding et al., arXiv 2410.03103).

The head that predicts it is dropped when the model is exported. This module knows hidden states and the parts of their
tokens, and nothing of models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dg_lsp.train.objective import PARTS

ANSWER, END = PARTS.index("answer"), PARTS.index("end")
NONE = -1.0


class Horizon:
    """The head, its optimizer, and the weight of its loss beside the causal loss."""

    def __init__(self, width: int, *, weight: float, rate: float, device: str) -> None:
        self._weight, self._rate = weight, rate
        self._head = torch.nn.Linear(width, 1).to(device)
        for parameter in self._head.parameters():
            torch.nn.init.zeros_(parameter)  # so that the model's first gradients are those of the causal loss
        self._optimizer = torch.optim.AdamW(self._head.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)

    def loss(self, hidden: Tensor, parts: npt.NDArray[np.uint8]) -> Tensor:
        """Return the weighted mean absolute error after each token of an answer, from `hidden` [B, T, H] and `parts` [B, T]."""
        left = torch.from_numpy(shares_left(parts)).to(hidden.device)
        counted = left >= 0
        predicted = torch.sigmoid(self._head(hidden[counted].float())[:, 0])
        return self._weight * (predicted - left[counted]).abs().sum() / counted.sum().clamp(min=1)

    def step(self, scale: float) -> None:
        """Update the head, with a fraction of the full learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * scale
        self._optimizer.step()
        self._optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return what `load` restores."""
        return {"head": self._head.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load(self, state: dict[str, Any] | None) -> None:
        """Continue from a saved state; None, from a run without this head, changes nothing."""
        if state is not None:
            self._head.load_state_dict(state["head"])
            self._optimizer.load_state_dict(state["optimizer"])


def shares_left(parts: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return, after each input token of an answer, the share of the answer's tokens that follow it [B, T]; elsewhere `NONE`.

    `parts` [B, T] are the parts of the targets, each of which is the next position's input. An answer whose end is not in
    its row is left out.
    """
    left = np.full(parts.shape, NONE, np.float32)
    for row, end in zip(*np.nonzero(parts == END), strict=True):
        before = np.flatnonzero(parts[row, :end] != ANSWER)
        first = int(before[-1]) + 1 if len(before) else 0
        if size := int(end) - first:
            left[row, first + 1 : end + 1] = np.arange(size - 1, -1, -1) / size
    return left
