"""Drafts and scores of DiffusionGemma in buffers equal those outside. `test_gpu` compares the recorded graphs."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model.recording import ROWS, STEP, WARM_UPS, Buffers, Recorder
from dg_lsp.engine.model.tree import ROOM, ROOT, Tree
from tests.engine.filler_kit import FailingRecorder, WorkingRecorder

pytestmark = pytest.mark.usefixtures("without_gradients")


def in_buffers(model: Any, recorder: Recorder | None, usual: int = 0) -> tuple[Passes, Buffers]:
    """Return passes with buffers for their trees."""
    passes = Passes(model)
    passes.buffers = buffers = Buffers(passes, lambda: None, recorder, usual)
    return passes, buffers


@pytest.fixture
def both(with_experts: Any) -> tuple[Passes, Passes]:
    """Passes without and with buffers, of one model."""
    return Passes(with_experts), in_buffers(with_experts, WorkingRecorder())[0]


def a_tree(passes: Passes, length: int, *, knows_root: bool = True) -> Tree:
    ids = torch.randint(10, 110, (1, length), generator=torch.Generator().manual_seed(length))
    hidden, kv = passes.encode(ids)
    return Tree(passes, kv, int(ids[0, -1]), hidden[0, -1] if knows_root else None, buffers=passes.buffers)


def grown(tree: Tree, seed: int, n_tokens: int) -> list[Tensor]:
    """Return hidden states of several passes over a tree, with shared starts and branches."""
    noise = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(10, 110, (n_tokens,), generator=noise).tolist()
    [nodes, _] = tree.grow([(ROOT, tokens), (ROOT, [tokens[0], 11])])
    [more] = tree.grow([(nodes[-1], [12, 13])])
    [one] = tree.grow([(more[0], [14])])
    return [tree.hidden([*nodes, *more, *one]), torch.tensor(tree.log_probabilities([[30, 31, 32], [30, 33, 34]]))]


@pytest.mark.parametrize("length", [3, 20, 510])  # shorter than the window of 8, longer, and up to the next bucket
@pytest.mark.parametrize("knows_root", [True, False])
def test_trees_in_fixed_buffers_read_the_same(both: tuple[Passes, Passes], length: int, knows_root: bool) -> None:
    plain, fixed = (a_tree(passes, length, knows_root=knows_root) for passes in both)
    for n_tokens in (1, 5, 40, 2):
        for ours, theirs in zip(grown(fixed, n_tokens, n_tokens), grown(plain, n_tokens, n_tokens), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    buffers = both[1].buffers
    assert isinstance(buffers, Buffers)
    assert buffers.bytes
    del fixed
    buffers.clear()
    assert not buffers.bytes


def test_trees_take_turns_and_outgrow_their_buffers(both: tuple[Passes, Passes]) -> None:
    trees = [[a_tree(passes, length) for length in (20, 30)] for passes in both]
    for seed in range(2 + ROOM // 16):
        for plain, fixed in zip(*trees, strict=True):
            for ours, theirs in zip(grown(fixed, seed, 16), grown(plain, seed, 16), strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_pass_of_many_tokens_is_not_recorded(with_experts: Any) -> None:
    recorder = WorkingRecorder()
    plain, fixed = a_tree(Passes(with_experts), 20), a_tree(in_buffers(with_experts, recorder)[0], 20)
    tokens = [10 + index % 90 for index in range(ROWS[-1] + 1)]
    for _ in range(WARM_UPS + 1):
        tokens = [token + 1 for token in tokens]
        hidden = [tree.hidden(tree.grow([(ROOT, tokens)])[0]) for tree in (plain, fixed)]
        torch.testing.assert_close(*hidden, atol=1e-4, rtol=1e-4)
    assert not recorder.n_recorded
    for ours, theirs in zip(grown(fixed, 1, 5), grown(plain, 1, 5), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_short_trees_share_the_buffers_of_the_usual_length(with_experts: Any) -> None:
    passes, buffers = in_buffers(with_experts, None, usual=2 * STEP)
    sizes = list[int]()
    for length in (20, 300):
        a_tree(passes, length).grow([(ROOT, [11])])
        sizes.append(buffers.bytes)
    assert sizes[0] == sizes[1] > 0


def test_a_dropped_buffer_gives_its_memory_back_without_a_garbage_collection(with_experts: Any) -> None:
    passes, buffers = in_buffers(with_experts, WorkingRecorder())
    gc.collect()
    gc.disable()
    try:
        tree = a_tree(passes, 20)
        for token in range(WARM_UPS + 1):
            tree.grow([(ROOT, [30 + token])])
        storage = weakref.ref(buffers._held[0].buffers.room.kv[0][0])
        assert storage() is not None
        del tree
        buffers.clear()
        assert storage() is None
    finally:
        gc.enable()


def test_what_can_t_be_recorded_is_computed_directly(with_experts: Any, caplog: pytest.LogCaptureFixture) -> None:
    trees = [a_tree(Passes(with_experts), 20), a_tree(in_buffers(with_experts, FailingRecorder("drafts and scores"))[0], 20)]
    with caplog.at_level(logging.WARNING):
        for seed in range(4):
            theirs, ours = (grown(tree, seed, 1) for tree in trees)
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("drafts and scores are not recorded as CUDA graphs, which makes them slower: CUDA error: ")
