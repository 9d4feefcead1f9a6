"""The fused kernels multiply as the library does. Without a GPU, Triton's interpreter runs them, in float16."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from dg_lsp.engine.diffusion.gemma import fused, quantised
from dg_lsp.engine.diffusion.gemma.fused import Bank, Tiles
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.gemma.quantised import Fp8Weight, Int4Weight, NarrowExperts, NarrowLinear
from tests.engine.filler_kit import room_of
from tests.engine.reference import decoded

MAX_SHARED = 99 * 1024  # the bytes of shared memory that a block has on a consumer card
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def kernels() -> None:
    """The kernels, which need Triton."""
    pytest.importorskip("triton")


@pytest.fixture
def applied(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels apply on any device."""
    monkeypatch.setattr(fused, "_apply_to", lambda *_: True)


def plain(hidden: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return the experts' outputs, token by token in 32 bits."""
    out = torch.zeros(hidden.shape, device=hidden.device)
    for token, (own_ids, own_weights) in enumerate(zip(ids.tolist(), weights.float(), strict=True)):
        for expert, weight in zip(own_ids, own_weights, strict=True):
            gate, up = (gate_up[expert].float() @ hidden[token].float()).chunk(2)
            activated = torch.nn.functional.gelu(gate, approximate="tanh") * up
            out[token] += weight * (down[expert].float() @ activated)
    return out


def routed(tokens: int, top_k: int, n_experts: int, size: int, inner: int) -> list[Tensor]:
    """Return inputs, a routing, and two banks with random values."""
    noise = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, size, generator=noise).half()
    ids = torch.rand(tokens, n_experts, generator=noise).topk(top_k).indices
    weights = torch.rand(tokens, top_k, generator=noise)
    gate_up = (torch.randn(n_experts, 2 * inner, size, generator=noise) * 0.1).half()
    down = (torch.randn(n_experts, size, inner, generator=noise) * 0.1).half()
    return [each.to(DEVICE) for each in (hidden, ids, weights, gate_up, down)]


# Sizes that fill a tile, that fill none, and more experts than tokens use.
SHAPES = [(5, 2, 4, 64, 32), (33, 3, 6, 96, 80), (1, 1, 7, 48, 24)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("in_8_bits", [False, True])
def test_the_kernels_compute_the_experts_of_each_token(kernels: None, shape: tuple[int, ...], in_8_bits: bool) -> None:
    hidden, ids, weights, gate_up, down = routed(*shape)
    banks = Bank(gate_up), Bank(down)
    if in_8_bits:
        narrow = Fp8Weight.of(gate_up), Fp8Weight.of(down)
        banks = narrow[0].bank, narrow[1].bank
        gate_up, down = (each.dense(torch.float32) for each in narrow)
    found = fused.compute(hidden, ids, weights, *banks)
    torch.testing.assert_close(found.float(), plain(hidden, ids, weights, gate_up, down), atol=5e-3, rtol=5e-3)


def test_all_tokens_may_have_the_same_expert(kernels: None) -> None:
    hidden, ids, weights, gate_up, down = routed(40, 2, 5, 32, 16)
    ids[:] = torch.tensor([3, 0], device=DEVICE)
    tiles = Tiles(16, 16, 16), Tiles(16, 16, 16)
    found = fused.compute(hidden, ids, weights, Bank(gate_up), Bank(down), tiles)
    torch.testing.assert_close(found.float(), plain(hidden, ids, weights, gate_up, down), atol=5e-3, rtol=5e-3)


def test_the_grid_has_room_for_every_routing() -> None:
    for n_pairs in (1, 7, 16, 100, 512):
        for counts in ([n_pairs], [1] * n_pairs, [17] * (n_pairs // 17) + [n_pairs % 17]):
            n_tiles = sum(-(-count // 16) for count in counts)
            assert n_tiles <= fused._grid(n_pairs, 512, 64, Tiles(16, 64, 64))[0]


@pytest.mark.parametrize("is_narrow", [False, True])
def test_the_tiles_of_every_routing_fit_a_consumer_card(is_narrow: bool) -> None:
    for n_pairs in (8, 8 * 64, 8 * 256, 8 * 600, 8 * 5000):
        for n_matrices, tiles in zip((2, 1), fused.tiles_for(n_pairs, 128, is_narrow=is_narrow), strict=True):
            weights = n_matrices * tiles.columns * (1 if is_narrow else 2)
            assert tiles.stages * tiles.depth * (2 * tiles.rows + weights) <= MAX_SHARED


@pytest.mark.parametrize("rows", [1, 20, 40])
def test_a_product_with_an_8_bit_matrix_equals_that_with_the_widened_one(applied: None, rows: int) -> None:
    noise = torch.Generator().manual_seed(rows)
    inputs, weight = torch.randn(2, rows, 48, generator=noise).half(), torch.randn(40, 48, generator=noise)
    narrow = Fp8Weight.of(weight).to(DEVICE)
    layer = NarrowLinear(narrow, (40, 48))
    expected = inputs.float() @ narrow.dense(torch.float32).cpu().T
    torch.testing.assert_close(layer(inputs.to(DEVICE)).float().cpu(), expected, atol=2e-2, rtol=2e-2)


@torch.no_grad()
@pytest.mark.parametrize("in_8_bits", [False, True])
def test_a_pass_with_the_kernels_equals_that_with_the_library(
    with_experts: Any, kernels: None, monkeypatch: pytest.MonkeyPatch, in_8_bits: bool
) -> None:
    model = copy.deepcopy(with_experts).half().to(DEVICE)
    if in_8_bits:
        for layer in model.model.decoder.layers:
            narrow = NarrowExperts(layer.experts)
            for name in quantised.BANKS:
                narrow.add(name, Fp8Weight.of(getattr(layer.experts, name).data))
            layer.experts = narrow
    passes, ids = Passes(model), torch.arange(10, 30, device=DEVICE)[None]
    kv = room_of(passes, ids).kv
    canvas = torch.tensor([[11, 50, 60], [12, 13, 14]], device=DEVICE)
    expected = passes.logits(decoded(passes, canvas, kv))
    calls: list[int] = []
    compute = fused.compute
    monkeypatch.setattr(fused, "_apply_to", lambda *_: True)

    def counted(*given: Any) -> Tensor:
        calls.append(1)
        return compute(*given)

    monkeypatch.setattr(fused, "compute", counted)
    found = passes.logits(decoded(passes, canvas, kv))
    assert len(calls) == sum(passes.expert) == 3
    torch.testing.assert_close(found, expected, atol=5e-2, rtol=5e-2)


def test_4_bit_experts_are_widened(monkeypatch: pytest.MonkeyPatch, applied: None) -> None:
    class Library(torch.nn.Module):
        gate_up_proj: Tensor
        down_proj: Tensor

        def forward(self, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
            return hidden + self.gate_up_proj + self.down_proj

    monkeypatch.setattr(Int4Weight, "dense", lambda _, dtype: torch.ones((), dtype=dtype))
    experts = NarrowExperts(Library())
    for name in quantised.BANKS:
        experts.add(name, Int4Weight(torch.zeros(1), None))
    assert torch.equal(experts(torch.zeros(2, 3), torch.zeros(2, 1), torch.zeros(2, 1)), torch.full((2, 3), 2.0))


def test_a_kernel_that_fails_is_not_tried_again(
    applied: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guard = fused._Guard()
    monkeypatch.setattr(fused, "guard", guard)

    def fails(*_: object) -> Tensor:
        raise RuntimeError("out of resource: shared memory\nReducing block sizes may help.")

    monkeypatch.setattr(fused, "compute", fails)
    hidden, ids, weights, gate_up, down = routed(*SHAPES[0])
    with caplog.at_level(logging.WARNING):
        assert fused.experts(hidden, ids, weights, Bank(gate_up), Bank(down)) is None
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "the fused kernels for experts can't be used, which makes steps slower: out of resource: shared memory"
    assert not guard.is_usable


def test_memory_that_runs_out_does_not_disable_the_kernels(applied: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "guard", guard := fused._Guard())

    def fails(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fused, "compute", fails)
    hidden, ids, weights, gate_up, down = routed(*SHAPES[0])
    with pytest.raises(torch.OutOfMemoryError):
        fused.experts(hidden, ids, weights, Bank(gate_up), Bank(down))
    assert guard.is_usable


@pytest.mark.skipif(DEVICE == "cuda", reason="needs a machine without a GPU")
def test_a_processor_never_uses_the_kernels() -> None:
    hidden, ids, weights, gate_up, down = routed(*SHAPES[0])
    assert fused.experts(hidden, ids, weights, Bank(gate_up), Bank(down)) is None
    assert fused.linear(hidden, Fp8Weight.of(down[0]).bank) is None
