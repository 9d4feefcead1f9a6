"""The benchmark of the 26B model's stages runs, and names each stage."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks import stages


@pytest.mark.slow
def test_the_real_geometry_is_timed_with_random_weights_stage_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    """All parts of the real configuration, as small as can be: unequal heads, both kinds of layer, experts."""
    assert stages.main("tiny", "cpu", 1) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["speedup_equal_steps"] > 0
    assert figures["speedup_default"] > 0
    assert [stage["name"] for stage in figures["stages"]] == [
        "prefix of 64 tokens", "one drafted token", "scores of 64 tokens",
        "step of 1 x 64", "step of 1 x 64, in fixed buffers",
        "step of 4 x 64", "step of 4 x 64, in fixed buffers",
        "step of 1 x 256", "step of 1 x 256, in fixed buffers",
        "fill of 12 steps of 1 x 64", "fill of 12 steps of 1 x 64, in fixed buffers",
        *(f"experts of a layer, 64 tokens, {kernel}" for kernel in ("grouped_mm", "batched_mm", "eager")),
    ]  # fmt: skip
    assert all(stage["ms"] > 0 and stage["floor_ms"] > 0 for stage in figures["stages"])


@pytest.mark.parametrize("size", ["huge", "0", "31", "-1"])
def test_an_unknown_size_names_the_known_ones(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stages.main(size, "cpu", 1) == 2
    said = capsys.readouterr().err
    assert size in said
    assert "full, tiny, or a number of layers" in said
