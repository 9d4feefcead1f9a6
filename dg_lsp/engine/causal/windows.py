"""How much of the text around a hole a model reads: as much as its profile says, or less for a first answer in a place.

In a new place nothing is encoded. A pause there is over before a processor has encoded the long window. A draft after a
short one is nearly as good, and the long one is encoded behind it, for the next key. Knows sheets and how long passes take.
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

SHORT_PREFIX, SHORT_SUFFIX = 256, 32  # tokens
FIRST_SHARE = 0.3  # of the time for an answer that may pass before the first token of a draft


class Windows:
    """Lays requests out with a long or a short window; raises ValueError if the vocabulary lacks a token of the layout."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary, cache: PrefixCache, pace: Pace) -> None:
        self._long = layout.for_profile(profile, vocabulary)
        short = replace(profile, prefix_tokens=SHORT_PREFIX, suffix_tokens=SHORT_SUFFIX, related_tokens=0)
        self._short = layout.for_profile(short, vocabulary) if profile.prefix_tokens > SHORT_PREFIX else None
        self._cache, self._pace = cache, pace

    def sheets(self, request: InfillRequest, left_ms: float) -> tuple[Sheet, ...]:
        """Return a request with one hole as sheets in the order to encode: the long one, or before it the short one.

        The short one comes first if encoding what the cache lacks of the long one takes too much of the time left. Without
        a deadline `left_ms` is infinite, and answers do not depend on the clock.
        """
        long = self._long.lay_out(request)
        if self._short is None or left_ms == math.inf:
            return (long,)
        missing = self._n_missing(long)
        chunk_ms = self._pace.expected_ms("prefill", PREFILL_CHUNK)
        if missing <= AHEAD_CHUNK or (chunk_ms is not None and missing / PREFILL_CHUNK * chunk_ms <= FIRST_SHARE * left_ms):
            return (long,)
        short = self._short.lay_out(request)
        return (short, long) if self._n_missing(short) < missing else (long,)

    def _n_missing(self, sheet: Sheet) -> int:
        return len(sheet.ids) - self._cache.longest(sheet.ids, ahead=True)[0]
