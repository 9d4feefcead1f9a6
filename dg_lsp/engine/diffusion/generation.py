"""The answer of one canvas while it is generated: its request, prefix, drafts and steps, and what proposers found."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from dg_lsp.core import extent, place
from dg_lsp.core.calibration import Calibration, Evidence
from dg_lsp.core.values import Candidate, InfillRequest, Ranked
from dg_lsp.engine.common import answering
from dg_lsp.engine.common.inputs import RequestInputs
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.common.task import Progress
from dg_lsp.engine.diffusion.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.fixed_step import FixedSteps
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import CanvasProfile, CanvasPrompt
from dg_lsp.engine.model.kv import KV
from dg_lsp.engine.model.room import Room
from dg_lsp.engine.model.tree import Tree


class CanvasRequest(RequestInputs):
    """The laid out part of a request for one canvas, with a gap of at most `longest_gap` tokens for each hole.

    A row has at most `n_steps`.
    """

    prompt: CanvasPrompt
    loaded: Loaded[Passes, CanvasProfile]

    def __init__(
        self, request: InfillRequest, prompt: CanvasPrompt, loaded: Loaded[Passes, CanvasProfile], weights: Calibration | None
    ) -> None:
        super().__init__(request, prompt, loaded, weights)
        self.profile, self.n_holes = loaded.profile, len(request.holes)
        sampling = self.profile.sampling
        self.n_steps = request.budget.steps or (sampling.block_steps if self.is_block else sampling.line_steps)
        n_fixed = len(prompt.tail) + sum(map(len, prompt.between))
        self.longest_gap = (self.profile.canvas_tokens - n_fixed) // self.n_holes

    def next_tokens(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that may follow in the first gap: one that starts with what is typed; empty means any."""
        return () if ids or not self.prompt.heal else self.vocabulary.starting_with(self.prompt.heal)

    def of_canvas(self, text: str, hole_idx: int) -> str:
        """Return the part of a canvas's text for a hole: its line, or the text before the suffix if no suffix is held."""
        request, is_last = self.request, hole_idx == self.n_holes - 1
        here = place.between("", (*request.between, request.suffix)[hole_idx])
        bounds = extent.of(request.holes[hole_idx], here)
        return bounds.of_canvas(text, is_held=not is_last or bool(self.prompt.tail))


# The work of a proposer, which adds to the answer's proposals. Each item ends one uninterruptible unit, as in `Answering`.
Proposing = Generator[Progress | None, None, None]


class CanvasAnswer:
    """The answer of one canvas while it is generated: what its proposers share.

    `kv` are the keys and values that its `room` has of the encoded prefix, which `tree` continues. For several holes, there is
    `joint` evidence for each row, and no proposal. `found_lengths` are the gap's likely lengths in tokens, likeliest first, and
    empty if no canvas could write a better answer; None if no search has run. `n_steps` were taken so far, in the buffers of
    `steps`.
    """

    def __init__(self, canvas: CanvasRequest, room: Room, tree: Tree, timing: Timing, steps: FixedSteps) -> None:
        self.canvas, self.kv, self.tree, self.timing = canvas, room.kv, tree, timing
        self._steps = steps
        self.proposals: list[Proposal] = []
        self.joint: list[Evidence] = []
        self.found_lengths: tuple[int, ...] | None = None
        self.n_steps = 0

    def progress(self, texts: Callable[[], tuple[str, ...]] = tuple) -> Progress:
        """Return what the answer would be now; `texts` returns what a canvas is writing for each hole."""

        def shown() -> tuple[str, ...]:
            return texts() or tuple(proposal.text for proposal in self.proposals[:1])

        def candidates() -> tuple[Candidate, ...]:
            unscored, written = answering.unscored(self.canvas, self.proposals), texts()
            if not any(written):
                return unscored
            return (*unscored, Candidate(written, Ranked(len(unscored), doubted=True), finished=False))

        return Progress(shown, candidates, self.proposals)

    def score(self) -> None:
        """Score the proposals."""
        before, texts = self.timing.switch("score"), list(dict.fromkeys(each.text for each in self.proposals))
        scores = answering.read(self.canvas, self.tree, self.timing.pace, texts)
        self.proposals[:] = answering.scored(self.canvas, self.proposals, scores)
        self.timing.switch(before)

    def score_ms(self, n_positions: int = 0) -> float:
        """Return the expected milliseconds to score the proposals and `n_positions` more tokens; 0 if unknown."""
        return answering.score_ms(self.timing, self.proposals, n_positions)

    def step_ms(self, n_positions: int) -> float | None:
        """Return the expected milliseconds of a denoising step; None if none was measured."""
        return self.timing.pace.expected_ms("step", n_positions)

    def denoiser(self, rows: Sequence[Row], limits: TokenLimits) -> Denoiser:
        loaded = self.canvas.loaded
        return Denoiser(rows, limits, self.canvas.profile.sampling, loaded.passes.n_vocabulary, loaded.device)

    def take_step(self, denoiser: Denoiser, kv: KV, *, is_open: bool = False) -> None:
        """Take one step of all live rows behind a prefix. An open canvas has one row, which goes on after it has settled."""
        rows = [0] if is_open else denoiser.live
        with self.timing.pace.measuring("step", len(rows) * denoiser.width):
            self._steps.step(denoiser, kv, rows)

    def is_over(self, denoiser: Denoiser, n_positions: int = 0) -> bool:
        """Return whether a canvas is finished, or no time is left for a step beside scoring the results and `n_positions` more.

        A canvas takes at least one step if there is no other result.
        """
        timing = self.timing
        if timing.is_limited and not denoiser.done:
            step_ms = self.step_ms(len(denoiser.live) * denoiser.width)
            n_steps = timing.units(step_ms, self.score_ms(n_positions))
            if n_steps is not None:
                denoiser.bound(max(n_steps, 0 if denoiser.begun or self.proposals else 1))
        return denoiser.done


UNCLOSED_NATS = 8.0  # the suffix does not follow an answer if its log-probability there is lower than minus this


def is_unclosed(canvas: CanvasRequest, proposal: Proposal) -> bool:
    """Return whether the causal model finds the suffix improbable after a proposal; True if no suffix is held."""
    tail = canvas.prompt.tail
    return not tail or -proposal.after_mean * len(tail) > UNCLOSED_NATS
