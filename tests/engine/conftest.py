"""Fillers of the tiny checkpoints, and the same arithmetic on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.layout import CanvasProfile
from dg_lsp.engine.model import matmul
from dg_lsp.engine.model.fit import machine
from tests import checkpoints


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Run every pass in one thread: a sum's last bits depend on how many threads share it, and passes use all free cores."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "physical_cores", lambda: 1)
        yield


@pytest.fixture(autouse=True)
def _products_in_32_bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply in 32 bits on every processor, except in the tests of 16-bit products.

    Random weights amplify the rounding of 16-bit products until tokens differ between a row alone and the same row in a batch.
    """
    if request.module.__name__.rpartition(".")[2] != "test_matmul":
        kind = matmul.best_kind(in_16_bits=False)
        monkeypatch.setattr(matmul, "best_kind", lambda **_settings: kind)


@pytest.fixture(scope="module")
def trained_filler(trained_layout: Path) -> CausalFiller:
    return CausalFiller(load_model(str(trained_layout), device="cpu"))


@pytest.fixture(scope="module")
def instruct(instruct_layout: Path) -> DiffusionFiller:
    """A filler with the default profile."""
    filler = DiffusionFiller(load_model(str(instruct_layout), device="cpu"))
    assert filler.loaded.profile == CanvasProfile()
    return filler


@pytest.fixture(scope="session")
def with_experts() -> Any:
    return checkpoints.with_experts()


@pytest.fixture
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
