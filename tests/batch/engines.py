"""What connects a run to an engine without a model, and plans of files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from dg_lsp.batch import discover, plan
from dg_lsp.batch.api import Connect
from dg_lsp.batch.plan import FilePlan
from dg_lsp.client.port import Engine


def connecting(engine: Engine, models: list[str] | None = None) -> Connect:
    """Return a connect function that gives this engine, and that records the requested models."""

    def connect(model: str, on_progress: Callable[[str], None]) -> AbstractAsyncContextManager[Engine]:
        if models is not None:
            models.append(model)
        return _open(engine, on_progress)

    return connect


@contextlib.asynccontextmanager
async def _open(engine: Engine, on_progress: Callable[[str], None]) -> AsyncIterator[Engine]:
    on_progress("ready")
    yield engine


def planned(path: Path, text: str | bytes, kinds: str = "bodies,markers") -> FilePlan:
    """Write the file and return its plan."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    source = discover.read(path)
    assert isinstance(source, discover.Source), source
    return plan.for_kinds(source, plan.parse_kinds(kinds))
