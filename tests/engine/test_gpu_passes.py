"""Passes as a GPU runs them, on a processor: in buffers, padded to a few numbers of rows, and with the recorder replaced.

`test_gpu` compares the recorded graphs and Triton's kernels on a card.
"""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks import gpu_causal
from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal.filler import CausalFiller, CausalLlama
from dg_lsp.engine.model.fit import llama_sizes
from dg_lsp.engine.model.gpu import PLAIN
from dg_lsp.engine.model.prefix_cache import KV, crop
from dg_lsp.engine.model.recording import MAX_BUFFERS, ROWS, STEP, WARM_UPS, Buffers, Recorder, StepGraph, WarmUps, Work
from dg_lsp.engine.model.tree import ROOT, Tree
from tests.engine.engine_kit import finish
from tests.engine.filler_kit import FailingRecorder, WorkingRecorder
from tests.engine.test_llama import KINDS, checkpoint, ids_of, passes_of
from tests.engine.test_pretrained import FIM
from tests.engine.test_pretrained import checkpoint as written_model

pytestmark = pytest.mark.usefixtures("without_gradients")


def in_buffers(model: Any, recorder: Recorder | None = None) -> CausalLlama:
    """Return passes of a processor that run as on a GPU."""
    passes = passes_of(model)
    passes.use_buffers(PLAIN, lambda: None, recorder)
    return passes


def check_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


def tree_of(passes: CausalLlama, kv: KV, last: int, **options: Any) -> Tree:
    return Tree(passes, kv, last, buffers=passes.buffers, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoded_prefix_is_that_of_a_processor(kind: str) -> None:
    model, ids = checkpoint(kind), ids_of(1, 23)
    plain, passes = passes_of(model), in_buffers(model)
    expected, kv = plain.encode(ids)
    whole, own = passes.encode(ids)
    check_close(whole, expected)
    check_close(passes.logits(whole), plain.logits(expected))
    parts, past = list[Tensor](), None
    for start, end in ((0, 9), (9, 10), (10, 23)):
        hidden, past = passes.encode(ids[:, start:end], past)
        parts.append(hidden)
    check_close(torch.cat(parts, 1), expected)
    assert past is not None
    for one in (own, past):
        for pair, other in zip(one, kv, strict=True):
            for side, values in zip(pair, other, strict=True):
                check_close(side, values)


@pytest.mark.parametrize("recorder", [None, WorkingRecorder(), FailingRecorder("passes")], ids=["none", "working", "failing"])
def test_a_tree_in_buffers_equals_separate_rows(recorder: Recorder | None, caplog: pytest.LogCaptureFixture) -> None:
    model, ids = checkpoint("biases"), ids_of(1, 12)
    plain, passes = passes_of(model), in_buffers(model, recorder)
    with caplog.at_level(logging.WARNING):
        for root in (None, plain.encode(ids)[0][0, -1]):
            tree = tree_of(passes, passes.encode(ids)[1], int(ids[0, -1]), hidden=root)
            [[first, second], [same, _, third]] = tree.grow([(ROOT, [7, 8]), (ROOT, [7, 9, 10])])
            assert first == same
            [[fourth]] = tree.grow([(second, [11])])
            [[*_, fifth]] = tree.grow([(third, [20, 21, 22, 23, 24])])
            paths = (((7, 8), second), ((7, 9, 10), third), ((7, 8, 11), fourth), ((7, 9, 10, 20, 21, 22, 23, 24), fifth))
            for path, node in paths:
                row = torch.cat([ids, torch.tensor([path])], 1)
                check_close(tree.hidden([node])[0], plain.encode(row)[0][0, -1])
            for token in range(30, 36):  # one more token a pass, so that the graph for one is recorded
                [[fifth]] = tree.grow([(fifth, [token])])
            row = torch.cat([ids, torch.tensor([[7, 9, 10, 20, 21, 22, 23, 24, *range(30, 36)]])], 1)
            check_close(tree.hidden([fifth])[0], plain.encode(row)[0][0, -1])
    lines = [record.getMessage() for record in caplog.records]
    if isinstance(recorder, WorkingRecorder):
        assert recorder.n_recorded > 0
        assert lines == []
    elif recorder is not None:
        assert not recorder.is_usable
        [line] = lines
        assert line.startswith("passes are not recorded as CUDA graphs, which makes them slower: CUDA error: ")


def test_a_tree_of_more_than_64_new_tokens_is_read_in_parts() -> None:
    model, ids = checkpoint("tied"), ids_of(1, 9)
    plain, passes = passes_of(model), in_buffers(model)
    rows = [[token % 300 for token in range(start, start + 50)] for start in (1, 60, 170)]
    expected = Tree(plain, plain.encode(ids)[1], int(ids[0, -1])).log_probabilities(rows)
    found = tree_of(passes, passes.encode(ids)[1], int(ids[0, -1])).log_probabilities(rows)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=2e-3)


@pytest.mark.parametrize("length", [STEP - 4, STEP - 1, STEP, STEP + 1])
def test_a_tree_goes_on_in_a_longer_bucket(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dg_lsp.engine.model.tree.ROOM", 0)
    model, ids = checkpoint("tied"), ids_of(1, length)
    plain, passes = passes_of(model), in_buffers(model, WorkingRecorder())
    tree, node, written = tree_of(passes, passes.encode(ids)[1], int(ids[0, -1])), ROOT, list[int]()
    for token in range(3, 12):
        [[node]] = tree.grow([(node, [token])])
        written.append(token)
    expected = plain.encode(torch.cat([ids, torch.tensor([written])], 1))[0][0, -1]
    check_close(tree.hidden([node])[0], expected)


def test_trees_at_the_same_time_have_buffers_of_their_own_and_later_ones_take_them_over() -> None:
    model, ids = checkpoint("tied"), ids_of(1, 30)
    plain, passes = passes_of(model), in_buffers(model, WorkingRecorder())
    kv, buffers = passes.encode(ids)[1], passes.buffers
    assert buffers is not None
    for _ in range(3):
        lengths = (30, 12, 20)
        trees = [tree_of(passes, crop(kv, length), int(ids[0, length - 1])) for length in lengths]
        nodes = [ROOT] * 3
        for token in range(40, 44):
            for index, tree in enumerate(trees):
                [[nodes[index]]] = tree.grow([(nodes[index], [token + index])])
        for index, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
            row = torch.cat([ids[:, :length], torch.arange(40 + index, 44 + index)[None]], 1)
            check_close(tree.hidden([nodes[index]])[0], plain.encode(row)[0][0, -1])
        assert buffers.bytes == 3 * kv[0][0].element_size() * 2 * kv[0][0].shape[1] * kv[0][0].shape[3] * len(kv) * STEP
        del trees, tree
        gc.collect()


def test_buffers_are_bounded_in_number_and_bytes_and_dropped_when_no_tree_uses_them() -> None:
    passes = in_buffers(checkpoint("tied"))
    buffers = passes.buffers
    assert buffers is not None
    held = [buffers.take([], 10, ()) for _ in range(MAX_BUFFERS + 2)]
    one = buffers.bytes // MAX_BUFFERS
    assert buffers.bytes == MAX_BUFFERS * one  # two are in use without being kept
    buffers.clear()
    assert buffers.bytes == MAX_BUFFERS * one
    del held[:]
    buffers.clear()
    assert buffers.bytes == 0
    assert passes._gpu is not None
    short = Buffers(passes._gpu, lambda: 9 * one)
    for n_places in (10, STEP + 10, 10):  # a quarter of 9 is room for two, and one of the second takes it all
        room = short.take([], n_places, ())
        assert room.capacity >= n_places
        del room
        assert short.bytes <= (9 * one + short.bytes) // 4


def test_dropped_buffers_give_their_memory_back_without_a_garbage_collection() -> None:
    passes = in_buffers(checkpoint("tied"), WorkingRecorder())
    ids, buffers = ids_of(1, 12), passes.buffers
    assert buffers is not None
    gc.collect()
    gc.disable()
    try:
        tree = tree_of(passes, passes.encode(ids)[1], int(ids[0, -1]))
        for token in range(WARM_UPS + 1):
            tree.grow([(ROOT, [token])])
        storage = weakref.ref(buffers._held[0].buffers.room.kv)
        assert storage() is not None
        del tree
        buffers.clear()
        assert storage() is None
    finally:
        gc.enable()


def test_passes_are_recorded_before_the_first_request() -> None:
    recorder = WorkingRecorder()
    passes = in_buffers(checkpoint("tied"), recorder)
    assert passes.buffers is not None
    passes.buffers.record(100, 1)
    assert recorder.n_recorded == len(ROWS)
    ids = ids_of(1, 30)
    tree = tree_of(passes, passes.encode(ids)[1], int(ids[0, -1]))
    tree.grow([(ROOT, [1, 2])])
    assert recorder.n_recorded == len(ROWS)


def test_weights_in_8_bits_on_a_card_give_nearly_the_same_logits() -> None:
    model, ids = checkpoint("biases"), ids_of(1, 23)
    sizes, weights = llama_sizes(model.config.to_dict()), dict(model.state_dict())
    narrow = CausalLlama(sizes, weights, "int8-weights")
    wide = passes_of(model)
    expected = wide.logits(wide.encode(ids)[0]).log_softmax(-1)
    outside = narrow.logits(narrow.encode(ids)[0]).log_softmax(-1)
    narrow.use_buffers(PLAIN, lambda: None, None)
    inside = narrow.logits(narrow.encode(ids)[0]).log_softmax(-1)
    assert inside.dtype == torch.float32
    spread = float(expected.std())
    for found in (inside, outside):
        assert float((found - expected).abs().mean()) < 0.1 * spread


REQUESTS = [
    InfillRequest("def add(a, b):\n    ret", "\n\nadd(1, 2)\n", (Hole(Span(0, 0), "cursor"),)),
    InfillRequest("class P:\n    def f(self):\n", "\n\nP().f()\n", (Hole(Span(0, 0), "body", indent="    ", extent="block"),)),
]


@pytest.mark.parametrize("fim_tokens", [(), FIM], ids=["left", "fim"])
def test_a_fill_in_buffers_has_the_candidates_of_a_processor(fim_tokens: tuple[str, ...], tmp_path: Path) -> None:
    loaded = load_model(str(written_model(tmp_path, *fim_tokens)), device="cpu", dtype="float32")
    sizes, weights = loaded.passes.sizes, load_file(tmp_path / "model.safetensors")
    plain, in_rooms, found = CausalLlama(sizes, weights, "plain"), CausalLlama(sizes, weights, "plain"), list[Any]()
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
            assert n_recorded == len(ROWS) * (2 if fim_tokens else 1)  # before the first request
            assert in_rooms.buffers is not None
            assert in_rooms.buffers.bytes > 0
            filler.trim()  # no request uses a buffer any more, without a garbage collection
            assert in_rooms.buffers.bytes == 0
    assert found[: len(REQUESTS)] == found[len(REQUESTS) :]
    assert found[0]  # the random model may end a block at once
    for ours, theirs in zip(scores[: len(REQUESTS)], scores[len(REQUESTS) :], strict=True):
        assert theirs == pytest.approx(ours, abs=1e-3)


@pytest.mark.parametrize("where", ["encode", "read"])
def test_memory_that_runs_out_ends_the_request_and_not_the_model(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the prefix, and in a draft or a score. The worker ends the request and calls `trim`."""
    loaded = load_model(str(written_model(tmp_path)), device="cpu", dtype="float32")
    passes = CausalLlama(loaded.passes.sizes, load_file(tmp_path / "model.safetensors"), "plain")
    passes.use_buffers(PLAIN, lambda: None, WorkingRecorder())
    filler = CausalFiller(replace(loaded, passes=passes))

    def texts(request: InfillRequest) -> list[tuple[str, ...]]:
        task = filler.start(request)
        try:
            return [candidate.texts for candidate in finish(task).candidates()]
        finally:
            task.close()

    work = getattr(passes._gpu, where)

    def runs_out(inputs: Any, *others: Any) -> Any:
        if where == "read" and inputs.visible is None:  # the prefix
            return work(inputs, *others)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    expected = texts(REQUESTS[0])
    assert expected
    filler.trim()
    with monkeypatch.context() as patched:
        patched.setattr(passes._gpu, where, runs_out)
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
    passes, recorder = CausalLlama(loaded.passes.sizes, load_file(tmp_path / "model.safetensors"), "plain"), Replaying()
    passes.use_buffers(PLAIN, lambda: None, recorder)
    filler = CausalFiller(replace(loaded, passes=passes))
    assert n_direct == len(ROWS) * WARM_UPS  # the second room of a model that reads on needs no more of them
    n_rooms = 2 if fim_tokens else 1
    for n_lines in (1, 25, 70, 300):
        request = replace(REQUESTS[0], prefix="value = other(1)\n" * n_lines + REQUESTS[0].prefix)
        task = finish(filler.start(request))
        task.close()
        assert task.candidates()
        del task
        assert n_direct == len(ROWS) * WARM_UPS
        assert recorder.n_recorded == len(ROWS) * n_rooms
    filler.trim()
    room = passes.buffers.take(passes.encode(ids_of(1, 20))[1], 100, range(20)) if passes.buffers else None
    assert room is not None
    room.extend(20, [1, 2], [20, 21], np.ones((2, 22), dtype=np.bool_))
    assert n_direct == len(ROWS) * WARM_UPS  # a new room is recorded at its first use
    assert recorder.n_recorded == len(ROWS) * n_rooms + 1


def test_the_benchmark_prints_every_pass(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert gpu_causal.main(["--device", "cpu", "--small"]) == 0
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    for n_rows in ROWS:
        assert printed.count(f"\n| {n_rows} | ") == 2  # in 16 and in 8 bits
    assert "prefix of 40: " in printed


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
