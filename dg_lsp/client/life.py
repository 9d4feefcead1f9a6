"""The life of one engine as a client sees it: its state, and what decides whether it is started again.

Nothing here waits, reads a clock or touches a process. A cancelled request is no event, because the next request needs the same
engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

FAILED_PAUSE_S = 10.0
"""After a failure, no unprompted request is sent and no engine is started for this long."""
MOST_CRASHES, CRASH_WINDOW_S = 3, 300.0
"""After so many crashes within this time, the engine may not be started until the oldest of them is older."""
PAUSES_S = (0.0, 0.0, 1.0)
"""How long a start waits after so many recent crashes."""


StateName = Literal["off", "starting", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class LifeState:
    """The engine's state as a front end shows it.

    It is `off` until something needs it, and `ready` also if it ended because nothing used it: the next request starts it.
    `fraction` is the share of the model that is loaded. If it `failed`, `message` says why, and requests try again from
    `until` on. If it `is_pause`, its server wants no requests before that, which the user need not be told at once.
    """

    name: StateName = "off"
    message: str = ""
    fraction: float = 0.0
    until: float = 0.0
    is_pause: bool = False

    def trouble(self, now: float) -> str:
        """Return why no unprompted request should be sent now, as a sentence; "" when one may.

        Requests are allowed while the engine starts or loads. A user who pauses then gets a suggestion when it is ready.
        """
        return self.message if now < self.until else ""


@dataclass(frozen=True, slots=True)
class Life:
    """The engine's state, and what decides about its next start: the times of its last crashes.

    Its methods return the life after something happened. The client keeps to it: it connects while the state is `starting`,
    and closes its connection when `epoch` grows. `is_linked`: an engine has reported its state since then.
    """

    state: LifeState = LifeState()
    model: str = ""
    epoch: int = 0
    is_linked: bool = False
    crashes: tuple[float, ...] = ()

    def asked(self, now: float) -> Life:
        """A request needs the engine."""
        if self.is_linked or self.state.name == "starting" or now < self.state.until:
            return self
        return self._start(now)

    def reported(self, state: LifeState) -> Life:
        """The engine loads its model or is ready, as it says."""
        if not self._is_up or (state.name == "ready" and self.state.until):
            return self  # the next answer ends a failure or a pause
        return replace(self, state=state, is_linked=True)

    def answered(self, now: float, problem: str = "", pause_s: float = 0.0) -> Life:
        """The engine answered a request, or failed on it and runs on; or its server wants no requests for `pause_s` seconds."""
        if not self.is_linked or self.state.name == "loading":
            return self
        if pause_s:
            return replace(self, state=LifeState("ready", problem, until=now + pause_s, is_pause=True))
        if problem:
            return replace(self, state=LifeState("failed", problem, until=now + FAILED_PAUSE_S))
        # This is no crash loop, so only the last crash still counts.
        return replace(self, state=LifeState("ready"), crashes=self.crashes[-1:])

    def ended(self, now: float, *, is_crash: bool = True) -> Life:
        """The engine's process has ended, without announcing it if `is_crash`; a process that missed its pings was killed.

        It is started again at once, as often as the crashes allow, because the next keystroke needs it. An engine that ends
        before it served a request counts as crashed, even when it announced its end.
        """
        if not self._is_up:
            return self
        if not is_crash and self.state.name in ("ready", "failed"):
            return self._dropped(LifeState("ready"))
        return replace(self._dropped(self.state), crashes=(*self._recent(now), now)[-MOST_CRASHES:])._start(now)

    def refused(self, now: float, why: str, pause_s: float = 0.0) -> Life:
        """No engine can be reached or started, or its model can't be loaded, or it does not respond and can't be killed.

        It is not started again for a while, or for the `pause_s` seconds that its server wants.
        """
        if not self._is_up and self.state.name != "off":
            return self
        state = LifeState("failed", why, until=now + (pause_s or FAILED_PAUSE_S), is_pause=pause_s > 0)
        return self._dropped(state)

    def stopped(self) -> Life:
        """The client disconnects from the engine."""
        return Life(model=self.model, epoch=self.epoch + 1)

    def closed_for_s(self, now: float) -> float:
        """Return for how many seconds the engine must not be started; 0.0 when it may."""
        recent = self._recent(now)
        return recent[0] + CRASH_WINDOW_S - now if len(recent) >= MOST_CRASHES else 0.0

    def pause_s(self, now: float) -> float:
        """Return how long to wait before the next start."""
        return PAUSES_S[min(len(self._recent(now)), len(PAUSES_S) - 1)]

    @property
    def _is_up(self) -> bool:
        return self.is_linked or self.state.name == "starting"

    def _recent(self, now: float) -> tuple[float, ...]:
        return tuple(at for at in self.crashes if now - at < CRASH_WINDOW_S)

    def _dropped(self, state: LifeState) -> Life:
        return replace(self, state=state, epoch=self.epoch + 1, is_linked=False)

    def _start(self, now: float) -> Life:
        if not (closed_for_s := self.closed_for_s(now)):
            return replace(self, state=LifeState("starting", f"starting the engine with model {self.model}"))
        minutes = max(1, round(closed_for_s / 60))
        why = f"the engine crashed {MOST_CRASHES} times; the next request after {minutes} min starts it again"
        return replace(self, state=LifeState("failed", why, until=now + closed_for_s))
