"""`dg-lsp engine pull`: a model comes from the hub, whole, once, and what was begun is gone on with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dg_lsp.cli import engine as commands
from dg_lsp.engine.backends import local
from dg_lsp.wire import laptop
from dg_lsp.wire.settings import EMBEDDED
from tests.engine import real_geometry
from tests.engine.hub import Hub, serving
from tests.processes import dg_lsp

NAME = "somebody/model"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = real_geometry.save(tmp_path_factory.mktemp("saved"), real_geometry.build(vocab_size=420), shard="500KB")
    (folder / "README.md").write_text("not needed")
    (folder / "original").mkdir()
    (folder / "original" / "model.safetensors").write_bytes(b"the same weights once more")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder


@pytest.fixture
def hub(saved: Path, tmp_path: Path) -> Iterator[Hub]:
    with serving(NAME, shutil.copytree(saved, tmp_path / "hub")) as hub_server:
        yield hub_server


def pull(hub: Hub, home: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Return what the command prints and says; the library reads its address from the environment, once."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
    process = dg_lsp("engine", "pull", *(arguments or (NAME,)), env=environment, code=code)
    return process.stdout, process.stderr


def test_a_model_is_fetched_once_and_loads(hub: Hub, tmp_path: Path) -> None:
    output, messages = pull(hub, tmp_path / "home")
    first, used, *_ = output.splitlines()
    folder = Path(first.removeprefix(f"{NAME} is in "))
    assert used == f"the model in use is {EMBEDDED}; to use {NAME}: dg-lsp setup --yes {NAME}"
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert "model.safetensors.index.json" in names
    assert not names & {"README.md", "pytorch_model.bin", "model.safetensors"}
    assert all(line.startswith(f"downloading {NAME}: ") for line in messages.splitlines())
    assert messages
    assert local.load_model(str(folder), device="cpu", threads=1).passes.kinds
    bodies = [path for method, path, _ in hub.asked if method == "GET" and path.endswith(".safetensors")]
    assert len(bodies) == len(set(bodies)) > 2
    hub.asked.clear()
    assert pull(hub, tmp_path / "home")[0] == output
    assert not [path for method, path, _ in hub.asked if method == "GET" and path.endswith(".safetensors")]
    hub.asked.clear()
    assert pull(hub, tmp_path / "home", f"{NAME}@refs/pr/1")[0].startswith(f"{NAME}@refs/pr/1 is in ")
    assert f"/api/models/{NAME}/revision/refs%2Fpr%2F1" in [path for _, path, _ in hub.asked]


@pytest.mark.slow
def test_an_interrupted_fetch_does_not_fetch_complete_files_again(hub: Hub, tmp_path: Path) -> None:
    sizes = sorted(path.stat().st_size for path in hub.folder.glob("model-*.safetensors"))
    hub.break_after = sizes[-2]  # all but the largest come through
    messages = pull(hub, tmp_path / "home", code=2)[1]
    assert f"dg-lsp engine: {NAME} can't be fetched from the hub (" in messages
    hub.break_after = None
    hub.asked.clear()
    pull(hub, tmp_path / "home")
    assert len([path for method, path, _ in hub.asked if method == "GET" and path.endswith(".safetensors")]) == 1


def test_an_unsupported_model_is_not_fetched(hub: Hub, tmp_path: Path) -> None:
    (hub.folder / "config.json").write_text(json.dumps({"model_type": "mystery"}))
    messages = pull(hub, tmp_path / "home", code=2)[1]
    assert (
        messages
        == f"dg-lsp engine: {NAME} is a 'mystery', not a diffusion_gemma, llama, qwen2 or Dream, so it was not fetched\n"
    )
    assert not [path for _, path, _ in hub.asked if path.endswith(".safetensors")]


def test_a_missing_hub_model_is_reported(hub: Hub, tmp_path: Path) -> None:
    messages = pull(hub, tmp_path / "home", "owner/missing", code=2)[1]
    assert "dg-lsp engine: owner/missing can't be fetched from the hub (" in messages


@pytest.mark.parametrize("name", ["embedded", "./folder", "vllm:http://localhost:8000", "word"])
def test_only_hub_ids_can_be_fetched(name: str) -> None:
    result = CliRunner().invoke(commands.app, ["pull", name])
    names = ", ".join(model.name for model in laptop.every())
    known = f"a laptop model ({names}) or a hub id (OWNER/NAME)"
    assert (result.exit_code, result.stderr) == (2, f"dg-lsp engine: {name} can't be fetched; give {known}\n")
