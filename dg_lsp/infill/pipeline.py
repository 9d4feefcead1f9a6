"""The path from holes to edits, used by every front end: build the request, await the engine, polish its candidates.

It keeps no state between calls, reads no file, and knows engines only by the interface in `port`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from dg_lsp.client.port import Engine
from dg_lsp.core import context, excerpt, extent, place, polish, repository, scope
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.context import ShownBefore, Signatures
from dg_lsp.core.importing import Sources
from dg_lsp.core.polish import Suggestion
from dg_lsp.core.repository import Repository
from dg_lsp.core.values import Budget, Candidate, Document, Edit, Hole, InfillRequest, Snippet, Span
from dg_lsp.wire.background import in_thread
from dg_lsp.wire.settings import DEFAULTS

if TYPE_CHECKING:
    from dg_lsp.core.syntax import Syntax

# A dropped candidate is replaced by the next one, so the engine also returns the worse ones that it has.
SPARES = 8

Result = TypeVar("Result")

NEAR_CHARS = 4_000  # on each side of a hole, for choosing what is shown of other files


@dataclass(frozen=True, slots=True)
class FileContext:
    """What a request for a file contains besides its text: which file it is, text from others, limits, budget and seed."""

    path: str = ""  # below the workspace; a model sees it
    related: tuple[Snippet, ...] = ()  # shown as they are
    files: Repository = repository.EMPTY  # the index of the workspace, which has passages to copy from
    window_chars: int = DEFAULTS.window_chars
    related_chars: int = DEFAULTS.related_chars  # the most that is shown of `nearby`
    own: str = ""  # the absolute path without links, the file's key in an index; "" if the text is no file
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    indent: str = ""  # one indentation level in its project, for `Document.indent`
    nearby: tuple[Snippet, ...] = ()  # whole files, of which each request shows the paragraphs that resemble its text
    signatures: Signatures | None = None  # of the file; None: its syntax has them
    shown_before: ShownBefore | None = None  # what earlier requests of the file have shown, which may stay

    def __post_init__(self) -> None:
        if self.window_chars < 1:
            raise ValueError(f"window_chars must be at least 1, not {self.window_chars}")

    @property
    def sources(self) -> Sources:
        """What the file may import from."""
        return Sources(self.files, self.own)


@dataclass(frozen=True, slots=True)
class InfillAnswer:
    """The suggestions, best first, and the reason for each dropped candidate.

    A reason is the end of a sentence that begins with "it". `is_cut_short`: the deadline ended the engine's work on all
    candidates, suggested or dropped.
    """

    suggestions: tuple[Suggestion, ...] = ()
    dropped: tuple[str, ...] = ()
    is_cut_short: bool = False

    @property
    def n_candidates(self) -> int:
        """How many of the engine's candidates were suggested or dropped."""
        return len(self.suggestions) + len(self.dropped)

    @property
    def reason(self) -> str:
        """Why there is no suggestion, as a sentence; "" when there is one."""
        if self.suggestions:
            return ""
        if not self.dropped:
            return "the model has no answer"
        return "the answer " + "; another ".join(dict.fromkeys(self.dropped))


async def infill(
    engine: Engine,
    document: Document,
    holes: Sequence[Hole],
    file_context: FileContext,
    *,
    syntax: Syntax | None = None,
    is_file: bool = False,
    allow_shrink: bool = False,
    token_threshold: float = 0.0,
) -> InfillAnswer:
    """Return the suggestions for the holes of one request, best first; an empty answer when there is no hole.

    Candidates with the same edits are merged. `is_file` is False for a notebook cell (see `polish.to_edits`). The rest is as
    in `to_answer`. Raises EngineError when the engine can't answer, and ValueError when holes overlap, are out of order or lie
    outside the text.
    """
    if not holes:
        return InfillAnswer()
    request = await beside(document, functools.partial(to_request, document, holes, file_context, syntax=syntax))
    return await to_answer(
        request,
        await engine.fill(request),
        document,
        syntax=syntax,
        is_file=is_file,
        allow_shrink=allow_shrink,
        sources=file_context.sources,
        token_threshold=token_threshold,
    )


async def beside(document: Document, work: Callable[[], Result]) -> Result:
    """Return what work on a document returns: a thread does it if the document is long, so that other tasks run meanwhile."""
    return work() if len(document.text) < excerpt.LONG_CHARS else await in_thread(work)


def to_request(
    document: Document, holes: Sequence[Hole], file_context: FileContext, *, syntax: Syntax | None = None
) -> InfillRequest:
    """Return the request to the engine for these holes; raise ValueError as `infill` does."""
    if syntax is not None and scope.is_whole_file(document):
        holes = [replace(hole, needed=scope.needed_names(syntax, hole.span)) for hole in holes]
    request = context.build(
        document,
        holes,
        syntax=syntax,
        signatures=file_context.signatures,
        related=(*file_context.related, *_paragraphs(document, holes, file_context)),
        path=file_context.path,
        window_chars=file_context.window_chars,
        budget=replace(file_context.budget, spares=SPARES),
        seed=file_context.seed,
    )
    if file_context.shown_before is not None:
        before = file_context.shown_before.again(request, file_context.nearby)
        request = replace(request, related=(*request.related, *before))
    # Copies are drafted only for one hole.
    if not file_context.related_chars or len(holes) > 1:
        return request
    copied = repository.passages(request, file_context.files, own=file_context.own)
    return replace(request, related=(*request.related, *copied))


def _paragraphs(document: Document, holes: Sequence[Hole], file_context: FileContext) -> tuple[Snippet, ...]:
    """Return the paragraphs of nearby files that resemble the lines around the holes, without the lines of the holes."""
    if not file_context.nearby or not holes:
        return ()
    text, at, end = document.text, holes[0].span.start, holes[-1].span.end
    here = place.between(text[:at], text[end : end + NEAR_CHARS])
    return context.paragraphs(here.above[-NEAR_CHARS:], here.below, file_context.nearby, file_context.related_chars)


async def to_answer(
    request: InfillRequest,
    candidates: Sequence[Candidate],
    document: Document,
    *,
    syntax: Syntax | None = None,
    is_file: bool = False,
    allow_shrink: bool = False,
    sources: Sources | None = None,
    token_threshold: float = 0.0,
) -> InfillAnswer:
    """Return the candidates that can be shown, best first and at most as many as requested, and why others were dropped.

    Other tasks run between two candidates and before each cut, and in a long file meanwhile. Once enough can be shown, the
    candidates behind them are not looked at. A candidate with a name that the file does not bind comes
    after the others, in languages where this is no certain error. With `allow_shrink`, candidates that replace working code
    by less code come last; otherwise they are dropped. The suggestions for a single hole are cut before the first token whose
    probability is below `token_threshold`.

    If holes were filled one after the other, the first candidate has the best text of each, so it stays the first. If it is
    dropped, there is no answer, because the holes may still get their best texts one by one.
    """
    to_edits = functools.partial(
        polish.to_edits, holes=request.holes, document=document, syntax=syntax, is_file=is_file, sources=sources
    )
    # By what speaks against them: nothing, an unbound name, replaces working code by less.
    ranks: tuple[dict[tuple[Edit, ...], Suggestion], ...] = ({}, {}, {})
    dropped: list[str] = []
    for number, candidate in enumerate(candidates):
        if len(ranks[0]) >= request.budget.candidates:
            break
        if number:
            await asyncio.sleep(0)
        polished = await beside(document, functools.partial(to_edits, candidate))
        if polished.dropped and allow_shrink:
            shrinking = await beside(document, functools.partial(to_edits, candidate, allow_shrink=True))
            polished = shrinking if shrinking.shrinks and not shrinking.dropped else polished
        if polished.dropped:
            dropped.append(polished.dropped)
        else:
            rank = ranks[2 if polished.shrinks else 1 if polished.unbound else 0]
            rank.setdefault(polished.edits, polished)
    usable = [each for rank in ranks for each in rank.values()]
    if candidates and candidates[0].alone:
        best = [each for each in usable if each.candidate is candidates[0]]
        usable = best and best + [each for each in usable if each.candidate is not candidates[0]]
    suggestions: dict[tuple[Edit, ...], Suggestion] = {}
    for whole in usable[: request.budget.candidates]:
        shown = whole
        if len(request.holes) == 1 and token_threshold:
            if len(candidates) > 1:
                await asyncio.sleep(0)
            to_cut = functools.partial(to_edits, is_cut=True)
            shown = await beside(document, functools.partial(_cut, whole, request.holes[0].lead, token_threshold, to_cut))
        suggestions.setdefault(shown.edits, replace(shown, after=None))  # trees of whole files would stay with the answer
    if syntax is not None:
        syntax.memo.clear()  # the document may stay open for hours
    is_cut_short = bool(candidates) and not any(candidate.finished for candidate in candidates)
    return InfillAnswer(tuple(suggestions.values()), tuple(dropped), is_cut_short)


def _cut(polished: Suggestion, lead: str, threshold: float, to_cut: Callable[[Candidate], Suggestion]) -> Suggestion:
    """Return the suggestion for one hole, cut before its first token below the threshold; all of it if no cut is valid alone.

    `lead` is that of the hole. `to_cut` judges the beginning of its text.
    """
    [edit], [text], whole = polished.edits, polished.texts, polished.after
    unsure = extent.doubt(polished.candidate, text, threshold)
    ends: list[int] = []
    # In code that does not parse, a cut's own syntax errors could not be told apart.
    if unsure is not None and whole is not None and not whole.errors:
        start = edit.span.start
        own = Span(start, start + len(edit.text))
        token_ends = (whole.offsets.to_end(token.end_byte) for token in whole.tokens(own))
        ends = [end - start - whole.text.count("\r\n", start, end) - len(lead) for end in token_ends]
    for beginning in extent.cuts(text, unsure, ends):
        alone = to_cut(replace(polished.candidate, texts=(beginning,)))
        # A cut may leave half a construct, such as an open bracket, which the whole text closes.
        is_half = whole is not None and alone.after is not None and syntaxes.adds_errors(alone.after, whole)
        if alone.edits and not is_half:
            return alone
    return polished
