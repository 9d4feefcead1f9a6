"""How long to wait before asking by oneself: from the user's typing, the place, the engine's latency and the editor's own wait.

Pure; the time is passed in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

# Longer gaps are pauses, not typing; shorter ones are an editor's macro.
MIN_GAP_S, MAX_GAP_S = 0.02, 0.6
N_GAPS = 40
# Where nothing is known yet: an ordinary typist, an engine that is neither fast nor slow.
USUAL_GAP_S, USUAL_LATENCY_MS = 0.18, 300.0
MIN_WAIT_MS, MAX_WAIT_MS = 30.0, 800.0

# Behind these an answer is likely to be wanted at once: something was opened or ended.
_INVITES = re.compile(r"(?:[([{=,:.>]|\b(?:return|in|and|or|not|if|import|new)\s?)\s*$|^\s*$")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """When the user typed last, the gaps between keystrokes, and how long answers took."""

    last: float | None = None
    gaps: tuple[float, ...] = ()
    latencies_ms: tuple[float, ...] = ()

    def typed(self, now: float) -> Rhythm:
        """Return the rhythm after a keystroke."""
        gap = now - self.last if self.last is not None else 0.0
        gaps = (*self.gaps, gap)[-N_GAPS:] if MIN_GAP_S <= gap <= MAX_GAP_S else self.gaps
        return replace(self, last=now, gaps=gaps)

    def answered(self, latency_ms: float) -> Rhythm:
        """Return the rhythm after an answer of the engine."""
        return replace(self, latencies_ms=(*self.latencies_ms, latency_ms)[-10:])

    @property
    def gap_ms(self) -> float:
        """The user's usual time between two keystrokes."""
        return 1000 * (_median(self.gaps) if len(self.gaps) >= 5 else USUAL_GAP_S)

    @property
    def latency_ms(self) -> float:
        """The engine's usual time for an answer."""
        return _median(self.latencies_ms) if self.latencies_ms else USUAL_LATENCY_MS


def wait_ms(rhythm: Rhythm, now: float, before: str, after: str, *, client_ms: float, fixed: int | None) -> float:
    """Return how long to wait from now on, given the line on both sides of the cursor.

    A user who types on after every answer wants none: the wait is somewhat longer than a gap between keystrokes, shorter
    where the place invites an answer, less what the engine takes itself when it is slow, and less what the editor has
    waited already. `fixed` is the user's own choice and counts as it is.
    """
    if fixed is not None:
        return float(fixed)
    factor = 1.0 if _INVITES.search(before) and not after.strip(" )]}\"'`;:,") else 1.6
    # A slow engine would be asked too late if we waited long on top, and its work can be called off.
    slow = max(0.0, rhythm.latency_ms - USUAL_LATENCY_MS) / 4
    passed = 1000 * (now - rhythm.last) if rhythm.last is not None else client_ms
    usual_ms = min(max(factor * rhythm.gap_ms - slow, MIN_WAIT_MS), MAX_WAIT_MS)
    return max(0.0, usual_ms - max(min(passed, MAX_WAIT_MS), client_ms))


def _median(values: tuple[float, ...]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
