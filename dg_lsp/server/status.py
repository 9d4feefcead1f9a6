"""The status: the engine's state, the last latency and the last suppression reason, sent to the editor on each change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dg_lsp.server.methods import StatusParams
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

    def update(self, **changes: Any) -> None:
        """Change these fields of the status."""
        status = replace(self.status, **changes)
        if status != self.status:
            self.status = status
            self._send(status)

    def suppressed(self, reason: Reason | None) -> None:
        """Set the reason why the last request got no suggestion; None when it got one."""
        if reason is None or reason.code not in _PASSING:
            self.update(suppressed=(reason.code, reason.message) if reason else None)

    def paused(self, reason: Reason | None) -> None:
        """Set why the settings stop unprompted suggestions everywhere.

        None forgets a reason that earlier settings gave, because the next request may be allowed, and keeps any other.
        """
        if reason is not None or (self.status.suppressed and self.status.suppressed[0] in _OF_SETTINGS):
            self.suppressed(reason)

    def busy(self, change: int) -> None:
        """Change the number of running code actions by this much."""
        self._n_busy += change
        self.update(busy=self._n_busy > 0)
