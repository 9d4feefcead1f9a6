"""Our passes are the library's, to rounding: each model's, over whole texts and parts, trees and canvases, and as on a GPU."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model import matmul
from dg_lsp.engine.model import room as rooms
from dg_lsp.engine.model.recording import ROWS, STEP, WARM_UPS
from dg_lsp.engine.model.room import Room
from dg_lsp.engine.model.tree import ROOT, SCORED, Tree
from tests.engine.filler_kit import (
    MODELS,
    WAYS,
    Way,
    hidden_of,
    ids_of,
    library_logits,
    model_of,
    passes_of,
    recorder_of,
    room_of,
    tree_of,
)
from tests.engine.reference import decoded

pytestmark = pytest.mark.usefixtures("without_gradients")

needs_int8 = pytest.mark.skipif(not matmul.int8_is_supported(), reason="this processor has no instructions for 8-bit products")
needs_onednn = pytest.mark.skipif(matmul.best_kind() == "plain", reason="this processor or this torch has no oneDNN products")
needs_16_bits = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no products in 16 bits"
)


def check_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


# --- A text


@pytest.mark.parametrize(
    ("length", "cuts"),
    [
        (1, ()),
        (5, ()),  # shorter than the window of the model with experts, which is 8
        (8, (7,)),  # as long as the window, and one token after another part
        (9, (8,)),
        (23, (9, 10)),
        (40, ()),
        (40, (1,)),
        (40, (20, 39)),
    ],
)
@pytest.mark.parametrize("way", ["processor", "buffers"])
@pytest.mark.parametrize("name", MODELS)
def test_a_text_in_parts_reads_as_the_library_reads_it(name: str, way: Way, length: int, cuts: tuple[int, ...]) -> None:
    passes, ids = passes_of(name, way), ids_of(1, length)
    room = Room(passes, 1)  # it grows at the second part
    parts = [room.read(ids[0, start:end].tolist()) for start, end in pairwise((0, *cuts, length))]
    check_close(passes.logits(torch.cat(parts)), library_logits(model_of(name), ids)[0])
    for pair, expected in zip(room.kv, room_of(passes_of(name), ids).kv, strict=True):
        for side, other in zip(pair, expected, strict=True):
            assert side.shape[2] == length
            check_close(side, other)


@pytest.mark.parametrize(
    ("kind", "way", "most"),
    [
        pytest.param("onednn", "processor", 1e-4, marks=needs_onednn),
        pytest.param("onednn-bf16", "processor", 0.1, marks=needs_16_bits),
        pytest.param("int8", "processor", 0.1, marks=needs_int8),
        ("int8-weights", "processor", 0.1),  # of a card, also outside of the buffers
        ("int8-weights", "buffers", 0.1),
    ],
)
@pytest.mark.parametrize("name", ["biases", "encoder"])
def test_each_kind_of_product_gives_nearly_the_library_s_logits(name: str, kind: matmul.Kind, way: Way, most: float) -> None:
    passes, ids = passes_of(name, way, kind=kind), ids_of(1, 23)
    logits = passes.logits(hidden_of(passes, ids))
    expected = library_logits(model_of(name), ids).log_softmax(-1)
    assert logits.dtype == torch.float32
    assert float((logits.log_softmax(-1) - expected).abs().mean()) < most * float(expected.std())


def test_logits_in_slices_are_those_of_the_whole_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dg_lsp.engine.model.weights.llama.VOCABULARY_SLICE", 128)
    passes, ids = passes_of("untied"), ids_of(1, 5)
    check_close(passes.logits(hidden_of(passes, ids)), library_logits(model_of("untied"), ids))


@needs_int8
def test_blocks_of_the_feed_forward_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, ids, found = passes_of("tied", kind="int8"), ids_of(1, 33)[0].tolist(), list[Tensor]()
    for n_rows in (64, 4):
        monkeypatch.setattr("dg_lsp.engine.model.matmul.BLOCK", n_rows)
        room = Room(passes, 66)
        found.append(torch.cat([room.read(ids), room.read(ids)]))
    assert torch.equal(*found)


# --- A tree


def after(name: str, ids: Tensor, path: list[int]) -> Tensor:
    """Return what the library says after a prefix and a path."""
    return library_logits(model_of(name), torch.cat([ids, torch.tensor([path], dtype=torch.long)], 1))


def check_tree(tree: Tree, passes: Any, name: str, ids: Tensor, seed: int = 0) -> None:
    """Check what a tree says in passes over few and many tokens, with shared starts, branches and what is known already."""
    first, *others = (20 + seed % 7 + n for n in range(60))
    [[one, two], [same, _, three]] = tree.grow([(ROOT, [first, 21]), (ROOT, [first, 22, 23])])
    assert one == same
    [[four]] = tree.grow([(two, [24])])
    assert tree.grow([(ROOT, [first, 21, 24])]) == [[one, two, four]]
    [[*_, five]] = tree.grow([(three, others[:5])])
    paths = {ROOT: [], two: [first, 21], three: [first, 22, 23], four: [first, 21, 24], five: [first, 22, 23, *others[:5]]}
    for token in others[5 : 6 + WARM_UPS]:  # one token a pass, so that a graph for one is recorded
        [[six]] = tree.grow([(five, [token])])
        paths[six], five = [*paths[five], token], six
    found = passes.logits(tree.hidden(list(paths)))
    for logits, path in zip(found, paths.values(), strict=True):
        check_close(logits, after(name, ids, path)[0, -1])
    # More tokens than have their logits in memory at once, and than one pass has in a Llama's buffers.
    rows = [[first, 21, 30], [], [40], [first, *others[: SCORED - 10]], [50 - seed % 7 + n % 50 for n in range(SCORED + 3)]]
    for row, logps in zip(rows, tree.log_probabilities(rows), strict=True):
        logits = after(name, ids, row)[0, ids.shape[1] - 1 :].log_softmax(-1)
        assert logps == pytest.approx([float(logits[at, token]) for at, token in enumerate(row)], abs=2e-3)


@pytest.mark.parametrize("knows_root", [False, True])
@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in MODELS for way in WAYS if name != "encoder" or way == "processor"]
)
def test_a_tree_says_what_the_library_says_row_by_row(
    name: str, way: Way, knows_root: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rooms, "MORE", 2)  # its room grows at each pass
    ids, recorder = ids_of(1, 12), recorder_of(way)
    passes = passes_of(name, way, recorder)
    with caplog.at_level(logging.WARNING):
        check_tree(tree_of(passes, ids, knows_root=knows_root), passes, name, ids)
    lines = [record.getMessage() for record in caplog.records]
    if way == "refused":
        [line] = lines
        assert line.startswith("passes are not recorded as CUDA graphs, which makes them slower: CUDA error: ")
    else:
        assert lines == []
    if recorder is not None:
        assert (recorder.n_recorded > 0, recorder.is_usable) == (way == "recorded",) * 2


# Shorter than the window, up to a bucket's end, at it, and behind it.
@pytest.mark.parametrize("length", [3, STEP - 4, STEP - 1, STEP, STEP + 1, 2 * STEP - 2])
@pytest.mark.parametrize("name", ["tied", "experts"])
def test_a_tree_of_any_length_goes_on_in_a_longer_buffer(name: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "MORE", 0)
    passes, ids = passes_of(name, "recorded"), ids_of(1, length)
    check_tree(tree_of(passes, ids), passes, name, ids)


@pytest.mark.parametrize("name", ["tied", "experts"])
def test_trees_take_turns_in_buffers_of_their_own_and_later_ones_take_them_over(name: str) -> None:
    passes, ids = passes_of(name, "recorded"), ids_of(1, 30)
    sizes = set[int]()
    for _ in range(3):
        lengths = (30, 12, 20)
        all_trees = [tree_of(passes, ids[:, :n]) for n in lengths]
        for seed in range(3):
            for tree, length in zip(all_trees, lengths, strict=True):
                check_tree(tree, passes, name, ids[:, :length], seed)
        sizes.add(passes.buffers.bytes)
        del all_trees, tree
    [n_bytes] = sizes
    # Each tree outgrows its first buffer.
    assert n_bytes == 3 * sum(passes.buffers.passes.store_bytes(n * STEP) for n in (1, 2))


def test_a_pass_of_many_tokens_is_not_recorded() -> None:
    recorder = recorder_of("recorded")
    assert recorder is not None
    passes, ids = passes_of("experts", "recorded", recorder), ids_of(1, 20)
    tree, tokens = tree_of(passes, ids), [10 + index % 90 for index in range(ROWS[-1] + 1)]
    for _ in range(WARM_UPS + 1):
        tokens = [token + 1 for token in tokens]
        nodes = tree.grow([(ROOT, tokens)])[0]
        check_close(passes.logits(tree.hidden(nodes)), after("experts", ids, tokens)[0, 20:])
    assert not recorder.n_recorded


def test_rows_with_the_same_start_share_nodes() -> None:
    tree = tree_of(passes_of("experts"), ids_of(1, 17))
    assert tree.grow([(ROOT, [9, 1, 2]), (ROOT, [9, 1, 4]), (ROOT, [2, 3])]) == [[1, 2, 3], [1, 2, 4], [5, 6]]
    assert tree.grow([(2, [4, 7]), (ROOT, [2])]) == [[4, 7], [5]]


@needs_int8
@pytest.mark.parametrize("n", [2, 5, 16, 33])
def test_8_bits_give_a_token_the_same_alone_and_beside_others(n: int) -> None:
    """Not bit by bit, because attention sums in another order, and an 8-bit rounding can turn at its edge."""
    passes, ids, tokens = passes_of("tied", kind="int8"), ids_of(1, 40), torch.arange(10, 10 + n)
    tree = tree_of(passes, ids, knows_root=True)
    together = tree.hidden([node for [node] in tree.grow([(ROOT, [token]) for token in tokens.tolist()])])
    alone = torch.cat([room_of(passes, ids).read([token]) for token in tokens.tolist()])
    assert float((together - alone).norm() / alone.norm()) < 0.01


# --- A canvas

CANVAS = torch.tensor([[11, 50, 60, 70, 33, 20], [12, 13, 14, 15, 16, 17]])


@pytest.fixture
def passes() -> Passes:
    return Passes(model_of("experts"))


@pytest.mark.parametrize("length", [5, 8, 9, 40])
@pytest.mark.parametrize("conditioned", [False, True])
def test_the_decoder_equals_the_librarys(passes: Passes, length: int, conditioned: bool) -> None:
    ids, n_rows, model = ids_of(1, length), len(CANVAS), model_of("experts")
    cache = model.model.encoder(input_ids=ids).past_key_values
    cache.batch_repeat_interleave(n_rows)
    before = torch.randn(n_rows, CANVAS.shape[1], 120, generator=torch.Generator().manual_seed(2)) * 4 if conditioned else None
    expected = model(past_key_values=cache, decoder_input_ids=CANVAS, self_conditioning_logits=before).logits
    soft = None
    if before is not None:
        chances = before.softmax(-1)
        soft = passes.soft(torch.arange(120).expand_as(chances), chances)
    check_close(passes.logits(decoded(passes, CANVAS, room_of(passes, ids).kv, soft)), expected)
