"""The status: the engine's state, the last latency and the last suppression reason, sent to the editor on each change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dg_lsp.server.methods import StatusParams
from dg_lsp.server.resident import Condition
from dg_lsp.server.when import Reason

# These reasons occur at every keystroke, so they do not replace the last one in the status.
_PASSING = frozenset({"superseded", "moved"})
# These reasons are choices in the settings, not properties of a place.
_OF_SETTINGS = frozenset({"off", "manual", "language"})


class Reporter:
    """Holds the status, and sends it when it changes."""

    def __init__(self, model: str, send: Callable[[StatusParams], None]) -> None:
        """Start with the state `off`; `send` sends a status to the editor."""
        self.status = StatusParams("off", model)
        self._send = send
        self._n_busy = 0

    def condition(self, condition: Condition) -> None:
        """Set the engine's condition."""
        self._become(replace(self.status, state=condition.state, message=condition.message, fraction=condition.fraction))

    def model(self, model: str) -> None:
        """Set the model's name."""
        self._become(replace(self.status, model=model))

    def problems(self, problems: tuple[str, ...]) -> None:
        """Set the problems in the settings."""
        self._become(replace(self.status, problems=problems))

    def suppressed(self, reason: Reason | None) -> None:
        """Set the reason why the last request got no suggestion; None when it got one."""
        if reason is None or reason.code not in _PASSING:
            self._become(replace(self.status, suppressed=(reason.code, reason.message) if reason else None))

    def paused(self, reason: Reason | None) -> None:
        """Set why the settings stop unprompted suggestions everywhere.

        None forgets a reason that earlier settings gave, because the next request may be allowed, and keeps any other.
        """
        if reason is not None or (self.status.suppressed and self.status.suppressed[0] in _OF_SETTINGS):
            self.suppressed(reason)

    def latency(self, ms: float) -> None:
        """Set the latency of the last answer."""
        self._become(replace(self.status, latency_ms=round(ms)))

    def busy(self, change: int) -> None:
        """Change the number of running code actions by this much."""
        self._n_busy += change
        self._become(replace(self.status, busy=self._n_busy > 0))

    def _become(self, status: StatusParams) -> None:
        if status != self.status:
            self.status = status
            self._send(status)
