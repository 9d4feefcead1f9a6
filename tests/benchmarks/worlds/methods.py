"""Ways to fill a gap of unknown length, each with what it spends.

All of them get the same prompt, the same held head of the suffix and the same sampler; they differ in how they come to the
lengths that they try. Each ends with candidates of which a causal pass chooses (`CausalText.scores`).

Knows passes, rows and the rule of `decode.canvas.speculation`. Knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dg_lsp.engine.decode.canvas.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.decode.canvas.speculation import CausalText, Gap, Speculate, Speculation, cut_at_suffix
from dg_lsp.engine.decode.canvas.stack import LocalDecoder
from dg_lsp.engine.decode.propose import canvas
from dg_lsp.engine.model.passes import KV, Passes, crop
from dg_lsp.engine.model.profile import Sampling
from dg_lsp.engine.model.tree import Tree

Ids = tuple[int, ...]


@dataclass(slots=True)
class Cost:
    """What a hole took: decoder passes, rows of them, positions of those, and encoder passes that wait for each other."""

    passes: int = 0
    row_passes: int = 0
    positions: int = 0
    encoder_passes: int = 0


@dataclass(slots=True)
class Problem:
    """One hole before a model: its encoded prompt, the suffix's head and what a gap may hold.

    `closing` are tokens that a gap never holds and an open canvas may: the end of the text, and line ends where a hole
    ends with its line.
    """

    passes: Passes
    kv: KV
    last: int
    tail: Ids
    limits: TokenLimits
    sampling: Sampling
    block: bool
    canvas: int
    closing: tuple[int, ...]
    end: int | None = None  # what ends a causal draft
    behind: Ids = ()  # what a causal model writes behind an answer, where that is not the suffix's head
    cost: Cost = field(default_factory=Cost)

    @property
    def n_vocabulary(self) -> int:
        """How many tokens have logits."""
        return int(self.passes.model.lm_head.weight.shape[0])

    @property
    def steps(self) -> int:
        """How many steps a row may take."""
        return self.sampling.block_steps if self.block else self.sampling.line_steps

    @property
    def longest(self) -> int:
        """The longest gap that is tried."""
        return self.canvas - len(self.tail)

    def in_gap(self, limits: TokenLimits) -> TokenLimits:
        """Return what a gap may hold that ends where the suffix is held."""
        return replace(limits, banned=(*limits.banned, *self.closing))

    def decoder(self) -> LocalDecoder:
        """Return the decoder on the prompt."""
        return LocalDecoder(self.passes, self.kv)

    def gap(self) -> Gap:
        """Return what a search needs to know."""
        return Gap(self.canvas, self.tail, self.limits, self.closing, self.steps)

    def causal_gap(self) -> Gap:
        """Return the same of a text that a causal model verifies."""
        follows = self.behind or self.tail
        return replace(self.gap(), width=self.longest + len(follows), tail=follows)

    def said(self, denoiser: Denoiser, decoder: LocalDecoder, rows: Sequence[int]) -> Tensor:
        """Return the logits [G, V] of one pass, and count it."""
        self.cost.passes += 1
        self.cost.row_passes += len(rows)
        self.cost.positions += sum(len(denoiser.rows[row].ids) for row in rows)
        return decoder.logits(denoiser.ask(rows))

    def step(self, denoiser: Denoiser, decoder: LocalDecoder) -> Tensor:
        """Take one step and return its logits [G, V]."""
        rows = denoiser.live
        logits = self.said(denoiser, decoder, rows)
        denoiser.take(rows, logits.clone())
        return logits

    def settle(self, denoiser: Denoiser, most: int = 1000) -> None:
        """Step until all rows are done."""
        decoder = self.decoder()
        for _ in range(most):
            if denoiser.done:
                break
            self.step(denoiser, decoder)

    def rows(self, gaps: Sequence[int], steps: int = 0) -> Denoiser:
        """Return canvases of noise with the suffix held behind gaps of these lengths."""
        blank = self.limits.regular[0]
        rows = [
            Row((*[blank] * gap, *self.tail), (*[True] * gap, *[False] * len(self.tail)), steps or self.steps, seed)
            for seed, gap in enumerate(gaps)
        ]
        return Denoiser(rows, self.in_gap(self.limits), self.sampling, self.n_vocabulary)

    def answers(self, denoiser: Denoiser, rows: Collection[int] | None = None) -> list[Ids]:
        """Return what stands in the gaps of rows."""
        answers = []
        for index in range(len(denoiser.rows)) if rows is None else rows:
            reading = denoiser.read(index)
            free = denoiser.rows[index].free
            answers.append(tuple(token for place, token in zip(reading.places, reading.ids, strict=True) if free[place]))
        return answers

    def best(self, answers: Sequence[Ids]) -> Ids:
        """Return the answer that a causal pass finds likeliest together with the suffix's head."""
        distinct = list(dict.fromkeys(answers))
        if len(distinct) < 2:
            return distinct[0] if distinct else ()
        scores = self.scores(distinct)
        return distinct[scores.index(max(scores))]

    def scores(self, answers: Sequence[Ids]) -> list[float]:
        """Return the joint log-probability of each answer and the suffix's head."""
        self.cost.encoder_passes += 1
        return CausalText(self.passes, Tree(self.passes, self.kv, self.last)).scores(answers, self.behind or self.tail)


Method = Callable[[Problem], Ids]

LINE_GRID, BLOCK_GRID = (6, 10, 16, 24, 32), (16, 32, 64, 96, 128)


def grid(problem: Problem) -> Ids:
    """Fixed lengths; after two steps the two surest for their length go on (CAL, arXiv 2602.00476)."""
    gaps = [gap for gap in (BLOCK_GRID if problem.block else LINE_GRID) if gap <= problem.longest]
    denoiser, decoder = problem.rows(gaps), problem.decoder()
    for _ in range(2):
        problem.step(denoiser, decoder)
    surer = []
    for index, gap in enumerate(gaps):
        chances = denoiser.read(index).chances[:gap]
        surer.append((sum(chances) / gap - canvas.expected_confidence(gap), index))
    best = [index for _, index in sorted(surer, reverse=True)[:2]]
    for index in range(len(gaps)):
        if index not in best:
            denoiser.drop(index)
    problem.settle(denoiser)
    return problem.best(problem.answers(denoiser, best))


def oracle(n_answer: int) -> Method:
    """Return the method that is told the length."""

    def told(problem: Problem) -> Ids:
        denoiser = problem.rows([n_answer])
        problem.settle(denoiser)
        return problem.answers(denoiser)[0]

    return told


@dataclass(frozen=True, slots=True)
class Speculated:
    """Verify an open canvas by causal passes until it reaches the suffix, then hold the suffix there (`speculation`)."""

    options: Speculate = field(default_factory=Speculate)

    def __call__(self, problem: Problem) -> Ids:
        """Return the chosen answer."""
        gap, ends = problem.causal_gap(), () if problem.end is None else (problem.end,)
        speculation = Speculation(gap, ends, problem.sampling, problem.n_vocabulary, self.options)
        causal, decoder = CausalText(problem.passes, Tree(problem.passes, problem.kv, problem.last)), problem.decoder()
        while not speculation.done:
            if speculation.wants_canvas:
                speculation.take(problem.said(speculation.denoiser, decoder, [0]))
            proposal = speculation.proposal
            n_agreed = speculation.verify(proposal, causal.read(proposal))
            problem.cost.encoder_passes += 1
            causal.keep(n_agreed, speculation.text[-1])
        starts = speculation.starts()
        answers = [speculation.answer(start) for start in starts]
        scores = problem.scores(answers)
        if speculation.is_settled(starts, scores):
            return answers[scores.index(max(scores))]
        gaps = speculation.lengths(starts, scores)
        denoiser = problem.rows(gaps)
        problem.settle(denoiser)
        own = [answers[starts.index(gap)] for gap in gaps if speculation.is_valid(gap)]
        return problem.best([*own, *problem.answers(denoiser)])


@dataclass(frozen=True, slots=True)
class Draft:
    """Cut a causal draft at the suffix; its length and its neighbours become rows."""

    line_tokens: int = 64
    block_tokens: int = 96
    around: tuple[int, ...] = (-1, 0, 1)

    def __call__(self, problem: Problem) -> Ids:
        """Return the chosen answer."""
        draft = self.written(problem)
        n = cut_at_suffix(draft, problem.tail)
        gaps = sorted({min(max(1, n + d), problem.longest) for d in self.around})
        denoiser = problem.rows(gaps)
        problem.settle(denoiser)
        is_answer = 0 < n <= problem.longest and not set(draft[:n]) & set(problem.closing)
        own = [tuple(draft[:n])] if is_answer else []
        return problem.best([*own, *problem.answers(denoiser)])

    def written(self, problem: Problem) -> list[int]:
        """Return a greedy causal draft, which ends where it has written the suffix's head or its end token."""
        kv = crop(problem.kv, problem.kv[0][0].shape[2] - 1)
        draft, token, tail = list[int](), problem.last, list(problem.tail)
        for _ in range(self.block_tokens if problem.block else self.line_tokens):
            hidden, kv = problem.passes.encode(torch.tensor([[token]]), kv)
            problem.cost.encoder_passes += 1
            logits = problem.passes.logits(hidden[0, -1])
            banned = [t for t in problem.limits.banned if t != problem.end]
            logits[banned] = -torch.inf
            if problem.limits.first and not draft:
                first_ids = list(problem.limits.first)
                logits = torch.full_like(logits, -torch.inf).index_copy(0, torch.tensor(first_ids), logits[first_ids])
            token = int(logits.argmax())
            if token == problem.end:
                break
            draft.append(token)
            if draft[-len(tail) :] == tail:
                break
        return draft


def delete(token: int, gap: int) -> Method:
    """Return the method of a checkpoint with a delete token: one gap with room to spare."""

    def shrunk(problem: Problem) -> Ids:
        row = Row((*[token] * gap, *problem.tail), (*[True] * gap, *[False] * len(problem.tail)), problem.steps)
        banned = tuple(other for other in problem.limits.banned if other != token)
        limits = problem.in_gap(replace(problem.limits, banned=banned, delete=token))
        denoiser = Denoiser([row], limits, problem.sampling, problem.n_vocabulary)
        problem.settle(denoiser)
        return tuple(t for t in problem.answers(denoiser)[0] if t != token)

    return shrunk
