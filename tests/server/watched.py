"""The resident engine, except that its requests are also written to a file; see `scripted` for the file's name."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dg_lsp.client.engine import ConnectOptions, OnLink, join
from dg_lsp.client.link import Link, OnDone, OnDraft
from dg_lsp.core.values import Candidate
from dg_lsp.wire.messages import Ask


async def engine(options: ConnectOptions, version: str, on_change: OnLink) -> Link | None:
    link = await join(options, version, on_change)
    if link is None:
        return None
    infill = link.infill

    async def watched(ask: Ask, on_draft: OnDraft | None = None, on_done: OnDone | None = None) -> tuple[Candidate, ...]:
        if not ask.prepares:
            with Path(os.environ["DG_LSP_TEST_JOURNAL"]).open("a", encoding="ascii") as journal:
                text = {"document": ask.document, "prefix": ask.request.prefix, "suffix": ask.request.suffix}
                journal.write(json.dumps(text) + "\n")
        return await infill(ask, on_draft, on_done)

    link.infill = watched  # type: ignore[method-assign]
    return link
