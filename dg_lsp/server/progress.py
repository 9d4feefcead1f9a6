"""Progress bars in the editor (work-done progress), started by the server, which the user can cancel."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

# An editor that does not confirm a progress bar by then gets its edit without one.
CLIENT_PATIENCE_S = 2.0


@dataclass(slots=True)
class Progresses:
    """The progress bars of one session."""

    server: LanguageServer
    _cancels: dict[str | int, Callable[[], None]] = field(default_factory=dict)

    def cancel(self, token: str | int) -> None:
        """Cancel the work of a progress bar; an unknown token belongs to work that has ended already."""
        if isinstance(token, (str, int)) and (cancel := self._cancels.get(token)) is not None:
            cancel()

    @asynccontextmanager
    async def bar(self, title: str, cancel: Callable[[], None], *, is_shown: bool) -> AsyncIterator[Bar]:
        """Yield a progress bar; when the editor has none, it sends nothing."""
        token = f"dg-lsp-{secrets.token_hex(6)}"
        bar = Bar(self.server, token, is_shown and await self._create(token))
        self._cancels[token] = cancel
        bar.send(lsp.WorkDoneProgressBegin(title=title, cancellable=True, percentage=0))
        try:
            yield bar
        finally:
            del self._cancels[token]
            bar.send(lsp.WorkDoneProgressEnd())

    async def _create(self, token: str) -> bool:
        try:
            creating = self.server.window_work_done_progress_create_async(lsp.WorkDoneProgressCreateParams(token))
            await asyncio.wait_for(creating, CLIENT_PATIENCE_S)
        except asyncio.CancelledError:
            raise
        except Exception:
            # Without a bar the work goes on, whatever error the editor returned.
            return False
        return True


@dataclass(frozen=True, slots=True)
class Bar:
    """One progress bar."""

    server: LanguageServer
    token: str
    exists: bool

    def report(self, message: str, share: float) -> None:
        """Send a message and the completed share, from 0 to 1."""
        self.send(lsp.WorkDoneProgressReport(message=message, percentage=min(100, max(0, round(100 * share)))))

    def send(self, value: Any) -> None:
        """Send a progress value, if the bar exists."""
        if self.exists:
            self.server.progress(lsp.ProgressParams(self.token, value))
