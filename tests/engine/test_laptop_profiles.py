"""The profiles that this package has for laptop models."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from dg_lsp.engine.causal.profile import load_profile
from dg_lsp.engine.common import rank
from dg_lsp.wire import laptop

LAYOUTS = {"smollm2-135m": "left", "qwen2.5-coder-0.5b": "fim"}


@pytest.mark.parametrize("name", [model.name for model in laptop.MODELS if not model.profile_of])
def test_each_laptop_model_has_a_profile_with_probabilities(name: str) -> None:
    profile = load_profile(Path(str(resources.files("dg_lsp.models"))) / name, fills_in=False)
    assert profile.layout == LAYOUTS[name]
    assert profile.calibration is not None
    # A weight of a feature that no longer exists would be ignored.
    known = set(rank.features(rank.Proposal("x", "causal", logps=(-1.0,), model_logps=(-1.0,)), []))
    stated = {weight.partition(": ")[2] or weight for weight in profile.calibration.weights}
    assert {"joint", "after", "mean"} <= stated & known
