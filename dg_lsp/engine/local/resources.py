"""What all fills of one loaded model share: its layout, its tokens, the prefix cache, memory, and the joined pass.

Knows how these are made. Knows nothing of what they are used for.
"""

from __future__ import annotations

from dataclasses import dataclass

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine import layout, room
from dg_lsp.engine.calibration_store import Calibrations
from dg_lsp.engine.layout import Layout
from dg_lsp.engine.local.ahead import ReadAhead
from dg_lsp.engine.local.fill import Fill, GapTokens, Switches, gap_tokens
from dg_lsp.engine.local.headroom import Headroom
from dg_lsp.engine.local.prefixes import PrefixEncoder
from dg_lsp.engine.local.shared_stack import SharedStack
from dg_lsp.engine.model import Loaded
from dg_lsp.engine.prefix_cache import LEAST_BYTES, PrefixCache

MAX_ROWS = 32  # of one request: more candidates than rows can't be had; in one pass: fewer where memory is short


@dataclass(frozen=True, slots=True)
class Resources:
    """A loaded model and what its fills share."""

    loaded: Loaded
    layout: Layout
    tokens: GapTokens
    prefixes: PrefixEncoder
    headroom: Headroom
    shared_stack: SharedStack
    ahead: ReadAhead
    calibrations: Calibrations

    def fill(self, request: InfillRequest, switches: Switches) -> Fill:
        """Return the request, laid out as tokens, as the fill of one canvas."""
        sheet = self.layout.lay_out(request)
        return Fill(request, sheet, self.loaded, self.tokens, switches, self.calibrations.current())


def make(loaded: Loaded, max_rows: int) -> Resources:
    """Return what the fills of a model share; raise ValueError when its vocabulary lacks a token of its layout."""
    cost = room.cost(loaded.passes)
    longest = loaded.profile.prefix_tokens + loaded.profile.suffix_tokens
    cache_bytes = room.cache_bytes(room.free_bytes(loaded.device), longest * cost.prefix_token, LEAST_BYTES)
    prefixes = PrefixEncoder(loaded, PrefixCache(cache_bytes))
    laid_out = layout.for_profile(loaded.profile, loaded.vocabulary)
    return Resources(
        loaded,
        laid_out,
        gap_tokens(loaded),
        prefixes,
        Headroom(loaded, prefixes.cache, cost, max_rows),
        SharedStack(loaded.passes),
        ReadAhead(laid_out, prefixes),
        Calibrations(loaded.profile.calibration),
    )
