"""A causal model whose suffix adapter reads the right side: scores, the live draft, and the invariants of the held tokens.

The right side is encoded once, as held tokens. No random number is drawn, and answers grow by one token or several a step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dg_lsp.core.values import Candidate, Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal import lora
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.causal.generation import Generation
from dg_lsp.engine.causal.layout import Sheet
from dg_lsp.engine.common.loading import LoadError
from dg_lsp.engine.common.local import LocalTask
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.model import tree as trees
from dg_lsp.engine.model.tree import ROOT, Tree
from tests.engine.test_llama import RANK, adapter_for, checkpoint, copy_of, written_to

PREFIX, SUFFIX = "def add(a, b):\n    ", "\n    return a + b\n"
LINE = Hole(Span(0, 0), "cursor")
BLOCK = Hole(Span(0, 0), "selection", indent="    ", block=True)


def request(hole: Hole, prefix: str = PREFIX, suffix: str = SUFFIX, seed: int = 0) -> InfillRequest:
    return InfillRequest(prefix, suffix, (hole,), language="python", seed=seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the hub has them, without an adapter."""
    return written_to(tmp_path_factory.mktemp("bare"))


def written_adapter(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Write a random adapter into the folder of the tiny model; return its tensors and the facts that it states."""
    model = checkpoint("biases")
    tensors = {name: tensor.half() for name, tensor in adapter_for(model).items()}
    facts = {"kind": lora.KIND, "format": lora.FORMAT, "base_hash": lora.base_hash(model.state_dict())}
    save_file(tensors, path / lora.FILE, facts)
    return tensors, facts


def written_profile(path: Path) -> None:
    """Write a profile that reads the right side into a folder."""
    (path / "dg_lsp.json").write_text(json.dumps({"layout": "left", "right_tokens": 4, "branches": 2}))


def loaded_filler(path: Path) -> CausalFiller:
    return CausalFiller(load_model(str(path), device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def with_adapter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> CausalFiller:
    path = copy_of(folder, tmp_path_factory.mktemp("adapted") / "with")
    written_profile(path)
    written_adapter(path)
    return loaded_filler(path)


def finish(task: LocalTask) -> LocalTask:
    while task.step():
        pass
    return task


# Where it reads, and how answers are scored.


def test_a_profile_that_reads_the_right_side_needs_an_adapter(folder: Path, tmp_path: Path) -> None:
    path = copy_of(folder, tmp_path / "with")
    written_profile(path)
    with pytest.raises(LoadError, match=r"needs a suffix adapter, but there is no .*canvas\.safetensors"):
        load_model(str(path), device="cpu", dtype="float32")
    written_adapter(path)
    filler = loaded_filler(path)
    for prefix, suffix, reads in (
        (PREFIX, SUFFIX, True),
        (PREFIX, "", False),
        ("def add(a", "):\n    return a + b\n", False),
        ("def add(a, b):\n    return a", "\n\n", False),
    ):
        sheet, proposals = filled(filler, prefix, suffix)
        assert (0 < len(sheet.suffix) <= 4) == reads
        assert (sheet.end is not None) == reads
        assert proposals, (prefix, suffix)
        assert all((proposal.adapted_logp < 0) == reads for proposal in proposals)


def test_an_adapter_that_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    path = copy_of(folder, tmp_path / "model")
    file, (good, facts) = path / lora.FILE, written_adapter(path)
    for tensors, stated, sentence in (
        (good | {"1o_b": torch.zeros(49, RANK, dtype=torch.float16)}, facts, "1o_b in {} is F16 [49, 4], but its model needs"),
        ({name: one for name, one in good.items() if name != "1o_a"}, facts, "{} lacks the tensor 1o_a"),
        (good | {"more": torch.zeros(1)}, facts, "{} has, beside the adapter's, the tensor more"),
        (good | {"0q_a": torch.zeros(0, 48)}, facts, "{} has no valid rank"),
        (good | {"1o_b": torch.full((48, RANK), torch.nan)}, facts, "1o_b in {} holds numbers that are not finite"),
        (good | {"1o_b": torch.zeros(48, RANK, dtype=torch.int8)}, facts, "1o_b in {} is I8 [48, 4]"),
        (good, {**facts, "base_hash": "0"}, "the adapter {} belongs to other weights"),
        (good, {**facts, "format": "2"}, "{} is not an adapter of format 1"),
    ):
        save_file(tensors, file, stated)
        with pytest.raises(LoadError) as caught:
            load_model(str(path), device="cpu", dtype="float32")
        assert sentence.format(file) in str(caught.value)
    save_file(good | {"mask": torch.zeros(48), "dist": torch.zeros(9, 48)}, file, facts)
    load_model(str(path), device="cpu", dtype="float32")  # the released file, too, has vectors that are not read
    file.write_bytes(b"0" * 20)
    with pytest.raises(LoadError, match="is not an adapter that can be read"):
        load_model(str(path), device="cpu", dtype="float32")


def filled(filler: CausalFiller, prefix: str, suffix: str) -> tuple[Sheet, list[Proposal]]:
    asked = request(LINE, prefix, suffix)
    return filler.layout.lay_out(asked), list(finish(filler.start(asked)).proposals())


def test_the_causal_model_scores_what_an_adapter_writes_as_any_other_text(with_adapter: CausalFiller) -> None:
    """Beside its score, the adapter's own: that of the text and its end, between both sides."""
    sheet, proposals = filled(with_adapter, PREFIX, SUFFIX)
    loaded = with_adapter.loaded
    plain = CausalFiller(replace(loaded, profile=replace(loaded.profile, right_tokens=0)))
    task = finish(plain.start(request(LINE)))
    assert isinstance(task.generation, Generation)
    assert sheet.end is not None
    with torch.inference_mode():
        tree = new_tree(with_adapter, sheet)
        for proposal in proposals:
            coded = loaded.vocabulary.encode(sheet.heal.decode() + proposal.text)
            (own,) = tree.log_probabilities([[*coded, sheet.end]])
            assert proposal.adapted_logp == pytest.approx(sum(own), abs=1e-3)
            (again,) = task.generation.scorer.score([Proposal(proposal.text, "causal")])
            assert proposal.logps == pytest.approx(again.logps, abs=1e-4)
            assert proposal.suffix_sum == pytest.approx(again.suffix_sum, abs=1e-4)
            assert proposal.joint_logp == pytest.approx(again.joint_logp + sum(own), abs=1e-3)


def new_tree(filler: CausalFiller, sheet: Sheet) -> Tree:
    """Return a tree that reads the right side, after the prefix."""
    ids = list(sheet.ids)
    _, kv = filler.loaded.passes.encode(torch.tensor([ids]))
    adapted = filler.loaded.passes.adapted if sheet.suffix else None
    return Tree(adapted or filler.loaded.passes, kv, ids[-1], right=sheet.suffix)


# The live draft.


@pytest.mark.parametrize("hole", [LINE, BLOCK])
def test_the_live_draft_is_what_was_written_under_the_right_side_so_far(with_adapter: CausalFiller, hole: Hole) -> None:
    """Each view has at least one token more, and all are in the order in which a plain loop writes them."""
    task, views = with_adapter.start(request(hole)), list[str]()
    while task.step():
        views += [view for view in task.drafts() if view and view not in views[-1:]]
    expected = list(dict.fromkeys(written_plainly(with_adapter, request(hole))))
    assert len(views) > 3
    assert set(views) <= set(expected)
    assert views == sorted(views, key=expected.index)
    assert views[-1] == expected[-1], "the first draft, whole, until the answer replaces it"
    assert views[-1] in {proposal.text for proposal in task.proposals()}
    loaded = with_adapter.loaded
    plain = CausalFiller(replace(loaded, profile=replace(loaded.profile, right_tokens=0)))
    assert set(written_plainly(plain, request(hole))) != set(expected)


def written_plainly(filler: CausalFiller, asked: InfillRequest) -> Iterator[str]:
    """Yield the text of the likeliest draft after each of its tokens, without anything kept from one token to the next."""
    middle, passes = filler.middle(asked), filler.loaded.passes
    vocabulary, sheet, ids = filler.loaded.vocabulary, middle.sheet, list[int]()
    banned = [token for token in vocabulary.special if token != sheet.end]
    with torch.inference_mode():
        while len(ids) < middle.most_tokens:
            tree = new_tree(filler, sheet)
            node = tree.grow([(ROOT, ids)])[0][-1] if ids else ROOT
            logits = passes.logits(tree.hidden([node]))[0]
            logits[banned] = -torch.inf
            if allowed := middle.next_tokens(ids):
                others = torch.ones_like(logits, dtype=torch.bool)
                others[list(allowed)] = False
                logits[others] = -torch.inf
            token = int(logits.argmax())
            if token == sheet.end or (not middle.hole.block and "\n" in vocabulary.decode([token])):
                return
            ids.append(token)
            yield middle.own_part(middle.text_of(ids))


def test_no_copy_flashes_between_the_draft_and_the_answer(with_adapter: CausalFiller) -> None:
    text = "def add(a, b):\n    total = a + b\n    return total\n\n\n"
    asked = request(LINE, text + "def add(a, b):\n    ", "\n    return total\n")
    task, views = with_adapter.start(asked), list[str]()
    while task.step():
        views += [view for view in task.drafts() if view]
    assert "copy" in {proposal.row for proposal in task.proposals()}
    assert set(views) <= set(written_plainly(with_adapter, asked))


# The invariants of the held tokens.


@pytest.mark.parametrize("hole", [LINE, BLOCK])
def test_held_tokens_never_change(with_adapter: CausalFiller, hole: Hole, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are encoded once, before the answer, and no later pass writes them or their keys and values."""
    monkeypatch.setattr(trees, "ROOM", 1)  # so that the buffer is copied while it grows
    adapted, adapted_calls = with_adapter.loaded.passes.adapted, list[tuple[list[int], list[int]]]()
    assert adapted is not None
    extend = adapted.extend

    def noted(ids: Tensor, positions: Tensor, *rest: Any) -> Tensor:
        adapted_calls.append((ids.tolist(), positions.tolist()))
        return extend(ids, positions, *rest)

    monkeypatch.setattr(adapted, "extend", noted)
    asked = request(hole)
    sheet, task = with_adapter.layout.lay_out(asked), with_adapter.start(asked)
    assert SUFFIX.startswith(with_adapter.loaded.vocabulary.decode(sheet.suffix))
    first: list[Tensor] = []
    while task.step():
        if adapted_calls:
            now = held_states(task, len(sheet.suffix))
            first = first or now
            assert all(map(torch.equal, now, first))
    (ids, positions), *rest_of_calls = adapted_calls
    later = [own_ids for own_ids, _ in rest_of_calls]
    n_right = len(sheet.suffix)
    assert ids[:n_right] == list(sheet.suffix)
    assert later
    assert min(positions[:n_right]) == len(sheet.ids) + trees.RIGHT_GAP
    assert all(own_ids[:n_right] != list(sheet.suffix) for own_ids in later)


def held_states(task: LocalTask, n_right: int) -> list[Tensor]:
    """Return copies of the held tokens' keys and values."""
    assert isinstance(task.generation, Generation)
    tree = task.generation.trees.drafts
    held = slice(tree._length, tree._length + n_right)
    return [side[:, :, held].clone() for pair in tree._kv for side in pair]


@pytest.mark.parametrize("hole", [LINE, BLOCK])
def test_the_same_request_gives_the_same_text_and_no_seed_matters(with_adapter: CausalFiller, hole: Hole) -> None:
    def answers(seed: int) -> tuple[Candidate, ...]:
        with_adapter.cache.clear()
        return finish(with_adapter.start(request(hole, seed=seed))).candidates()

    assert answers(1) == answers(1) == answers(2)


@pytest.mark.parametrize("hole", [LINE, BLOCK])
def test_a_fill_can_end_after_any_step_and_leaves_nothing_behind(with_adapter: CausalFiller, hole: Hole) -> None:
    short = replace(with_adapter.loaded.profile, line_tokens=12, block_tokens=16)  # it is filled once for each of its steps
    with_adapter = CausalFiller(replace(with_adapter.loaded, profile=short))
    n_steps, task = 0, with_adapter.start(request(hole))
    while task.step():
        n_steps += 1
    expected = task.candidates()
    assert n_steps > 3
    for n in range(n_steps + 1):
        with_adapter.cache.clear()
        task = with_adapter.start(request(hole))
        assert all(task.step() for _ in range(n))
        assert len(task.drafts()) == 1
        assert not any(candidate.finished for candidate in task.candidates())
        task.close()
        assert not task.step()
    with_adapter.cache.clear()
    assert finish(with_adapter.start(request(hole))).candidates() == expected


def test_fills_that_take_turns_give_the_texts_that_each_gives_alone(with_adapter: CausalFiller) -> None:
    asked = [request(LINE), request(BLOCK), request(LINE, prefix="x = 1\n", suffix="\nprint(x)\n")]
    alone = [finish(with_adapter.start(each)).candidates() for each in asked]
    tasks = running = [with_adapter.start(each) for each in asked]
    while running:
        running = [task for task in running if task.step()]
    assert [task.candidates() for task in tasks] == alone
