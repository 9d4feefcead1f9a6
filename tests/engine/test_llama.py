"""Folders of Llama and Qwen2 models: loaded in each format and precision, and refused with one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DiffusionGemmaForBlockDiffusion, Qwen2ForCausalLM

from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.common import loading
from dg_lsp.engine.common.loading import LoadError, set_up
from dg_lsp.engine.model.fit import GeometryError, gemma_sizes, llama_sizes
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.matmul import Quantised, int8_is_supported, quantised
from dg_lsp.engine.model.weights.checkpoint import CheckpointError
from dg_lsp.engine.model.weights.llama import llama_name
from tests import checkpoints
from tests.engine.filler_kit import hidden_of, ids_of, library_logits


def test_a_decoder_with_experts_or_a_short_window_is_no_causal_model(with_experts: Any) -> None:
    values = with_experts.config.to_dict()
    with pytest.raises(GeometryError, match="its window is shorter than a text may be"):
        gemma_sizes(values)
    values["text_config"]["sliding_window"] = values["text_config"]["max_position_embeddings"]
    sizes, weights = gemma_sizes(values), with_experts.state_dict()
    with pytest.raises(CheckpointError, match="the model's layers have experts"):
        Llama(sizes, {llama_name(name): weights[name] for name in sizes.shapes()}, "plain")


def test_the_embedded_model_equals_the_librarys_and_is_loaded_without_it() -> None:
    folder = loading.find(loading.EMBEDDED)
    code = (
        "import sys; from dg_lsp.engine.backends.local import load_model; load_model('embedded', device='cpu'); "
        "print(sorted(name for name in ('transformers', 'torch', 'torch._dynamo', 'sympy') if name in sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "['torch']"
    model: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(str(folder), dtype=torch.float32)
    passes, ids = load_model("embedded", device="cpu", dtype="float32").passes, 100 + ids_of(1, 40)
    torch.testing.assert_close(passes.logits(hidden_of(passes, ids)), library_logits(model, ids), atol=1e-3, rtol=1e-3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the hub has them."""
    return checkpoints.qwen(tmp_path_factory.mktemp("qwen"))


def copy_of(folder: Path, to: Path, **changed: Any) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    values = json.loads((to / "config.json").read_text()) | changed
    (to / "config.json").write_text(json.dumps(values))
    return to


def converted(folder: Path, to: Path) -> Path:
    """Write the folder's weights in the format of `dg-lsp engine pull`."""
    copy_of(folder, to, dg_lsp_quantisation="int8-rows")
    weights = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        weights[name] = tensor
        if tensor.ndim == 2:
            weights[name], scales = quantised(tensor)
            weights[f"{name}_scale"] = scales[:, 0]
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, to / "model.safetensors")
    return to


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "int8-rows"])
def test_folder_in_32_bits_equals_the_library(folder: Path, tmp_path: Path, stored: str) -> None:
    """bfloat16 is what the hub has; a converted folder has the values times their scales."""
    path = converted(folder, tmp_path / stored) if stored == "int8-rows" else copy_of(folder, tmp_path / stored)
    if stored == "bfloat16":
        weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(weights, path / "model.safetensors")
    model = Qwen2ForCausalLM.from_pretrained(folder if stored == "int8-rows" else path, dtype=torch.float32)
    ids = ids_of(1, 9)
    with torch.inference_mode():
        for parameter in model.parameters():
            if stored == "int8-rows" and parameter.ndim == 2:
                parameter.copy_(quantised(parameter).dense())
        expected = model(ids).logits
    loaded = load_model(str(path), device="cpu", dtype="float32")
    passes = loaded.passes
    torch.testing.assert_close(passes.logits(hidden_of(passes, ids)), expected, atol=2e-4, rtol=1e-4)
    assert (loaded.dtype, passes.products_dtype, passes.n_vocabulary) == ("float32", "float32", 300)


@pytest.mark.skipif(not int8_is_supported(), reason="this processor has no instructions for 8-bit products")
def test_both_formats_give_the_same_8_bit_model(folder: Path, tmp_path: Path) -> None:
    first = load_model(str(folder), device="cpu")
    second = load_model(str(converted(folder, tmp_path / "converted")), device="cpu")
    ids = ids_of(1, 30)
    hidden, other = (hidden_of(loaded.passes, ids) for loaded in (first, second))
    assert torch.equal(first.passes.logits(hidden), second.passes.logits(other))
    assert first.dtype == second.dtype == first.passes.products_dtype == "int8"
    assert first.passes.n_bytes() == second.passes.n_bytes() > 0
    wide = load_model(str(folder), device="cpu", dtype="float32").passes
    expected = wide.logits(hidden_of(wide, ids)).softmax(-1)
    assert float((first.passes.logits(hidden).softmax(-1) - expected).abs().sum(-1).mean()) < 0.2


def _drop(name: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda weights: weights.__delitem__(name)


def _set(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda weights: weights.__setitem__(name, tensor)


NORM = "model.norm.weight"
BAD_CONFIGS = (
    ({"num_hidden_layers": 10**9}, "describes 1000000000 layers, more than the maximum"),
    ({"hidden_size": 10**12}, "are free on this machine"),
    ({"vocab_size": 10**15}, "are free on this machine"),
    ({"vocab_size": 400}, "has the shape [300, 48], but config.json describes [400, 48]"),
    ({"intermediate_size": 88}, "has the shape [80, 48], but config.json describes [88, 48]"),
    ({"vocab_size": -1}, "its vocab_size is -1, which is not a size"),
    ({"vocab_size": 20}, "tokens, more than the model's 20"),
    ({"num_key_value_heads": 4}, "do not fit its 4 key and value heads"),
    ({"rms_norm_eps": "small"}, "its rms_norm_eps is 'small', which is not a positive number"),
    ({"hidden_act": "relu"}, "its hidden_act is 'relu', which dg-lsp does not compute"),
    ({"use_sliding_window": True}, "its use_sliding_window is True, which dg-lsp does not compute"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4}}, "its rotary positions are scaled by 'yarn'"),
    ({"dg_lsp_quantisation": "int3"}, "this version of dg-lsp reads 'int8-rows'"),
    ({"dg_lsp_quantisation": "int8-rows"}, "lacks 22 of the 60 weights that its config.json describes"),
    ({"tie_word_embeddings": False}, "lacks 1 of the 39 weights that its config.json describes, such as lm_head.weight"),
)


@pytest.mark.parametrize(("changed", "sentence"), BAD_CONFIGS)
def test_config_that_can_not_be_loaded_gives_one_sentence(
    folder: Path, tmp_path: Path, changed: dict[str, Any], sentence: str
) -> None:
    bad = copy_of(folder, tmp_path / "bad", **changed)
    with pytest.raises(LoadError) as caught:
        load_model(str(bad), device="cpu", dtype="float32")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_drop(NORM), f"lacks 1 of the 38 weights that its config.json describes, such as {NORM}"),
        (_set("model.extra.weight", torch.ones(1)), "holds 1 weights that its config.json does not describe"),
        (_set(NORM, torch.ones(47)), f"{NORM} in {{}} has the shape [47], but config.json describes [48]"),
        (_set(NORM, torch.ones(48, dtype=torch.float64)), f"{NORM} in {{}} is stored as F64"),
        (_set(NORM, torch.full((48,), torch.nan)), f"the weight {NORM} holds numbers that are not finite"),
        (_set("model.embed_tokens.weight", torch.full((300, 48), torch.inf)), "holds numbers that are not finite"),
    ],
)
def test_weights_that_do_not_fit_give_one_sentence(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], None], sentence: str
) -> None:
    bad = copy_of(folder, tmp_path / "bad")
    weights = load_file(bad / "model.safetensors")
    change(weights)
    save_file(weights, bad / "model.safetensors")
    with pytest.raises(LoadError) as caught:
        load_model(str(bad), device="cpu", dtype="float32")
    assert sentence.format(bad) in str(caught.value)


def test_file_that_is_cut_off_gives_one_sentence(folder: Path, tmp_path: Path) -> None:
    bad = copy_of(folder, tmp_path / "bad")
    data = (bad / "model.safetensors").read_bytes()
    (bad / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(LoadError, match="is not a complete safetensors file"):
        load_model(str(bad), device="cpu")


def test_precision_of_another_family_gives_one_sentence(folder: Path, instruct_layout: Path) -> None:
    with pytest.raises(LoadError, match=r"can't be loaded at fp8; choose int8, bfloat16 or float32"):
        load_model(str(folder), device="cpu", dtype="fp8")
    with pytest.raises(LoadError, match=r"can't be loaded at int8; choose"):
        load_model(str(instruct_layout), device="cpu", dtype="int8")


def test_processor_without_8_bit_products_loads_in_a_wider_precision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dg_lsp.engine.common.loading.matmul.int8_is_supported", lambda: False)
    loaded = load_model(str(folder), device="cpu")
    assert loaded.dtype == "float32"
    assert loaded.why["dtype"] == loading.LLAMA_WHY["float32"]
    with pytest.raises(LoadError, match="this processor has no instructions for it"):
        load_model(str(folder), device="cpu", dtype="int8")


def test_sizes_of_unknown_types_are_refused() -> None:
    with pytest.raises(GeometryError, match="its hidden_size is True"):
        llama_sizes({**checkpoints.LLAMA_SIZES, "hidden_size": True})


def test_quantised_weights_of_a_matrix_are_within_half_a_step() -> None:
    weight = torch.randn(5, 40)
    narrow = quantised(weight)
    assert isinstance(narrow, Quantised)
    assert bool(((narrow.dense() - weight).abs() <= narrow.scales * 0.501).all())


@pytest.mark.parametrize(("device", "is_enabled"), [("cpu", True), ("mps", True), ("cuda", False), ("cuda:1", False)])
def test_attention_of_cudnn_is_not_used_on_cuda(device: str, is_enabled: bool) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        set_up(device)
        assert torch.backends.cuda.cudnn_sdp_enabled() == is_enabled  # type: ignore[no-untyped-call]
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
