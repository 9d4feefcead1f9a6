"""Apply `privacy.local_only` to a run: private files are neither filled by a remote model nor sent to it as context."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from dg_lsp.batch.discover import Skipped
from dg_lsp.batch.plan import Plan
from dg_lsp.infill import config
from dg_lsp.infill.config import Guarded, Privacy
from dg_lsp.infill.port import Engine
from dg_lsp.wire.privacy import LOCAL_ONLY

if TYPE_CHECKING:
    from dg_lsp.batch.job import Connect


def guarded(model: str, plans: Sequence[Plan], connect: Connect) -> tuple[list[Plan], list[Skipped], Connect]:
    """Return the plans of files that the model may see, the skipped private files, and a connect function that guards them."""
    if not config.is_remote(model):
        return list(plans), [], connect
    privacy = config.privacy(plan.source.path for plan in plans)
    private = {plan.source.path for plan in plans if privacy.keeps_file(plan.source.path)}
    shared = [plan for plan in plans if plan.source.path not in private]
    skipped = [Skipped(plan.source.name, LOCAL_ONLY) for plan in plans if plan.source.path in private]
    return shared, skipped, functools.partial(_connected, connect, privacy)


@contextlib.asynccontextmanager
async def _connected(connect: Connect, privacy: Privacy, model: str, hear: Callable[[str], None]) -> AsyncIterator[Engine]:
    async with connect(model, hear) as engine:
        yield Guarded(engine, privacy)
