"""The scores of a candidate: mixed with the file's repetitions, under the model alone, and as drafting computed them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.decode.filler import LocalFiller, load_local
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.decode.scoring import Scorer
from dg_lsp.engine.model.profile import DRAFTS_FIRST

PREFIX = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self."
LINE = InfillRequest(PREFIX, "\n\n\nPoint(1, 2)\n", (Hole(Span(0, 0), "cursor"),), language="python")
DRAFTS = {"line": DRAFTS_FIRST, "line_noise_rows": 0, "refine_steps": 0, "copy_rows": 3, "causal_rows": 3, "branches": 3}


@pytest.fixture(scope="module")
def filler(trained_layout: Path) -> LocalFiller:
    return load_local(str(trained_layout), device="cpu")


def results(filler: LocalFiller, file_weight: float) -> dict[str, Proposal]:
    """The results of one fill by their texts."""
    profile = replace(filler.loaded.profile, file_weight=file_weight, **DRAFTS)  # type: ignore[arg-type]
    task = LocalFiller(replace(filler.loaded, profile=profile)).start(LINE)
    while task.step():
        pass
    return {row.text: row for row in task.proposals()}


def test_the_model_s_own_scores_do_not_depend_on_the_file_s_repetitions(filler: LocalFiller) -> None:
    alone, mixed = results(filler, 0.0), results(filler, 0.9)
    assert all(row.own == row.tokens for row in alone.values())
    in_both = alone.keys() & mixed.keys()
    assert in_both
    for text in in_both:
        assert mixed[text].own == pytest.approx(alone[text].own, abs=1e-4)
    assert any(mixed[text].tokens != pytest.approx(alone[text].tokens, abs=1e-2) for text in in_both)


def test_scores_from_drafting_equal_those_of_a_pass_over_the_text(filler: LocalFiller, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[str] = []
    learn = Scorer.learn

    def noted(scorer: Scorer, text: str, *rest: object) -> None:
        learn(scorer, text, *rest)  # type: ignore[arg-type]
        if text in scorer._scores:
            learned.append(text)

    monkeypatch.setattr(Scorer, "learn", noted)
    drafted = results(filler, 0.9)
    assert learned  # without the file's repetitions, a random model's drafts hardly ever end
    monkeypatch.setattr(Scorer, "learn", lambda *_arguments: None)
    scored = results(filler, 0.9)
    for text in learned:
        assert drafted[text].own == pytest.approx(scored[text].own, abs=1e-4)
        assert drafted[text].tokens == pytest.approx(scored[text].tokens, abs=1e-4)
        assert drafted[text].after_sum == pytest.approx(scored[text].after_sum, abs=1e-4)
