"""The mean of checkpoints of one run is a checkpoint, and checkpoints that don't belong together are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from dg_lsp.core.calibration import Calibration
from dg_lsp.engine.model.profile import FILE, Profile, dump, load_profile
from tests.trainer.commands import app


def checkpoint(folder: Path, value: float, *, config: str = "{}", name: str = "layer", width: int = 3) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "tokenizer.json").write_text("[]")
    (folder / FILE).write_text(dump(replace(Profile(), causal_rows=7, calibration=Calibration(1.0, {"sum": 1.0}))))
    weights = {f"{name}.weight": torch.full((2, width), value, dtype=torch.bfloat16), "norm": torch.ones(3)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["average", *map(str, words)])
    return result.exit_code, result.output


def test_the_weights_are_the_mean_and_a_checkpoint_may_count_twice(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "one", 1.0), checkpoint(tmp_path / "two", 2.5)
    code, output = run(one, two, two, "--out", tmp_path / "out")
    assert (code, output) == (0, f"{tmp_path / 'out'}: the mean of 3 checkpoints\n")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert weights["layer.weight"].dtype is torch.bfloat16
    assert weights["layer.weight"].tolist() == [[2.0] * 3] * 2
    assert weights["norm"].dtype is torch.float32
    assert weights["norm"].tolist() == [1.0] * 3


def test_the_profile_is_kept_without_its_calibration(tmp_path: Path) -> None:
    run(checkpoint(tmp_path / "one", 1.0), checkpoint(tmp_path / "two", 2.0), "--out", tmp_path / "out")
    profile = load_profile(tmp_path / "out")
    assert (profile.causal_rows, profile.calibration) == (7, None)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "tokenizer.json", FILE, "model.safetensors"}


def test_checkpoints_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one", 1.0)
    wider = checkpoint(tmp_path / "wider", 1.0, config=json.dumps({"width": 2}))
    other = checkpoint(tmp_path / "other", 1.0, name="head")
    # Shapes that differ can't be added, or are broadcast without an error.
    narrow, column = (checkpoint(tmp_path / name, 1.0, width=width) for name, width in (("narrow", 2), ("column", 1)))
    broken = checkpoint(tmp_path / "broken", 1.0)
    (broken / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    for second, message in (
        (wider, "differ in config.json; average checkpoints of one run only"),
        (other, "does not have the same weights"),
        (narrow, "does not have the same weights"),
        (column, "does not have the same weights"),
        (broken, "can't be read"),
        (tmp_path / "empty", "has no model.safetensors"),
    ):
        code, output = run(one, second, "--out", out)
        assert code == 2
        assert message in output
        assert str(second) in output
        assert not out.exists()


def test_a_checkpoint_is_not_overwritten_by_the_mean(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "one", 1.0), checkpoint(tmp_path / "two", 2.0)
    code, output = run(one, two, "--out", one)
    assert code == 2
    assert "give another folder as --out" in output
    assert load_file(one / "model.safetensors")["layer.weight"].tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("words", [[], ["--out", "x"]])
def test_without_checkpoints_the_use_is_shown(words: list[str]) -> None:
    code, output = run(*words)
    assert code == 2
    assert "Missing" in output
