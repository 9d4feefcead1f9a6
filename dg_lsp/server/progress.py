"""Work-done progress that the server begins, and that the user can cancel."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

# An editor that never says whether it has a bar gets its edit without one.
CLIENT_PATIENCE_S = 2.0


@dataclass(slots=True)
class Progresses:
    """The bars on the editor's screen."""

    server: LanguageServer
    _cancels: dict[str | int, Callable[[], None]] = field(default_factory=dict)

    def cancel(self, token: str | int) -> None:
        """The user wants this to end; unknown tokens are those of work that has ended."""
        if isinstance(token, (str, int)) and (cancel := self._cancels.get(token)) is not None:
            cancel()

    @asynccontextmanager
    async def bar(self, title: str, cancel: Callable[[], None], *, is_shown: bool) -> AsyncIterator[Bar]:
        """Yield a bar; one that says nothing where the editor has none."""
        token = f"dg-lsp-{secrets.token_hex(6)}"
        bar = Bar(self.server, token, is_shown and await self._created(token))
        self._cancels[token] = cancel
        bar.send(lsp.WorkDoneProgressBegin(title=title, cancellable=True, percentage=0))
        try:
            yield bar
        finally:
            del self._cancels[token]
            bar.send(lsp.WorkDoneProgressEnd())

    async def _created(self, token: str) -> bool:
        try:
            created = self.server.window_work_done_progress_create_async(lsp.WorkDoneProgressCreateParams(token))
            await asyncio.wait_for(created, CLIENT_PATIENCE_S)
        except asyncio.CancelledError:
            raise
        except Exception:
            # The editor may say no, in any form, or nothing; the work goes on without a bar.
            return False
        return True


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar."""

    server: LanguageServer
    token: str
    exists: bool

    def report(self, message: str, share: float) -> None:
        """Say how far it is."""
        self.send(lsp.WorkDoneProgressReport(message=message, percentage=min(100, max(0, round(100 * share)))))

    def send(self, value: Any) -> None:
        """Send, where there is a bar."""
        if self.exists:
            self.server.progress(lsp.ProgressParams(self.token, value))
