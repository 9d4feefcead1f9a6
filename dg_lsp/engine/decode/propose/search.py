"""Search for the gap lengths worth a canvas, for a checkpoint without a delete token.

An open canvas and causal passes find where the answer may end (`decode.propose.speculation`). The text that they verify is the
greedy causal draft, so such a fill needs no other draft. Knows fills and passes. Knows nothing of how rows are denoised.
"""

from __future__ import annotations

from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.canvas.denoise import TokenLimits
from dg_lsp.engine.decode.canvas.speculation import CausalText, Gap, Speculate, Speculation
from dg_lsp.engine.decode.fill import FillInput
from dg_lsp.engine.decode.filling import Filling, Live, Proposing
from dg_lsp.engine.decode.pace import LEAST_STEPS
from dg_lsp.engine.decode.propose.rows import LARGEST_SEED
from dg_lsp.engine.decode.rank import Proposal

READ_AHEAD = Speculate().look + 1  # the most tokens that one round of the search verifies
LINE_TOKENS = 64  # the longest answer within a line; a block may use the whole canvas


def propose(filling: Filling) -> Proposing:
    """Yield the texts that the search verified, and set the gap's likely lengths, if the fill needs a search."""
    if not applies(filling.fill):
        return
    yield from LengthSearch(filling).run()


def applies(fill: FillInput) -> bool:
    """Return whether a fill needs a length search: it has one hole, no delete token and no fixed gap length."""
    return fill.n_holes == 1 and fill.delete is None and not fill.switches.gap and fill.switches.noise


class LengthSearch:
    """Searches for the possible lengths of one fill's gap."""

    def __init__(self, filling: Filling) -> None:
        self._filling, fill = filling, filling.fill
        self._fill, sheet = fill, fill.sheet
        # These tokens end a causal draft. A checkpoint without its own end token may write any special token.
        ends = (sheet.end,) if sheet.end is not None else tuple(fill.vocabulary.special)
        # The tokens that a causal model writes after an answer, as in `scoring`.
        self._tail = ends if sheet.end is not None else sheet.tail or ends[:1]
        gap, sampling = _gap(fill, self._tail, ends), fill.profile.sampling
        self._speculation = Speculation(gap, ends, sampling, fill.tokens.n_logits, device=fill.loaded.device)
        self._causal = CausalText(fill.passes, filling.tree)

    @property
    def n_verified(self) -> int:
        """The number of tokens that the causal model has verified."""
        return len(self._speculation.text)

    def run(self) -> Proposing:
        """Yield the search's results, and set the lengths worth a canvas, likeliest first.

        There are no lengths if no canvas could write an answer that ranks higher.
        """
        filling, speculation, causal = self._filling, self._speculation, self._causal
        pace = filling.resources.pace
        steps = filling.stepping(speculation.denoiser, filling.kv, is_open=True)
        filling.live = Live(lambda: (self._current(),), is_answer=True)
        while not speculation.done and (not speculation.text or self._may_go_on()):
            if speculation.wants_canvas:
                yield from steps.take_one()
                yield None
            proposal = speculation.proposal
            with pace.measuring("score", len(proposal) + 1):
                n_agreed = speculation.verify(proposal, causal.read(proposal))
            causal.keep(n_agreed, speculation.text[-1])
            yield None
        starts = speculation.starts()
        with pace.measuring("score", self._n_scored()):
            scores = causal.scores([speculation.answer(start) for start in starts], self._tail)
        likely = speculation.lengths(starts, scores)
        yield None
        filling.n_steps += speculation.n_steps
        filling.live = None
        steps.leave()
        is_final = self._ranks_drafts_by_joint_score() and speculation.is_settled(starts, scores)
        if is_final and self._text(likely[0]) == self._uncut(likely[0]):
            filling.lengths = ()
        else:
            filling.lengths = tuple(dict.fromkeys(map(self._length, likely)))
            likely = [*likely, *self._read_ahead(starts)]
        yield from self._results(likely)

    def _may_go_on(self) -> bool:
        """Return whether the deadline leaves time for one more round.

        The open canvas may take the steps in which a canvas usually settles. It may take more while there is still time for
        as many steps on a canvas that holds the suffix. If the search ended earlier, that canvas would have to guess its
        length.
        """
        filling, n_steps = self._filling, self._speculation.n_steps
        step_ms, expected_ms = filling.step_ms(self._speculation.gap.width), filling.resources.pace.expected_ms
        if step_ms is None:
            return True
        round_ms = step_ms + (expected_ms("score", READ_AHEAD) or 0.0)
        last_ms = 2 * (expected_ms("score", self._n_scored()) or 0.0)  # one for the search, one for the ranking
        return filling.budget.may(round_ms + (LEAST_STEPS * step_ms if n_steps >= LEAST_STEPS else 0.0), last_ms)

    def _n_scored(self) -> int:
        """Return the number of positions in the pass that scores the answers, if the search ends now."""
        starts = self._speculation.starts()
        return len(starts) * (max(starts) + len(self._tail))

    def _current(self) -> str:
        """Return the current answer, or "" before any token is verified."""
        return self._text(self._speculation.starts()[0]) if self._speculation.text else ""

    def _ranks_drafts_by_joint_score(self) -> bool:
        fill = self._fill
        return self._has_drafts() and fill.switches.scorer and fill.calibration is None and fill.request.budget.candidates == 1

    def _has_drafts(self) -> bool:
        return self._fill.switches.causal and self._fill.profile.causal_rows > 0

    def _read_ahead(self, starts: list[int]) -> list[int]:
        """Return the open canvas's length if the search ended before verifying it; otherwise an empty list."""
        return [starts[0]] if starts[0] > self.n_verified else []

    def _results(self, starts: list[int]) -> list[Proposal]:
        """Return a result for each of these lengths: a causal draft if it is verified, otherwise the canvas's text."""
        results: dict[str, Proposal] = {}
        for start in starts:
            is_causal = start <= self.n_verified
            if self._speculation.is_valid(start) and (self._has_drafts() or not is_causal):
                text = self._text(start)
                results.setdefault(text, Proposal(text, "causal" if is_causal else "noise"))
        return list(results.values())

    def _length(self, start: int) -> int:
        """Return the number of tokens of an answer, without a copy of the suffix."""
        text, uncut = self._text(start), self._uncut(start)
        return start if text == uncut else max(len(self._fill.vocabulary.encode(self._fill.heal_text + text)), 1)

    def _text(self, start: int) -> str:
        """Return the answer with this length, without a copy of the suffix unless it ended with an end token."""
        speculation, text = self._speculation, self._uncut(start)
        following = speculation.text[start] if start < self.n_verified else None
        if following is not None and following == self._fill.sheet.end:
            return text
        if following in speculation.gap.closing:  # the token may contain text before its line end
            text = self._uncut(start, following)
        return self._fill.of_draft(text)

    def _uncut(self, start: int, *following: int) -> str:
        ids = (*self._speculation.answer(start), *following)
        return layout.answer(self._fill.vocabulary, ids, self._fill.sheet.heal)


def _gap(fill: FillInput, tail: tuple[int, ...], ends: tuple[int, ...]) -> Gap:
    sampling, budget = fill.profile.sampling, fill.request.budget
    steps = budget.steps or (sampling.block_steps if fill.is_block else sampling.line_steps)
    longest = fill.profile.canvas_tokens - len(fill.sheet.tail)  # the held suffix needs room
    writable = {*tail, *ends}
    return Gap(
        (longest if fill.is_block else min(longest, LINE_TOKENS)) + len(tail),
        tail,
        TokenLimits(
            fill.tokens.regular,
            tuple(token for token in fill.tokens.unwritable if token not in writable),
            fill.next_tokens(()),
        ),
        () if fill.is_block else tuple(fill.vocabulary.with_newline),
        steps,
        fill.request.seed & LARGEST_SEED,
    )
