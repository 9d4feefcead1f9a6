"""What a model takes is computed from its configuration, and is what it takes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dg_lsp.cli import doctor, setup
from dg_lsp.core.wording import size
from dg_lsp.engine.backends import local
from dg_lsp.engine.diffusion.fixed_step import Bucket, FixedStep
from dg_lsp.engine.diffusion.gemma import quantised, weights
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.model import fit, memory
from dg_lsp.engine.model.fit import VLLM_NVFP4, Machine, NoRoomError, machine
from dg_lsp.wire import laptop
from dg_lsp.wire.extras import install_command
from tests.engine import real_geometry
from tests.engine.filler_kit import room_of
from tests.pages import gpus as page

PUBLISHED = fit.of_config(real_geometry.config_values(**real_geometry.PUBLISHED))
GB = 10**9
CARD = Machine("cuda", 24 * 2**30, "a card")


def test_the_computed_number_of_weights_equals_the_librarys() -> None:
    """With its vision tower of .57 billion the published files have 51.6476 GB."""
    from transformers import DiffusionGemmaConfig

    values = real_geometry.config_values(**real_geometry.PUBLISHED)
    built = weights.build(DiffusionGemmaConfig.from_dict(values))
    tensors = {id(tensor): tensor for tensor in built.state_dict(keep_vars=True).values()}
    assert sum(tensor.numel() for tensor in tensors.values()) == PUBLISHED.n_weights == 25_250_986_812
    # What transformers writes says the same as what was published.
    assert fit.of_config(built.config.to_dict()) == PUBLISHED


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 420},
        {"hidden_size": 256, "num_experts": 16, "moe_intermediate_size": 128, "vocab_size": 8192},
        {"hidden_size": 384, "num_experts": 24, "moe_intermediate_size": 192, "intermediate_size": 768, "vocab_size": 16_384},
    ],
    ids=["small", "middle", "large"],
)
@pytest.mark.slow
def test_computed_bytes_equal_the_measured_bytes(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = real_geometry.save(tmp_path, real_geometry.build(**changes))
    shape = fit.of_config(json.loads((folder / "config.json").read_text()))
    use = fit.Use(prefix_tokens=96, canvas_tokens=32)
    for precision in ("float32", "bfloat16", "fp8", *(("int4",) if "int4" in machine.installed() else ())):
        told = fit.needs(shape, precision, use)
        passes = local.load_model(str(folder), device="cpu", threads=1, dtype=precision).passes
        assert quantised.n_bytes(passes.model) == pytest.approx(told.weights, rel=0.05), precision
        with torch.inference_mode():
            kv = room_of(passes, torch.arange(96)[None] + 300).kv
        measured = sum(one.numel() * one.element_size() for pair in kv for one in pair)
        assert measured == pytest.approx(told.cache, rel=0.05)
        cost = memory.cost(passes)
        bucket = Bucket(1, 32, 32, 96, samples=False, n_conditioning=8, sampling=Sampling())
        step = FixedStep(passes, bucket, passes.n_vocabulary)
        measured = sum(one.numel() * one.element_size() for pair in step.kv for one in pair)
        assert measured + 32 * (cost.canvas_token - cost.prefix_token) == pytest.approx(told.row, rel=0.05)
        if precision in ("fp8", "int4"):
            banks = passes.decoder.layers[0].experts.banks.values()
            dense = [bank.dense(torch.bfloat16) for bank in banks]
            assert sum(one.numel() * one.element_size() for one in dense) == told.workspace


def test_a_card_gets_the_widest_precision_that_fits() -> None:
    chosen = {
        card: fit.choose("M", PUBLISHED, replace(CARD, free=page.free_on(card)), use=page.USE).precision
        for card in (24, 32, 80, 141)
    }
    assert chosen == {24: "int4", 32: "fp8", 80: "bfloat16", 141: "bfloat16"}


def test_the_choice_states_its_reason() -> None:
    why = fit.choose("M", PUBLISHED, CARD).why
    assert why == "at 8 bits it needs 31.5 GB, and 25.8 GB are free on a card"


def test_a_too_small_card_gets_advice() -> None:
    with pytest.raises(NoRoomError) as caught:
        fit.choose("M", PUBLISHED, replace(CARD, free=16 * GB))
    assert str(caught.value) == (
        "M needs 19.5 GB at 4 bits (14.2 GB of weights), and 16.0 GB are free on a card. Close other programs that use the "
        f"memory. Choose the embedded model, or a server (engine.model = vllm:URL). On a GPU with 24 GB: {VLLM_NVFP4}"
    )


def test_missing_packages_are_named() -> None:
    for asked in ("", "int4"):
        with pytest.raises(NoRoomError, match=re.escape(f"{install_command('quant')}. Or serve the model: vllm serve nvidia/")):
            fit.choose("M", PUBLISHED, replace(CARD, installed=("fp8",)), asked=asked)


def test_a_cpu_gets_quantised_weights_only_on_request() -> None:
    cpu = Machine("cpu", 40 * GB, multiplies_bf16=True)
    with pytest.raises(NoRoomError, match=r"needs 5\d\.\d GB at 16 bits"):
        fit.choose("M", PUBLISHED, cpu)
    assert fit.choose("M", PUBLISHED, cpu, asked="int4").why == "you selected it"
    assert fit.choose("M", PUBLISHED, replace(cpu, free=80 * GB)).precision == "bfloat16"
    with pytest.raises(NoRoomError, match="has no bfloat16 instructions"):
        fit.choose("M", PUBLISHED, replace(cpu, free=400 * GB, multiplies_bf16=False))
    assert (
        fit.choose("M", PUBLISHED, replace(cpu, free=400 * GB, multiplies_bf16=False), asked="float32").precision == "float32"
    )


def test_an_8_bit_checkpoint_stays_in_8_bits() -> None:
    assert fit.choose("M", PUBLISHED, replace(CARD, free=140 * GB), stored="fp8").precision == "fp8"


@pytest.mark.parametrize("wrong", [{"hidden_size": "wide"}, {"num_hidden_layers": 0}, {"vocab_size": -1}])
def test_a_configuration_without_sizes_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(fit.GeometryError):
        fit.of_config({"text_config": {**real_geometry.TEXT, **wrong}})


def test_the_page_has_the_computed_tables() -> None:
    text = (Path(__file__).parents[2] / page.PAGE).read_text(encoding="utf-8")
    assert page.rewritten(text) == text
    assert VLLM_NVFP4 in (Path(__file__).parents[2] / "docs" / "servers.md").read_text(encoding="utf-8")


def test_the_doctor_says_what_fits_from_the_configuration_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(real_geometry.config_values(**real_geometry.PUBLISHED)))
    monkeypatch.setattr(machine, "free_bytes", lambda: 16 * GB)
    found = doctor.what_fits(str(tmp_path), "cpu")
    said, advice = found.state, found.advice
    assert said == f"{tmp_path} needs 54.4 GB at 16 bits, 31.5 GB at 8, 19.5 GB at 4; 16.0 GB free on this machine"
    assert advice.startswith(f"{tmp_path} ")
    found = doctor.what_fits("embedded", "cpu")
    assert not found.advice
    assert "it runs in float32" in found.state


@pytest.mark.parametrize(
    ("flags", "width", "words"),
    [
        ("flags\t\t: fpu avx2 avx_vnni", 1, "of memory, in 8 bits"),
        ("flags\t\t: fpu avx512f avx512_bf16", 2, "in 16 bits, because this processor has no instructions"),
        ("flags\t\t: fpu avx2", 4, "in 32 bits, because this processor has no instructions"),
        ("", 1, "in 8 bits, and more on a processor without"),
    ],
)
def test_the_doctor_states_the_precision_of_a_laptop_model(
    flags: str, width: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    if flags:
        machine.CPUINFO.write_text(f"processor\t: 0\n{flags}\n")
    model = laptop.MODELS[0]
    said = doctor.what_fits(model.name, "cpu").state
    assert f"needs {size(model.memory_bytes + (width - 1) * model.n_weights)}" in said
    assert words in said


@pytest.mark.parametrize(
    ("kind", "free", "is_enough"),
    [
        ("cuda", 20 * GB, True),
        ("cuda", 11 * GB, True),
        ("cuda", 6 * GB, False),
        ("mps", 11 * GB, False),
    ],
)
def test_the_doctor_states_both_precisions_of_a_laptop_model_on_a_card(
    kind: str, free: int, is_enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(machine, "of_device", lambda _device: Machine(kind, free, "a card"))
    (tmp_path / "qwen2.5-coder-7b").mkdir(mode=0o700)
    (tmp_path / "qwen2.5-coder-7b" / laptop.CONFIG).touch()
    found = doctor.what_fits("qwen2.5-coder-7b", kind)
    both = " or 9.0 GB in 8" if kind == "cuda" else ""
    assert found.state == f"qwen2.5-coder-7b needs 16.5 GB in 16 bits{both}; {size(free)} free on a card"
    assert bool(found.advice) != is_enough


def test_the_doctor_gets_a_cards_memory_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 143000'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine.of_device("auto")
    assert (found.kind, found.name, found.free) == ("cuda", "NVIDIA H200", 143000 * 1024**2)
    program.write_text("#!/bin/sh\necho 'No devices were found'\n")
    assert machine.of_device("auto").kind != "cuda"


@pytest.mark.parametrize("name", ["README.md", "docs/setup.md", "editors/vscode/walkthrough/model.md"])
def test_documents_name_the_smallest_gpu_that_fits(name: str) -> None:
    file = Path(__file__).parents[2] / name
    if not file.exists():
        pytest.skip("the document is not part of a source distribution")
    smallest = next(gb for gb in page.GPUS_GB if _fits(gb))
    lines = [line for line in file.read_text("utf-8").splitlines() if "GPU" in line and re.search(r"\d+ GB or more", line)]
    assert lines or name == "README.md"
    assert {int(match[1]) for line in lines if (match := re.search(r"(\d+) GB or more", line))} <= {smallest}


def _fits(gpu_gb: int) -> bool:
    gpu = Machine("cuda", page.free_on(gpu_gb), f"a GPU with {gpu_gb} GB")
    try:
        fit.choose(setup.DIFFUSION, setup.PUBLISHED, gpu)
    except NoRoomError:
        return False
    return True
