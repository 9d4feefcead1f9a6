"""The objects that all fills of a loaded model share: layout, tokens, prefix cache, memory limits and joined passes.

Knows how to create them. Knows nothing of their use.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine import layout, room
from dg_lsp.engine.calibration_store import Calibrations
from dg_lsp.engine.fixed_steps import FixedSteps
from dg_lsp.engine.layout import Layout
from dg_lsp.engine.local.ahead import ReadAhead
from dg_lsp.engine.local.fill import Fill, GapTokens, Switches, gap_tokens
from dg_lsp.engine.local.headroom import Headroom
from dg_lsp.engine.local.pace import Pace
from dg_lsp.engine.local.prefixes import PrefixEncoder
from dg_lsp.engine.local.shared_stack import SharedStack
from dg_lsp.engine.local.stepping import Stepper
from dg_lsp.engine.model import Loaded
from dg_lsp.engine.prefix_cache import LEAST_BYTES, PrefixCache
from dg_lsp.engine.step_graph import Recorder

MAX_ROWS = 32  # the most rows, and so candidates, of one request; one pass has fewer if memory is short


@dataclass(frozen=True, slots=True)
class Resources:
    """A loaded model and the objects that its fills share."""

    loaded: Loaded
    layout: Layout
    tokens: GapTokens
    prefixes: PrefixEncoder
    headroom: Headroom
    shared_stack: SharedStack
    ahead: ReadAhead
    calibrations: Calibrations
    pace: Pace
    stepper: Stepper

    def fill(self, request: InfillRequest, switches: Switches) -> Fill:
        """Lay the request out as tokens, and return it as the fill of one canvas."""
        sheet = self.layout.lay_out(request)
        return Fill(request, sheet, self.loaded, self.tokens, switches, self.calibrations.current())


def make(loaded: Loaded, max_rows: int, clock: Callable[[], float] = time.perf_counter) -> Resources:
    """Return the shared objects of a model; raise ValueError if its vocabulary lacks a token of its layout.

    `clock` returns the seconds for planning deadlines.
    """
    cost = room.cost(loaded.passes)
    longest = loaded.profile.prefix_tokens + loaded.profile.suffix_tokens
    cache_bytes = room.cache_bytes(room.free_bytes(loaded.device), longest * cost.prefix_token, LEAST_BYTES)
    prefixes = PrefixEncoder(loaded, PrefixCache(cache_bytes))
    laid_out = layout.for_profile(loaded.profile, loaded.vocabulary)
    headroom, pace = Headroom(loaded, prefixes.cache, cost, max_rows), Pace(clock)
    fixed = None
    if loaded.device.startswith("cuda"):  # on other devices, launching a kernel costs little beside the kernel
        fixed = FixedSteps(loaded.passes, cost, headroom.free, recorder=Recorder())
    return Resources(
        loaded,
        laid_out,
        gap_tokens(loaded),
        prefixes,
        headroom,
        SharedStack(loaded.passes),
        ReadAhead(laid_out, prefixes),
        Calibrations(loaded.profile.calibration),
        pace,
        Stepper(pace, fixed),
    )
