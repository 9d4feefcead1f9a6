"""A step in fixed buffers writes what the plain one writes.

The same function is recorded as a graph on a GPU; `test_gpu` compares the graph.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dg_lsp import is_out_of_memory
from dg_lsp.cli.setup import PUBLISHED
from dg_lsp.core.values import Budget, Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.diffusion import fixed_step
from dg_lsp.engine.diffusion.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.fixed_step import MAX_BUCKETS, FixedSteps, bucket_of
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.model import fit, memory
from dg_lsp.engine.model.fit import Cost
from dg_lsp.engine.model.kv import KV
from dg_lsp.engine.model.recording import WARM_UPS, Buffers, Recorder, StepGraph, Work
from tests.engine.engine_kit import finish
from tests.engine.filler_kit import FailingRecorder, WorkingRecorder, a_prefix
from tests.engine.reference import PlainDecoder, take_step
from tests.pages import gpus as page

pytestmark = pytest.mark.usefixtures("without_gradients")

SAMPLING = Sampling(entropy_bound=30.0, stop_entropy=9.0, conditioning_tokens=8)
LIMITS = TokenLimits(tuple(range(10, 110)), tuple(range(6)), (30, 31, 32))
ROWS = [
    Row((20,) * 10 + (40, 41, 42), (True,) * 10 + (False,) * 3, 7, seed=1),
    Row((21, 22, 23, 6, 6, 40), (True,) * 5 + (False,), 3, seed=2, draft=True),
    Row((20,) * 4 + (50,) + (20,) * 3 + (40,), (True,) * 4 + (False,) + (True,) * 3 + (False,), 9, seed=3, greedy=False),
    Row((20,) * 2 + (40,), (True,) * 2 + (False,), 9, seed=4),
]


@pytest.fixture
def passes(with_experts: Any) -> Passes:
    return Passes(with_experts)


def a_denoiser(rows: list[Row], limits: TokenLimits = LIMITS, sampling: Sampling = SAMPLING) -> Denoiser:
    return Denoiser(rows, limits, sampling, 120)


def steps(passes: Passes, **options: Any) -> FixedSteps:
    return FixedSteps(passes, lambda: None, **options)


def settled(denoiser: Denoiser, step: Callable[[Denoiser], object]) -> list[Any]:
    while not denoiser.done:
        step(denoiser)
    return [denoiser.read(row) for row in range(len(denoiser.rows))]


def whole_steps(passes: Passes, kv: KV) -> list[Any]:
    """Return what `ROWS` read after plain steps."""
    return settled(a_denoiser(ROWS), lambda denoiser: take_step(denoiser, PlainDecoder(passes, kv)))


def fixed_steps(fixed: FixedSteps, kv: KV) -> list[Any]:
    """Return what `ROWS` read after steps in the buffers."""
    return settled(a_denoiser(ROWS), lambda denoiser: fixed.step(denoiser, kv, denoiser.live))


def check_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.ids == other.ids
        assert one.chances == pytest.approx(other.chances, abs=1e-4)
        assert one.entropy == pytest.approx(other.entropy, abs=1e-4)


# Shorter than the window of 8, longer, and a bucket's full length.
@pytest.mark.parametrize("length", [3, 20, 512])
@pytest.mark.parametrize("limits", [LIMITS, TokenLimits(LIMITS.regular, LIMITS.banned)], ids=["all", "few"])
@pytest.mark.parametrize("recorder", [WorkingRecorder(), None], ids=["shared", "own"])
def test_rows_in_fixed_buffers_write_the_same(
    passes: Passes, length: int, limits: TokenLimits, recorder: Recorder | None
) -> None:
    kv = a_prefix(passes, length)
    expected = a_denoiser(ROWS, limits)
    written = settled(expected, lambda denoiser: take_step(denoiser, PlainDecoder(passes, kv)))
    fixed, denoiser = steps(passes, recorder=recorder), a_denoiser(ROWS, limits)
    check_equal(settled(denoiser, lambda one: fixed.step(one, kv, one.live)), written)
    assert denoiser.canvas.steps == expected.canvas.steps
    # Some row settles before its last step.
    assert any(n_steps < row.steps for n_steps, row in zip(expected.canvas.steps, ROWS, strict=True))


@pytest.mark.parametrize("most", [0, 20, 40, 64])
def test_rows_that_step_in_several_passes_write_the_same(passes: Passes, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_step, "MAX_POSITIONS", most)
    kv, fixed = a_prefix(passes, 20), steps(passes)
    check_equal(fixed_steps(fixed, kv), whole_steps(passes, kv))
    assert max(each.key.rows for each in fixed._held) == {0: 1, 20: 1, 40: 2, 64: 4}[most]


def test_rows_without_room_step_alone_in_buffers_that_are_not_kept(passes: Passes) -> None:
    kv = a_prefix(passes, 20)
    fixed = FixedSteps(passes, lambda: 0)
    check_equal(fixed_steps(fixed, kv), whole_steps(passes, kv))
    assert not fixed.bytes


def test_prefixes_take_turns_in_one_set_of_buffers(passes: Passes) -> None:
    kvs = [a_prefix(passes, length) for length in (30, 4)]
    alone = [whole_steps(passes, kv) for kv in kvs]
    fixed, denoisers = steps(passes, recorder=WorkingRecorder()), [a_denoiser(ROWS) for _ in kvs]
    while not all(denoiser.done for denoiser in denoisers):
        for denoiser, kv in zip(denoisers, kvs, strict=True):
            if not denoiser.done:
                fixed.step(denoiser, kv, denoiser.live)
    for denoiser, written in zip(denoisers, alone, strict=True):
        check_equal([denoiser.read(row) for row in range(len(ROWS))], written)


def test_the_buckets_are_bounded_in_number_and_bytes(passes: Passes) -> None:
    kv, cost = a_prefix(passes, 20), memory.cost(passes)
    fixed = steps(passes, recorder=WorkingRecorder())
    for n_free in range(1, 32 * (MAX_BUCKETS + 2), 32):
        rows = [Row((20,) * n_free + (40,), (True,) * n_free + (False,), 2)]
        fixed.step(a_denoiser(rows), kv, [0])
    assert len(fixed._held) == MAX_BUCKETS
    one = bucket_of(a_denoiser(ROWS), [0, 1, 2, 3], 20).n_bytes(cost)
    short = FixedSteps(passes, lambda: 4 * one - short.bytes, recorder=WorkingRecorder())
    short.step(a_denoiser([*ROWS, *ROWS]), kv, list(range(8)))  # in halves, because all need more
    assert short.bytes == one
    fixed.clear()
    assert fixed.bytes == 0


def test_a_card_of_24_gb_has_room_for_the_longest_prefix_in_fixed_buffers() -> None:
    """The 26B model in 4 bits, with four greedy rows of 64 positions."""
    free = page.free_on(24) - fit.needs(PUBLISHED, "int4").weights
    cost = Cost.of(PUBLISHED, 2)
    rows = [Row((20,) * 64, (True,) * 64, 9)] * 4
    n_bytes = bucket_of(a_denoiser(rows), range(4), 7168).n_bytes(cost)
    reserved = memory.cache_bytes(free, 7168 * cost.prefix_token, 0)
    assert n_bytes <= (free - reserved) // 4


@pytest.mark.parametrize("recorder", [WorkingRecorder(), FailingRecorder()], ids=["working", "failing"])
def test_the_answer_is_the_same_whether_steps_are_recorded_or_not(
    passes: Passes, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    kv = a_prefix(passes, 20)
    written = whole_steps(passes, kv)
    fixed = steps(passes, recorder=recorder)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            check_equal(fixed_steps(fixed, kv), written)
    lines = [record.getMessage() for record in caplog.records]
    if isinstance(recorder, WorkingRecorder):
        assert recorder.n_recorded > 0
        assert lines == []
    else:
        assert recorder.n_recorded == 0
        [line] = lines
        assert line.startswith("denoising steps are not recorded as CUDA graphs, which makes them slower: CUDA error: ")
        assert "\n" not in line


REQUESTS = [
    InfillRequest("def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    ret", "\n", (Hole(Span(0, 0), "cursor"),), seed=1),
    InfillRequest("class P:\n    def f(self):\n", "\n", (Hole(Span(0, 0), "body", indent="    ", extent="block"),), seed=3),
]


def of_few_steps(layout: Path) -> Loaded[Any, Any]:
    """Return the model with short gaps and few steps, which are the same in fixed buffers as many."""
    loaded = DiffusionFiller(load_model(str(layout), device="cpu")).loaded
    few_steps = replace(loaded.profile.sampling, line_steps=5, block_steps=7)
    profile = replace(loaded.profile, line_gaps=(6, 10), block_gaps=(8, 16), sampling=few_steps)
    return replace(loaded, profile=profile)


def test_a_fill_in_shared_buffers_has_the_same_candidates(instruct_layout: Path) -> None:
    loaded, found = of_few_steps(instruct_layout), []
    for recorder in (None, WorkingRecorder()):
        filler = DiffusionFiller(loaded)
        filler.steps = steps(loaded.passes, recorder=recorder)
        for asked in REQUESTS:
            task = finish(filler.start(replace(asked, budget=Budget(candidates=4))))
            found.append([(candidate.texts, candidate.steps, candidate.row) for candidate in task.candidates()])
        assert filler.steps.bytes
        filler.trim()
        assert not filler.steps.bytes
    assert found[: len(REQUESTS)] == found[len(REQUESTS) :]
    assert all(found)


@pytest.mark.parametrize("where", ["decode", "read"])
def test_memory_that_runs_out_ends_the_request_and_not_the_model(
    instruct_layout: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step, and in a draft or a score. The worker ends the request and calls `trim`."""
    filler = DiffusionFiller(of_few_steps(instruct_layout))
    passes = filler.loaded.passes
    filler.steps = steps(passes, recorder=WorkingRecorder())
    passes.buffers = buffers = Buffers(passes, lambda: None, WorkingRecorder())

    def texts() -> list[tuple[str, ...]]:
        return [candidate.texts for candidate in finish(filler.start(REQUESTS[0])).candidates()]

    expected, whole = texts(), getattr(passes, where)
    assert buffers.bytes

    def runs_out(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(passes, where, runs_out)
    with pytest.raises(torch.OutOfMemoryError) as error:
        texts()
    assert is_out_of_memory(error.value)
    traceback.clear_frames(error.value.__traceback__)  # as the worker does
    filler.trim()
    assert not buffers.bytes
    monkeypatch.setattr(passes, where, whole)
    assert texts() == expected


def test_a_function_is_recorded_after_it_was_run_directly() -> None:
    calls: list[str] = []

    class Noting(Recorder):
        def record(self, work: Work) -> Work:
            calls.append("record")
            return lambda: calls.append("replay")

    graph = StepGraph(lambda: calls.append("run"), Noting())
    for _ in range(WARM_UPS + 2):
        graph.run()
    assert calls == [*["run"] * WARM_UPS, "record", "replay", "replay"]
