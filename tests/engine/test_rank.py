"""One number for every row, and each text once."""

from __future__ import annotations

import pytest

from dg_lsp.engine.profile import Calibration
from dg_lsp.engine.rank import RowResult, best_first, confidence, features


def test_rows_that_agree_count_for_each_other() -> None:
    copy = RowResult("x", "copy", tokens=(-1.0, -3.0), left=9, right=2)
    causal, noise = RowResult("x", "causal", tokens=(-1.0, -3.0)), RowResult("y", "noise", entropy=0.5)
    named = features(causal, [copy, causal, noise])
    assert named["agree"] == pytest.approx(0.693, abs=1e-3)
    assert (named["copied"], named["causal"], named["noise"]) == (1.0, 1.0, 0.0)
    assert named["left"] == pytest.approx(2.303, abs=1e-3)
    assert (named["sum"], named["mean"], named["least"]) == (-4.0, -2.0, -3.0)


def test_each_text_stands_once_best_first() -> None:
    items = [
        RowResult("a", "copy", tokens=(-3.0,)),
        RowResult("b", "causal", tokens=(-1.0,)),
        RowResult("a", "noise", tokens=(-2.0,)),
    ]
    ranked = best_first(items, Calibration(0.0, {"mean": 1.0}))
    assert [(item.text, item.row) for _, item in ranked] == [("b", "causal"), ("a", "noise")]
    assert all(0 < chance < 1 for chance, _ in ranked)


def test_confidence_stays_within_bounds() -> None:
    assert confidence({"sum": 1e9}, Calibration(0.0, {"sum": 1.0})) <= 1.0
    assert confidence({"sum": -1e9}, Calibration(0.0, {"sum": 1.0})) >= 0.0
