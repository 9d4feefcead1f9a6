"""A window's repetitions are those that the engine's file model finds, and the loss of their mixture is exact."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from dg_lsp.engine.file_model import FileModel
from dg_lsp.train import repetitions
from dg_lsp.train.losses import head_loss
from dg_lsp.train.windows import N_SPECIAL, PRE


def test_each_token_is_guessed_as_by_the_file_model_of_the_text_before_it() -> None:
    random = np.random.default_rng(0)
    phrase = random.integers(N_SPECIAL, 60, 30)
    ids = np.concatenate([phrase, random.integers(N_SPECIAL, 50, 80), phrase, random.integers(N_SPECIAL, 40, 40), phrase])
    weights, copied = repetitions.chances(ids, full=0.9, half_at=4.0)
    assert weights[0] == copied[0] == 0
    for place in range(1, len(ids)):
        guess = FileModel(ids[:place].tolist(), [], full=0.9, half_at=4.0).guess([])
        np.testing.assert_allclose(weights[place], guess.weight, atol=1e-5)
        np.testing.assert_allclose(copied[place], guess.weight * guess.shares.get(int(ids[place]), 0.0), atol=1e-5)
    assert copied.max() > 0.6


def test_a_repetition_does_not_cross_a_control_token() -> None:
    a, b, c = range(N_SPECIAL, N_SPECIAL + 3)
    weights, copied = repetitions.chances(np.array([a, b, PRE, c, a, b, PRE, c]), full=0.9, half_at=4.0)
    assert copied.nonzero()[0].tolist() == [5]  # the second b, after a; PRE is never guessed, and c follows nothing known
    assert not weights[6:].any()


def test_the_mixture_s_loss_and_gradients_are_exact() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden = torch.randn(700, 16, generator=noise, requires_grad=True)
    head = torch.randn(50, 16, generator=noise, requires_grad=True)
    targets, weights = torch.randint(0, 50, (700,), generator=noise), torch.rand(700, generator=noise)
    given = torch.rand(700, generator=noise) * 0.9
    mixture = torch.stack([1 - given, given * (torch.rand(700, generator=noise) < 0.5)])
    ours = head_loss(hidden, head, targets, weights, 30.0, mixture)
    own = F.softmax(torch.tanh(hidden @ head.t() / 30) * 30, -1).gather(1, targets[:, None])[:, 0]
    theirs = -((own * mixture[0] + mixture[1]).log() * weights).sum()
    torch.testing.assert_close(ours, theirs)
    for left, right in zip(torch.autograd.grad(ours, (hidden, head)), torch.autograd.grad(theirs, (hidden, head)), strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)
