"""Real code that stands in for what a test can't have, an engine that knows its answers, and pictures of holes."""

from __future__ import annotations

import re
from dataclasses import replace

from dg_lsp.core.values import Calibrated, Candidate, Document, Hole, HoleKind, InfillRequest, Span
from dg_lsp.infill.port import EngineError


class ReadyEngine:
    """What `server.resident.Warm` has beside `fill`, of an engine that is ready and prepares for nothing."""

    async def ready(self) -> None:
        pass

    async def prepare(self, request: InfillRequest) -> None:
        pass

    async def close(self) -> None:
        pass


class ScriptedEngine:
    """Answers every request with the prepared candidates, best first, and remembers what it was asked.

    A string is an answer for a request of one hole, a tuple of strings for one of several.
    """

    def __init__(self, *answers: str | tuple[str, ...]) -> None:
        self.requests: list[InfillRequest] = []
        self._texts = [(answer,) if isinstance(answer, str) else answer for answer in answers]

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        self.requests.append(request)
        return tuple(Candidate(texts, Calibrated(1 / (2 + idx))) for idx, texts in enumerate(self._texts))


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
    block: bool = False,
    indent: str = "",
    lead: str = "",
    trail: str = "",
    may_open: bool = False,
) -> tuple[Document, tuple[Hole, ...]]:
    """Return the document drawn by a text in which each ⟦…⟧ is a hole with what it holds, and its holes."""
    as_drawn = Hole(Span(0, 0), kind, block=block, indent=indent, lead=lead, trail=trail, may_open=may_open)
    holes, parts, at = [], [], 0
    for idx, part in enumerate(re.split("[⟦⟧]", text)):
        if idx % 2:
            holes.append(replace(as_drawn, span=Span(at, at + len(part))))
        parts.append(part)
        at += len(part)
    return Document("file:///drawn", language, "".join(parts)), tuple(holes)
