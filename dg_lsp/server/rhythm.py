"""How long to wait before the engine is asked: by the user's speed, the text at the cursor and the engine's latency. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from statistics import median_high

# Longer gaps are pauses; shorter ones come from a macro, not from typing.
MIN_GAP_S, MAX_GAP_S = 0.02, 0.6
N_GAPS = 40
# Defaults before anything was measured: an average typist, and an engine of medium speed.
USUAL_GAP_S, USUAL_LATENCY_MS = 0.18, 300.0
MIN_WAIT_MS, MAX_WAIT_MS = 30.0, 800.0

# After these the user probably wants a suggestion at once: an open bracket, an operator, a keyword, an empty line.
_INVITES = re.compile(r"(?:[([{=,:.>]|\b(?:return|in|and|or|not|if|import|new)\s?)\s*$|^\s*$")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The time of the last keystroke, the recent gaps between keystrokes, and the engine's recent latencies."""

    last: float | None = None
    gaps: tuple[float, ...] = ()
    latencies_ms: tuple[float, ...] = ()

    def typed(self, now: float) -> Rhythm:
        gap = now - self.last if self.last is not None else 0.0
        gaps = (*self.gaps, gap)[-N_GAPS:] if MIN_GAP_S <= gap <= MAX_GAP_S else self.gaps
        return replace(self, last=now, gaps=gaps)

    def answered(self, latency_ms: float) -> Rhythm:
        return replace(self, latencies_ms=(*self.latencies_ms, latency_ms)[-10:])

    @property
    def measured_ms(self) -> float:
        """The engine's median latency; 0.0 before the first answer."""
        return median_high(self.latencies_ms) if self.latencies_ms else 0.0

    @property
    def latency_ms(self) -> float:
        """The engine's median latency; a default before the first answer."""
        return self.measured_ms or USUAL_LATENCY_MS


def wait_ms(rhythm: Rhythm, now: float, before: str, after: str, *, client_ms: float, fixed: int | None) -> float:
    """Return the remaining time to wait, given the line's text before and after the cursor.

    The wait is longer than a gap between keystrokes, so that no suggestion appears while the user types on. It is shorter after
    text such as an open bracket, and with a slow engine. The time since the last keystroke and the editor's own debounce
    are subtracted. `fixed` is the user's setting; it replaces all of this.
    """
    if fixed is not None:
        return float(fixed)
    factor = 1.0 if _INVITES.search(before) and not after.strip(" )]}\"'`;:,") else 1.6
    # Ask a slow engine earlier, to save time; its work can be cancelled when the user types on.
    slow_ms = max(0.0, rhythm.latency_ms - USUAL_LATENCY_MS) / 4
    elapsed_ms = 1000 * (now - rhythm.last) if rhythm.last is not None else client_ms
    gap_s = median_high(rhythm.gaps) if len(rhythm.gaps) >= 5 else USUAL_GAP_S
    usual_ms = min(max(factor * 1000 * gap_s - slow_ms, MIN_WAIT_MS), MAX_WAIT_MS)
    return max(0.0, usual_ms - max(min(elapsed_ms, MAX_WAIT_MS), client_ms))
