"""What a causal model shows of an answer while it is written, and that neither a seed, an end nor other tasks change it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dg_lsp.core.values import Budget, Candidate, Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.causal.layout import CausalInputs
from dg_lsp.engine.common.local import LocalTask
from dg_lsp.engine.model.kv import KV, Tokens
from dg_lsp.engine.model.tree import ROOT
from tests import checkpoints
from tests.engine.engine_kit import finish
from tests.engine.filler_kit import tree_of

PREFIX, SUFFIX = "def add(a, b):\n    ", "\n    return a + b\n"
LINE = Hole(Span(0, 0), "cursor")
BLOCK = Hole(Span(0, 0), "selection", indent="    ", extent="block")


def request(hole: Hole, prefix: str = PREFIX, suffix: str = SUFFIX, seed: int = 0) -> InfillRequest:
    return InfillRequest(prefix, suffix, (hole,), language="python", seed=seed)


def written_profile(path: Path) -> None:
    """Write a profile with few branches into a model's folder."""
    (path / "dg_lsp.json").write_text(json.dumps({"layout": "left", "branches": 2}))


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> CausalFiller:
    folder = checkpoints.qwen(tmp_path_factory.mktemp("causal"))
    written_profile(folder)
    return CausalFiller(load_model(str(folder), device="cpu", dtype="float32"))


@pytest.mark.parametrize("hole", [LINE, BLOCK])
def test_the_live_draft_is_what_was_written_so_far(filler: CausalFiller, hole: Hole) -> None:
    """Each view has at least one token more, and all are in the order in which a plain loop writes them."""
    task, views = filler.start(request(hole)), list[str]()
    while task.step():
        views += [view for view in task.drafts() if view and view not in views[-1:]]
    expected = list(dict.fromkeys(written_plainly(filler, request(hole))))
    assert len(views) > 3
    assert set(views) <= set(expected)
    assert views == sorted(views, key=expected.index)
    assert views[-1] == expected[-1], "the first draft, whole, until the answer replaces it"
    assert views[-1] in {proposal.text for proposal in task.progress.proposals}


def written_plainly(filler: CausalFiller, asked: InfillRequest) -> Iterator[str]:
    """Yield the text of the likeliest draft after each of its tokens, without anything kept from one token to the next."""
    inputs, passes = filler.inputs(asked), filler.loaded.passes
    assert isinstance(inputs, CausalInputs)
    vocabulary, prompt, ids = filler.loaded.vocabulary, inputs.prompt, list[int]()
    banned = [token for token in vocabulary.special if token != prompt.end]
    with torch.inference_mode():
        while len(ids) < inputs.most_tokens:
            tree = tree_of(passes, torch.tensor([prompt.ids]))
            node = tree.grow([(ROOT, ids)])[0][-1] if ids else ROOT
            logits = passes.logits(tree.hidden([node]))[0]
            logits[banned] = -torch.inf
            if allowed := inputs.next_tokens(ids):
                others = torch.ones_like(logits, dtype=torch.bool)
                others[list(allowed)] = False
                logits[others] = -torch.inf
            token = int(logits.argmax())
            if token == prompt.end or (inputs.hole.extent != "block" and "\n" in vocabulary.decode([token])):
                return
            ids.append(token)
            yield inputs.bounds.of_draft(inputs.text_of(ids))


def test_no_copy_flashes_between_the_draft_and_the_answer(filler: CausalFiller) -> None:
    text = "def add(a, b):\n    total = a + b\n    return total\n\n\n"
    asked = request(LINE, text + "def add(a, b):\n    ", "\n    return total\n")
    task, views = filler.start(asked), list[str]()
    while task.step():
        views += [view for view in task.drafts() if view]
    assert "copy" in {proposal.row for proposal in task.progress.proposals}
    assert set(views) <= set(written_plainly(filler, asked))


@pytest.mark.parametrize("hole", [LINE, BLOCK])
def test_the_same_request_gives_the_same_text_and_no_seed_matters(filler: CausalFiller, hole: Hole) -> None:
    def answers(seed: int) -> tuple[Candidate, ...]:
        filler.trim()
        return finish(filler.start(request(hole, seed=seed))).candidates()

    assert answers(1) == answers(1) == answers(2)


@pytest.mark.parametrize("hole", [LINE, BLOCK])
def test_a_fill_can_end_after_any_step(filler: CausalFiller, hole: Hole) -> None:
    short = replace(filler.loaded.profile, line_tokens=12, block_tokens=16)  # it is filled once for each of its steps
    filler = CausalFiller(replace(filler.loaded, profile=short))
    n_steps, task = 0, filler.start(request(hole))
    while task.step():
        n_steps += 1
    expected = task.candidates()
    assert n_steps > 3
    for n in range(n_steps + 1):
        filler.trim()
        task = filler.start(request(hole))
        assert task.candidates() == ()
        assert all(task.step() for _ in range(n))
        assert len(task.drafts()) == 1
        assert not any(candidate.finished for candidate in task.candidates())
        task.close()
        assert not task.step()
    filler.trim()
    assert finish(filler.start(request(hole))).candidates() == expected


@pytest.fixture
def passes_run(filler: CausalFiller, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passes that run: over the `text` of the prefix, or over the `tree` of drafts and scores."""
    passes, names = filler.loaded.passes, list[str]()
    read = passes.read

    def watched(tokens: Tokens, store: KV) -> Tensor:
        names.append("text" if tokens.visible is None else "tree")
        return read(tokens, store)

    monkeypatch.setattr(passes, "read", watched)
    return names


@pytest.mark.parametrize("n_steps", [1, 4, 1_000], ids=["first pass", "cancelled", "finished"])
def test_what_was_written_before_is_read_in_fewer_passes(filler: CausalFiller, passes_run: list[str], n_steps: int) -> None:
    filler.trim()
    expected = finish(filler.start(request(LINE))).candidates()
    n_first = len(passes_run)
    filler.trim()
    task = filler.start(request(LINE))
    for _ in range(n_steps):
        if not task.step():
            break
    task.close()
    passes_run.clear()
    again = finish(filler.start(request(LINE))).candidates()
    assert [each.texts for each in again] == [each.texts for each in expected]
    assert len(passes_run) < n_first
    assert len(passes_run) < n_first / 2 or n_steps < 1_000


def test_a_token_that_is_typed_needs_no_pass_of_its_own(filler: CausalFiller, passes_run: list[str]) -> None:
    asked = [request(LINE, PREFIX + typed) for typed in accumulate("total = a + b")]
    ids = [filler.inputs(each).prompt.ids for each in asked]
    at = next(n for n in range(1, len(ids)) if ids[n][:-1] == ids[n - 1])
    filler.trim()
    finish(filler.start(asked[at - 1])).close()
    passes_run.clear()
    task = filler.start(asked[at])
    task.step()
    assert passes_run == ["tree"], "the first pass of the draft reads the token"
    finish(task).close()
    assert filler.cache.known(ids[at]) == len(ids[at])


def test_a_request_goes_on_where_another_has_read_its_prompt(filler: CausalFiller) -> None:
    asked = request(LINE, "".join(f"value_{n} = compute({n})\n" for n in range(40)) + PREFIX)

    def scores(task: LocalTask) -> dict[str, float]:
        return {each.text: each.joint_logp for each in finish(task).progress.proposals}

    filler.trim()
    alone = scores(filler.start(asked))
    filler.trim()
    waiting = filler.start(asked)
    assert waiting.step()
    finish(filler.start(asked)).close()
    assert scores(waiting) == pytest.approx(alone, abs=1e-3)


def test_what_stays_of_a_request_is_no_larger_than_its_tokens(filler: CausalFiller) -> None:
    filler.trim()
    finish(filler.start(request(LINE))).close()
    hidden = filler.cache.last_hidden(filler.inputs(request(LINE)).prompt.ids)
    assert hidden is not None
    assert hidden.untyped_storage().nbytes() == hidden.numel() * hidden.element_size()


@pytest.mark.parametrize("least", [0.0, 0.3])
def test_an_answer_without_a_probability_is_read_as_if_it_were_accepted(filler: CausalFiller, least: float) -> None:
    filler.trim()
    asked = replace(request(LINE), budget=Budget(candidates=1, least=least))
    filler.expect(asked)
    task = finish(filler.start(asked))
    while filler.foresee() is not None:
        pass
    ids = filler.inputs(replace(asked, prefix=PREFIX + task.candidates()[0].texts[0])).prompt.ids
    assert filler.cache.known(ids) == len(ids)


def test_fills_that_take_turns_give_the_texts_that_each_gives_alone(filler: CausalFiller) -> None:
    asked = [request(LINE), request(BLOCK), request(LINE, prefix="x = 1\n", suffix="\nprint(x)\n")]

    def answer(filler: CausalFiller, each: InfillRequest) -> Sequence[Candidate]:
        filler.trim()  # what is cached is rounded
        return finish(filler.start(each)).candidates()

    alone = [answer(filler, each) for each in asked]
    filler.trim()
    tasks = running = [filler.start(each) for each in asked]
    while running:
        running = [task for task in running if task.step()]
    for task, candidates in zip(tasks, alone, strict=True):
        assert [each.texts for each in task.candidates()] == [each.texts for each in candidates]
        for found, expected in zip(task.candidates(), candidates, strict=True):
            assert found.confidences[0] == pytest.approx(expected.confidences[0], abs=1e-3)
