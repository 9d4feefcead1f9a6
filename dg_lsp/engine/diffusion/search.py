"""Propose what a search for a gap's likely lengths finds, in the instruct layout, whose checkpoints have no delete token.

An open canvas proposes the text after the prefix, and causal passes verify it. The canvas holds no suffix, so it settles to the
answer followed by the suffix. After each step, one causal pass over its text keeps the tokens that the causal model would also
have written, and adds the next one (speculative diffusion decoding, arXiv 2408.05636). So the text is the greedy causal draft,
in a fraction of its passes, and such a request needs no other draft. Each verified token is held on the canvas. An answer may
end where the text continues with the suffix. A joint pass scores the starts of the suffix that the causal model considers
possible. The best of these lengths get a canvas that holds the suffix.

`speculate` in `tests/engine/reference.py` states the same rule plainly. Knows nothing of how texts are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dg_lsp.engine.common import layout
from dg_lsp.engine.common.inputs import LARGEST_SEED
from dg_lsp.engine.common.pace import LEAST_STEPS
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.diffusion.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.generation import CanvasAnswer, Proposing
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.model.tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap: the width of its canvas, the held tokens after it, and the tokens that it may contain.

    `closing` are tokens that an open canvas may contain but an answer may not: the end of the text, and line ends if the
    hole ends with its line.
    """

    width: int
    tail: tuple[int, ...]
    limits: TokenLimits
    closing: tuple[int, ...]
    steps: int
    seed: int = 0

    @property
    def longest(self) -> int:
        """The length of the longest answer that leaves room for the held tokens."""
        return max(1, self.width - len(self.tail))


@dataclass(frozen=True, slots=True)
class Speculate:
    """The limits of a speculation.

    One causal pass verifies at most `look` proposed tokens. The suffix may start wherever its first token has at least the
    probability `possible`. The likeliest `starts` of these are scored. Those within `margin` nats of the best become
    canvases, at most `rows`. After `repeats` verified tokens of the suffix's head, the rest of the head is proposed.
    """

    look: int = 32
    possible: float = 0.02
    starts: int = 6
    rows: int = 2
    margin: float = 6.0
    repeats: int = 3


class Speculation:
    """The open canvas of one gap, and the text verified so far.

    In each round, the caller first takes a step of the `denoiser` if `wants_canvas` is true. Then it passes the logits of a
    causal pass over `proposal` to `verify`.
    """

    def __init__(
        self,
        gap: Gap,
        ends: Sequence[int],
        sampling: Sampling,
        n_vocabulary: int,
        options: Speculate | None = None,
        device: str = "cpu",
    ) -> None:
        self.gap, self.options, self._ends = gap, options or Speculate(), frozenset(ends)
        row = Row((gap.limits.regular[0],) * gap.width, (True,) * gap.width, gap.steps, gap.seed)
        self.denoiser = Denoiser([row], gap.limits, sampling, n_vocabulary, device)
        self.text: list[int] = []  # verified
        self.head_logps: list[float] = []  # by answer length, the log-probability that the suffix comes next
        self._is_over = False
        self._n_rounds = 0

    @property
    def done(self) -> bool:
        """Whether the text has reached the suffix, an end token, the last round or the end of the canvas."""
        return self._is_over or self._n_rounds >= self.gap.steps

    @property
    def wants_canvas(self) -> bool:
        """Whether the canvas makes the next proposal, after one more step; otherwise it is the rest of the suffix's head."""
        return not self._rest_of_head()

    @property
    def proposal(self) -> tuple[int, ...]:
        if rest := self._rest_of_head():
            return rest
        n = len(self.text)
        proposed: list[int] = self.denoiser.canvas.best[0, n : min(n + self.options.look, self.gap.width)].tolist()
        return tuple(proposed)

    def verify(self, proposal: Sequence[int], logits: Tensor) -> int:
        """Append the tokens that the causal model agrees with and its own next token; return how many of them agreed.

        `logits` [N + 1, V] are the causal logits after the text and after each token of the proposal.
        """
        logps = logits.float().log_softmax(-1)
        greedy = logits.float().masked_fill(self.denoiser.forbidden, -torch.inf)
        if not self.text and self.gap.limits.first:
            first_logits = torch.full_like(greedy[0], -torch.inf)
            first = [token for token in self.gap.limits.first if token not in self.gap.limits.banned]
            first_logits[first] = greedy[0, first]
            greedy[0] = first_logits if first else greedy[0]
        best: list[int] = greedy.argmax(-1).tolist()
        n_agreed = next((i for i, token in enumerate(proposal) if token != best[i]), len(proposal))
        if self.wants_canvas:
            self._n_rounds += 1
        n_before = len(self.text)
        heads = logps[:, self.gap.tail[0]].tolist() if self.gap.tail else []
        for index, token in enumerate(best[: n_agreed + 1]):
            self.head_logps += heads[index : index + 1]
            self.text.append(token)
            if token in self._ends or token in self.gap.closing or len(self.text) >= self.gap.width:
                self._is_over = True
                break
        tail = list(self.gap.tail)
        self._is_over = self._is_over or (bool(tail) and self.text[-len(tail) :] == tail)
        self._hold()
        return len(self.text) - n_before - 1

    def starts(self) -> list[int]:
        """Return the lengths of answers worth scoring, likeliest first."""
        text = self._whole()
        most = min(self.gap.longest, self._n_open(text))
        suffix_start = min(max(cut_at_suffix(text, self.gap.tail), 1), max(most, 1))  # an answer is never empty
        possible = [
            (logp, start)
            for start, logp in enumerate(self.head_logps)
            if 0 < start <= most and start != suffix_start and logp >= math.log(self.options.possible)
        ]
        likeliest = sorted(possible, key=lambda pair: (-pair[0], pair[1]))[: self.options.starts - 1]
        return [suffix_start, *(start for _, start in likeliest)]

    def answer(self, start: int) -> tuple[int, ...]:
        """Return the tokens of the answer with this length."""
        return tuple(self._whole()[:start])

    def is_valid(self, start: int) -> bool:
        """Return whether the answer with this length contains only tokens that an answer may contain."""
        return start <= self._n_open(self._whole())

    def is_settled(self, starts: Sequence[int], scores: Sequence[float]) -> bool:
        """Return whether no other answer can score higher than the best of these starts.

        A joint score is the log-probability of an answer followed by the suffix's head. Two texts can't both have a
        probability above one half, unless one is the start of the other. The shorter of those would have ended the
        speculation.
        """
        score, start = max(zip(scores, starts, strict=True))
        return score > math.log(0.5) and self.is_valid(start)

    def lengths(self, starts: Sequence[int], scores: Sequence[float]) -> list[int]:
        """Return the lengths that get a canvas, best first, by the joint scores of the starts."""
        best = sorted(zip(scores, starts, strict=True), key=lambda pair: (-pair[0], pair[1]))
        return [start for score, start in best if score >= best[0][0] - self.options.margin][: self.options.rows]

    def _whole(self) -> list[int]:
        """Return the verified tokens, followed by the canvas's tokens after them."""
        behind: list[int] = self.denoiser.canvas.best[0, len(self.text) :].tolist() if self.denoiser.begun else []
        return [*self.text, *behind]

    def _n_open(self, text: Sequence[int]) -> int:
        """Return the number of tokens before the first end or closing token."""
        return next((i for i, token in enumerate(text) if token in self._ends or token in self.gap.closing), len(text))

    def _rest_of_head(self) -> tuple[int, ...]:
        """Return the rest of the suffix's head if the text ends with its start; otherwise an empty tuple."""
        tail, text = self.gap.tail, self.text
        for n in range(min(len(tail), len(text)), self.options.repeats - 1, -1):
            if tuple(text[-n:]) == tail[:n]:
                return tail[n : n + self.gap.width - len(text)]
        return ()

    def _hold(self) -> None:
        canvas, n = self.denoiser.canvas, min(len(self.text), self.gap.width)
        text_ids = torch.tensor(self.text[:n], device=canvas.ids.device)
        canvas.ids[0, :n] = canvas.best[0, :n] = text_ids
        canvas.free[0, :n] = False
        canvas.entropy[0, :n], canvas.chance[0, :n] = 0.0, 1.0
        canvas.top_ids[0, :n], canvas.top_chances[0, :n] = text_ids[:, None], 0.0
        canvas.top_chances[0, :n, 0] = 1.0
        if self.denoiser.limits.first:  # `first` is for the gap's first position, which is no longer free
            self.denoiser.limits = replace(self.denoiser.limits, first=())


def cut_at_suffix(draft: Sequence[int], head: Sequence[int]) -> int:
    """Return where a draft continues with the suffix: the first longest run of the suffix's head.

    A run counts if it has three tokens or the whole head. Without one, return the draft's length.
    """
    best, at = 0, len(draft)
    for start in range(len(draft)):
        n = 0
        while n < len(head) and start + n < len(draft) and draft[start + n] == head[n]:
            n += 1
        if n > best and n >= min(3, len(head)):
            best, at = n, start
    return at


class CausalText:
    """The causal model after a prompt and the verified text, in the tree of a fill."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._node, self._last = ROOT, list[int]()
        self._nodes = [ROOT]  # of the last verified token, and of the proposal after it

    def read(self, proposal: Sequence[int]) -> Tensor:
        """Encode a proposal and return the logits [N + 1, V] after the text and after each proposed token."""
        [nodes] = self._tree.grow([(self._node, [*self._last, *proposal])])
        self._nodes = nodes if self._last else [self._node, *nodes]
        return self._tree.logits(self._nodes)

    def keep(self, n_agreed: int, last: int) -> None:
        """Keep only the agreed tokens of the last proposal, and continue after them with the token `last`."""
        self._node, self._last = self._nodes[n_agreed], [last]

    def scores(self, answers: Sequence[Sequence[int]], tail: Sequence[int]) -> list[float]:
        """Return the joint log-probability of each answer followed by the suffix's head."""
        # Only a sum compares answers of different lengths, because a mean favours repetitive text.
        return [sum(logps) for logps in self._tree.log_probabilities([[*answer, *tail] for answer in answers])]


READ_AHEAD = Speculate().look + 1  # the most tokens that one round of the search verifies
LINE_TOKENS = 64  # the longest answer within a line; a block may use the whole canvas


def propose(answer: CanvasAnswer) -> Proposing:
    """Propose the texts that a search verified, and set the gap's likely lengths, if the request has one hole."""
    if answer.canvas.n_holes == 1:
        yield from LengthSearch(answer).run()


class LengthSearch:
    """Searches for the possible lengths of one request's gap."""

    def __init__(self, answer: CanvasAnswer) -> None:
        self._answer, canvas = answer, answer.canvas
        self._canvas, prompt = canvas, canvas.prompt
        ends = tuple(canvas.ends)  # a checkpoint without its own end token may write any special token
        self._tail = prompt.tail or ends[:1]
        longest = canvas.profile.canvas_tokens - len(canvas.prompt.tail)  # the held suffix needs room
        writable = {*self._tail, *ends}
        banned = tuple(token for token in canvas.control if token not in writable)
        gap = Gap(
            (longest if canvas.is_block else min(longest, LINE_TOKENS)) + len(self._tail),
            self._tail,
            TokenLimits(canvas.vocabulary.regular, banned, canvas.next_tokens(())),
            () if canvas.is_block else tuple(canvas.vocabulary.with_newline),
            canvas.n_steps,
            canvas.request.seed & LARGEST_SEED,
        )
        self._speculation = Speculation(
            gap, ends, canvas.profile.sampling, canvas.loaded.passes.n_vocabulary, device=canvas.loaded.device
        )
        self._has_drafts = canvas.profile.causal_rows > 0
        self._causal = CausalText(answer.tree)

    def run(self) -> Proposing:
        """Propose the search's results, and set the lengths worth a canvas, likeliest first.

        None is left if no canvas could write an answer that ranks higher.
        """
        answer, speculation, causal = self._answer, self._speculation, self._causal
        pace = answer.timing.pace
        so_far = answer.progress(lambda: (self._text(speculation.starts()[0]) if speculation.text else "",))
        while not speculation.done and (not speculation.text or self._may_go_on()):
            if speculation.wants_canvas:
                yield so_far
                answer.take_step(speculation.denoiser, answer.kv, is_open=True)
                yield so_far
            proposal = speculation.proposal
            with pace.measuring("score", len(proposal) + 1):
                n_agreed = speculation.verify(proposal, causal.read(proposal))
            causal.keep(n_agreed, speculation.text[-1])
            yield so_far
        starts = speculation.starts()
        with pace.measuring("score", self._n_scored()):
            scores = causal.scores([speculation.answer(start) for start in starts], self._tail)
        likely = speculation.lengths(starts, scores)
        yield so_far
        answer.n_steps += speculation.denoiser.canvas.steps[0]
        canvas = self._canvas
        is_one = self._has_drafts and canvas.request.budget.candidates == 1
        ranks_by_joint_score = is_one and canvas.calibration is None
        is_final = ranks_by_joint_score and speculation.is_settled(starts, scores)
        if is_final and self._text(likely[0]) == self._uncut(likely[0]):
            answer.found_lengths = ()
        else:
            answer.found_lengths = tuple(dict.fromkeys(map(self._length, likely)))
            if starts[0] > len(speculation.text):  # the search ended before it verified the open canvas's length
                likely = [*likely, starts[0]]
        # A causal draft if it is verified, otherwise the canvas's text.
        results: dict[str, Proposal] = {}
        for start in likely:
            is_causal = start <= len(speculation.text)
            if speculation.is_valid(start) and (self._has_drafts or not is_causal):
                text = self._text(start)
                results.setdefault(text, Proposal(text, "causal" if is_causal else "noise"))
        answer.proposals += results.values()

    def _may_go_on(self) -> bool:
        """Return whether the deadline leaves time for one more round.

        The open canvas may take the steps in which a canvas usually settles. It may take more while there is still time for
        as many steps on a canvas that holds the suffix. If the search ended earlier, that canvas would have to guess its
        length.
        """
        answer, n_steps = self._answer, self._speculation.denoiser.canvas.steps[0]
        step_ms, expected_ms = answer.step_ms(self._speculation.gap.width), answer.timing.pace.expected_ms
        if step_ms is None:
            return True
        round_ms = step_ms + (expected_ms("score", READ_AHEAD) or 0.0)
        last_ms = 2 * (expected_ms("score", self._n_scored()) or 0.0)  # one for the search, one for the ranking
        needed_ms = round_ms + (LEAST_STEPS * step_ms if n_steps >= LEAST_STEPS else 0.0)
        return answer.timing.left_ms(last_ms) >= needed_ms

    def _n_scored(self) -> int:
        """Return the number of positions in the pass that scores the answers, if the search ends now."""
        starts = self._speculation.starts()
        return len(starts) * (max(starts) + len(self._tail))

    def _length(self, start: int) -> int:
        text, uncut = self._text(start), self._uncut(start)
        return start if text == uncut else max(len(self._canvas.vocabulary.encode(self._canvas.typed + text)), 1)

    def _text(self, start: int) -> str:
        """Return the answer with this length, without a copy of the suffix."""
        speculation, text = self._speculation, self._uncut(start)
        following = speculation.text[start] if start < len(speculation.text) else None
        if following in speculation.gap.closing:  # the token may contain text before its line end
            text = self._uncut(start, following)
        return self._canvas.of_draft(text)

    def _uncut(self, start: int, *following: int) -> str:
        ids = (*self._speculation.answer(start), *following)
        return layout.answer(self._canvas.vocabulary, ids, self._canvas.prompt.heal)
