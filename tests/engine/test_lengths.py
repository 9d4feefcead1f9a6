"""The search finds the lengths of answers.

`fixtures/worlds` has a model of 1.1 million parameters of a generated language, one token for each character, and holes in it
whose answers have 1 to 64 tokens. Each hole has one right answer. What made them is in the history at commit a331a6b.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dg_lsp.engine.backends import local
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.diffusion.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.fixed_step import LocalDecoder
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import Profile
from dg_lsp.engine.diffusion.search import CausalText, Gap, Speculation
from dg_lsp.engine.model.tree import Tree
from tests.checkpoints import SPECIAL

World = Loaded[Passes, Profile]
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
    _, kv = passes.encode(torch.tensor([ids]))
    decoder, causal = LocalDecoder(loaded.passes, kv), CausalText(passes, Tree(passes, kv, ids[-1]))

    gap = Gap(profile.canvas_tokens, tail, TokenLimits(regular, banned), closing, steps)
    search = Speculation(gap, (), profile.sampling, n_logits)
    while not search.done:
        if search.wants_canvas:
            search.denoiser.take([0], decoder.logits(search.denoiser.ask([0])))
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


def _denoised(loaded: World, decoder: LocalDecoder, gap: Gap, lengths: list[int], n_logits: int) -> list[tuple[int, ...]]:
    """Return what canvases of these lengths settle to, with the suffix held behind."""
    blank, tail = gap.limits.regular[0], gap.tail
    rows = [
        Row((*[blank] * length, *tail), (*[True] * length, *[False] * len(tail)), gap.steps, seed)
        for seed, length in enumerate(lengths)
    ]
    limits = TokenLimits(gap.limits.regular, (*gap.limits.banned, *gap.closing))
    denoiser = Denoiser(rows, limits, loaded.profile.sampling, n_logits)
    while not denoiser.done:
        live = denoiser.live
        denoiser.take(live, decoder.logits(denoiser.ask(live)).clone())
    return [tuple(denoiser.read(row).ids[: lengths[row]]) for row in range(len(rows))]
