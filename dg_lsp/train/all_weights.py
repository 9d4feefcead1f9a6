"""Train all weights of a small model on a folder's code for a limited time, and keep the state with the lowest loss.

The states are those of the training, and means of its last one and the model before it (WiSE-FT: Wortsman et al. 2022,
arXiv 2109.01903), because a few files are soon learned by heart. Most steps are causal, because drafts and their ranking use
the causal pass; the others train the canvas, unless the profile fills holes by drafts. This module knows the objective, the
optimizer and the held-out windows. It knows nothing of files, exact matches or the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dg_lsp.engine.model.loading import Loaded
from dg_lsp.train import tune_data
from dg_lsp.train.loop import causal_loss, mixed_loss
from dg_lsp.train.losses import token_losses
from dg_lsp.train.objective import PARTS, CanvasBatch, CausalBatch
from dg_lsp.train.pack import Packed

WARM_STEPS = 20
HOLD = 0.4  # the fraction of the training with the full learning rate; after it the rate falls linearly
LAST_RATE = 0.02
BETAS = (0.9, 0.98)  # of AdamW
BLENDS = (0.25, 0.5, 0.75)  # weights of the last state in its means with the model before the training
CO_LOSS = 0.5  # the weight of the causal loss in a canvas step, and of the canvas loss in the measured loss
CONDITIONED, ON_POLICY = 0.4, 0.5  # the fractions of canvas steps with self-conditioning, and with a canvas of the first pass
CANVAS = 64
CHECK_LENGTH = 320  # tokens of a window
END = PARTS.index("end")
CHECK_SPACING = 8  # a check is followed by at least this many times its duration of training
KNOWN = 0.8  # an end token is known if its loss is below this fraction of that of a uniform guess
# Weights of the library's class that a dense model does not use.
UNUSED = ("vision", "router", "experts", "layernorm_2")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. docs/decisions/0013-tuning-on-a-repository.md says how the values were chosen."""

    learning_rate: float = 3e-4
    causal_share: float = 0.7  # of the steps, if the profile starts with the canvas; else all are causal
    tokens: int = 2048  # of a causal step
    length: int = 256  # of a window
    rows: int = 4  # windows of a canvas step
    canvases: int = 4  # over each of them
    n_checks: int = 12  # how often the loss on held-out files is measured at most
    check_rows: int = 24  # causal windows of one measurement, of which it takes a third at a time


class Training:
    """A model in training, and the best state so far: `best` by name in bfloat16, with its loss `best_loss`.

    `knows_end` says whether the model was trained to write the tokens that end an answer.
    """

    def __init__(self, loaded: Loaded, train: Packed, held: Packed, recipe: Recipe, seed: int) -> None:
        tokenizer, profile = loaded.vocabulary.tokenizer, loaded.profile
        self.recipe, self.passes = recipe, loaded.diffusion
        self._has_canvas = "repair" in profile.line  # the profiles whose canvas corrects drafts
        self._train = tune_data.sampler(train, tokenizer, profile, seed=seed, canvas=CANVAS)
        checks = tune_data.sampler(held, tokenizer, profile, seed=seed + 1, canvas=CANVAS)
        self._causal_checks = [checks.causal(recipe.check_rows // 3, CHECK_LENGTH) for _ in range(3)]
        self._canvas_checks = [
            checks.canvases(recipe.check_rows // 6, recipe.length, recipe.canvases, noise=noise) for noise in (1.0, 0.5)
        ]
        torch.manual_seed(seed)
        self.knows_end = True
        self.knows_end = self.end_loss() < KNOWN * math.log(loaded.vocabulary.size)
        self._weights = _trained(self.passes.model)
        self._optimizer = torch.optim.AdamW(self._weights.values(), lr=recipe.learning_rate, betas=BETAS, weight_decay=0.0)
        self._n_steps = 0
        self.n_source_tokens, self.tokens = len(train.ids), 0  # in the files, and trained on so far
        self._first = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self.first_loss = self.best_loss = self.measure()
        self.best: dict[str, Tensor] = {}

    def run(self, share_done: Callable[[], float], on_check: Callable[[float, float], None]) -> None:
        """Train until `share_done` returns 1, and keep the best state; call `on_check` with the share and the latest loss."""
        next_check = 1 / self.recipe.n_checks
        while (share := share_done()) < 1:
            self._step(share)
            if (share := share_done()) >= next_check:
                on_check(share, self.check())
                # On a slow machine, checks must not take the time of the training.
                after = share_done()
                next_check = share + max(1 / self.recipe.n_checks, CHECK_SPACING * (after - share))
        on_check(1.0, self.finish())

    @torch.no_grad()
    def finish(self) -> float:
        """Check the last state and its means with the model before the training; return the lowest of their losses."""
        last = {name: weight.detach().clone() for name, weight in self._weights.items()}
        losses = [self.check()]
        for share in BLENDS:
            for name, weight in self._weights.items():
                weight.copy_(torch.lerp(self._first[name], last[name], share))
            losses.append(self.check())
        return min(losses)

    @torch.no_grad()
    def end_loss(self) -> float:
        """Return the mean loss of the tokens that end an answer, on the held-out windows."""
        total = count = 0.0
        for batch in self._causal_checks:
            is_end = torch.from_numpy(batch.parts == END)
            hidden, _ = self.passes.encode(torch.from_numpy(batch.ids))
            targets = torch.from_numpy(batch.targets)[is_end]
            model = self.passes.model
            losses = token_losses(hidden[is_end], model.lm_head.weight, targets, model.final_logit_softcapping)
            total, count = total + float(losses.sum()), count + len(losses)
        return total / max(count, 1.0)

    def _causal(self, batch: CausalBatch) -> CausalBatch:
        """Return the batch without the end tokens if the model was never trained to write them.

        Training would first teach it those, which is no knowledge of the code, and would change what its calibration means.
        """
        return batch if self.knows_end else replace(batch, weights=batch.weights * (batch.parts != END))

    def _canvases(self, batch: CanvasBatch) -> CanvasBatch:
        return replace(batch, causal=self._causal(batch.causal))

    @torch.no_grad()
    def measure(self) -> float:
        """Return the loss on the held-out windows: the causal loss, and half of the canvas loss if the canvas is trained."""
        causal = [
            float(causal_loss(self.passes, self._causal(batch), "cpu", torch.float32)[0]) for batch in self._causal_checks
        ]
        if not self._has_canvas:
            return sum(causal) / len(causal)
        canvas = [
            float(mixed_loss(self.passes, batch, "cpu", torch.float32, conditioned=False, on_policy=False)[0])
            for batch in self._canvas_checks
        ]
        return sum(causal) / len(causal) + CO_LOSS * sum(canvas) / len(canvas)

    def check(self) -> float:
        """Return the loss on the held-out windows, and keep the state if it is the best so far."""
        loss = self.measure()
        if loss < self.best_loss:
            self.best_loss = loss
            self.best = {name: weight.detach().to(torch.bfloat16, copy=True) for name, weight in self._weights.items()}
        return loss

    def _step(self, share: float) -> None:
        random, recipe = self._train.random, self.recipe
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _rate(self._n_steps, share)
        if not self._has_canvas or random.random() < recipe.causal_share:
            batch = self._causal(self._train.causal(max(1, recipe.tokens // recipe.length), recipe.length))
            loss = causal_loss(self.passes, batch, "cpu", torch.float32)[0]
            self.tokens += batch.ids.size
        else:
            canvases = self._canvases(self._train.canvases(recipe.rows, recipe.length, recipe.canvases))
            conditioned, on_policy = bool(random.random() < CONDITIONED), bool(random.random() < ON_POLICY)
            canvas, causal = mixed_loss(
                self.passes, canvases, "cpu", torch.float32, conditioned=conditioned, on_policy=on_policy
            )
            loss = canvas + CO_LOSS * causal
            self.tokens += canvases.causal.ids.size + canvases.clean.size
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._weights.values(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._n_steps += 1


def _rate(n_steps: int, share: float) -> float:
    """Return the current fraction of the learning rate."""
    return min(1.0, (n_steps + 1) / WARM_STEPS) * max(LAST_RATE, min(1.0, (1 - share) / (1 - HOLD)))


def _trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Make the weights that a dense model uses trainable, and return them by name."""
    trained = {}
    for name, weight in model.named_parameters():
        weight.requires_grad_(not any(part in name for part in UNUSED))
        if weight.requires_grad:
            trained[name] = weight
    return trained
