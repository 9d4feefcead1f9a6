"""The answer of one hole while it is generated: its encoded sheet, the trees of drafts, and their scores."""

from __future__ import annotations

from collections.abc import Generator

from dg_lsp.core import calibration
from dg_lsp.core.values import Candidate
from dg_lsp.engine.causal import scoring
from dg_lsp.engine.causal.middle import Middle
from dg_lsp.engine.causal.scoring import Scorer, Trees
from dg_lsp.engine.common import generation
from dg_lsp.engine.common.generation import Work
from dg_lsp.engine.common.local import encoded
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.model.prefix_cache import PrefixEncoder, crop
from dg_lsp.engine.model.tree import Tree


class Generation(generation.Generation):
    """The answer of one hole. `begin` sets what needs the encoded sheet: the `trees` of drafts, and the `scorer` of texts."""

    trees: Trees
    scorer: Scorer

    def __init__(self, middle: Middle, timing: Timing, prefixes: PrefixEncoder) -> None:
        super().__init__(middle, timing)
        self.middle, self._prefixes = middle, prefixes

    def begin(self) -> Work:
        """Encode the sheet as far as the cache lacks it."""
        sheet, passes = self.middle.sheet, self.middle.loaded.passes
        kv = yield from encoded(self._prefixes, sheet.ids, self.timing)
        plain = Tree(passes, kv, sheet.ids[-1], self._prefixes.cache.last_hidden(sheet.ids))
        adapted = left = None
        if sheet.suffix and passes.adapted is not None:
            adapted = Tree(passes.adapted, kv, sheet.ids[-1], right=sheet.suffix)
        if sheet.follow and sheet.n_left:
            left = Tree(passes, crop(kv, sheet.n_left), sheet.ids[sheet.n_left - 1])
        self.trees = Trees(plain, adapted, left)
        self.scorer = Scorer(self.middle, self.trees, self.timing.pace)

    def score(self) -> Work:
        """Score the proposals that have no score yet."""
        self.proposals = self.scorer.score(self.proposals)
        yield

    def ranked(self) -> Generator[None, None, tuple[Candidate, ...]]:
        """Score the proposals, and return them as candidates, best first.

        If there is time, what follows the likeliest is read too. No unit ends there, so that a task that is overdue by then
        still has its scores.
        """
        if not self.proposals:
            return ()
        yield from self.score()
        n_positions = scoring.MOST_NEAR * len(self.middle.sheet.follow)
        if self.timing.budget.may(self.timing.pace.expected_ms("score", n_positions) or 0.0):
            self.proposals = self.scorer.read_on(self.proposals)
        return calibration.to_candidates(self.evidence(), self.middle.calibration)
