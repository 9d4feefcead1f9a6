"""How many rows fit in memory, and what a row takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dg_lsp.core.values import Budget, Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.diffusion import fixed_step
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.fixed_step import Bucket, FixedStep
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.model import memory
from dg_lsp.engine.model.fit import Cost, machine
from tests.engine.engine_kit import finish

MIB = 1024 * 1024


def test_a_cache_keeps_a_few_prefixes_if_memory_allows() -> None:
    assert memory.cache_bytes(16 * 1024 * MIB, MIB, 256 * MIB) == 256 * MIB
    assert memory.cache_bytes(64 * 1024 * MIB, 1536 * MIB, 256 * MIB) == 6 * 1024 * MIB
    assert memory.cache_bytes(16 * 1024 * MIB, 1536 * MIB, 256 * MIB) == 2 * 1024 * MIB
    assert memory.cache_bytes(100 * MIB, 1536 * MIB, 256 * MIB) == 256 * MIB
    assert memory.cache_bytes(None, 1536 * MIB, 256 * MIB) == 256 * MIB


def test_a_rows_bytes_are_those_of_its_prefix_and_canvas() -> None:
    assert Cost(prefix_token=10, canvas_token=1000).row(600, 48) == 6000 + 48000


def test_a_prefix_tokens_bytes_equal_those_of_rows(with_experts: Any) -> None:
    passes, cost = Passes(with_experts), memory.cost(Passes(with_experts))
    bucket = Bucket(3, 8, 8, 20, samples=False, n_conditioning=8, sampling=Sampling())
    step = FixedStep(passes, bucket, passes.n_vocabulary)
    n_bytes = sum(one.numel() * one.element_size() for pair in step.kv for one in pair)
    assert n_bytes == (20 + 3 * 8) * cost.prefix_token
    assert cost.canvas_token > cost.prefix_token + 4 * with_experts.lm_head.weight.shape[0]


def test_free_memory_is_the_systems_or_what_the_containers_limit_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  200 kB\nMemAvailable:    100 kB\n")
    monkeypatch.setattr(machine, "MEMINFO", info)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert memory.free_bytes("cpu") == 100 * 1024
    (tmp_path / "memory.current").write_text("60000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes("cpu") == 100 * 1024
    (tmp_path / "memory.max").write_text("70000\n")
    assert memory.free_bytes("cpu") == 10000
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 5000\n")
    assert memory.free_bytes("cpu") == 15000
    (tmp_path / "memory.max").write_text("1\n")
    assert memory.free_bytes("cpu") == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_free_memory_of_a_gpu_counts_what_the_allocator_keeps() -> None:
    before = memory.free_bytes("cuda")
    assert before is not None
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    during = memory.free_bytes("cuda")
    del tensor
    after = memory.free_bytes("cuda")
    assert during is not None
    assert after is not None
    assert before - during >= 64 * MIB
    assert after - during >= 64 * MIB


@pytest.fixture
def model(instruct_layout: Path) -> DiffusionFiller:
    return DiffusionFiller(load_model(str(instruct_layout), device="cpu"))


def a_request(seed: int = 0) -> InfillRequest:
    return InfillRequest("def add(a, b):\n    return a + b\nadd(1", ")\n", (Hole(Span(0, 0), "cursor"),), seed=seed)


def short_of_memory(monkeypatch: pytest.MonkeyPatch, model: DiffusionFiller, n_rows: int) -> None:
    """Leave room for so many rows of the request above, and for all that the prefix cache may still take."""
    canvas = model.inputs(a_request())
    row = model.headroom.cost.row(len(canvas.prompt.ids), canvas.gap_lengths()[0] + len(canvas.prompt.tail))
    monkeypatch.setattr(
        memory, "free_bytes", lambda _: model.cache.max_bytes - model.cache.bytes + int((n_rows + 0.5) * row / memory.SHARE)
    )


def test_short_memory_limits_a_pass_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch, model: DiffusionFiller) -> None:
    expected = finish(model.start(a_request())).candidates()
    short_of_memory(monkeypatch, model, 1)
    canvas = finish(model.start(a_request()))
    assert [one.texts for one in canvas.candidates()] == [one.texts for one in expected]


def test_many_rows_take_several_passes(monkeypatch: pytest.MonkeyPatch, instruct_layout: Path) -> None:
    infill_request = replace(a_request(), budget=Budget(candidates=8))
    loaded = load_model(str(instruct_layout), device="cpu")
    expected = finish(DiffusionFiller(loaded).start(infill_request)).candidates()
    bounded = DiffusionFiller(loaded)
    monkeypatch.setattr(fixed_step, "MAX_POSITIONS", 100)
    widths: list[int] = []
    decode = bounded.loaded.passes.decode

    def counted(canvas: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        widths.append(canvas.shape[1])
        return decode(canvas, *others, **options)

    monkeypatch.setattr(bounded.loaded.passes, "decode", counted)
    candidates = finish(bounded.start(infill_request)).candidates()
    assert 50 < max(widths) <= 100
    assert [one.texts for one in candidates] == [one.texts for one in expected]


def test_requests_wait_for_memory_before_they_start(monkeypatch: pytest.MonkeyPatch, model: DiffusionFiller) -> None:
    assert model.has_room()
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1024)
    assert not model.has_room()
    monkeypatch.setattr(memory, "free_bytes", lambda _: None)
    assert model.has_room()
