"""One code action at work: the holes, the engine, the bar, the drafts. Imported when the first action runs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dg_lsp.core.values import Budget, Candidate, Hole, InfillRequest, Snippet
from dg_lsp.infill import pipeline
from dg_lsp.infill.port import Engine
from dg_lsp.server import actions, convert, filling
from dg_lsp.server.filling import Filled, Job
from dg_lsp.server.methods import Draft, Part, Wanted
from dg_lsp.server.progress import Bar
from dg_lsp.server.sync import Open

if TYPE_CHECKING:
    from dg_lsp.server.app import Server


async def run(server: Server, wanted: Wanted, found: Open, bar: Bar) -> Filled:
    """Return what the action comes to. Raises EngineError, and ValueError for an action that does not exist."""
    document, syntax, index = found.document, found.syntax(), found.index
    encoding, settings = server.documents.encoding, server.settings
    span = convert.from_points(index, wanted.start, wanted.end, encoding)
    attempts = actions.attempts(wanted.what, document, syntax, span, wanted.instruction)
    related: Sequence[Snippet] = await server.nearby.read(document, settings.related_chars)
    asked = pipeline.Settings(
        window_chars=settings.window_chars,
        budget=Budget(ms=settings.action_deadline, candidates=settings.candidates),
        path=server.nearby.name(document.uri),
    )
    token = secrets.token_hex(6)
    latest: tuple[Part, ...] = ()

    def engine_for(group: tuple[Hole, ...]) -> Engine:
        ends = [convert.to_points(index, hole.span, encoding) for hole in group]

        def draft(texts: tuple[str, ...], step: int) -> None:
            nonlocal latest
            texts = tuple(f"{hole.lead}{text}{hole.trail}" for hole, text in zip(group, texts, strict=False))
            latest = tuple(Part(start, end, text) for (start, end), text in zip(ends, texts, strict=False))
            server.send_draft(Draft(token, document.uri, document.version, latest, step))

        return _Later(server, f"{document.uri}#{token}", draft if server.client.hears_drafts else None)

    def done(n_done: int, n_holes: int) -> None:
        bar.report(f"{n_done} of {n_holes}", n_done / max(n_holes, 1))

    try:
        job = Job(document, syntax, asked, related)
        return await filling.fill(attempts, job, engine_for, done, mends=wanted.what == "repair")
    finally:
        if latest:
            server.send_draft(Draft(token, document.uri, document.version, (), done=True))


class _Later:
    """The engine, once it is joined."""

    def __init__(self, server: Server, key: str, on_draft: filling.OnDraft | None) -> None:
        self._server, self._key, self._on_draft = server, key, on_draft

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        engine = await self._server.resident.engine(self._key, self._on_draft)
        return await engine.fill(request)
