"""The head that predicts how much of an answer is left: its targets, its loss, and how runs with and without it continue."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from dg_lsp.train import export, loop
from dg_lsp.train.horizon import ANSWER, END, NONE, Horizon, shares_left
from tests.train.test_training import PLAN, SHAPE, run_folder

__all__ = ["run_folder"]  # the fixture


def test_the_share_left_falls_to_zero_at_the_answer_s_last_token() -> None:
    prefix = 2
    parts = np.array([[prefix, prefix, ANSWER, ANSWER, ANSWER, ANSWER, END, 0, prefix, ANSWER, ANSWER]], np.uint8)
    left = shares_left(parts)[0]
    np.testing.assert_allclose(left[3:7], [0.75, 0.5, 0.25, 0.0])
    assert (np.delete(left, range(3, 7)) == NONE).all()  # the second answer has no end in this row


def test_a_horizon_learns_what_the_hidden_states_say() -> None:
    parts = np.array([[2, ANSWER, ANSWER, ANSWER, ANSWER, END]], np.uint8)
    hidden = torch.tensor(shares_left(parts)).clamp(min=0)[..., None] * 4 - 2
    horizon = Horizon(1, weight=0.5, rate=0.1, device="cpu")
    first = horizon.loss(hidden, parts).item()
    assert abs(first - 0.5 * np.abs(np.array([0.75, 0.5, 0.25, 0.0]) - 0.5).mean()) < 1e-6
    for _ in range(60):
        horizon.loss(hidden, parts).backward()
        horizon.step(1.0)
    assert horizon.loss(hidden, parts).item() < first / 2


def test_a_run_can_gain_and_lose_the_head_and_its_checkpoint_has_none(run_folder: Path, tmp_path: Path) -> None:
    def train(causal_tokens: int, weight: float) -> bool:
        schedule = replace(PLAN.schedule, causal_tokens=causal_tokens)
        said: list[str] = []
        loop.run(run_folder, SHAPE, replace(PLAN, schedule=schedule, horizon_weight=weight), say=said.append)
        assert json.loads(said[-1])["causal_tokens"] >= causal_tokens
        return torch.load(run_folder / "state.pt", weights_only=True)["horizon"] is not None

    assert not train(200, 0.0)
    export.export(run_folder, tmp_path / "without", SHAPE)
    assert train(900, 0.1)
    assert train(1800, 0.1)
    export.export(run_folder, tmp_path / "with", SHAPE)
    assert not train(2700, 0.0)
    names = [set(load_file(tmp_path / name / "model.safetensors")) for name in ("with", "without")]
    assert names[0] == names[1]


def test_another_seed_reads_other_batches_when_a_run_continues(run_folder: Path, tmp_path: Path) -> None:
    def first_batch(seed: int) -> np.ndarray:
        trainer = loop.Trainer(run_folder, SHAPE, replace(PLAN, seed=seed))
        return trainer._batches.next(True, trainer.progress).ids

    loop.run(run_folder, SHAPE, replace(PLAN, schedule=replace(PLAN.schedule, causal_tokens=2900)), say=lambda _line: None)
    np.testing.assert_array_equal(first_batch(1), first_batch(1))
    assert not np.array_equal(first_batch(1), first_batch(2))
