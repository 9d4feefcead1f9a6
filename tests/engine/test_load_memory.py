"""Building and loading the 26B model never allocates a weight twice, so that the peak is what `fit` states."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file
from torch.profiler import ProfilerActivity, profile

from benchmarks import stages
from dg_lsp.engine.common import loading
from dg_lsp.engine.diffusion.gemma import quantised, weights
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import Precision
from dg_lsp.engine.model.weights.fetch import Meter
from tests.engine import real_geometry

SIZES = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128, "vocab_size": 420, "num_experts": 16}
needs_bitsandbytes = pytest.mark.skipif(util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


def peak_bytes(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of `work`, and the most bytes that torch had allocated at once for it."""
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
