"""The benchmark of the 26B model's stages runs, and names each stage."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks import stages


@pytest.mark.slow
def test_the_real_geometry_is_timed_with_random_weights_stage_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    """All parts of the real configuration, as small as can be: unequal heads, both kinds of layer, experts."""
    assert stages.main("tiny", "cpu", 1) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert [line.split("  ")[0] for line in printed.err.splitlines()] == [stage["name"] for stage in figures["stages"]]
    assert figures["speedup_equal_steps"] > 0
    assert figures["speedup_default"] > 0
    assert [stage["name"] for stage in figures["stages"]] == [
        "step of 1 x 64", "step of 1 x 64, in fixed buffers",
        "step of 1 x 256", "step of 1 x 256, in fixed buffers",
        "step of 4 x 64", "step of 4 x 64, in fixed buffers",
        "prefix of 64 tokens", "one drafted token", "scores of 64 tokens",
        "fill of 12 steps of 1 x 64", "fill of 12 steps of 1 x 64, in fixed buffers",
    ]  # fmt: skip
    assert all(stage["ms"] > 0 and stage["floor_ms"] > 0 for stage in figures["stages"])


@pytest.mark.slow
def test_matrices_in_8_bits_are_timed_without_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert stages.main("tiny", "cpu", 1, "fp8") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["precision"] == "fp8"
    assert figures["library_step_ms"] == 0
    assert len(figures["stages"]) == 11
