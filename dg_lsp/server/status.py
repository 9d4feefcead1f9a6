"""How things are, told to the editor when it changes: the engine's state, the last latency, the last suppression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dg_lsp.server.methods import StatusParams
from dg_lsp.server.resident import Condition
from dg_lsp.server.when import Reason

# What happens at every keystroke is no news.
_PASSING = frozenset({"superseded", "moved"})


class Reporter:
    """Holds the status, and sends each new one."""

    def __init__(self, model: str, send: Callable[[StatusParams], None]) -> None:
        """Begin with no engine."""
        self.status = StatusParams("off", model)
        self._send = send
        self._n_busy = 0

    def condition(self, condition: Condition) -> None:
        """The engine is so now."""
        self._become(replace(self.status, state=condition.state, message=condition.message, fraction=condition.fraction))

    def model(self, model: str) -> None:
        """The settings name another model."""
        self._become(replace(self.status, model=model))

    def problems(self, problems: tuple[str, ...]) -> None:
        """So much is wrong in the settings."""
        self._become(replace(self.status, problems=problems))

    def suppressed(self, reason: Reason | None) -> None:
        """A request was not answered for this reason, or was answered."""
        if reason is None or reason.code not in _PASSING:
            self._become(replace(self.status, suppressed=(reason.code, reason.message) if reason else None))

    def latency(self, ms: float) -> None:
        """An answer took so long."""
        self._become(replace(self.status, latency_ms=round(ms)))

    def busy(self, change: int) -> None:
        """So many more code actions are under way."""
        self._n_busy += change
        self._become(replace(self.status, busy=self._n_busy > 0))

    def _become(self, status: StatusParams) -> None:
        if status != self.status:
            self.status = status
            self._send(status)
