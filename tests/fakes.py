"""Real code that stands in for what a test can't have, an engine that knows its answers, and pictures of holes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from dg_lsp.client.engine import ConnectOptions, Connector
from dg_lsp.client.link import Link, OnDone, OnDraft
from dg_lsp.client.port import EngineBusyError, EngineError
from dg_lsp.core.values import Calibrated, Candidate, Document, Extent, Hole, HoleKind, InfillRequest, Span
from dg_lsp.wire import discovery
from dg_lsp.wire.messages import Ask, Status


class ReadyEngine:
    """An engine in this process that is ready and prepares for nothing; what it answers is for others to say."""

    async def ready(self) -> None:
        """Wait until the model is loaded; raise EngineError when that fails."""

    async def prepare(self, request: InfillRequest) -> None:
        """Read the text of a probable request."""

    async def fill(
        self, request: InfillRequest, *, document: str = "", on_draft: OnDraft | None = None
    ) -> tuple[Candidate, ...]:
        """Return candidates, best first; raise EngineError."""
        return await self.answer(request, document)

    async def answer(self, request: InfillRequest, document: str) -> tuple[Candidate, ...]:
        """Return what `fill` does, for an engine that sends no drafts."""
        raise NotImplementedError

    async def close(self) -> None:
        """End what waits."""


class InProcess(Link):
    """A link to such an engine."""

    def __init__(self, engine: ReadyEngine, version: str, on_change: Callable[[Link], None]) -> None:
        self.engine, self.changed = engine, on_change
        self.state = discovery.State(os.getpid(), "/in/this/process", "token", version)
        self.status = Status("loading", "reading weights", 0.5)
        self.said_bye, self.is_silent, self.lost = True, False, False
        self.loading = asyncio.ensure_future(self.load())

    async def load(self) -> None:
        await asyncio.sleep(0)  # until the link is the client's
        try:
            await self.engine.ready()
            self.status = Status("ready")
        except EngineError as error:
            self.status = Status("failed", str(error), retry_s=error.retry_s if isinstance(error, EngineBusyError) else 0.0)
        self.changed(self)

    async def infill(self, ask: Ask, on_draft: OnDraft | None = None, on_done: OnDone | None = None) -> tuple[Candidate, ...]:
        if ask.prepares:
            await self.engine.prepare(ask.request)
            return ()
        return await self.engine.fill(ask.request, document=ask.document, on_draft=on_draft)

    async def configure(self, fields: Mapping[str, float]) -> Mapping[str, object]:
        return fields

    async def end(self) -> None:
        pass

    async def close(self) -> None:
        self.lost = True
        await self.engine.close()
        await asyncio.wait([self.loading])


def connecting(make: Callable[[str], ReadyEngine]) -> Connector:
    """Return what connects a client to an engine in this process, which `make` makes of a model's name."""

    async def connect(options: ConnectOptions, version: str, on_change: Callable[[Link], None]) -> Link:
        return InProcess(make(options.engine_id.model), version, on_change)

    return connect


Write = Callable[[InfillRequest], tuple[str, ...]]


class Filling:
    """Fills each hole with a text, or all holes with the texts of a tuple or a function, and records its requests.

    Several answers are candidates, best first.
    """

    def __init__(self, *answers: str | tuple[str, ...] | Write) -> None:
        self.requests: list[InfillRequest] = []
        self.best = 0.9
        self._answers = answers

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        self.requests.append(request)
        n = request.budget.candidates + request.budget.spares
        texts = [self._texts(answer, request) for answer in self._answers[:n]]
        return tuple(Candidate(each, Calibrated(self.best / (idx + 1)), steps=4) for idx, each in enumerate(texts))

    def _texts(self, answer: str | tuple[str, ...] | Write, request: InfillRequest) -> tuple[str, ...]:
        if isinstance(answer, str):
            return (answer,) * len(request.holes)
        return answer if isinstance(answer, tuple) else answer(request)


class FailingEngine:
    """Fails every request with the sentence."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        raise EngineError(self._sentence)


def drawn(
    text: str,
    *,
    language: str = "",
    kind: HoleKind = "cursor",
    extent: Extent = "line",
    indent: str = "",
    lead: str = "",
    trail: str = "",
) -> tuple[Document, tuple[Hole, ...]]:
    """Return the document drawn by a text in which each ⟦…⟧ is a hole with what it holds, and its holes."""
    as_drawn = Hole(Span(0, 0), kind, extent=extent, indent=indent, lead=lead, trail=trail)
    holes, parts, at = [], [], 0
    for idx, part in enumerate(re.split("[⟦⟧]", text)):
        if idx % 2:
            holes.append(replace(as_drawn, span=Span(at, at + len(part))))
        parts.append(part)
        at += len(part)
    return Document("file:///drawn", language, "".join(parts)), tuple(holes)
