"""Which precision a causal model has on a card, and what happens if the card has no room or failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_causal import SIZES
from dg_lsp.engine.backends import local
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.common import loading
from dg_lsp.engine.common.loading import EMBEDDED, LoadError
from dg_lsp.engine.diffusion.gemma import weights
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import LlamaSizes, Machine, machine
from dg_lsp.wire import laptop
from tests import checkpoints

GB = 10**9
USE = fit.Use(832, 128)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.qwen(tmp_path)


@pytest.mark.parametrize(
    ("name", "free", "expected"),
    [("0.5b", 3 * GB, "bfloat16"), ("7b", 22 * GB, "bfloat16"), ("7b", 11 * GB, "int8"), ("7b", 9 * GB, "int8")],
)
def test_a_card_gets_16_bits_or_else_8(name: str, free: int, expected: str) -> None:
    sizes: LlamaSizes = SIZES[name]
    asked = loading._llama_dtype("", "cuda", name, is_small=False)
    choice = fit.choose(name, sizes.geometry(), Machine("cuda", free, "a card"), asked=asked, use=USE)
    assert choice.precision == expected
    if expected == "int8":
        assert choice.why.startswith("at 16 bits it needs 15.")


@pytest.mark.parametrize("name", [name for name in SIZES if laptop.by_name(f"qwen2.5-coder-{name}")])
def test_the_catalogue_states_what_the_choice_asks_for(name: str) -> None:
    model = laptop.by_name(f"qwen2.5-coder-{name}")
    assert model is not None
    for stated, precision in ((model.card_bytes, "bfloat16"), (model.narrow_card_bytes, "int8")):
        needed = fit.needs(SIZES[name].geometry(), precision, USE).total  # type: ignore[arg-type]
        assert 0.5 * GB < stated - needed < 2 * GB  # the rest is what CUDA takes


def test_a_card_for_games_of_8_gb_has_no_room_for_7b() -> None:
    with pytest.raises(fit.NoRoomError, match=r"7b needs 8\.\d GB at 8 bits"):
        fit.choose("7b", SIZES["7b"].geometry(), Machine("cuda", 7 * GB, "a card"), use=USE)


@pytest.fixture
def with_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch say that there is a card."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a card")
    monkeypatch.setattr(loading, "set_up", lambda _device: None)


FAILURES = [
    fit.NoRoomError("the model needs 15.4 GB, and 2.1 GB are free on a card"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nSee the documentation"),
    torch.AcceleratorError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with TORCH_USE_CUDA_DSA"),
]


@pytest.mark.usefixtures("with_card")
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", ["", EMBEDDED], ids=["laptop family", "embedded"])
def test_a_model_is_loaded_on_the_processor_if_the_card_has_no_room(
    folder: Path, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name, opened, choose = name or str(folder), list[str](), loading.choose

    def full(checkpoint: loading.Checkpoint, *arguments: Any, **options: Any) -> fit.Choice:
        opened.append(checkpoint.device)
        if checkpoint.device == "cuda":
            raise error
        return choose(checkpoint, *arguments, **options)

    monkeypatch.setattr(loading, "choose", full)
    loaded = load_model(name, device="auto")
    reason = str(error).split("\n")[0]
    assert opened == ["cuda", "cpu"]
    assert loaded.device == "cpu"
    assert loaded.why["device"] == f"the GPU has no room for it: {reason}"
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.endswith(f"is loaded on the processor, because the GPU has no room for it: {reason}")
    with pytest.raises(LoadError) as said:
        load_model(name, device="cuda")  # the user chose it
    assert str(said.value) in (
        reason,
        f"the GPU ran out of memory while {name} was loaded; close other programs that use it, or choose a smaller model",
        f"{name} can't be loaded on the GPU: {reason}",
    )


@pytest.mark.usefixtures("with_card")
@pytest.mark.parametrize("error", FAILURES[1:], ids=lambda error: type(error).__name__)
def test_a_card_that_fails_while_the_weights_are_read_is_named_and_not_the_checkpoint(
    instruct_layout: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model of canvases has no place on a processor, so the user reads why it can't be loaded."""
    fill, cpu = weights.fill, Machine("cpu", None)

    def failing(model: Any, listed: Any, device: str, *arguments: Any) -> None:
        if device == "cuda":
            raise error
        fill(model, listed, device, *arguments)

    monkeypatch.setattr(weights, "fill", failing)
    monkeypatch.setattr(loading, "choose", lambda opened, *_, **__: fit.choose(opened.name, opened.geometry, cpu, use=USE))
    assert load_model(str(instruct_layout), device="auto").device == "cpu"
    monkeypatch.setattr(local, "SMALL", 0)
    with pytest.raises(
        LoadError, match=r"^(the GPU ran out of memory while |[^\n]+ can't be loaded on the GPU: CUDA error: all)[^\n]*$"
    ):
        load_model(str(instruct_layout), device="auto")


@pytest.fixture
def lost() -> Iterator[None]:
    machine.lose_gpu("CUDA error: unspecified launch failure")
    yield
    machine.lose_gpu("")


@pytest.mark.usefixtures("with_card", "lost")
def test_a_model_is_loaded_on_the_processor_after_the_card_failed(folder: Path) -> None:
    loaded = load_model(str(folder), device="auto")
    assert loaded.device == "cpu"
    assert loaded.why["device"] == "the GPU failed before: CUDA error: unspecified launch failure"
    with pytest.raises(LoadError, match=r"cuda failed before, and this process can't use it any more .*; restart the engine"):
        load_model(str(folder), device="cuda")
