"""The benchmark of the 26B model's stages runs, and names each stage."""

from __future__ import annotations

import json

import pytest

from benchmarks import stages


@pytest.mark.slow
@pytest.mark.parametrize("precision", [stages.WIDE, "fp8"])
def test_the_real_geometry_is_timed_with_random_weights_stage_by_stage(
    capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    """All parts of the real configuration, as small as can be: unequal heads, both kinds of layer, experts."""
    assert stages.main("tiny", "cpu", 1, precision) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert [line.split("  ")[0] for line in printed.err.splitlines()] == [stage["name"] for stage in figures["stages"]]
    assert [stage["name"] for stage in figures["stages"]] == [
        "step of 1 x 64", "step of 1 x 64, in fixed buffers",
        "step of 1 x 256", "step of 1 x 256, in fixed buffers",
        "step of 4 x 64", "step of 4 x 64, in fixed buffers",
        "prefix of 64 tokens", "one drafted token", "scores of 64 tokens",
        "fill of 12 steps of 1 x 64", "fill of 12 steps of 1 x 64, in fixed buffers",
    ]  # fmt: skip
    assert all(stage["ms"] > 0 and stage["floor_ms"] > 0 for stage in figures["stages"])
