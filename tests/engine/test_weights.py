"""Weights go from the files straight to their place, whole or not at all, in 16, 8 and 4 bits."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch.profiler import ProfilerActivity, profile
from transformers import DiffusionGemmaForBlockDiffusion

from benchmarks import stages
from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.core.wording import size
from dg_lsp.engine.backends import local
from dg_lsp.engine.backends.local import filler_of
from dg_lsp.engine.common import loading
from dg_lsp.engine.common.loading import Loaded, LoadError
from dg_lsp.engine.diffusion.gemma import quantised, weights
from dg_lsp.engine.model import fit, memory
from dg_lsp.engine.model.fit import VLLM_NVFP4, Precision
from dg_lsp.engine.model.weights.fetch import Meter, duration
from tests.engine import real_geometry
from tests.engine.engine_kit import finish

needs_bitsandbytes = pytest.mark.skipif(util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
PRECISIONS = ["float32", "bfloat16", "fp8", pytest.param("int4", marks=needs_bitsandbytes)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of several files, with a vision tower, as the library's own class writes it."""
    folder = tmp_path_factory.mktemp("whole")
    return real_geometry.save(folder, real_geometry.build(), shard="10MB")


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_geometry.save(tmp_path_factory.mktemp("one"), real_geometry.build(vocab_size=420))


@pytest.fixture
def folder(one_file: Path, tmp_path: Path) -> Path:
    return shutil.copytree(one_file, tmp_path / "model")


def load_weights(folder: Path, dtype: str = "") -> Loaded[Any, Any]:
    return local.load_model(str(folder), device="cpu", threads=1, dtype=dtype)


def refusal(folder: Path, dtype: str = "") -> str:
    with pytest.raises(LoadError) as error:
        load_weights(folder, dtype)
    message = str(error.value)
    assert "\n" not in message
    return message.replace(str(folder), "FOLDER")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loaded_weights_equal_the_librarys_without_the_vision_tower(whole: Path, dtype: str) -> None:
    ours = load_weights(whole, dtype).passes.model
    theirs: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(whole, dtype=loading.wide_dtype(dtype))  # type: ignore[arg-type]
    expected = theirs.state_dict()
    state = ours.state_dict()
    assert {name for name in expected if name not in state} == {name for name in expected if "vision" in name}
    for name, tensor in state.items():
        assert tensor.dtype is expected[name].dtype
        assert torch.equal(tensor, expected[name]), name
    buffers = dict(theirs.named_buffers())
    for name, buffer in ours.named_buffers():
        assert torch.equal(buffer.to(buffers[name].dtype), buffers[name]), name


def test_both_passes_share_one_memory(whole: Path) -> None:
    loaded = load_weights(whole, "bfloat16").passes.model
    encoder, decoder = loaded.model.encoder.language_model, loaded.model.decoder
    assert loaded.lm_head.weight is decoder.embed_tokens.weight is encoder.embed_tokens.weight
    for one, other in zip(encoder.layers, decoder.layers, strict=True):
        assert one.experts.gate_up_proj is other.experts.gate_up_proj
        assert one.self_attn.k_proj.weight is other.self_attn.k_proj.weight
        assert one.layer_scalar is not other.layer_scalar


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.slow
def test_every_precision_fills(one_file: Path, dtype: str) -> None:
    check_fills(one_file, dtype)


@pytest.mark.slow
def test_a_head_of_full_size_fills(whole: Path) -> None:
    """In any precision the head is wide, and read in slices."""
    check_fills(whole, "fp8")


def check_fills(folder: Path, dtype: str) -> None:
    loaded = load_weights(folder, dtype)
    asked = InfillRequest("def add(a, b):\n    return ", "\n", (Hole(Span(0, 0), "cursor"),))
    assert finish(filler_of(loaded).start(asked)).candidates()
    assert loaded.dtype == dtype


@pytest.mark.parametrize(("dtype", "max_error"), [("fp8", 0.04), pytest.param("int4", 0.12, marks=needs_bitsandbytes)])
def test_narrow_weights_are_near_the_wide_ones(one_file: Path, dtype: str, max_error: float) -> None:
    wide, narrow = load_weights(one_file, "bfloat16").passes.model, load_weights(one_file, dtype).passes.model
    n_compared = 0
    for name, module in narrow.model.decoder.named_modules():
        if isinstance(module, quantised.NarrowLinear):
            pairs: list[tuple[Any, Any]] = [(module.narrow, wide.model.decoder.get_submodule(name).weight)]
        elif isinstance(module, quantised.NarrowExperts):
            experts = wide.model.decoder.get_submodule(name)
            pairs = [(bank, getattr(experts, part)) for part, bank in module.banks.items()]
        else:
            continue
        for weight, expected in pairs:
            dense = weight.dense(torch.bfloat16).float()
            assert float((dense - expected).norm() / expected.float().norm()) < max_error
            n_compared += 1
    # Each layer's attention, feed-forward and banks; values of its own but in the last.
    assert n_compared == 6 * (3 + 3 + 2) + 5


@pytest.mark.parametrize(("dtype", "share"), [("fp8", 0.53), pytest.param("int4", 0.258, marks=needs_bitsandbytes)])
def test_narrow_weights_take_the_memory_that_they_should(folder: Path, dtype: str, share: float) -> None:
    shape = fit.of_config(json.loads((folder / "config.json").read_text()))
    n_kept = 2 * (shape.n_embedding + shape.n_other)
    wide = quantised.n_bytes(load_weights(folder, "bfloat16").passes.model) - n_kept
    narrow = quantised.n_bytes(load_weights(folder, dtype).passes.model) - n_kept
    assert narrow / wide == pytest.approx(share, rel=0.06)  # rows of 64 weights: a scale of 4 bytes each is much


@needs_bitsandbytes
def test_rows_with_incomplete_blocks_stay_wide(tmp_path: Path) -> None:
    folder = real_geometry.save(tmp_path, real_geometry.build(vocab_size=420, intermediate_size=96))
    layer = load_weights(folder, "int4").passes.model.model.decoder.layers[0]
    assert layer.mlp.down_proj.weight.dtype is torch.bfloat16
    assert isinstance(layer.mlp.up_proj, quantised.NarrowLinear)


def test_published_8_bit_weights_are_read_unchanged(folder: Path) -> None:
    ours = load_weights(folder, "fp8").passes.model
    real_geometry.as_published_in_8_bits(folder)
    loaded = load_weights(folder)
    theirs = loaded.passes.model
    assert loaded.dtype == "fp8"
    assert "stored in 8 bits" in loaded.why["dtype"]
    ids, canvas = torch.arange(20)[None] + 300, torch.arange(64)[None] + 300
    with torch.inference_mode():
        expected = ours(input_ids=ids, decoder_input_ids=canvas).logits
        assert torch.equal(theirs(input_ids=ids, decoder_input_ids=canvas).logits, expected)
    banks = theirs.model.decoder.layers[0].experts.banks
    assert banks["gate_up_proj"].scales.shape == (8, 128, 1)
    assert theirs.model.encoder.language_model.layers[0].experts is theirs.model.decoder.layers[0].experts


def test_8_bit_weights_are_widened_if_16_bits_are_requested(folder: Path) -> None:
    narrow = load_weights(folder, "fp8").passes.model.model.decoder.layers[2].mlp.up_proj.narrow
    real_geometry.as_published_in_8_bits(folder)
    wide = load_weights(folder, "bfloat16").passes.model.model.decoder.layers[2].mlp.up_proj.weight
    assert torch.equal(wide, narrow.dense(torch.bfloat16))


def test_scales_of_blocks_are_read(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.decoder.layers.0.mlp.up_proj.weight"  # [128, 64]
    scales = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    narrow = weights[name].float().to(quantised.FP8)
    weights |= {name: narrow, name.replace(".weight", ".weight_scale_inv"): scales}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    real_geometry.configure(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [32, 32]})
    dense_weights = load_weights(folder).passes.model.model.decoder.layers[0].mlp.up_proj.narrow.dense(torch.float32)
    torch.testing.assert_close(dense_weights, narrow.float() * scales.repeat_interleave(32, 0).repeat_interleave(32, 1))


def test_an_unsupported_quantisation_gets_the_vllm_command(folder: Path) -> None:
    real_geometry.configure(folder, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    assert refusal(folder) == (
        "config.json of FOLDER says that its weights are quantised by modelopt, which dg-lsp does not read; load the "
        f"unquantised model, or let vLLM serve this one (engine.model = vllm:URL), as in: {VLLM_NVFP4}"
    )


@pytest.mark.parametrize(
    ("missing_name", "expected_message"),
    [
        ("experts.3.up_proj.weight", "is stored as 15 matrices, not the 16 that config.json describes"),
        ("experts.3.up_proj.weight_scale", "is stored in 8 bits without a scale"),
        ("self_attn.q_proj.weight_scale", "is stored in 8 bits without a scale"),
        ("mlp.up_proj.weight", "is missing; only its scale is stored"),
    ],
)
def test_an_8_bit_checkpoint_that_lacks_a_piece_is_refused(folder: Path, missing_name: str, expected_message: str) -> None:
    real_geometry.as_published_in_8_bits(folder)
    weights = load_file(folder / "model.safetensors")
    del weights[f"model.decoder.layers.1.{missing_name}"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    message = refusal(folder)
    assert message.startswith("model.decoder.layers.1.")
    assert message.endswith(f"in FOLDER {expected_message}")


def test_a_weight_in_an_unknown_type_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.decoder.layers.1.experts.down_proj"
    weights[name] = torch.zeros_like(weights[name], dtype=torch.int8)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert refusal(folder) == f"{name} in FOLDER is stored as I8, which dg-lsp does not read"


def test_a_missing_part_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    last = sorted(folder.glob("*.safetensors"))[-1]
    last.unlink()
    assert refusal(folder).startswith(f"FOLDER/{last.name} is missing, or is a link to a file outside its folder")


def test_too_little_memory_is_reported_before_reading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _device: 5_000_000)
    monkeypatch.setattr(weights, "fill", lambda *_: pytest.fail("weights were read"))
    shape = fit.of_config(json.loads((folder / "config.json").read_text()))
    needs = fit.needs(shape, "float32", fit.Use(7168, 256))
    assert refusal(folder) == (
        f"{folder} needs {size(needs.total)} at 32 bits ({size(needs.weights)} of weights), and 5 MB are free on "
        "this machine. Choose the embedded model, or a server (engine.model = vllm:URL)."
    ).replace(str(folder), "FOLDER")


def test_a_cpu_without_bf16_gets_32_bits_only_on_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(memory, "free_bytes", lambda _device: 400_000_000_000)
    monkeypatch.setattr(weights, "fill", lambda *_: pytest.fail("weights were read"))
    real_geometry.configure(folder, text_config={**real_geometry.TEXT, **real_geometry.PUBLISHED})
    assert refusal(folder) == (
        "FOLDER would need 101.0 GB for its weights: this processor has no bfloat16 instructions, so they would be kept in "
        "32 bits. Choose the embedded model, or a server (engine.model = vllm:URL). To load it anyway: "
        "engine.dtype = float32, or --dtype float32."
    )


PEAK = """
import resource, sys
from pathlib import Path
import torch, transformers
from transformers import DiffusionGemmaForBlockDiffusion
from dg_lsp.engine.backends import local
from dg_lsp.engine.diffusion.gemma import quantised
torch.set_num_threads(1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
local.load_model(sys.argv[2], device="cpu", threads=1, dtype="bfloat16")  # what the first model of a process costs
before = peak()
loaded = local.load_model(sys.argv[1], device="cpu", threads=1, dtype="bfloat16")
print(peak() - before - quantised.n_bytes(loaded.passes.model))
"""


@pytest.mark.slow
def test_the_host_holds_one_shard_at_a_time(one_file: Path, tmp_path: Path) -> None:
    """Beside the weights, which are the host's own here, loading takes no more than a shard and a little."""
    folder = real_geometry.save(
        tmp_path / "wide",
        real_geometry.build(hidden_size=512, num_experts=64, vocab_size=4000, moe_intermediate_size=256),
        shard="60MB",
    )
    shards = [path.stat().st_size for path in folder.glob("*.safetensors")]
    assert len(shards) >= 5
    run = [sys.executable, "-c", PEAK, str(folder), str(one_file)]
    output = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert int(output.split()[-1]) < max(shards) + 64_000_000


def test_reading_reports_bytes(whole: Path) -> None:
    reports: list[tuple[str, float]] = []
    local.load_model(str(whole), device="cpu", threads=1, on_progress=lambda text, share: reports.append((text, share)))
    reading_told = [text for text, _ in reports if text.startswith("reading the weights: ")]
    n_bytes = reading_told[-1].partition(" of ")[2].split(",")[0]
    assert reading_told[-1].startswith(f"reading the weights: {n_bytes} of {n_bytes}, ")
    shares = [share for _, share in reports]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_progress_reports_bytes_rate_and_time_left() -> None:
    now, reports = [0.0], []
    meter = Meter("reading", 10_000_000_000, lambda text, share: reports.append((text, share)), low=0.5, clock=lambda: now[0])
    for _ in range(4):
        now[0] += 0.25
        meter.add(500_000_000)
    assert reports == [
        ("reading: 0.5 GB of 10.0 GB, 2.0 GB/s, 5 s left", 0.525),
        ("reading: 1.5 GB of 10.0 GB, 2.0 GB/s, 5 s left", 0.575),
    ]


def test_cached_bytes_do_not_count_in_the_rate() -> None:
    now, messages = [0.0], []
    meter = Meter("downloading", 10_000, lambda text, _share: messages.append(text), done=8_000, clock=lambda: now[0])
    now[0] = 1
    meter.add(1_000)
    assert messages == ["downloading: 9 kB of 10 kB, 1 kB/s, 1 s left"]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.2, "1 s"), (89, "89 s"), (91, "2 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_durations_are_rounded_up(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


# What is allocated


SIZES = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128, "vocab_size": 420, "num_experts": 16}


def peak_bytes(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of `work`, and the most bytes that torch had allocated at once for it."""
    gc.collect()  # what earlier tests left would be freed meanwhile, and count as less
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        result = work()
    now = most = 0
    for event in watched.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return result, most


@pytest.mark.parametrize("precision", [stages.WIDE, "fp8"])
def test_a_random_model_is_tied_before_its_weights_are_made(precision: str) -> None:
    widths = stages.Widths(256, 192, 4, 2, 64, 1, 64, 16, 2, 64, 2048, 32)
    stages.build(widths, 4, "cpu", torch.bfloat16, precision)  # what the library allocates once
    model, peak = peak_bytes(lambda: stages.build(widths, 4, "cpu", torch.bfloat16, precision))
    n_bytes = quantised.n_bytes(model)
    bank = 2 * 2 * widths.experts * widths.expert * widths.hidden  # in 16 bits, while it is converted to 8
    assert n_bytes <= peak <= 1.02 * n_bytes + (2 * bank if precision == "fp8" else 0)
    decoder, encoder = model.model.decoder, model.model.encoder.language_model
    assert model.lm_head.weight is decoder.embed_tokens.weight is encoder.embed_tokens.weight
    assert encoder.layers[0].experts is decoder.layers[0].experts or precision == stages.WIDE


@pytest.mark.parametrize("precision", ["bfloat16", "fp8", pytest.param("int4", marks=needs_bitsandbytes)])
def test_loading_allocates_what_the_model_is_said_to_need(
    tmp_path: Path, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card. The files' tensors are in the host's memory, so here they are read before.

    On a processor, bitsandbytes needs many times a weight's memory to pack it in 4 bits, so only the result is counted.
    """
    folder = real_geometry.save(tmp_path, real_geometry.build(**SIZES))
    needs = fit.needs(fit.of_config(weights.configuration(folder).to_dict()), precision)

    def load() -> Any:
        weights.fill(model, listed, "cpu", precision, loading.wide_dtype(precision), Meter("", 1, lambda *_: None))

    model, listed = weights.check(folder)
    stored = load_file(folder / "model.safetensors")
    opened = SimpleNamespace(get_tensor=stored.__getitem__)
    monkeypatch.setattr(safetensors, "safe_open", lambda *_, **__: contextlib.nullcontext(opened))
    _, peak = peak_bytes(load)
    assert needs.weights == pytest.approx(quantised.n_bytes(model), rel=0.02)
    assert peak <= 1.02 * needs.weights + needs.workspace or precision == "int4"
