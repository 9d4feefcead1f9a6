"""The resident engine, except that its requests are also written to a file; see `scripted` for the file's name."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.server import resident
from dg_lsp.server.resident import OnDraft, OnMessage, OnState, Warm
from dg_lsp.wire.settings import Settings


class Watched:
    """Satisfies `server.resident.Warm`."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm

    async def ready(self) -> None:
        await self._warm.ready()

    async def prepare(self, request: InfillRequest) -> None:
        await self._warm.prepare(request)

    async def close(self) -> None:
        await self._warm.close()

    async def fill(
        self, request: InfillRequest, *, document: str = "", on_draft: OnDraft | None = None
    ) -> tuple[Candidate, ...]:
        with Path(os.environ["DG_LSP_TEST_JOURNAL"]).open("a", encoding="ascii") as journal:
            journal.write(json.dumps({"document": document, "prefix": request.prefix, "suffix": request.suffix}) + "\n")
        return await self._warm.fill(request, document=document, on_draft=on_draft)


def engine(settings: Settings, on_state: OnState, on_message: OnMessage) -> Watched:
    return Watched(resident.resident(settings, on_state, on_message))
