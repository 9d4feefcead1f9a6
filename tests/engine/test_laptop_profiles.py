"""The profiles that this package has for laptop models."""

from __future__ import annotations

import pytest

from dg_lsp.engine.causal.layout import Profile
from dg_lsp.engine.common import rank
from dg_lsp.engine.model.weights import checkpoint
from dg_lsp.wire import laptop


@pytest.mark.parametrize("model", [model for model in laptop.MODELS if not model.profile_of], ids=lambda model: model.name)
def test_each_laptop_model_has_a_profile_with_probabilities(model: laptop.LaptopModel) -> None:
    profile = checkpoint.load_profile(model.profile_folder, Profile, None)
    # The adapter of `laptop.ADAPTER` teaches where an answer in the middle ends.
    assert profile.layout == ("fim" if model.adapter else "left")
    assert profile.calibration is not None
    # A weight of a feature that no longer exists would be ignored.
    known = set(rank.features(rank.Proposal("x", "causal", logps=(-1.0,), model_logps=(-1.0,)), []))
    stated = {weight.partition(": ")[2] or weight for weight in profile.calibration.weights}
    assert {"joint", "after", "mean"} <= stated & known
