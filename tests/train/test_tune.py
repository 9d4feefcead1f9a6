"""`dg-lsp train tune`: train an adapter on the code in a folder, and load it in the engine with its model."""

from __future__ import annotations

import json
import os
import sys
from importlib import util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from dg_lsp.engine.model import loading
from dg_lsp.engine.model.loading import LoadError
from dg_lsp.engine.model.weights.quantised import n_bytes
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train import tune, tune_data
from dg_lsp.train.commands import app
from dg_lsp.train.tune import Tuning
from dg_lsp.wire import config
from dg_lsp.wire.extras import install_command
from tests.engine import real_geometry

pytestmark = [pytest.mark.slow, pytest.mark.skipif(util.find_spec("peft") is None, reason="peft is not installed")]

FUNCTION = '''
def total_of_{name}(rows, limit):
    """Return the sum of {name} in all rows up to a limit."""
    total = 0
    for row in rows:
        total = total + row.{name}
        if total > limit:
            return limit
    return total


def names_of_{name}(rows):
    """Return the names of all {name} in order."""
    found = []
    for row in rows:
        found.append(row.{name}.name)
    return sorted(found)
'''
WORDS = ("apples", "pears", "boxes", "orders", "prices", "users", "files", "lines", "points", "edges", "nodes", "labels")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for word in WORDS:
        (folder / f"{word}.py").write_text(f"import os\n{FUNCTION.format(name=word)}{FUNCTION.format(name=word + '_left')}")
    (folder / ".gitignore").write_text("secret_*.py\n")
    (folder / "secret_parts.py").write_text("def hidden():\n    return 1\n" * 20)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_geometry.save(tmp_path_factory.mktemp("base"), real_geometry.build(vocab_size=420))


@pytest.fixture(autouse=True)
def _allowed(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[engine]\nallow = ["{base}"]\n')
    monkeypatch.setenv(config.FILE_VARIABLE, str(file))


def settings(*, experts: bool = False, steps: int = 18) -> Tuning:
    return Tuning(
        steps=steps, rank=8, learning_rate=1e-2, rows=2, canvases=2, length=512, experts=experts, device="cpu", check_every=100
    )


def logits(folder: Path) -> torch.Tensor:
    passes = loading.load_model(str(folder), device="cpu", threads=1, dtype="float32").passes
    ids, canvas = torch.arange(24)[None] + 300, torch.arange(16)[None] + 310
    with torch.inference_mode():
        return passes.logits(passes.decode(canvas, passes.encode(ids)[1]))


@pytest.mark.parametrize("experts", [False, True])
def test_the_loss_falls_and_the_adapter_loads(sources: Path, base: Path, tmp_path: Path, experts: bool) -> None:
    said: list[str] = []
    result = tune.run(sources, str(base), tmp_path / "out", settings(experts=experts), say=said.append)
    assert result.after < 0.9 * result.before
    stored = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == result.n_trained
    assert any("experts" in name for name in stored) == experts
    adapted, plain = logits(tmp_path / "out"), logits(base)
    assert (adapted - plain).norm() > 0.1 * plain.norm()
    # Without what was learnt it is the model that it was.
    zeros = {name: torch.zeros_like(tensor) for name, tensor in stored.items()}
    save_file(zeros, tmp_path / "out" / "adapter_model.safetensors", metadata={"format": "pt"})
    torch.testing.assert_close(logits(tmp_path / "out"), plain)


def test_the_loaded_weights_equal_the_trained_ones(
    sources: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[torch.Tensor] = []
    save = tune._save

    def noted(adapted: object, *others: object) -> None:
        passes = tune.Passes(adapted.base_model.model)  # type: ignore[attr-defined]
        with torch.inference_mode():
            kv = passes.encode(torch.arange(24)[None] + 300)[1]
            trained.append(passes.logits(passes.decode(torch.arange(16)[None] + 310, kv)))
        save(adapted, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(tune, "_save", noted)
    tune.run(sources, str(base), tmp_path / "out", settings(experts=True, steps=3), say=lambda _text: None)
    torch.testing.assert_close(logits(tmp_path / "out"), trained[0])


def test_the_embedded_model_is_tuned_in_its_own_layout(sources: Path, tmp_path: Path) -> None:
    # With fewer steps, and with larger ones, the loss depends on the seed.
    quick = Tuning(steps=30, rank=4, learning_rate=1e-3, rows=2, canvases=2, length=192, device="cpu", check_every=100)
    result = tune.run(sources, "embedded", tmp_path / "out", quick, say=lambda _text: None)
    assert result.after < result.before
    loaded = loading.load_model(str(tmp_path / "out"), device="cpu", threads=1)
    assert loaded.profile.layout == "infill-trained"
    assert loaded.profile.calibration is None
    assert n_bytes(loaded.diffusion.model) > n_bytes(loading.load_model("embedded", device="cpu", threads=1).diffusion.model)


def test_ignored_files_are_not_trained_on(sources: Path) -> None:
    train, held = tune_data.texts(sources)
    assert {name for name, _ in [*train, *held]} == {f"{word}.py" for word in WORDS}


def test_the_seed_chooses_the_held_out_files(sources: Path) -> None:
    chosen = set()
    for seed in range(8):
        train, held = tune_data.texts(sources, seed)
        assert (train, held) == tune_data.texts(sources, seed)
        assert len(held) == len(WORDS) // tune_data.HELD_EVERY
        assert {name for name, _ in train}.isdisjoint(name for name, _ in held)
        chosen.add(held[0][0])
    assert len(chosen) > 3


def test_secrets_in_files_are_not_trained_on(tmp_path: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    (tmp_path / "a.py").write_text(f'TOKEN = "{token}"\n{FUNCTION.format(name="apples")}')
    (tmp_path / "credentials.py").write_text(FUNCTION.format(name="pears"))
    train, held = tune_data.texts(tmp_path)
    assert [name for name, _ in train] == ["a.py"]
    assert train == held
    assert token not in train[0][1]
    assert "total_of_apples" in train[0][1]


def test_a_pipe_among_the_sources_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.py")
    (tmp_path / "b.py").write_text(FUNCTION.format(name="apples"))
    assert [name for name, _ in tune_data.texts(tmp_path)[0]] == ["b.py"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "has no source file in a language that dg-lsp knows, or all of them are ignored"),
        ({"a.py": "x = 1\n" * 3}, "has no source file|tuning needs at least 8"),
    ],
)
def test_a_folder_without_training_data_is_reported(base: Path, tmp_path: Path, content: dict[str, str], said: str) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text)
    with pytest.raises(EvalError, match=said):
        tune.run(folder, str(base), tmp_path / "out", settings(), say=lambda _text: None)


def test_the_command_prints_how_to_use_the_adapter(sources: Path, base: Path, tmp_path: Path) -> None:
    options = ["--init", str(base), "--out", str(tmp_path / "out"), "--steps", "2", "--rows", "1", "--device", "cpu"]
    done = CliRunner().invoke(app, ["tune", str(sources), *options])
    assert done.exit_code == 0, done.output
    assert f'To use it, set engine.model = "{tmp_path / "out"}"' in done.output
    assert f'engine.allow = ["{base}"]' in done.output
    again = CliRunner().invoke(app, ["tune", str(sources), *options])
    assert again.exit_code == 2
    assert "already has an adapter; remove it, or give another folder with --out" in again.output


def test_an_adapter_of_another_model_is_refused(sources: Path, base: Path, tmp_path: Path) -> None:
    tune.run(sources, str(base), tmp_path / "out", settings(steps=1), say=lambda _text: None)
    place = tmp_path / "out" / "adapter_config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "base_model_name_or_path": "embedded"}))
    with pytest.raises(LoadError, match="does not fit its model"):
        loading.load_model(str(tmp_path / "out"), device="cpu", threads=1)


def test_an_adapter_needs_unquantised_weights(sources: Path, base: Path, tmp_path: Path) -> None:
    tune.run(sources, str(base), tmp_path / "out", settings(steps=1), say=lambda _text: None)
    with pytest.raises(LoadError, match="holds an adapter, which can't be loaded at 8 bits; choose bfloat16"):
        loading.load_model(str(tmp_path / "out"), device="cpu", threads=1, dtype="fp8")


def test_without_peft_the_command_says_how_to_install_it(sources: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr("dg_lsp.engine.model.weights.adapter.util.find_spec", lambda _name: None)
    done = CliRunner().invoke(app, ["tune", str(sources), "--init", str(base), "--out", "adapter", "--device", "cpu"])
    assert done.exit_code == 2
    assert f"adapters need peft, which is not installed; install it with: {install_command('tune')}" in done.output
