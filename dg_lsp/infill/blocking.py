"""The library's interface for programs without an event loop: each call runs on an event loop in a background thread.

The loop also runs between calls, to keep the connection to the engine open.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dg_lsp.core.values import Snippet
from dg_lsp.infill import api
from dg_lsp.infill.api import KINDS, Session
from dg_lsp.infill.fill import Fill, FillResult
from dg_lsp.infill.port import Engine

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SyncSession:
    """A `Session` with blocking methods."""

    session: Session
    loop: asyncio.AbstractEventLoop

    def fill_at(
        self, text: str, start: int, end: int | None = None, *, path: str = "", language: str = "", instruction: str = ""
    ) -> tuple[Fill, ...]:
        """Return the fills for a place, as `Session.fill_at` does."""
        return self._run(self.session.fill_at(text, start, end, path=path, language=language, instruction=instruction))

    def fill_text(
        self,
        text: str,
        *,
        path: str = "",
        language: str = "",
        kinds: Collection[str] = KINDS,
        min_probability: float = 0.0,
        related: Sequence[Snippet] = (),
    ) -> FillResult:
        """Return the text with its holes filled, as `Session.fill_text` does."""
        work = self.session.fill_text(
            text, path=path, language=language, kinds=kinds, min_probability=min_probability, related=related
        )
        return self._run(work)

    def fill_file(self, path: Path, *, kinds: Collection[str] = KINDS, min_probability: float = 0.0) -> FillResult:
        """Return a file's text with its holes filled, as `Session.fill_file` does."""
        return self._run(self.session.fill_file(path, kinds=kinds, min_probability=min_probability))

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return wait(work, self.loop)


@contextlib.contextmanager
def connect_sync(
    model: str = "",
    *,
    candidates: int | None = None,
    deadline_ms: int | None = None,
    seed: int = 0,
    engine: Engine | None = None,
) -> Iterator[SyncSession]:
    """Yield a blocking session; the arguments are those of `connect`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="dg-lsp-infill", daemon=True)
    thread.start()
    opening = api.connect(model, candidates=candidates, deadline_ms=deadline_ms, seed=seed, engine=engine)
    try:
        session = wait(opening.__aenter__(), loop)
        try:
            yield SyncSession(session, loop)
        finally:
            wait(opening.__aexit__(None, None, None), loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def wait(work: Coroutine[Any, Any, Result], loop: asyncio.AbstractEventLoop) -> Result:
    """Run the work on another thread's loop and return its result; cancel it when the wait is interrupted."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
