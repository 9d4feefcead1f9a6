"""The answer of one hole while it is generated: its encoded prompt, the tree of drafts, and their scores."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

from dg_lsp.core import calibration
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate
from dg_lsp.engine.causal import opened, scoring
from dg_lsp.engine.causal.middle import Middle
from dg_lsp.engine.causal.scoring import Scorer
from dg_lsp.engine.common import generation
from dg_lsp.engine.common.generation import Work
from dg_lsp.engine.common.local import encoded
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.model.prefix_cache import PrefixEncoder, crop
from dg_lsp.engine.model.tree import Tree

MOST_MARGIN = 5.0  # nats
RIVAL_CHARS = 60  # that a copy has in common with the text before the hole, so that a draft with another text is not sure


@dataclass(frozen=True, slots=True)
class FirstDraft:
    """The first draft with the log-probabilities that drafting computed.

    It is `margin` nats likelier than the start of any branch, and it `is_sure` if nothing is likely to be better.
    """

    proposal: Proposal
    margin: float
    is_sure: bool


class Generation(generation.Generation):
    """The answer of one hole. `begin` sets what needs the encoded prompt: the `tree` of drafts, and the `scorer` of texts."""

    tree: Tree
    scorer: Scorer
    first: FirstDraft | None = None
    """The first draft once it is finished."""
    _is_scored = False
    _ranked: tuple[Candidate, ...] = ()
    """The candidates, while a block is still being written."""

    def __init__(self, middle: Middle, timing: Timing, prefixes: PrefixEncoder) -> None:
        super().__init__(middle, timing)
        self.middle, self._prefixes = middle, prefixes

    def begin(self) -> Work:
        """Encode the prompt as far as the cache lacks it."""
        prompt, passes = self.middle.prompt, self.middle.loaded.passes
        kv = yield from encoded(self._prefixes, prompt.ids, self.timing)
        self.tree = Tree(passes, kv, prompt.ids[-1], self._prefixes.cache.last_hidden(prompt.ids), buffers=passes.buffers)
        left = None
        if prompt.follow and prompt.n_left:
            left = Tree(passes, crop(kv, prompt.n_left), prompt.ids[prompt.n_left - 1], buffers=passes.buffers)
        self.scorer = Scorer(self.middle, self.tree, left, self.timing.pace)

    @property
    def is_answered(self) -> bool:
        """Whether the first draft is the answer: one is asked for, and nothing that may still come is likely to be better."""
        first = self.first
        return first is not None and first.is_sure and self.middle.wants_first and not self._has_rival(first)

    def _has_rival(self, first: FirstDraft) -> bool:
        """Return whether code that agrees long with the text before the hole goes on in another way, and ends as it does."""
        copies = [each for each in self.proposals if each.row == "copy" and each.left >= RIVAL_CHARS and each.right]
        return any(each.text != first.proposal.text for each in copies)

    def score(self) -> Work:
        """Score the proposals that have no score yet."""
        self.proposals, self._is_scored = self.scorer.score(self.proposals), True
        yield

    def ranked(self) -> Generator[None, None, tuple[Candidate, ...]]:
        """Score the proposals, and return them as candidates, best first, the first also with the block that it opens."""
        self._ranked = yield from self._ranking()
        self.timing.usage.switch("draft")
        return (yield from opened.candidates(self.middle, self.tree, self.timing, self._ranked, self._evidence))

    def _ranking(self) -> Generator[None, None, tuple[Candidate, ...]]:
        """Score the proposals, and return them as candidates, best first.

        If there is time, what follows the likeliest is read too. No unit ends there, so that a task that is overdue by then
        still has its scores.
        """
        if self.is_answered or not self.proposals:
            return self._early()
        yield  # a task that is overdue by now still has its first draft
        yield from self.score()
        n_positions = scoring.MOST_NEAR * len(self.middle.prompt.follow)
        if self.timing.budget.may(self.timing.pace.expected_ms("score", n_positions) or 0.0):
            self.proposals = self.scorer.read_on(self.proposals)
        return calibration.to_candidates(self.evidence(), self.middle.calibration)

    def best_so_far(self) -> tuple[Candidate, ...]:
        """Return the candidates before the end: with their scores if there are any, otherwise the first draft first."""
        if self._ranked:
            return self._ranked
        if self._is_scored:
            candidates = calibration.to_candidates(self.evidence(), self.middle.calibration)
        else:
            candidates = self._early()
            known = [candidate.texts for candidate in candidates]
            candidates += tuple(candidate for candidate in super().best_so_far() if candidate.texts not in known)
        return tuple(replace(candidate, finished=False) for candidate in candidates)

    def first_evidence(self) -> Evidence | None:
        """Return the evidence for the first draft by its own tokens; None before it is finished."""
        first = self.first
        if first is None:
            return None
        own = first.proposal
        copies = [replace(each, logps=own.logps) for each in self.proposals if (each.text, each.row) == (own.text, "copy")]
        (evidence, *_) = self.evidence_of(self.scorer.describer.described([own, *copies]))
        margin = max(-MOST_MARGIN, min(MOST_MARGIN, first.margin))
        return replace(evidence, features={**evidence.features, "margin": margin, "sure": float(first.is_sure)})

    def _evidence(self, proposal: Proposal) -> Evidence:
        """Return the evidence for a proposal that is compared with no other."""
        return self.evidence_of(self.scorer.describer.described([proposal]))[0]

    def _early(self) -> tuple[Candidate, ...]:
        """Return the first draft with the probability that its own tokens give it; nothing if that was never measured."""
        evidence, weights = self.first_evidence(), self.middle.loaded.profile.draft_calibration
        return calibration.to_candidates([evidence], weights) if evidence is not None and weights is not None else ()
