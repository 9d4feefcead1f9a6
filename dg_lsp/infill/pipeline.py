"""The one path from holes to edits: pure, one await, pure.

Every front end takes it. It keeps nothing between two calls, reads no file and knows no engine but the port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dg_lsp.core import context, polish
from dg_lsp.core.values import Budget, Candidate, Document, Edit, Hole, InfillRequest, Snippet
from dg_lsp.infill.port import Engine

if TYPE_CHECKING:
    from dg_lsp.core.syntax import Syntax


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How to ask: how much text on each side, at what cost, from which seed, and the file's name for the model.

    `previous` is what an earlier answer would still write in the hole (see `InfillRequest`).
    """

    window_chars: int = 24_000
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    path: str = ""
    previous: str = ""

    def __post_init__(self) -> None:
        if self.window_chars < 1:
            raise ValueError(f"a window has at least one character, not {self.window_chars}")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A candidate that survived: its edits, one for each hole in their order, and the filters that changed it."""

    edits: tuple[Edit, ...]
    candidate: Candidate
    fired: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What can be shown, best first, and for each candidate that can't, why: the end of a sentence that begins "it"."""

    suggestions: tuple[Suggestion, ...] = ()
    dropped: tuple[str, ...] = ()
    fired: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why there is no suggestion, as a sentence; "" where there is one."""
        if self.suggestions:
            return ""
        if not self.dropped:
            return "the model has no answer"
        return "the answer " + "; another ".join(dict.fromkeys(self.dropped))


async def infill(
    engine: Engine,
    document: Document,
    holes: Sequence[Hole],
    settings: RequestOptions,
    *,
    syntax: Syntax | None = None,
    related: Sequence[Snippet] = (),
    is_file: bool = False,
) -> Answer:
    """Return the answers for the holes of one request that survive polishing, best first; none where there is no hole.

    Answers that come to the same edits are one. `is_file` says that the document is all of a file (see `polish.to_edits`).
    Raises EngineError when the engine can't answer, and ValueError when
    holes overlap, are out of order or lie outside the text.
    """
    if not holes:
        return Answer()
    request = to_request(document, holes, settings, syntax=syntax, related=related)
    return to_answer(request, await engine.fill(request), document, syntax=syntax, is_file=is_file)


def to_request(
    document: Document,
    holes: Sequence[Hole],
    settings: RequestOptions,
    *,
    syntax: Syntax | None = None,
    related: Sequence[Snippet] = (),
) -> InfillRequest:
    """Return what the engine is sent for the holes of one request; raise ValueError as `infill` does."""
    return context.build(
        document,
        holes,
        syntax=syntax,
        related=related,
        path=settings.path,
        window_chars=settings.window_chars,
        budget=settings.budget,
        seed=settings.seed,
        previous=settings.previous,
    )


def to_answer(
    request: InfillRequest,
    candidates: Sequence[Candidate],
    document: Document,
    *,
    syntax: Syntax | None = None,
    is_file: bool = False,
) -> Answer:
    """Return which of the engine's candidates can be shown, and what becomes of the others.

    Those that use a name which nothing in the file binds come last, where the language cannot tell for sure.
    """
    suggestions: dict[tuple[Edit, ...], Suggestion] = {}
    doubtful: dict[tuple[Edit, ...], Suggestion] = {}
    dropped: list[str] = []
    fired: list[str] = []
    for candidate in candidates:
        polished = polish.to_edits(candidate, request.holes, document, syntax=syntax, is_file=is_file)
        fired += polished.fired
        if polished.dropped:
            dropped.append(polished.dropped)
        else:
            rank = doubtful if polished.unbound else suggestions
            rank.setdefault(polished.edits, Suggestion(polished.edits, candidate, polished.fired))
    return Answer((*suggestions.values(), *doubtful.values()), tuple(dropped), tuple(fired))
