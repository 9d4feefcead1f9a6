"""One request for suggestions, from the editor's position to the reply: reuse, wait, ask, show.

This module holds the order of these steps. The decisions are pure functions: why nothing is shown (`reasons`), how long to wait
(`rhythm`), what was typed since (`cursor`) and what the user does not want (`unwanted`). What the engine said, or is about to
say, is in one table (`answers`).

A newer request for a document ends the older one with no suggestions. It also cancels the engine's work, unless the running
answer may still fit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from dg_lsp.client.engine import EngineClient
from dg_lsp.client.port import EngineError
from dg_lsp.core import holes, languages, positions
from dg_lsp.core.polish import Suggestion
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Budget, Document, Hole, Span
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.server import reasons, rhythm
from dg_lsp.server.answers import Answer, Answers, Result
from dg_lsp.server.reasons import Reason
from dg_lsp.server.rhythm import Rhythm
from dg_lsp.server.snapshot import Outlines, Snapshot, Snapshots
from dg_lsp.server.unwanted import Unwanted
from dg_lsp.wire.background import Tasks

log = logging.getLogger(__name__)

# With a slower engine, asking ahead would only keep the machine busy.
AHEAD_LATENCY_MS = 400.0

# A cursor that moves on at once, as with an arrow key that is held down, has not arrived.
ARRIVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class SuggestionRequest:
    """A request for suggestions at an offset.

    `selected` is the item selected in the editor's own completion list: its text, and the span that it replaces.
    """

    uri: str
    offset: int
    automatic: bool
    selected: tuple[Span, str] | None = None
    client_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The suggestions to show: text to insert at an offset, or to put in place of `replaced`."""

    index: positions.Lines
    at: int = 0
    suggestions: tuple[Suggestion, ...] = ()
    replaced: Span | None = None


class Completer:
    """Answers all requests for suggestions of one session.

    It has an attribute for each part that takes a step of a request, because the order of the steps is here.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        engine: EngineClient,
        clock: Callable[[], float],
        on_outcome: Callable[[Reason | None], None],
        on_late: Callable[[Document], None] | None = None,
    ) -> None:
        """Call `on_outcome` with the reason why a request got no suggestion, or with None when it got one.

        `on_late` is called with the document when an answer that came after the deadline would be shown. Without it, the work
        ends at the deadline.
        """
        self._snapshots, self.engine = snapshots, engine
        self._clock, self._on_outcome, self._on_late = clock, on_outcome, on_late
        self.rhythm = Rhythm()
        self._unwanted: dict[str, Unwanted] = {}  # by the document
        self._outlines = Outlines(clock)
        self._answers = Answers(clock)
        # The newest request of each document.
        self._newest: dict[str, SuggestionRequest] = {}
        # The work at the place of a document's cursor that no request waits for, by the document and the offset.
        self._here: Tasks[tuple[str, int]] = Tasks()

    async def complete(self, request: SuggestionRequest) -> Reply:
        """Return what to show. Raises only CancelledError, and EngineError for an explicit request."""
        self._newest[request.uri] = request
        self._answers.wake()
        self._leave(request.uri)
        try:
            return await self._complete(request)
        finally:
            if self._newest.get(request.uri) is request:
                del self._newest[request.uri]
            self._answers.wake()

    async def finished(self, uri: str, offset: int) -> bool:
        """Wait until no request for suggestions of a document runs; return whether none is shown at an offset of it."""
        while uri in self._newest:
            await self._answers.change()
        doc, unwanted = self._snapshots.documents.get(uri), self._unwanted.get(uri)
        return doc is not None and not (unwanted and unwanted.is_shown(doc.index.text, offset))

    async def _complete(self, request: SuggestionRequest) -> Reply:
        first = await self._snapshots.take(request.uri, request.offset, request.selected)
        if first is None:
            return self._nothing(reasons.UNKNOWN)
        index, line = first.index, first.index.at(request.offset)
        before, after = index.text[index.start(line) : request.offset], index.text[request.offset : index.end(line)]
        if (reason := self._refusal(first, after, automatic=request.automatic)) is not None:
            return self._nothing(reason)
        time = asyncio.get_running_loop().time
        ask_at: float | None = None
        answer: Answer | None = None  # what this request has started, or waited for
        # Each time something changes, look again.
        while self._newest.get(request.uri) is request:
            fits = [(now, self._fit(request, now, answer)) for now in self._snapshots.followed(first)]
            if not fits:
                return self._nothing(reasons.MOVED)
            # An answer tells whether the cursor is before a closer: then it fits there.
            now, fit = max(fits, key=lambda each: bool(each[1] and each[1].suggestions))
            n_candidates = 1 if self._is_enough(request, now, fit) else now.settings.candidates
            if fit is not None and fit.n_candidates >= n_candidates:
                return self._show(request, now, fit)
            # Before the first answer, one may come at any time: an engine that is asked again at each key never answers.
            joined = self._answers.running(now.cursor, n_candidates, self.rhythm.measured_ms)
            if ask_at is None:
                # This parses the text, so it runs only when no earlier answer fits.
                if request.automatic and (reason := self._reason_of_scope(now)) is not None:
                    return self._nothing(reason)
                waits = request.automatic and joined is None
                ask_at = time() + (self._wait_ms(request, now, before, after) if waits else 0.0) / 1000
            if joined is None and time() >= ask_at:
                if now is not first:
                    return self._nothing(reasons.MOVED)
                joined = self._answers.start(now.cursor, n_candidates, self._ask(now, n_candidates))
            answer = joined or answer
            # One that is too young to be joined may be old enough after the wait, or come meanwhile.
            awaited = joined or self._answers.running(now.cursor, n_candidates)
            await self._answers.change(awaited, ask_at - time() if joined is None else None)
        return self._nothing(reasons.SUPERSEDED)

    def _fit(self, request: SuggestionRequest, now: Snapshot, own: Answer | None) -> Result | None:
        return self._answers.find(now.cursor, lambda found: bool(self._to_show(request, now, found)[0]), own)

    def _wait_ms(self, request: SuggestionRequest, now: Snapshot, before: str, after: str) -> float:
        """Return how long an unprompted request waits before it asks the engine, in milliseconds."""
        fixed = now.settings.debounce
        return rhythm.wait_ms(self.rhythm, self._clock(), before, after, client_ms=request.client_ms, fixed=fixed)

    def _refusal(self, now: Snapshot, after: str = "", *, automatic: bool = True) -> Reason | None:
        """Return why nothing is suggested, as far as that is known without parsing."""
        found = reasons.reasons(
            now.settings,
            automatic=automatic,
            after=after,
            language_id=now.base.language_id,
            n_chars=len(now.index.text),
            refused=now.refused,
            engine=self.engine.trouble(),
            lost=now.lost,
        )
        return next(found, None)

    def _reason_of_scope(self, now: Snapshot) -> Reason | None:
        """Return why nothing is suggested unprompted, as far as that is known from parsing."""
        doc = self._snapshots.documents.get(now.base.uri)
        scope = reasons.scope_at(now.base, self._snapshots.near(now, now.anchor), now.anchor)
        return reasons.reason_of_scope(scope, now.settings, is_unparsed=doc is not None and doc.is_unparsed)

    def _to_show(
        self, request: SuggestionRequest, now: Snapshot, suggestions: tuple[Suggestion, ...]
    ) -> tuple[tuple[Suggestion, ...], Reason | None]:
        return reasons.visible(suggestions, partial(self._is_unwanted, now), now.settings, automatic=request.automatic)

    def _is_unwanted(self, now: Snapshot, suggestion: Suggestion) -> bool:
        document, language, unwanted = now.document, languages.get(now.document.language), self._unwanted.get(now.base.uri)
        if unwanted is None:
            return False
        keywords = languages.words(language) if language is not None else frozenset[str]()
        return unwanted.holds(document.text, now.offset, suggestion.text, self._clock(), keywords)

    def _is_enough(self, request: SuggestionRequest, now: Snapshot, fit: Result | None) -> bool:
        """Return whether one candidate is enough: the best known ones were not all rejected or removed by the user."""
        known = fit.suggestions if fit is not None else ()
        return request.automatic and not (known and all(self._is_unwanted(now, each) for each in known))

    async def _ask(self, now: Snapshot, n_candidates: int, *, is_ahead: bool = False) -> Result:
        """Return the engine's result for the snapshot. An error is one too: the reason why there are no suggestions."""
        try:
            return await self._fill(now, n_candidates, is_ahead=is_ahead)
        except EngineError as error:
            return Result(n_candidates, reason=reasons.no_answer(str(error)), error=error)
        except Exception as error:
            log.exception("a request failed")
            return Result(n_candidates, reason=reasons.failed(error))

    async def _fill(self, now: Snapshot, n_candidates: int, *, is_ahead: bool) -> Result:
        settings = now.settings
        engine = await self.engine.for_document(now.document.uri, "ahead" if is_ahead else "")
        syntax, hole, context = self._asked(now, n_candidates)
        started = self._clock()
        answer = await pipeline.infill(
            engine, now.document, (hole,), context, syntax=syntax, is_file=now.is_file, token_threshold=settings.token_threshold
        )
        latency_ms = 1000 * (self._clock() - started)
        if not is_ahead:  # the user waits for none of these, and most of their text has been read already
            self.rhythm = self.rhythm.answered(latency_ms)
        suggestions, reason = answer.suggestions, None
        # Without candidates, only the clock says whether the deadline ended the work.
        is_over = bool(settings.deadline) and latency_ms >= settings.deadline
        is_late = answer.is_cut_short or (is_over and not answer.n_candidates)
        if not suggestions:
            reason = reasons.out_of_time(settings) if is_late and settings.deadline else reasons.no_answer(answer.reason)
        # Do not keep an answer that the deadline cut short.
        is_kept = not is_late and all(suggestion.candidate.finished for suggestion in suggestions)
        return Result(n_candidates, suggestions, reason, is_kept=is_kept)

    def _asked(self, now: Snapshot, n_candidates: int) -> tuple[Syntax | None, Hole, FileContext]:
        """Return what a request is made of: the syntax, the hole and its context."""
        document, settings, syntax = now.document, now.settings, self._snapshots.syntax(now)
        latest = partial(self._snapshots.latest, document.uri)
        signatures = self._outlines.signatures(document, settings.window_chars, latest) if syntax is not None else ()
        # Fewer than the user may choose from are asked for while typing, where the threshold decides what is shown.
        least = settings.threshold if n_candidates < settings.candidates else 0.0
        budget = Budget(ms=settings.deadline, candidates=n_candidates, least=least)
        hole = holes.at_cursor(document, now.offset, syntax)
        return syntax, hole, replace(now.context, budget=budget, signatures=signatures)

    async def _answer_late(self, request: SuggestionRequest, now: Snapshot, on_late: Callable[[Document], None]) -> None:
        """Let the engine go on with a request until another deadline; report an answer that would be shown, and is cached."""
        answer = self._answers.start(now.cursor, 1, self._ask(now, 1))
        while not answer.task.done():
            await self._answers.change(answer)
        late = self._answers.find(now.cursor)
        if late is not None and self._to_show(request, now, late.suggestions)[0]:
            on_late(now.base)

    async def _prepare(self, uri: str, offset: int) -> None:
        """Let the engine read the text around the cursor, if a suggestion could be asked for there."""
        await asyncio.sleep(ARRIVAL_S)
        now = await self._snapshots.take(uri, offset)
        if now is None or not self._snapshots.is_current(now) or self._answers.is_asked(uri):
            return
        if self._refusal(now) is None and self._answers.find(now.cursor) is None:
            syntax, hole, context = self._asked(now, 1)
            await self.engine.prepare(pipeline.to_request(now.document, (hole,), context, syntax=syntax))

    # Reply

    def _show(self, request: SuggestionRequest, now: Snapshot, fit: Result) -> Reply:
        """Return the reply with what may be shown of the suggestions. Raises EngineError for an explicit request."""
        to_show, reason = self._to_show(request, now, fit.suggestions)
        if fit.error is not None and not request.automatic:
            raise fit.error
        if reason is not None:
            reason = fit.reason or reason
            if reason.code == "deadline" and request.automatic and now.settings.speculate and self._on_late:
                self._here.start((request.uri, request.offset), self._answer_late(request, now, self._on_late))
            return self._nothing(reason)
        self._on_outcome(None)
        if request.selected is not None:
            span, selected_text = request.selected
            wholes = tuple(suggestion.with_text(selected_text + suggestion.text) for suggestion in to_show)
            return Reply(now.index, span.start, wholes, span)
        self._unwanted.setdefault(request.uri, Unwanted()).offer(now.index.text, now.offset, to_show[0].text)
        if request.automatic:
            self._look_ahead(now, to_show[0])
        return Reply(now.index, now.offset, to_show)

    def _nothing(self, reason: Reason) -> Reply:
        self._on_outcome(reason)
        return Reply(positions.lines(""))

    def _look_ahead(self, now: Snapshot, suggestion: Suggestion) -> None:
        """Ask the engine now for the text after the suggestion, in case the user accepts it."""
        is_slow = not self.rhythm.latencies_ms or self.rhythm.latency_ms > AHEAD_LATENCY_MS
        if not now.settings.speculate or is_slow or self._answers.is_asked(now.cursor.uri) or self.engine.trouble():
            return
        after = now.accepting(suggestion.text)
        follows = after.document.text[after.offset : after.offset + 1]
        is_known = self._answers.find(after.cursor) is not None or self._answers.running(after.cursor, 1) is not None
        if not is_known and not (follows.isalnum() or follows == "_"):
            self._answers.start(after.cursor, 1, self._ask(after, 1, is_ahead=True), is_ahead=True)

    # Events from the editor

    def arrived(self, uri: str, offset: int) -> None:
        """Record that the cursor is at this place, where the user may type next."""
        if (uri, offset) not in self._here:
            self._leave(uri)
            self._here.start((uri, offset), self._prepare(uri, offset))

    def _leave(self, uri: str) -> None:
        """End the work at the place of a document's cursor."""
        for key in self._here:
            if key[0] == uri:
                self._here.end(key)

    def typed(self, uri: str, before: str, text: str) -> None:
        """Record that the text of a document changed."""
        self._leave(uri)
        self.rhythm = self.rhythm.typed(self._clock())
        self._unwanted.setdefault(uri, Unwanted()).change(before, text, self._clock())
        self._answers.change_text(uri, before, text)

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._newest.pop(uri, None)
        self._leave(uri)
        self._unwanted.pop(uri, None)
        self._answers.forget(uri)
        self._outlines.forget(uri)
        self._answers.wake()

    def forget_answers(self) -> None:
        """Forget all answers; they depend on the settings."""
        self._answers.clear()

    def reset(self) -> None:
        """Forget all answers and the measured latencies; both depend on the engine."""
        self.forget_answers()
        self.rhythm = replace(self.rhythm, latencies_ms=())

    async def close(self) -> None:
        """End all waiting requests and the engine's work for them."""
        self._newest.clear()
        self._answers.wake()
        await self._here.close()
        await self._answers.close()
        await self._outlines.close()
