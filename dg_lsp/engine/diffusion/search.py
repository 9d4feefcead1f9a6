"""Propose what a search for a gap's likely lengths finds, for a checkpoint without a delete token.

An open canvas and causal passes find where the answer may end (`denoising.speculation`). The text that they verify is the
greedy causal draft, so such a request needs no other draft. The likely lengths get canvases. Knows canvas requests, gap lengths
and speculation. Knows nothing of how texts are ranked.
"""

from __future__ import annotations

from dg_lsp.engine.common import layout
from dg_lsp.engine.common.generation import Live, Work
from dg_lsp.engine.common.pace import LEAST_STEPS
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.diffusion.canvas import LARGEST_SEED
from dg_lsp.engine.diffusion.denoising.denoise import TokenLimits
from dg_lsp.engine.diffusion.denoising.speculation import CausalText, Gap, Speculate, Speculation
from dg_lsp.engine.diffusion.generation import Generation

READ_AHEAD = Speculate().look + 1  # the most tokens that one round of the search verifies
LINE_TOKENS = 64  # the longest answer within a line; a block may use the whole canvas


def propose(generation: Generation) -> Work:
    """Propose the texts that a search verified, and set the gap's likely lengths, if the request needs a search.

    That is one hole without a delete token.
    """
    canvas = generation.canvas
    if canvas.n_holes == 1 and canvas.delete is None:
        yield from LengthSearch(generation).run()


class LengthSearch:
    """Searches for the possible lengths of one request's gap."""

    def __init__(self, generation: Generation) -> None:
        self._generation, canvas = generation, generation.canvas
        self._canvas, prompt = canvas, canvas.prompt
        ends = tuple(canvas.ends)  # a checkpoint without its own end token may write any special token
        # The tokens that a causal model writes after an answer, as in `Scorer`.
        self._tail = ends if prompt.end is not None else prompt.tail or ends[:1]
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
        self._speculation = Speculation(gap, ends, canvas.profile.sampling, canvas.n_logits, device=canvas.loaded.device)
        self._has_drafts = canvas.profile.causal_rows > 0
        self._causal = CausalText(canvas.loaded.passes, generation.tree)

    @property
    def n_verified(self) -> int:
        """The number of tokens that the causal model has verified."""
        return len(self._speculation.text)

    def run(self) -> Work:
        """Propose the search's results, and set the lengths worth a canvas, likeliest first.

        None is left if no canvas could write an answer that ranks higher.
        """
        generation, speculation, causal = self._generation, self._speculation, self._causal
        pace = generation.timing.pace
        steps = generation.stepping(speculation.denoiser, generation.kv, is_open=True)
        generation.live = Live(lambda: (self._text(speculation.starts()[0]) if speculation.text else "",), is_answer=True)
        while not speculation.done and (not speculation.text or self._may_go_on()):
            if speculation.wants_canvas:
                yield from steps.take_one()
                yield
            proposal = speculation.proposal
            with pace.measuring("score", len(proposal) + 1):
                n_agreed = speculation.verify(proposal, causal.read(proposal))
            causal.keep(n_agreed, speculation.text[-1])
            yield
        starts = speculation.starts()
        with pace.measuring("score", self._n_scored()):
            scores = causal.scores([speculation.answer(start) for start in starts], self._tail)
        likely = speculation.lengths(starts, scores)
        yield
        generation.n_steps += speculation.n_steps
        generation.live = None
        canvas = self._canvas
        is_one = self._has_drafts and canvas.request.budget.candidates == 1
        ranks_by_joint_score = is_one and canvas.calibration is None
        is_final = ranks_by_joint_score and speculation.is_settled(starts, scores)
        if is_final and self._text(likely[0]) == self._uncut(likely[0]):
            generation.found_lengths = ()
        else:
            generation.found_lengths = tuple(dict.fromkeys(map(self._length, likely)))
            if starts[0] > self.n_verified:  # the search ended before it verified the open canvas's length
                likely = [*likely, starts[0]]
        # A causal draft if it is verified, otherwise the canvas's text.
        results: dict[str, Proposal] = {}
        for start in likely:
            is_causal = start <= self.n_verified
            if speculation.is_valid(start) and (self._has_drafts or not is_causal):
                text = self._text(start)
                results.setdefault(text, Proposal(text, "causal" if is_causal else "noise"))
        generation.proposals += results.values()

    def _may_go_on(self) -> bool:
        """Return whether the deadline leaves time for one more round.

        The open canvas may take the steps in which a canvas usually settles. It may take more while there is still time for
        as many steps on a canvas that holds the suffix. If the search ended earlier, that canvas would have to guess its
        length.
        """
        generation, n_steps = self._generation, self._speculation.n_steps
        step_ms, expected_ms = generation.step_ms(self._speculation.gap.width), generation.timing.pace.expected_ms
        if step_ms is None:
            return True
        round_ms = step_ms + (expected_ms("score", READ_AHEAD) or 0.0)
        last_ms = 2 * (expected_ms("score", self._n_scored()) or 0.0)  # one for the search, one for the ranking
        return generation.timing.budget.may(round_ms + (LEAST_STEPS * step_ms if n_steps >= LEAST_STEPS else 0.0), last_ms)

    def _n_scored(self) -> int:
        """Return the number of positions in the pass that scores the answers, if the search ends now."""
        starts = self._speculation.starts()
        return len(starts) * (max(starts) + len(self._tail))

    def _length(self, start: int) -> int:
        """Return the number of tokens of an answer, without a copy of the suffix."""
        text, uncut = self._text(start), self._uncut(start)
        return start if text == uncut else max(len(self._canvas.vocabulary.encode(self._canvas.typed + text)), 1)

    def _text(self, start: int) -> str:
        """Return the answer with this length, without a copy of the suffix unless it ended with an end token."""
        speculation, text = self._speculation, self._uncut(start)
        following = speculation.text[start] if start < self.n_verified else None
        if following is not None and following == self._canvas.prompt.end:
            return text
        if following in speculation.gap.closing:  # the token may contain text before its line end
            text = self._uncut(start, following)
        return self._canvas.of_draft(text)

    def _uncut(self, start: int, *following: int) -> str:
        ids = (*self._speculation.answer(start), *following)
        return layout.answer(self._canvas.vocabulary, ids, self._canvas.prompt.heal)
