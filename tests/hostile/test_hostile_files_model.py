"""Faulty model folders: truncated, of another model, or malicious."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dg_lsp.engine.backends import local
from dg_lsp.engine.common.loading import LoadError
from dg_lsp.engine.diffusion.gemma import weights
from tests.hostile.test_hostile_files_ignore import in_time


@pytest.fixture
def folder(instruct_layout: Path, tmp_path: Path) -> Path:
    return shutil.copytree(instruct_layout, tmp_path / "model")


@pytest.fixture(params=["trained_layout", "instruct_layout"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder whose encoder is a causal model, or one of which all is used."""
    return shutil.copytree(request.getfixturevalue(request.param), tmp_path / "model")


def refusal(folder: Path) -> str:
    with pytest.raises(LoadError) as error:
        local.load_model(str(folder), device="cpu", threads=1)
    message = str(error.value)
    assert "\n" not in message
    return message.replace(str(folder), "FOLDER")


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def configure(folder: Path, **values: Any) -> None:
    place = folder / "config.json"
    config = json.loads(place.read_text())
    for name, value in values.items():
        (config["text_config"] if name not in config and name in config["text_config"] else config)[name] = value
    place.write_text(json.dumps(config))


def test_a_whole_folder_is_loaded(either: Path) -> None:
    assert local.load_model(str(either), device="cpu", threads=1).passes.n_vocabulary


def test_a_missing_weight_is_named(either: Path) -> None:
    names = [name for name in load_file(either / "model.safetensors") if name.endswith("layers.1.mlp.up_proj.weight")]
    change(either, lambda weights: [weights.pop(name) for name in names])
    message = refusal(either)
    assert message.startswith("FOLDER lacks 1 of the ")
    assert message.endswith("layers.1.mlp.up_proj.weight; download it again, or correct it")


def test_a_weight_too_many_is_named(either: Path) -> None:
    change(either, lambda weights: weights.update({"model.decoder.layers.9.mlp.up_proj.weight": torch.zeros(2)}))
    assert refusal(either) == (
        "FOLDER holds 1 weights that its config.json does not describe, such as model.decoder.layers.9.mlp.up_proj.weight; "
        "it belongs to another model"
    )


def test_a_weight_of_another_shape_is_named(either: Path) -> None:
    change(either, lambda weights: weights.update({"model.decoder.norm.weight": torch.zeros(3)}))
    assert refusal(either) == "model.decoder.norm.weight in FOLDER has the shape [3], but config.json describes [64]"


def test_a_download_that_was_cut_off_is_refused(folder: Path) -> None:
    place = folder / "model.safetensors"
    data = place.read_bytes()
    for size in (0, 5, 100, len(data) // 2, len(data) - 1):
        place.write_bytes(data[:size])
        message = refusal(folder)
        assert message.startswith("FOLDER/model.safetensors is not a complete safetensors file (")
        assert message.endswith("); download it again")


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 100, "layer_types": ["full_attention"] * 100},
        {"vocab_size": 40_000_000},
        {"intermediate_size": 20_000_000},
        {"num_experts": 100_000, "moe_intermediate_size": 10_000},
        {"num_hidden_layers": 100_000_000},
    ],
)
def test_a_small_folder_allocates_little(folder: Path, values: dict[str, Any]) -> None:
    configure(folder, **values)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refusal(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_a_layer_count_beyond_reason_is_refused(folder: Path) -> None:
    configure(folder, num_hidden_layers=100_000_000)
    assert refusal(folder) == "config.json of FOLDER describes 100000000 layers, more than the maximum of 512"


class Harmful:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (os.environ["DG_LSP_TEST_MARK"],)


@pytest.mark.parametrize(
    "name", ["../other.safetensors", "/etc/passwd", "weights.bin", "a/b.safetensors", "..\\x.safetensors", "n\0.safetensors"]
)
def test_the_index_leads_nowhere_else(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DG_LSP_TEST_MARK", str(tmp_path / "mark"))
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    (folder / "weights.bin").write_bytes(pickle.dumps(Harmful()))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, name)})
    )
    assert (
        refusal(folder)
        == f"model.safetensors.index.json of FOLDER names {name!r}, which is not a safetensors file in that folder"
    )
    assert not (tmp_path / "mark").exists()


def test_a_weight_file_that_leads_outside_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    (folder / "model.safetensors").symlink_to("../other.safetensors")
    assert refusal(folder) == (
        "FOLDER/model.safetensors is missing, or is a link to a file outside its folder; download the model again"
    )


def test_a_pipe_beside_the_weights_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "other.safetensors")
    assert in_time(lambda: local.load_model(str(folder), device="cpu", threads=1)).passes.n_vocabulary


def test_pickles_alone_are_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    assert refusal(folder) == ("FOLDER holds no weights: it has neither model.safetensors nor model.safetensors.index.json")


def test_several_files_and_the_hub_s_links_are_loaded(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    snapshot = folder.parent / "hub" / "snapshots" / "abc"
    blobs = folder.parent / "hub" / "blobs"
    blobs.mkdir(parents=True)
    shutil.copytree(folder, snapshot)
    places: dict[str, str] = {}
    for part, names in enumerate((sorted(weights)[::2], sorted(weights)[1::2])):
        name = f"model-{part}.safetensors"
        save_file({key: weights[key] for key in names}, blobs / str(part), metadata={"format": "pt"})
        (snapshot / name).symlink_to(Path("../../blobs") / str(part))
        places |= dict.fromkeys(names, name)
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    assert local.load_model(str(snapshot), device="cpu", threads=1).passes.n_vocabulary


def test_the_configuration_chooses_no_code(folder: Path) -> None:
    configure(
        folder,
        _attn_implementation="somebody/kernel",
        attn_implementation="somebody/kernel",
        _attn_implementation_internal="somebody/kernel",
        auto_map={"AutoModel": "somebody/model.Model"},
        experts_implementation="somebody/kernel",
        use_kernels=True,
        kernel_config={"kernel_mapping": {"RMSNorm": "somebody/kernel"}},
    )
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["_attn_implementation"] = "somebody/kernel"
    (folder / "config.json").write_text(json.dumps(config))
    loaded = local.load_model(str(folder), device="cpu", threads=1)
    assert loaded.passes.model.config._attn_implementation == "sdpa"
    assert loaded.passes.model.config.text_config._attn_implementation == "sdpa"
    # Nor does the library hear of it: what it makes of each such value is not ours to know.
    assert "somebody" not in json.dumps(weights.configuration(folder).to_dict())


def test_a_model_of_an_unknown_type_is_refused(folder: Path) -> None:
    configure(folder, model_type="mystery")
    assert "describes a 'mystery', not a diffusion_gemma, llama, qwen2 or Dream" in refusal(folder)


def test_an_adapter_leads_to_no_other_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/model", "peft_type": "LORA"}')
    assert refusal(folder) == "FOLDER holds an adapter, not a model; merge it into its model, and give that folder"


NO_FILES: tuple[Callable[[Path], None], ...] = (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir)


@pytest.mark.parametrize("make", NO_FILES)
@pytest.mark.parametrize("name", ["tokenizer.json", "dg_lsp.json"])
def test_a_tokenizer_or_profile_that_is_no_file_is_refused(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    reason = "FOLDER has no tokenizer that can be read: " if name == "tokenizer.json" else ""
    assert refusal(folder) == f"{reason}FOLDER/{name} is not a regular file"


@pytest.mark.parametrize("make", NO_FILES)
def test_a_configuration_that_is_no_file_is_refused(folder: Path, make: Callable[[Path], None]) -> None:
    (folder / "config.json").unlink()
    make(folder / "config.json")
    assert refusal(folder) == "FOLDER/config.json is not a regular file"
