"""Buffers of a GPU on a processor, with the recorder replaced: their number, their memory, and fills in them.

`test_passes` says that passes in buffers compute the same, `test_gpu` compares recorded graphs and Triton's kernels on a card.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.model.gpu import PLAIN
from dg_lsp.engine.model.kv import Tokens
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.recording import MAX_BUFFERS, ROWS, STEP, WARM_UPS, Buffers, Recorder, StepGraph, WarmUps, Work
from dg_lsp.engine.model.room import Room
from dg_lsp.engine.model.tree import ROOT
from tests.engine.engine_kit import finish
from tests.engine.filler_kit import WorkingRecorder, ids_of, passes_of, tree_of
from tests.engine.test_pretrained import FIM
from tests.engine.test_pretrained import checkpoint as written_model

pytestmark = pytest.mark.usefixtures("without_gradients")


def test_buffers_are_bounded_in_number_and_bytes_and_dropped_when_no_tree_uses_them() -> None:
    passes = passes_of("tied", "buffers")
    buffers = passes.buffers
    assert buffers is not None
    held = [Room(passes, 10) for _ in range(MAX_BUFFERS + 2)]
    one = buffers.bytes // MAX_BUFFERS
    assert buffers.bytes == MAX_BUFFERS * one  # two are in use without being kept
    buffers.clear()
    assert buffers.bytes == MAX_BUFFERS * one
    del held[:]
    buffers.clear()
    assert buffers.bytes == 0
    assert passes._gpu is not None
    passes.buffers = short = Buffers(passes._gpu, lambda: 9 * one)
    for n_slots in (10, STEP + 10, 10):  # a quarter of 9 is room for two, and one of the second takes it all
        room = Room(passes, n_slots)
        assert room.capacity >= n_slots
        del room
        assert short.bytes <= (9 * one + short.bytes) // 4


@pytest.mark.parametrize("name", ["tied", "experts"])
def test_dropped_buffers_give_their_memory_back_without_a_garbage_collection(name: str) -> None:
    passes, ids = passes_of(name, "recorded"), ids_of(1, 12)
    gc.collect()
    gc.disable()
    try:
        tree = tree_of(passes, ids)
        for token in range(30, 31 + WARM_UPS):
            tree.grow([(ROOT, [token])])
        kv = passes.buffers._held[0].buffers.store.kv
        storage = weakref.ref(kv if name == "tied" else kv[0][0])
        del kv
        assert storage() is not None
        del tree
        passes.buffers.clear()
        assert storage() is None
        assert passes.buffers.bytes == 0
    finally:
        gc.enable()


def test_short_trees_share_the_buffers_of_the_usual_length() -> None:
    passes, sizes = passes_of("experts", "buffers", usual=2 * STEP), list[int]()
    for length in (20, 300):
        ids = ids_of(1, length)
        tree_of(passes, ids).grow([(ROOT, [11])])
        sizes.append(passes.buffers.bytes)
    assert sizes[0] == sizes[1] > 0


def test_passes_are_recorded_before_the_first_request() -> None:
    recorder = WorkingRecorder()
    passes = passes_of("tied", "recorded", recorder)
    assert passes.buffers is not None
    passes.buffers.record(100)
    assert recorder.n_recorded == len(ROWS)
    ids = ids_of(1, 30)
    tree = tree_of(passes, ids)
    tree.grow([(ROOT, [1, 2])])
    assert recorder.n_recorded == len(ROWS)


REQUESTS = [
    InfillRequest("def add(a, b):\n    ret", "\n\nadd(1, 2)\n", (Hole(Span(0, 0), "cursor"),)),
    InfillRequest("class P:\n    def f(self):\n", "\n\nP().f()\n", (Hole(Span(0, 0), "body", indent="    ", extent="block"),)),
]


@pytest.mark.parametrize("fim_tokens", [(), FIM], ids=["left", "fim"])
def test_a_fill_in_buffers_has_the_candidates_of_a_processor(fim_tokens: tuple[str, ...], tmp_path: Path) -> None:
    loaded = load_model(str(written_model(tmp_path, *fim_tokens)), device="cpu", dtype="float32")
    sizes, weights = loaded.passes.sizes, load_file(tmp_path / "model.safetensors")
    plain, in_rooms, found = Llama(sizes, weights, "plain"), Llama(sizes, weights, "plain"), list[Any]()
    recorder, scores = WorkingRecorder(), list[dict[str, float]]()
    in_rooms.use_buffers(PLAIN, lambda: None, recorder)
    for passes in (plain, in_rooms):
        filler = CausalFiller(replace(loaded, passes=passes))
        n_recorded = recorder.n_recorded
        for request in REQUESTS:
            task = finish(filler.start(request))
            task.close()
            found.append([(each.texts, each.row) for each in task.candidates()])
            scores.append({each.text: each.joint_logp for each in task.progress.proposals})
            del task
        if passes is in_rooms:
            assert n_recorded == len(ROWS)  # before the first request
            assert in_rooms.buffers is not None
            assert in_rooms.buffers.bytes > 0
            filler.trim()  # no request uses a buffer any more, without a garbage collection
            assert in_rooms.buffers.bytes == 0
    assert found[: len(REQUESTS)] == found[len(REQUESTS) :]
    assert found[0]  # the random model may end a block at once
    for ours, theirs in zip(scores[: len(REQUESTS)], scores[len(REQUESTS) :], strict=True):
        assert theirs == pytest.approx(ours, abs=1e-3)


@pytest.mark.parametrize("where", ["prompt", "tree"])
def test_memory_that_runs_out_ends_the_request_and_not_the_model(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the prefix, and in a draft or a score. The worker ends the request and calls `trim`."""
    loaded = load_model(str(written_model(tmp_path)), device="cpu", dtype="float32")
    passes = Llama(loaded.passes.sizes, load_file(tmp_path / "model.safetensors"), "plain")
    passes.use_buffers(PLAIN, lambda: None, WorkingRecorder())
    filler = CausalFiller(replace(loaded, passes=passes))

    def texts(request: InfillRequest) -> list[tuple[str, ...]]:
        task = filler.start(request)
        try:
            return [candidate.texts for candidate in finish(task).candidates()]
        finally:
            task.close()

    assert passes._gpu is not None
    read = passes._gpu.read

    def runs_out(tokens: Tokens, store: Any) -> Any:
        if (tokens.visible is None) != (where == "prompt"):
            return read(tokens, store)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    expected = texts(REQUESTS[0])
    assert expected
    filler.trim()
    with monkeypatch.context() as patched:
        patched.setattr(passes._gpu, "read", runs_out)
        with pytest.raises(torch.OutOfMemoryError):
            texts(REQUESTS[0])
    filler.trim()
    assert passes.buffers is not None
    assert passes.buffers.bytes == 0
    assert texts(REQUESTS[0]) == expected


@pytest.mark.parametrize("fim_tokens", [(), FIM], ids=["left", "fim"])
def test_after_the_start_fills_of_any_length_replay_recorded_passes_only(
    fim_tokens: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(str(written_model(tmp_path, *fim_tokens)), device="cpu", dtype="float32")
    n_direct, replays = 0, dict[Work, Work]()

    class Replaying(Recorder):
        def record(self, work: Work) -> Work:
            return replays[work]

    def counted(work: Work, recorder: Recorder | None, warm_ups: WarmUps) -> StepGraph:
        def directly() -> None:
            nonlocal n_direct
            n_direct += 1
            work()

        replays[directly] = work
        return StepGraph(directly, recorder, warm_ups)

    monkeypatch.setattr("dg_lsp.engine.model.recording.StepGraph", counted)
    passes, recorder = Llama(loaded.passes.sizes, load_file(tmp_path / "model.safetensors"), "plain"), Replaying()
    passes.use_buffers(PLAIN, lambda: None, recorder)
    filler = CausalFiller(replace(loaded, passes=passes))
    assert n_direct == len(ROWS) * WARM_UPS
    for n_lines in (1, 25, 70, 300):
        request = replace(REQUESTS[0], prefix="value = other(1)\n" * n_lines + REQUESTS[0].prefix)
        task = finish(filler.start(request))
        task.close()
        assert task.candidates()
        del task
        assert n_direct == len(ROWS) * WARM_UPS
        assert recorder.n_recorded == len(ROWS)
    filler.trim()
    tree_of(passes, ids_of(1, 20)).grow([(ROOT, [1])])
    assert n_direct == len(ROWS) * WARM_UPS  # a new buffer is recorded at its first use
    assert recorder.n_recorded == len(ROWS) + 1


INTERPRETED = """
import torch
from dg_lsp.engine.model.gpu import kernels
from dg_lsp.engine.model.gpu import Fused, wrong_operation
# The interpreter multiplies the bits of bfloat16.
print([wrong_operation(Fused(kernels), "cpu", dtype) for dtype in (torch.float32, torch.float16)])
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.e2e
def test_triton_kernels_compute_what_torch_does() -> None:
    """By its interpreter, which must be chosen before anything imports triton."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "[None, None]\n", done.stderr


def test_a_wrong_kernel_is_named() -> None:
    from dg_lsp.engine.model.gpu import Operations, wrong_operation

    class Wrong(Operations):
        def gated(self, gate_up: Tensor) -> Tensor:
            return super().gated(gate_up) * 1.2

    assert wrong_operation(Wrong(), "cpu") == "gate"
