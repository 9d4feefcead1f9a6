"""The objects that all fills of a loaded model share: layout, tokens, prefix cache, memory limits and joined passes.

One of them encodes the prefix of the next probable request while the engine is idle. Knows how to create them. Knows nothing
of their use.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.calibration_store import Calibrations
from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.canvas.fixed_step import FixedSteps, Recorder
from dg_lsp.engine.decode.canvas.steps import SharedPasses, Stepper
from dg_lsp.engine.decode.fill import FillInput, GapTokens, Switches, gap_tokens
from dg_lsp.engine.decode.layout import Layout
from dg_lsp.engine.decode.pace import Pace
from dg_lsp.engine.model import room
from dg_lsp.engine.model.loading import Loaded
from dg_lsp.engine.model.prefix_cache import LEAST_BYTES, PrefixCache, PrefixEncoder
from dg_lsp.engine.model.room import Headroom

MAX_ROWS = 32  # the most rows, and so candidates, of one request; one pass has fewer if memory is short
AHEAD_CHUNK = 64  # tokens encoded in one step, for which a new request has to wait


class ReadAhead:
    """The expected request, and the progress of encoding its prefix."""

    def __init__(self, layout: Layout, prefixes: PrefixEncoder) -> None:
        self._layout, self._prefixes = layout, prefixes
        self._expected: InfillRequest | None = None
        self._ids: tuple[int, ...] = ()
        self._is_guess = False

    def expect(self, request: InfillRequest) -> None:
        """Expect this request next, instead of any other."""
        # With several holes, the later prefixes depend on the answers, so only the single-hole case is prepared.
        self._expected, self._ids, self._is_guess = request if len(request.holes) == 1 else None, (), False

    def expect_accepted(self, request: InfillRequest, text: str) -> None:
        """Expect the same request with its answer accepted, unless another request is expected by now."""
        if self._expected is request:
            self.expect(replace(request, prefix=request.prefix + text))
            self._is_guess = True

    def read(self) -> bool:
        """Encode one chunk of the expected prefix; return whether more remains."""
        if self._expected is None:
            return False
        try:
            ids = self._ids or self._layout.lay_out(self._expected).kv
            n_encoded, kv = self._prefixes.cache.longest(ids, ahead=True)
            if n_encoded < len(ids):
                with torch.inference_mode():
                    n_encoded, _ = self._prefixes.encode(ids, n_encoded, kv, AHEAD_CHUNK, is_guess=self._is_guess)
        except BaseException:
            self._expected = None  # a retry would fail again
            raise
        self._ids = ids
        if n_encoded == len(ids):
            self._expected = None
        return self._expected is not None


@dataclass(frozen=True, slots=True)
class Resources:
    """A loaded model and the objects that its fills share."""

    loaded: Loaded
    layout: Layout
    tokens: GapTokens
    prefixes: PrefixEncoder
    headroom: Headroom
    shared: SharedPasses
    ahead: ReadAhead
    calibrations: Calibrations
    pace: Pace
    stepper: Stepper

    def fill(self, request: InfillRequest, switches: Switches) -> FillInput:
        """Lay the request out as tokens, and return it as the fill of one canvas."""
        sheet = self.layout.lay_out(request)
        return FillInput(request, sheet, self.loaded, self.tokens, switches, self.calibrations.current())


def make(loaded: Loaded, max_rows: int, clock: Callable[[], float] = time.perf_counter) -> Resources:
    """Return the shared objects of a model; raise ValueError if its vocabulary lacks a token of its layout.

    `clock` returns the seconds for planning deadlines.
    """
    cost = room.cost(loaded.passes)
    longest = loaded.profile.prefix_tokens + loaded.profile.suffix_tokens
    cache_bytes = room.cache_bytes(room.free_bytes(loaded.device), longest * cost.prefix_token, LEAST_BYTES)
    prefixes = PrefixEncoder(loaded.passes, loaded.device, PrefixCache(cache_bytes))
    laid_out = layout.for_profile(loaded.profile, loaded.vocabulary)
    headroom, pace = Headroom(loaded.device, loaded.profile, prefixes.cache, cost, max_rows), Pace(clock)
    fixed = None
    if loaded.device.startswith("cuda"):  # on other devices, launching a kernel costs little beside the kernel
        fixed = FixedSteps(loaded.passes, cost, headroom.free, recorder=Recorder())
    return Resources(
        loaded,
        laid_out,
        gap_tokens(loaded),
        prefixes,
        headroom,
        SharedPasses(loaded.passes, headroom, pace),
        ReadAhead(laid_out, prefixes),
        Calibrations(loaded.profile.calibration),
        pace,
        Stepper(pace, fixed),
    )
