"""The scores of a candidate: mixed with the file's repetitions, under the model alone, and as drafting computed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.common import answering
from dg_lsp.engine.common.inputs import RequestInputs
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.model.tree import Tree
from tests.engine.engine_kit import finish

PREFIX = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self."
LINE = InfillRequest(PREFIX, "\n\n\nPoint(1, 2)\n", (Hole(Span(0, 0), "cursor"),), language="python")


def results(filler: CausalFiller, file_weight: float) -> dict[str, Proposal]:
    """The results of one fill by their texts."""
    profile = replace(filler.loaded.profile, file_weight=file_weight)
    task = finish(CausalFiller(replace(filler.loaded, profile=profile)).start(LINE))
    return {row.text: row for row in task.progress.proposals}


def test_the_model_s_own_scores_do_not_depend_on_the_file_s_repetitions(trained_filler: CausalFiller) -> None:
    alone, mixed = results(trained_filler, 0.0), results(trained_filler, 0.9)
    assert all(row.model_logps == row.logps for row in alone.values())
    in_both = alone.keys() & mixed.keys()
    assert in_both
    for text in in_both:
        assert mixed[text].model_logps == pytest.approx(alone[text].model_logps, abs=1e-4)
    assert any(mixed[text].logps != pytest.approx(alone[text].logps, abs=1e-2) for text in in_both)


def test_scores_from_drafting_equal_those_of_a_pass_over_the_text(
    trained_filler: CausalFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted, read = results(trained_filler, 0.9), answering.read

    def read_again(inputs: RequestInputs, tree: Tree, pace: Pace, texts: Sequence[str]) -> dict[str, answering.Scores]:
        tree._logps.clear()
        return read(inputs, tree, pace, texts)

    monkeypatch.setattr(answering, "read", read_again)
    scored = results(trained_filler, 0.9)
    assert drafted
    for text in drafted:
        assert drafted[text].model_logps == pytest.approx(scored[text].model_logps, abs=1e-4)
        assert drafted[text].logps == pytest.approx(scored[text].logps, abs=1e-4)
        assert drafted[text].suffix_sum == pytest.approx(scored[text].suffix_sum, abs=1e-4)
