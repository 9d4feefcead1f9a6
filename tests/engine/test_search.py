"""A checkpoint without a profile fills gaps of any length: the product's search, on a tiny model in the instruct layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dg_lsp.core.values import Budget, Hole, InfillRequest, Span
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.search import LengthSearch
from dg_lsp.engine.model.prefix_cache import KV
from tests.engine.engine_kit import finish

PREFIX, SUFFIX = "def f(a, b):\n    value = ", "\n    return value\n\n\ndef g():\n    return f(1, 2)\n"
LINE, BLOCK = Hole(Span(0, 0), "marker"), Hole(Span(0, 0), "marker", extent="block")
SURE = 12.0


class Scripted(Passes):
    """Real passes whose predictions are those of a model that knows the text behind the prompt by heart."""

    def __init__(self, model: Any, script: list[int], n_prompt: int) -> None:
        super().__init__(model)
        self.script, self.n_prompt = script, n_prompt
        self.n_encoded = self.n_decoded = 0

    def expected(self, first: int, shape: torch.Size) -> Tensor:
        known = [self.script[max(at - self.n_prompt, 0) % len(self.script)] for at in range(first, first + shape[1])]
        hidden = torch.zeros(*shape[:2], self.config.hidden_size)
        hidden[..., 0] = torch.tensor(known, dtype=torch.float32)
        return hidden

    def encode(self, ids: Tensor, past: KV | None = None) -> tuple[Tensor, KV]:
        _, kv = super().encode(ids, past)
        if past is not None:
            self.n_encoded += 1
        return self.expected(kv[0][0].shape[2] - ids.shape[1] + 1, ids.shape), kv

    def extend(self, ids: Tensor, positions: Tensor, *_others: Any, **_options: Any) -> Tensor:
        """Return what follows each node of a tree: the script knows it by the node's position alone."""
        self.n_encoded += 1
        return torch.cat([self.expected(position + 1, torch.Size((1, 1)))[0] for position in positions.tolist()])

    def decode(self, canvas: Tensor, kv: KV, soft: Tensor | None = None, **options: Any) -> Tensor:
        self.n_decoded += len(canvas)
        return self.expected(self.n_prompt, canvas.shape)

    def logits(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        n_logits = self.model.lm_head.weight.shape[0]
        return torch.nn.functional.one_hot(hidden[..., 0].round().long(), n_logits)[..., first:last] * SURE


def scripted(filler: DiffusionFiller, request: InfillRequest, answer: str, **settings: Any) -> tuple[DiffusionFiller, Scripted]:
    """Return a filler whose model knows that an answer and what is held behind it follow."""
    loaded = filler.loaded
    prompt = filler.layout.lay_out(request)
    follows = [*loaded.vocabulary.encode(answer), *prompt.tail, *[1] * 300]
    passes = Scripted(loaded.passes.model, follows, len(prompt.ids))
    return DiffusionFiller(replace(loaded, passes=passes, profile=replace(loaded.profile, **settings))), passes


@pytest.mark.parametrize("hole", [LINE, BLOCK])
def test_answers_of_every_length_are_possible(instruct: DiffusionFiller, hole: Hole) -> None:
    letters = "qwertzuiopasdfghjklyxcvbnmQWERTZUIOPASDFGHJKL"
    for n_tokens in range(1, 41):
        answer = letters[:n_tokens]
        assert len(instruct.loaded.vocabulary.encode(answer)) == n_tokens
        request = InfillRequest(PREFIX, SUFFIX, (hole,), language="python")
        # Without the causal draft as a candidate, only a canvas of just this length can come to the answer.
        filler, _ = scripted(instruct, request, answer, causal_rows=0, copy_rows=0)
        task = finish(filler.start(request))
        assert task.candidates()[0].texts == (answer,), n_tokens
        assert all(row.row == "noise" for row in task.progress.proposals)


def test_no_draft_is_written_token_by_token(instruct: DiffusionFiller) -> None:
    request = InfillRequest(PREFIX, SUFFIX, (BLOCK,), language="python")
    filler, passes = scripted(instruct, request, "sorted(set(a) - set(b), key=len)")
    task = finish(filler.start(request))
    assert task.candidates()[0].texts == ("sorted(set(a) - set(b), key=len)",)
    assert {row.row for row in task.progress.proposals} <= {"causal", "copy"}  # so sure that no canvas could change it
    assert passes.n_encoded < 8
    assert passes.n_decoded == task.candidates()[0].steps < 4


def test_several_candidates_get_canvases_too(instruct: DiffusionFiller) -> None:
    request = InfillRequest(PREFIX, SUFFIX, (BLOCK,), language="python", budget=Budget(candidates=3))
    filler, _ = scripted(instruct, request, "a - b")
    kinds = [row.row for row in finish(filler.start(request)).progress.proposals]
    assert "noise" in kinds
    assert kinds.count("causal") == 2  # as the search has written it, and what the canvas made of it


@pytest.mark.parametrize(
    ("hole", "draft", "answer"),
    [
        (BLOCK, "a - b" + SUFFIX, "a - b"),
        (BLOCK, "a - b" + SUFFIX + "\n```", "a - b"),
        (BLOCK, "a - b\n" + SUFFIX, "a - b"),  # more empty lines than the suffix has
        (LINE, "a - b\nmore", "a - b"),
        (LINE, "a - b" + SUFFIX, "a - b"),
    ],
)
def test_no_search_result_continues_into_the_suffix(instruct: DiffusionFiller, hole: Hole, draft: str, answer: str) -> None:
    request = InfillRequest(PREFIX, SUFFIX, (hole,), language="python")
    prompt, encode = instruct.layout.lay_out(request), instruct.loaded.vocabulary.encode
    passes = Scripted(instruct.loaded.passes.model, [*encode(draft), *encode("~" * 300)], len(prompt.ids))
    seen = finish(DiffusionFiller(replace(instruct.loaded, passes=passes)).start(request)).progress.proposals
    assert [row.text for row in seen if row.row == "causal"][:1] == [answer]
    assert not any("return value" in row.text for row in seen)
    n_tokens = len(encode(answer))
    assert all(len(row.logps) == n_tokens for row in seen if row.text == answer)  # scored as it was cut


def test_an_answer_that_the_suffix_shortens_gets_a_canvas_of_its_own_length(instruct: DiffusionFiller) -> None:
    request = InfillRequest(PREFIX, SUFFIX, (BLOCK,), language="python")
    prompt, encode = instruct.layout.lay_out(request), instruct.loaded.vocabulary.encode
    passes = Scripted(instruct.loaded.passes.model, [*encode("a - b\n" + SUFFIX), *encode("~" * 300)], len(prompt.ids))
    profile = replace(instruct.loaded.profile, causal_rows=0, copy_rows=0)
    filler = DiffusionFiller(replace(instruct.loaded, passes=passes, profile=profile))
    seen = finish(filler.start(request)).progress.proposals
    assert len(encode("a - b")) in {len(encode(row.text)) for row in seen if row.row == "noise"}


def test_a_search_ended_early_has_an_answer(instruct: DiffusionFiller) -> None:
    request = InfillRequest(PREFIX, SUFFIX, (LINE,), language="python", budget=Budget(steps=1))
    filler, _ = scripted(instruct, request, "a + b")
    task = filler.start(request)
    texts = set()
    while task.step():
        texts |= {candidate.texts for candidate in task.candidates()}
    assert ("a + b",) in texts


def test_a_checkpoint_with_a_delete_token_needs_no_search(
    trained_filler: DiffusionFiller, instruct: DiffusionFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    run = LengthSearch.run

    def watched(search: LengthSearch, *rest: Any) -> Any:
        searched.append("search")
        return run(search, *rest)

    monkeypatch.setattr(LengthSearch, "run", watched)
    request = InfillRequest("a = ", "\nb\n", (LINE,), budget=Budget(steps=2))
    finish(trained_filler.start(request))
    assert not searched
    finish(instruct.start(request))
    assert searched == ["search"]
