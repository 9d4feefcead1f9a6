"""The benchmark on lengths runs: a checkpoint is trained a little, loads, and each method fills a hole with it and counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from dg_lsp.engine.model import loading
from dg_lsp.engine.model.loading import Loaded
from tests.benchmarks import lengths as benchmark
from tests.benchmarks.worlds import language, methods, training
from tests.benchmarks.worlds.training import HELD, Plan
from tests.trainer.windows import DELETE, EOS, N_SPECIAL, PAD, PRE


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("world")
    plan = Plan(open_steps=1, cut_steps=1, delete_steps=1, cooled_steps=0, rows=2, is_compiled=False)
    training.save(training.train(training.begin(plan), plan, on_message=lambda _: None), folder, training.PROFILE)
    return loading.load_model(str(folder), device="cpu", threads=1)


@pytest.mark.parametrize("kind", ["line", "block"])
@pytest.mark.slow
def test_every_method_answers_within_its_room_and_counts_what_it_spends(checkpoint: Loaded, kind: language.Kind) -> None:
    case = benchmark.case_of(next(language.holes(4, kind)))
    every = benchmark.ways("") | {"oracle": methods.oracle(case.n_answer), "delete": methods.delete(DELETE, 16)}
    with torch.inference_mode():
        for name, method in every.items():
            problem = benchmark.posed(checkpoint, case)
            answer = method(problem)
            assert len(answer) <= problem.longest, name
            assert all(token >= N_SPECIAL for token in answer), name
            assert kind == "block" or not set(answer) & set(checkpoint.vocabulary.with_newline), name
            assert problem.cost.row_passes >= problem.cost.passes > 0, name
            assert problem.cost.positions >= problem.cost.row_passes, name


def test_the_table_compares_the_methods_hole_by_hole(checkpoint: Loaded) -> None:
    cases = [benchmark.case_of(hole) for hole in islice(language.holes(4, "line"), 3)]
    table = benchmark.summed(cases, benchmark.run(checkpoint, cases, "grid,speculation", None))
    assert table["holes"] == 3
    assert set(table["cost"]) == {"grid", "speculation", "oracle"}
    assert table["chosen_less_oracle"][0] == pytest.approx(table["speculation"] - table["oracle"])


def test_an_open_canvas_is_the_text_that_follows_and_holds_nothing() -> None:
    batch = training.Sampler(1).batch(4, 2)
    assert batch.gap.all()
    for index in range(8):
        window, start = batch.causal.ids[index // 2].tolist(), int(batch.starts[index])
        follows = [token for token in window[start : start + batch.clean.shape[1]] if token not in (PAD, EOS)]
        assert batch.clean[index][: len(follows)].tolist() == follows
        assert PRE in window[:start]


def test_a_canvas_with_delete_tokens_holds_the_suffix_behind_them() -> None:
    batch = training.Sampler(1, delete=True).batch(6, 1)
    for clean, noisy, gap, used_places in zip(batch.clean, batch.noisy, batch.gap, batch.used, strict=True):
        held_tokens = clean[used_places & ~gap]
        assert 0 < len(held_tokens) <= HELD
        assert DELETE not in held_tokens
        np.testing.assert_array_equal(noisy[~gap], clean[~gap])
        answer = clean[gap & (clean != DELETE)]
        assert len(answer)
        assert (clean[gap][len(answer) :] == DELETE).all()


def test_a_checkpoint_is_kept_by_what_it_was_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PLAN", Plan(open_steps=1, cut_steps=1, cooled_steps=0, rows=2, is_compiled=False))
    messages: list[str] = []
    folder = training.made(tmp_path, delete=False, on_message=messages.append)
    assert training.made(tmp_path, delete=False, on_message=messages.append) == folder
    assert sum(line.startswith("training") for line in messages) == 1
    monkeypatch.setattr(training, "SHAPE", replace(training.SHAPE, layers=1))
    assert training.made(tmp_path, delete=False, on_message=messages.append) != folder


def test_the_shipped_checkpoint_is_made_as_the_code_says() -> None:
    assert (training.SHIPPED / training.MADE_OF).read_text(encoding="utf-8").strip() == training.mark(training.PLAN)


@pytest.mark.parametrize("kind", ["line", "block"])
def test_the_chosen_method_finds_lengths_that_the_grid_cannot(kind: language.Kind) -> None:
    shipped = loading.load_model(str(training.SHIPPED), device="cpu", threads=1)
    cases = [benchmark.case_of(hole) for hole in islice(language.holes(11, kind), 12)]
    table = benchmark.summed(cases, benchmark.run(shipped, cases, "speculation", None))
    assert len({case.n_answer for case in cases}) > 6
    assert table["oracle"] > 0.9
    assert table["speculation"] > 0.9
    assert table["cost"]["speculation"]["row_passes"] + table["cost"]["speculation"]["encoder_passes"] < 12
