"""The state of one fill under way, which proposers read.

Knows the fill, its encoded prefix and what was proposed so far. Knows nothing of how texts are proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core.calibration import Evidence
from dg_lsp.core.confidence import Ranked
from dg_lsp.core.values import Candidate
from dg_lsp.engine.decode import scoring
from dg_lsp.engine.decode.canvas.denoise import Denoiser
from dg_lsp.engine.decode.canvas.stack import LocalDecoder
from dg_lsp.engine.decode.canvas.steps import Steps
from dg_lsp.engine.decode.file_model import FileModel
from dg_lsp.engine.decode.fill import FillInput
from dg_lsp.engine.decode.pace import Budget, Usage
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.decode.resources import Resources
from dg_lsp.engine.decode.scoring import Scorer
from dg_lsp.engine.model.family import KV, crop
from dg_lsp.engine.model.tree import Tree

PREFILL_CHUNK = 512  # tokens encoded in one uninterruptible step
TOKEN_CHARS = 4  # about; for estimates alone

Work = Generator[None, None, None]  # each item is the end of one uninterruptible unit
# What a proposer yields: a proposal, the evidence for a canvas with several holes, or None after a unit of work.
Item = Proposal | Evidence | None
Proposing = Generator[Item, None, None]


@dataclass(frozen=True, slots=True)
class Live:
    """What a proposer is writing: the current text of each hole, and the proposals that may still change.

    `is_answer` says that the texts are the best answer if the fill ended now.
    """

    texts: Callable[[], tuple[str, ...]]
    proposals: Callable[[], Sequence[Proposal]] = tuple
    is_answer: bool = False


class Filling:
    """One canvas's fill under way. `proposals` are in the order in which they came, with scores once they have some.

    `begin` sets what needs the encoded prefix: its keys and values `kv`, the `tree` of drafts, and the `scorer` of texts.

    `lengths` are the gap's likely lengths in tokens, likeliest first, if a proposer searched for them; empty if no canvas
    could write a better answer than the search. `steps` are those of the last canvas. It holds all that proposers share.
    """

    def __init__(self, fill: FillInput, resources: Resources, usage: Usage, budget: Budget) -> None:
        self.fill, self.resources, self.usage, self.budget = fill, resources, usage, budget
        self.proposals: list[Proposal] = []
        self.lengths: tuple[int, ...] | None = None
        self.steps: Steps | None = None
        self.n_steps = 0  # denoising steps so far, as candidates report them
        self.live: Live | None = None

    def begin(self, file: FileModel | None) -> Work:
        """Encode the prefix as far as the cache lacks it. `file` is mixed into the scores."""
        ids, prefixes = self.fill.sheet.kv, self.resources.prefixes
        if self.fill.is_whole:
            self.scorer = Scorer(self.fill, None, file, self.resources.pace)
            return
        n_encoded, kv = prefixes.cache.longest(ids)
        self.usage.prefix_tokens += len(ids)
        self.usage.reused_tokens += n_encoded
        while n_encoded < len(ids):
            n_encoded, kv = prefixes.encode(ids, n_encoded, kv, PREFILL_CHUNK)
            yield
        assert kv is not None
        tree = Tree(self.fill.passes, kv, ids[-1], prefixes.cache.last_hidden(ids))
        right = self.fill.sheet.right
        between = Tree(self.fill.passes, kv, ids[-1], right=right) if right else None
        self.tree = between or tree  # of drafts
        self.kv = kv
        n_plain = self.fill.sheet.n_plain if self.fill.sheet.follow else 0
        plain = Tree(self.fill.passes, crop(kv, n_plain), ids[n_plain - 1]) if n_plain else None
        self.scorer = Scorer(self.fill, tree, file, self.resources.pace, between, plain)

    def score(self) -> Work:
        """Score the proposals that have no score yet."""
        before = self.usage.switch("score")
        self.proposals = self.scorer.score(self.proposals)
        yield
        self.usage.switch(before)

    def read_on(self) -> None:
        """Let the likeliest proposals that have a score be compared by what follows them, if there is time.

        No unit ends here, so that a fill that is overdue by then still has its scores.
        """
        before = self.usage.switch("score")
        n_positions = scoring.MOST_NEAR * len(self.fill.sheet.follow)
        if self.budget.may(self.resources.pace.expected_ms("score", n_positions) or 0.0):
            self.proposals = self.scorer.read_on(self.proposals)
        self.usage.switch(before)

    def score_ms(self, n_positions: int = 0) -> float:
        """Return the expected milliseconds to score the proposals and `n_positions` more tokens; 0 if unknown."""
        own = sum(len(proposal.text) // TOKEN_CHARS + 1 for proposal in self.proposals if not proposal.tokens)
        return self.resources.pace.expected_ms("score", own + n_positions) or 0.0

    def step_ms(self, n_positions: int) -> float | None:
        """Return the expected milliseconds of a denoising step; None if none was measured."""
        return self.resources.pace.expected_ms("step", n_positions)

    def evidence(self) -> list[Evidence]:
        """Return the evidence for each proposal of a single hole, after the end."""
        return scoring.evidence(self.fill, self.proposals, 0) if self.fill.n_holes == 1 else []

    def stepping(self, denoiser: Denoiser, kv: KV, *, is_open: bool = False) -> Steps:
        """Return the steps of a canvas on a prefix; from now on, they are those of this fill."""
        self.leave()
        decoder = LocalDecoder(self.fill.passes, kv, conditioned=self.fill.switches.conditioning)
        stepper, shared = self.resources.stepper, self.resources.shared
        self.steps = Steps(denoiser, decoder, stepper, shared, is_open=is_open, on_shared=self.usage.add_denoising)
        return self.steps

    def is_over(self, steps: Steps, n_positions: int = 0) -> bool:
        """Return whether a canvas is finished, or no time is left for a step beside scoring the results and `n_positions` more.

        A canvas takes at least one step if there is no other result.
        """
        denoiser = steps.denoiser
        if self.budget.is_limited and not denoiser.done:
            step_ms = self.step_ms(len(denoiser.running) * steps.width)
            n_steps = self.budget.units(step_ms, self.score_ms(n_positions))
            if n_steps is not None:
                denoiser.bound(max(n_steps, 0 if denoiser.begun or self.proposals else 1))
        return denoiser.done

    # Called between units.

    def texts(self) -> tuple[str, ...]:
        """Return each hole's current text: what is being written, even if it is empty so far, or else the first proposal."""
        if self.live is not None and (texts := self.live.texts()):
            return texts
        return (self.proposals[0].text,) if self.proposals else ()

    def best_so_far(self) -> tuple[Candidate, ...]:
        """Return the unfinished candidates before the end: proposals, then what a canvas is writing."""
        live = self.live
        known = [*self.proposals, *(live.proposals() if live else ())]
        unscored = scoring.unscored_candidates(self.fill, known)
        if live is not None and live.is_answer and any(texts := live.texts()):
            return (*unscored, Candidate(texts, Ranked(len(unscored), doubted=True), finished=False))
        return tuple(replace(candidate, finished=False) for candidate in unscored)

    def leave(self) -> None:
        """Stop sharing passes with other requests."""
        if self.steps is not None:
            self.steps.leave()
