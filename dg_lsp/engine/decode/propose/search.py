"""Search for the gap lengths worth a canvas, for a checkpoint without a delete token.

An open canvas and causal passes find where the answer may end (`decode.propose.speculation`). The text that they verify is the
greedy causal draft, so such a fill needs no other draft. Knows fills and passes. Knows nothing of how rows are denoised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from torch import Tensor

from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.canvas.denoise import Denoiser, TokenLimits
from dg_lsp.engine.decode.canvas.speculation import CausalText, Gap, Speculation
from dg_lsp.engine.decode.canvas.stack import LocalDecoder
from dg_lsp.engine.decode.canvas.stepping import Stepper
from dg_lsp.engine.decode.fill import Fill
from dg_lsp.engine.decode.pace import Pace
from dg_lsp.engine.decode.propose.rows import LARGEST_SEED
from dg_lsp.engine.decode.rank import RowResult
from dg_lsp.engine.model.passes import KV

LINE_TOKENS = 64  # the longest answer within a line; a block may use the whole canvas


def applies(fill: Fill) -> bool:
    """Return whether a fill needs a length search: it has one hole, no delete token and no fixed gap length."""
    return fill.n_holes == 1 and fill.delete is None and not fill.switches.gap and fill.switches.noise


class LengthSearch:
    """Searches for the possible lengths of one fill's gap."""

    def __init__(self, fill: Fill, kv: KV, pace: Pace, stepper: Stepper) -> None:
        self._fill, self._pace, self._stepper, sheet = fill, pace, stepper, fill.sheet
        # These tokens end a causal draft. A checkpoint without its own end token may write any special token.
        ends = (sheet.end,) if sheet.end is not None else tuple(fill.vocabulary.special)
        # The tokens that a causal model writes after an answer, as in `scoring`.
        self._tail = ends if sheet.end is not None else sheet.tail or ends[:1]
        gap, sampling = _gap(fill, self._tail, ends), fill.profile.sampling
        self._speculation = Speculation(gap, ends, sampling, fill.tokens.n_logits, device=fill.loaded.device)
        self._decoder = LocalDecoder(fill.passes, kv, conditioned=fill.switches.conditioning)
        self._causal = CausalText(fill.passes, kv, sheet.kv[-1])
        self.is_asking = False  # whether the next unit is a step of the open canvas
        self.shared_logits: Tensor | None = None  # that step's logits, if a shared pass computed them

    @property
    def denoiser(self) -> Denoiser:
        """The open canvas."""
        return self._speculation.denoiser

    @property
    def n_steps(self) -> int:
        """The number of steps that the open canvas has taken."""
        return self._speculation.n_steps

    @property
    def width(self) -> int:
        """The number of positions of the open canvas."""
        return self._speculation.gap.width

    @property
    def n_verified(self) -> int:
        """The number of tokens that the causal model has verified."""
        return len(self._speculation.text)

    @property
    def n_scored(self) -> int:
        """The number of positions in the pass that scores the answers, if the search ends now."""
        starts = self._speculation.starts()
        return len(starts) * (max(starts) + len(self._tail))

    def run(self, may_go_on: Callable[[], bool]) -> Generator[bool, None, tuple[tuple[int, ...], list[RowResult]]]:
        """Return the lengths worth a canvas, likeliest first, and the search's results.

        There are no lengths if no canvas could write an answer that ranks higher. `may_go_on` is called before each round
        except the first. Yields after each pass, which is one uninterruptible unit.
        """
        speculation, causal = self._speculation, self._causal
        while not speculation.done and (not speculation.text or may_go_on()):
            if speculation.wants_canvas:
                self.is_asking = True
                yield True  # so that the next pass can be shared with other canvases
                self.is_asking = False
                self._step()
                yield True
            proposal = speculation.proposal
            with self._pace.measuring("score", len(proposal) + 1):
                n_agreed = speculation.verify(proposal, causal.read(proposal))
            causal.keep(len(proposal), n_agreed, speculation.text[-1])
            yield True
        starts = speculation.starts()
        with self._pace.measuring("score", self.n_scored):
            scores = causal.scores([speculation.answer(start) for start in starts], self._tail)
        likely = speculation.lengths(starts, scores)
        yield True
        is_final = self._ranks_drafts_by_joint_score() and speculation.is_settled(starts, scores)
        if is_final and self._text(likely[0]) == self._uncut(likely[0]):
            return (), self._results(likely)
        return tuple(dict.fromkeys(map(self._length, likely))), self._results([*likely, *self._read_ahead(starts)])

    def _step(self) -> None:
        """Step the open canvas, alone or with the logits of a pass shared with other canvases."""
        logits, self.shared_logits = self.shared_logits, None
        if logits is not None:
            self._speculation.take(logits)
            return
        self._stepper.step_open(self.denoiser, self._decoder)

    def text(self) -> str:
        """Return the current answer, or "" before any token is verified."""
        if not self._speculation.text:
            return ""
        return self._text(self._speculation.starts()[0])

    def _ranks_drafts_by_joint_score(self) -> bool:
        fill = self._fill
        return self._has_drafts() and fill.switches.scorer and fill.calibration is None and fill.request.budget.candidates == 1

    def _has_drafts(self) -> bool:
        return self._fill.switches.causal and self._fill.profile.causal_rows > 0

    def _read_ahead(self, starts: list[int]) -> list[int]:
        """Return the open canvas's length if the search ended before verifying it; otherwise an empty list."""
        return [starts[0]] if starts[0] > self.n_verified else []

    def _results(self, starts: list[int]) -> list[RowResult]:
        """Return a result for each of these lengths: a causal draft if it is verified, otherwise the canvas's text."""
        results: dict[str, RowResult] = {}
        for start in starts:
            is_causal = start <= self.n_verified
            if self._speculation.is_valid(start) and (self._has_drafts() or not is_causal):
                text = self._text(start)
                results.setdefault(text, RowResult(text, "causal" if is_causal else "noise"))
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


def _gap(fill: Fill, tail: tuple[int, ...], ends: tuple[int, ...]) -> Gap:
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
            fill.first_tokens(),
        ),
        () if fill.is_block else tuple(fill.vocabulary.with_newline),
        steps,
        fill.request.seed & LARGEST_SEED,
    )
