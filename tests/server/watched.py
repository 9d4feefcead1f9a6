"""The resident engine, except that its requests are also written to a file; see `scripted` for the file's name."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.infill.port import Engine
from dg_lsp.server import resident
from dg_lsp.server.resident import Listener, OnDraft, Warm
from dg_lsp.server.settings import Settings


class Watched:
    """Satisfies `server.resident.Warm`."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm

    async def ready(self) -> None:
        await self._warm.ready()

    def bound(self, document: str, on_draft: OnDraft | None = None) -> Engine:
        return _Bound(self._warm.bound(document, on_draft), document)


class _Bound:
    def __init__(self, engine: Engine, document: str) -> None:
        self._engine, self._document = engine, document

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        with Path(os.environ["DG_LSP_TEST_JOURNAL"]).open("a", encoding="ascii") as journal:
            journal.write(json.dumps({"document": self._document, "prefix": request.prefix, "suffix": request.suffix}) + "\n")
        return await self._engine.fill(request)


@contextlib.asynccontextmanager
async def engine(settings: Settings, listener: Listener) -> AsyncIterator[Watched]:
    async with resident.resident(settings, listener) as warm:
        yield Watched(warm)
