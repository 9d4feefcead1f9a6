"""Fit how sure a model may be of its candidates.

A logistic model over `engine.rank`'s features, fitted to whether a candidate is what stood in the hole, on files of
the training packages that were not trained on. Knows tasks and rows. Knows nothing of how a row was made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dg_lsp.engine import rank
from dg_lsp.engine.local import LocalFiller
from dg_lsp.engine.model import load
from dg_lsp.engine.profile import FILE, Calibration, dump
from dg_lsp.evaluate import score
from dg_lsp.evaluate.tasks import Task

PENALTY = 1e-3
FOLDS = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """The candidates of one task: their features, whether each is exact, and what made it."""

    features: tuple[dict[str, float], ...]
    exact: tuple[bool, ...]
    rows: tuple[str, ...]


def calibrate(tasks: Sequence[Task], folder: Path, *, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Fit the calibration of the checkpoint in `folder`, write it into its profile, and return what it is worth.

    The shares stated are of tasks whose first candidate is exact, each judged by a fit that has not seen the task.
    """
    filler = LocalFiller(load(str(folder), device="cpu"))
    samples = []
    for number, task in enumerate(tasks, 1):
        samples.append(sample(filler, task, seed + number))
        if number % 50 == 0:
            say(f"{number} of {len(tasks)} holes filled")
    names = sorted({name for item in samples for features in item.features for name in features})
    order = list(range(len(samples)))
    random.Random(seed).shuffle(order)
    hits = 0
    for fold in range(FOLDS):
        chosen = fit([samples[i] for place, i in enumerate(order) if place % FOLDS != fold], names)
        hits += sum(best(samples[i], chosen) for place, i in enumerate(order) if place % FOLDS == fold)
    final = fit(samples, names)
    profile = replace(filler.loaded.profile, calibration=final)
    (folder / FILE).write_text(dump(profile), encoding="utf-8")
    n = max(len(samples), 1)
    return {
        "tasks": len(samples),
        "chosen": hits / n,
        "any_row": sum(any(item.exact) for item in samples) / n,
        **{row: sum(_first(item, row) for item in samples) / n for row in ("copy", "causal", "noise")},
        "weights": {name: round(value, 4) for name, value in final.weights.items()},
    }


def sample(filler: LocalFiller, task: Task, seed: int) -> Sample:
    """Return the candidates of one task."""
    work = filler.start(task.request(seed=seed))
    while work.step():
        pass
    rows = work.rows()
    return Sample(
        tuple(rank.features(row, rows) for row in rows),
        tuple(score.is_exact(row.text, task.answer) for row in rows),
        tuple(row.row for row in rows),
    )


def fit(samples: Sequence[Sample], names: Sequence[str]) -> Calibration:
    """Return the weights that make exactness likeliest: logistic regression with an L2 penalty, by L-BFGS."""
    given = torch.tensor([[features.get(name, 0.0) for name in names] for item in samples for features in item.features])
    exact = torch.tensor([float(is_exact) for item in samples for is_exact in item.exact])
    mean, spread = given.mean(0), given.std(0).clamp(min=1e-6)
    scaled = (given - mean) / spread
    weights = torch.zeros(len(names) + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        z = scaled @ weights[1:] + weights[0]
        value = torch.nn.functional.binary_cross_entropy_with_logits(z, exact) + PENALTY * weights[1:].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    plain = weights[1:].detach() / spread
    intercept = float(weights[0].detach() - (plain * mean).sum())
    return Calibration(intercept, {name: round(float(value), 5) for name, value in zip(names, plain, strict=True)})


def best(item: Sample, calibration: Calibration) -> bool:
    """Return whether the candidate that the calibration puts first is exact."""
    if not item.features:
        return False
    chances = [rank.confidence(features, calibration) for features in item.features]
    return item.exact[chances.index(max(chances))]


def _first(item: Sample, row: str) -> bool:
    return next((exact for exact, made in zip(item.exact, item.rows, strict=True) if made == row), False)
