"""The trainer reports in one sentence what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.trainer import tokenizer
from tests.trainer.commands import app
from tests.trainer.shape import Shape, build


def refused(folder: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [argument.replace("HERE", str(folder)) for argument in arguments])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("dg-lsp train: ")
    return line.removeprefix("dg-lsp train: ").replace(str(folder), "HERE")


@pytest.mark.parametrize(
    "arguments",
    [
        ("tokenizer",),
        ("pack",),
        ("run",),
        ("branch", "--out", "HERE/other"),
        ("export", "--out", "HERE/model"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_missing_run_folder_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    message = refused(tmp_path, *arguments, "--run", "HERE/no")
    assert message == "there is no folder HERE/no; `python -m tests.trainer corpus --run HERE/no` creates it"


def test_a_skipped_stage_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path, "run", "--run", "HERE") == (
        "HERE has no tokenizer.json; `python -m tests.trainer tokenizer --run HERE` writes it"
    )
    (tmp_path / "tokenizer.json").touch()
    assert (
        refused(tmp_path, "run", "--run", "HERE")
        == "HERE has no train.npz; `python -m tests.trainer pack --run HERE` writes it"
    )


def test_a_state_of_another_shape_is_reported_with_the_options_that_fit(tmp_path: Path) -> None:
    new_tokenizer = tokenizer.train(["def f(a):\n    return a\n"] * 3, vocabulary=300)
    new_tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = new_tokenizer.get_vocab_size()
    model = build(Shape(hidden=64, layers=2, heads=1, feed_forward=96, vocabulary=size))
    torch.save({"model": model.state_dict(), "average": {}}, tmp_path / "state.pt")
    export = ("export", "--run", "HERE", "--out", "HERE/model")
    for wrong in (("--hidden", "128"), ("--layers", "3"), ("--feed-forward", "64"), ()):
        assert refused(tmp_path, *export, *wrong) == (
            "HERE/state.pt is from a model of another shape: it was trained with --hidden 64 --layers 2 --feed-forward 96, "
            f"and a tokenizer of {size} tokens"
        )
    assert refused(tmp_path, *export, "--hidden", "100") == "--hidden must be a multiple of 64, the width of one head, not 100"
    result = CliRunner().invoke(
        app,
        [*(item.replace("HERE", str(tmp_path)) for item in export), "--hidden", "64", "--layers", "2", "--feed-forward", "96"],
    )
    assert (result.exit_code, (tmp_path / "model" / "model.safetensors").exists()) == (0, True), result.output
    for content in (b"", b"no state", (tmp_path / "state.pt").read_bytes()[:999]):
        (tmp_path / "state.pt").write_bytes(content)
        assert refused(tmp_path, *export) == "HERE/state.pt is not the state of a training run; remove it and train again"


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refused(tmp_path, "corpus", "--run", "HERE/file", "--site", "HERE").endswith(("file exists", "not a directory"))
