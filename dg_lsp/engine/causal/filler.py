"""The causal models' interface to serving.

Some ways propose texts for the middle, one pass scores them all, and one scale ranks them:

    request -> Sheet, in a Middle -> Generation (the encoded sheet)
    each proposer -> Proposal, ...
    all Proposals -> a causal pass over their tree (scoring.py) -> ranked (rank.py, core.calibration) -> Candidate, ...

A proposer is a generator. It adds to the generation's proposals, and yields after each uninterruptible unit of work.
Several holes are filled in sequence. Knows the order of the stages. Knows nothing of how they work.

In a new place nothing is encoded. A pause there is over before a processor has encoded the long window of the profile. So the
first answer comes from the largest window for which there is time, and the long one is encoded behind it, for the next key.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.causal import drafting, layout
from dg_lsp.engine.causal.generation import Generation
from dg_lsp.engine.causal.layout import LeftToRight, Sheet
from dg_lsp.engine.causal.middle import Middle
from dg_lsp.engine.causal.passes import CausalLlama
from dg_lsp.engine.causal.profile import Profile
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.local import AHEAD_CHUNK, PREFILL_CHUNK, LocalFiller
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.model.tree import ROOM

PROPOSERS = (("draft", drafting.copies_of), ("draft", drafting.propose))
"""Each proposer, in the order in which they run, with the stage that its time counts for."""
FIRST = (576, 64, 128), (448, 48, 96), (256, 32, 0)
"""Windows of a first answer, the largest first: tokens before the hole, after it, and of other files."""
FIRST_SHARE = 0.6  # of the time for an answer that may pass before the first token of a draft


def narrowed(profile: Profile, size: tuple[int, int, int]) -> Profile:
    """Return the profile with a window of this size."""
    n_prefix, n_suffix, n_related = size
    return replace(profile, prefix_tokens=n_prefix, suffix_tokens=n_suffix, related_tokens=n_related)


class CausalFiller(LocalFiller):
    """A loaded causal model that fills requests; raises ValueError if its vocabulary lacks a token of its layout."""

    loaded: Loaded[CausalLlama, Profile]
    layout: LeftToRight

    def __init__(
        self,
        loaded: Loaded[CausalLlama, Profile],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        profile, vocabulary = loaded.profile, loaded.vocabulary
        super().__init__(loaded, layout.for_profile(profile, vocabulary), drafting.LONGEST_DRAFT, clock)
        self._record(loaded.passes, profile)
        sizes = [size for size in FIRST if size[0] < profile.prefix_tokens]
        self._shorter = [layout.for_profile(narrowed(profile, size), vocabulary) for size in sizes]

    def _record(self, passes: CausalLlama, profile: Profile) -> None:
        """Record the passes behind the longest prefix, and so behind shorter ones, before the first request."""
        # Twice the room: a tree's first pass may read as many tokens as a room has, and has places for more behind them.
        n_places = profile.prefix_tokens + profile.suffix_tokens + 2 * ROOM
        if passes.buffers is not None:  # with two trees in the layout "fim": one reads on after the left side alone
            passes.buffers.record(n_places, 2 if profile.layout == "fim" else 1)

    def trim(self) -> None:
        """Drop the prefix cache, and the buffers that no request uses."""
        super().trim()
        if self.loaded.passes.buffers is not None:
            self.loaded.passes.buffers.clear()

    def sheets(self, request: InfillRequest, left_ms: float) -> tuple[Sheet, ...]:
        """Return a request with one hole as sheets in the order to encode: the long one, or before it a shorter one.

        A shorter one comes first if encoding what the cache lacks of the longer ones takes too much of the time left. Without
        a deadline `left_ms` is infinite, and answers do not depend on the clock.
        """
        long = self.layout.lay_out(request)
        if left_ms == math.inf or self._is_in_time(long, left_ms):
            return (long,)
        first = long
        for shorter in self._shorter:
            first = shorter.lay_out(request)
            if self._is_in_time(first, left_ms):
                break
        return (first, long) if self._n_missing(first) < self._n_missing(long) else (long,)

    def _is_in_time(self, sheet: Sheet, left_ms: float) -> bool:
        missing, chunk_ms = self._n_missing(sheet), self.pace.expected_ms("prefill", PREFILL_CHUNK)
        return missing <= AHEAD_CHUNK or (chunk_ms is not None and missing / PREFILL_CHUNK * chunk_ms <= FIRST_SHARE * left_ms)

    def _n_missing(self, sheet: Sheet) -> int:
        return len(sheet.ids) - self.cache.longest(sheet.ids, ahead=True)[0]

    def middle(self, request: InfillRequest, left_ms: float = math.inf) -> Middle:
        """Return the middle of a request with one hole, for the time left."""
        sheet = self.sheets(request, left_ms)[0]
        return Middle(request, sheet, self.loaded, self.calibrations.current())

    def generation(self, request: InfillRequest, timing: Timing) -> Generation:
        """Return the answer of a request with one hole, before its first unit of work."""
        generation = Generation(self.middle(request, timing.budget.left_ms()), timing, self.prefixes)
        generation.proposers = PROPOSERS
        return generation
