"""Progress bars in the editor (work-done progress), started by the server, which the user can cancel."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from lsprotocol import types as lsp

if TYPE_CHECKING:
    from dg_lsp.server.app import DgLanguageServer

# An editor that does not confirm a progress bar by then gets its edit without one.
CLIENT_PATIENCE_S = 2.0

Report = Callable[[str, float], None]
"""Shows a message and the completed share, from 0 to 1."""


@asynccontextmanager
async def bar(server: DgLanguageServer, title: str, cancel: Callable[[], None]) -> AsyncIterator[Report]:
    """Yield the function that reports progress on a new bar, whose button calls `cancel`; without a bar it sends nothing."""
    token = f"dg-lsp-{secrets.token_hex(6)}"
    exists = server.client.progress and await _create(server, token)

    def send(value: Any) -> None:
        if exists:
            server.progress(lsp.ProgressParams(token, value))

    def report(message: str, share: float) -> None:
        send(lsp.WorkDoneProgressReport(message=message, percentage=min(100, max(0, round(100 * share)))))

    server.bars[token] = cancel
    send(lsp.WorkDoneProgressBegin(title=title, cancellable=True, percentage=0))
    try:
        yield report
    finally:
        del server.bars[token]
        send(lsp.WorkDoneProgressEnd())


async def _create(server: DgLanguageServer, token: str) -> bool:
    try:
        creating = server.window_work_done_progress_create_async(lsp.WorkDoneProgressCreateParams(token))
        await asyncio.wait_for(creating, CLIENT_PATIENCE_S)
    except Exception:
        # Without a bar the work goes on, whatever error the editor returned.
        return False
    return True
