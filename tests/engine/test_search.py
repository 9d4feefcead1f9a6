"""A checkpoint without a profile fills gaps of any length: the product's search, on a tiny model in the instruct layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dg_lsp.core.values import Budget, Hole, InfillRequest, Span
from dg_lsp.engine.backends import local
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.diffusion.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.gemma.passes import Passes, Store
from dg_lsp.engine.diffusion.layout import CanvasProfile, Sampling
from dg_lsp.engine.diffusion.search import CausalText, Gap, LengthSearch, Speculate, Speculation, cut_at_suffix
from dg_lsp.engine.model.kv import KV, Tokens
from tests.checkpoints import SPECIAL
from tests.engine import reference
from tests.engine.engine_kit import finish
from tests.engine.filler_kit import room_of, tree_of
from tests.engine.reference import PlainDecoder, take_step
from tests.engine.test_denoise import VOCABULARY, Toy

PREFIX, SUFFIX = "def f(a, b):\n    value = ", "\n    return value\n\n\ndef g():\n    return f(1, 2)\n"
LINE, BLOCK = Hole(Span(0, 0), "marker"), Hole(Span(0, 0), "marker", extent="block")
SURE = 12.0


class Scripted(Passes):
    """Real passes whose predictions are those of a model that knows the text behind the prompt by heart."""

    def __init__(self, model: Any, script: list[int], n_prompt: int) -> None:
        super().__init__(model)
        self.script, self.n_prompt = script, n_prompt
        self.n_encoded = self.n_decoded = 0

    def expected(self, positions: Sequence[int]) -> Tensor:
        known = [self.script[max(at - self.n_prompt, 0) % len(self.script)] for at in positions]
        hidden = torch.zeros(len(known), self.config.hidden_size)
        hidden[:, 0] = torch.tensor(known, dtype=torch.float32)
        return hidden

    def read(self, tokens: Tokens, store: Store) -> Tensor:
        """Return what follows each token: the script knows it by the token's position alone."""
        self.n_encoded += int(tokens.positions[0]) > 0
        super().read(tokens, store)
        return self.expected((tokens.positions + 1).tolist())

    def decode(self, canvas: Tensor, kv: KV, soft: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        self.n_decoded += int((positions == positions.min()).sum())  # the rows on the canvas
        return self.expected(positions[0].tolist())[None]

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


# The rule of the search, against a readable one


SAMPLING = Sampling(entropy_bound=0.5, stop_entropy=0.3, conditioning_tokens=4)
END = 1

gaps = st.builds(
    Gap,
    width=st.integers(6, 12),
    tail=st.lists(st.integers(4, 11), min_size=1, max_size=5).map(tuple),
    limits=st.builds(TokenLimits, st.just(tuple(range(4, 12))), st.just((0, 2)), st.sampled_from([(), (7, 8)])),
    closing=st.sampled_from([(), (5,), (4, 9)]),
    steps=st.integers(1, 7),
    seed=st.integers(0, 3),
)
choices = st.builds(
    Speculate,
    look=st.sampled_from([2, 32]),
    possible=st.sampled_from([0.001, 0.1]),
    starts=st.integers(1, 4),
    repeats=st.integers(1, 3),
)


class ToyCausal:
    """A causal model of a few lines: what comes next depends on the last two tokens and on how long the text is."""

    def __init__(self, seed: int, sharpness: float) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.table = torch.randn(3, VOCABULARY, VOCABULARY, generator=noise) * sharpness

    def __call__(self, text: list[int]) -> Tensor:
        last, before = (text[-1] if text else 0), (text[-2] if len(text) > 1 else 0)
        return self.table[0, last] + self.table[1, before] + self.table[2, len(text) % VOCABULARY] * 0.2


def speculated(gap: Gap, options: Speculate, toy: Toy, causal: ToyCausal) -> Speculation:
    speculation = Speculation(gap, (END,), SAMPLING, VOCABULARY, options)
    while not speculation.done:
        if speculation.wants_canvas:
            take_step(speculation.denoiser, toy, [0])
        proposal, text = speculation.proposal, list(speculation.text)
        logits = torch.stack([causal([*text, *proposal[:n]]) for n in range(len(proposal) + 1)])
        n_agreed = speculation.verify(proposal, logits)
        assert tuple(speculation.text[len(text) :][:n_agreed]) == proposal[:n_agreed]
    return speculation


@given(gaps, choices, st.integers(0, 40), st.sampled_from([0.3, 0.7, 1.1]))
def test_the_fast_rule_equals_the_reference(gap: Gap, options: Speculate, seed: int, sharpness: float) -> None:
    toy, causal = Toy(seed, sharpness), ToyCausal(seed + 1, sharpness * 3)
    fast = speculated(gap, options, toy, causal)
    text, starts = reference.speculate(gap, {END}, SAMPLING, options, toy, causal)
    assert fast.text == text
    assert fast.starts() == starts
    assert all(len(fast.answer(start)) == start for start in starts if start <= len(text))


@given(gaps, st.integers(0, 40))
def test_the_verified_text_is_the_greedy_causal_text(gap: Gap, seed: int) -> None:
    causal = ToyCausal(seed, 2.0)
    text = speculated(gap, Speculate(), Toy(seed, 1.0), causal).text
    for n, token in enumerate(text):
        logits = causal(text[:n])
        logits[[0, 2]] = -torch.inf
        if n == 0 and gap.limits.first:
            others = [other for other in range(VOCABULARY) if other not in gap.limits.first]
            logits[others] = -torch.inf
        assert token == int(logits.argmax())


def test_the_rest_of_the_suffix_is_verified_in_one_pass() -> None:
    gap = Gap(20, (7, 9, 8, 10, 7, 6), TokenLimits(tuple(range(4, VOCABULARY)), (0, 1, 2)), (), steps=9)
    speculation = Speculation(gap, (END,), SAMPLING, VOCABULARY)
    speculation.text = [4, 7, 9, 8]
    assert not speculation.wants_canvas
    assert speculation.proposal == (10, 7, 6)
    sure = torch.nn.functional.one_hot(torch.tensor([10, 7, 6, 5]), VOCABULARY) * 9.0
    assert speculation.verify((10, 7, 6), sure) == 3
    assert speculation.starts()[0] == 1


def test_lengths_far_below_the_best_are_not_denoised() -> None:
    gap = Gap(20, (7,), TokenLimits(tuple(range(4, VOCABULARY))), (), steps=9)
    speculation = Speculation(gap, (END,), SAMPLING, VOCABULARY, Speculate(rows=2, margin=3.0))
    assert speculation.lengths([4, 6, 9], [-2.0, -9.0, -1.0]) == [9, 4]
    assert speculation.lengths([4, 6, 9], [-7.0, -9.0, -1.0]) == [9]


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_the_cut_of_a_draft_equals_the_reference(draft: list[int], head: list[int]) -> None:
    assert cut_at_suffix(draft, head) == reference.cut_at_suffix(draft, head)


def test_a_draft_ends_at_the_longest_run_of_the_suffix() -> None:
    assert cut_at_suffix([1, 2, 3, 9, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]) == 4
    assert cut_at_suffix([7, 1, 2], [1, 2, 3, 4]) == 3
    assert cut_at_suffix([7, 1], [1]) == 1


# A model of a generated language, whose answers have 1 to 64 tokens


World = Loaded[Passes, CanvasProfile]
WORLDS = Path(__file__).parents[2] / "fixtures" / "worlds"
HOLES = [json.loads(line) for line in (WORLDS / "holes.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def worlds() -> World:
    return local.load_model(str(WORLDS), device="cpu", threads=1)


@pytest.mark.parametrize("kind", ["line", "block"])
def test_a_search_finds_answers_of_any_length(worlds: World, kind: str) -> None:
    holes = [hole for hole in HOLES if hole["kind"] == kind]
    assert len({len(hole["answer"]) for hole in holes}) > 6
    with torch.inference_mode():
        answers = [searched(worlds, hole) for hole in holes]
    right = sum(answer == hole["answer"] for answer, hole in zip(answers, holes, strict=True))
    assert right > 0.9 * len(holes)


def searched(loaded: World, hole: dict[str, str]) -> str:
    """Return the best answer of the search's own texts and of canvases of the lengths that it finds."""
    vocabulary, profile, passes = loaded.vocabulary, loaded.profile, loaded.passes
    is_block, n_logits = hole["kind"] == "block", loaded.passes.model.lm_head.weight.shape[0]
    bos, suf, pre, eos = (SPECIAL.index(token) for token in ("<bos>", "<suf>", "<pre>", "<eos>"))
    suffix = vocabulary.encode(hole["suffix"])
    ids = [bos, suf, *suffix, *([eos] if len(suffix) < profile.suffix_tokens else []), pre, *vocabulary.encode(hole["prefix"])]
    tail = (*suffix, eos)[: profile.held_tokens]
    regular = tuple(token for token, piece in enumerate(vocabulary.pieces) if piece and token not in vocabulary.special)
    banned = tuple(token for token in (*vocabulary.special, *range(vocabulary.size, n_logits)) if token != eos)
    closing = (eos,) if is_block else (eos, *vocabulary.with_newline)
    steps = profile.sampling.block_steps if is_block else profile.sampling.line_steps
    decoder = PlainDecoder(passes, room_of(passes, torch.tensor([ids])).kv)
    causal = CausalText(tree_of(passes, torch.tensor([ids])))

    gap = Gap(profile.canvas_tokens, tail, TokenLimits(regular, banned), closing, steps)
    search = Speculation(gap, (), profile.sampling, n_logits)
    while not search.done:
        if search.wants_canvas:
            take_step(search.denoiser, decoder, [0])
        proposal = search.proposal
        n_agreed = search.verify(proposal, causal.read(proposal))
        causal.keep(n_agreed, search.text[-1])
    starts = search.starts()
    answers = [search.answer(start) for start in starts]
    scores = causal.scores(answers, tail)
    if not search.is_settled(starts, scores):
        lengths = search.lengths(starts, scores)
        answers = [answer for answer in answers if len(answer) in lengths and search.is_valid(len(answer))]
        answers += _denoised(loaded, decoder, gap, lengths, n_logits)
        scores = causal.scores(answers, tail)
    return vocabulary.decode(list(answers[scores.index(max(scores))]))


def _denoised(loaded: World, decoder: PlainDecoder, gap: Gap, lengths: list[int], n_logits: int) -> list[tuple[int, ...]]:
    """Return what canvases of these lengths settle to, with the suffix held behind."""
    blank, tail = gap.limits.regular[0], gap.tail
    rows = [
        Row((*[blank] * length, *tail), (*[True] * length, *[False] * len(tail)), gap.steps, seed)
        for seed, length in enumerate(lengths)
    ]
    limits = TokenLimits(gap.limits.regular, (*gap.limits.banned, *gap.closing))
    denoiser = Denoiser(rows, limits, loaded.profile.sampling, n_logits)
    while not denoiser.done:
        take_step(denoiser, decoder)
    return [tuple(denoiser.read(row).ids[: lengths[row]]) for row in range(len(rows))]
