"""How much of the text around a hole a model reads: as much as its profile says, or less for a first answer in a place.

In a new place nothing is encoded. A pause there is over before a processor has encoded the long window. So the first answer
comes from the largest window for which there is time, and the long one is encoded behind it, for the next key. Knows sheets
and how long passes take.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.causal import layout
from dg_lsp.engine.causal.layout import Sheet
from dg_lsp.engine.causal.profile import Profile
from dg_lsp.engine.common.local import AHEAD_CHUNK, PREFILL_CHUNK
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.model.prefix_cache import PrefixCache
from dg_lsp.engine.model.vocabulary import Vocabulary

FIRST = (576, 64, 128), (448, 48, 96), (256, 32, 0)
"""Windows of a first answer, the largest first: tokens before the hole, after it, and of other files."""
FIRST_SHARE = 0.6  # of the time for an answer that may pass before the first token of a draft


def narrowed(profile: Profile, size: tuple[int, int, int]) -> Profile:
    """Return the profile with a window of this size."""
    n_prefix, n_suffix, n_related = size
    return replace(profile, prefix_tokens=n_prefix, suffix_tokens=n_suffix, related_tokens=n_related)


class Windows:
    """Lays requests out with a long or a shorter window; raises ValueError if the vocabulary lacks a token of the layout."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary, cache: PrefixCache, pace: Pace) -> None:
        self._long = layout.for_profile(profile, vocabulary)
        sizes = [size for size in FIRST if size[0] < profile.prefix_tokens]
        self._shorter = [layout.for_profile(narrowed(profile, size), vocabulary) for size in sizes]
        self._cache, self._pace = cache, pace

    def sheets(self, request: InfillRequest, left_ms: float) -> tuple[Sheet, ...]:
        """Return a request with one hole as sheets in the order to encode: the long one, or before it a shorter one.

        A shorter one comes first if encoding what the cache lacks of the longer ones takes too much of the time left. Without
        a deadline `left_ms` is infinite, and answers do not depend on the clock.
        """
        long = self._long.lay_out(request)
        if left_ms == math.inf or self._is_in_time(long, left_ms):
            return (long,)
        first = long
        for shorter in self._shorter:
            first = shorter.lay_out(request)
            if self._is_in_time(first, left_ms):
                break
        return (first, long) if self._n_missing(first) < self._n_missing(long) else (long,)

    def _is_in_time(self, sheet: Sheet, left_ms: float) -> bool:
        missing, chunk_ms = self._n_missing(sheet), self._pace.expected_ms("prefill", PREFILL_CHUNK)
        return missing <= AHEAD_CHUNK or (chunk_ms is not None and missing / PREFILL_CHUNK * chunk_ms <= FIRST_SHARE * left_ms)

    def _n_missing(self, sheet: Sheet) -> int:
        return len(sheet.ids) - self._cache.longest(sheet.ids, ahead=True)[0]
