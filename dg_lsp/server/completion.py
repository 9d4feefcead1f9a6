"""One request for suggestions, from the editor's position to the reply: reuse, wait, ask, show.

This module holds the order of these steps, and the running requests to the engine. The decisions are pure functions: in
`decisions` when not to suggest, how long to wait and which earlier answers still fit, and at the end of this file whether to
show an answer.

A newer request for a document ends the older one with no suggestions. It also cancels the engine's work, unless the running
answer may still fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial

from dg_lsp.client.engine import EngineClient
from dg_lsp.client.port import EngineError
from dg_lsp.core import confidence, holes, languages, positions
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Budget, Calibrated, Document, Hole, Ranked, Span
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext, Suggestion
from dg_lsp.server import decisions
from dg_lsp.server.decisions import Cache, Place, Reason, Rhythm, Unwanted
from dg_lsp.server.snapshot import Outlines, Snapshot, Snapshots
from dg_lsp.wire.settings import Settings

log = logging.getLogger(__name__)

# With a slower engine, asking ahead would only keep the machine busy.
AHEAD_LATENCY_MS = 400.0

# A cursor that moves on at once, as with an arrow key that is held down, has not arrived.
ARRIVAL_S = 0.1

# A running request that none waits for goes on for this long, because the next keystroke's request may still join it.
GRACE_S = 0.15

SUPERSEDED = Reason("superseded", "a newer request replaced this one")
NO_ANSWER = Reason("noAnswer", "the model has no answer here")
MOVED = Reason("moved", "the text changed while the answer was made")

EngineAnswer = tuple[tuple[Suggestion, ...], Reason | None]
"""The suggestions, and the reason when there are none."""


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
        self._snapshots, self._engine = snapshots, engine
        self._clock, self._on_outcome, self._on_late = clock, on_outcome, on_late
        self.rhythm = Rhythm()
        self._unwanted = Unwanted()
        self._cache = Cache()
        self._outlines = Outlines(clock)
        self._replaced: dict[str, asyncio.Event] = {}
        self._flights = Flights(clock)
        # The work that no request waits for, and its offset: for each document that at its cursor, and with `is_ahead` the
        # request for the text after a suggestion.
        self._background: dict[tuple[str, bool], tuple[int, asyncio.Task[object]]] = {}

    async def complete(self, request: SuggestionRequest) -> Reply:
        """Return what to show. Raises only CancelledError, and EngineError for an explicit request."""
        replaced = asyncio.Event()
        if (older := self._replaced.get(request.uri)) is not None:
            older.set()
        self._replaced[request.uri] = replaced
        self._end_background(request.uri)
        try:
            return await self._complete(request, replaced)
        finally:
            if self._replaced.get(request.uri) is replaced:
                del self._replaced[request.uri]

    async def _complete(self, request: SuggestionRequest, replaced: asyncio.Event) -> Reply:
        now = await self._snapshots.take(request.uri, request.offset, request.selected)
        if now is None:
            return self._nothing(Reason("unknown", "the document is not open"))
        if (stale := self._stale(now, replaced)) is not None:
            return self._nothing(stale)
        settings, index, line = now.settings, now.index, now.index.at(request.offset)
        before, after = index.text[index.start(line) : request.offset], index.text[request.offset : index.end(line)]
        if (reason := self._refusal(now, after, automatic=request.automatic)) is not None:
            return self._nothing(reason)
        fit = self._cache.find(now.place, self._clock(), lambda found: bool(self._to_show(request, now, found)[0]))
        if fit is not None and (fit.n_candidates >= settings.candidates or self._is_enough(request, now, fit.suggestions)):
            return self._show(request, now, fit.suggestions)
        if request.automatic:
            # This parses the text, so it runs only when no cached answer fits.
            scope = decisions.scope_at(now.base, self._snapshots.near(now, request.offset), request.offset)
            doc = self._snapshots.documents.get(request.uri)
            is_unparsed = doc is not None and doc.is_unparsed
            if (reason := decisions.reason_of_scope(scope, settings, is_unparsed=is_unparsed)) is not None:
                return self._nothing(reason)
        if request.automatic and self._flights.joinable(now.place, self.rhythm.latency_ms) is None:
            wait_ms = decisions.wait_ms(
                self.rhythm, self._clock(), before, after, client_ms=request.client_ms, fixed=settings.debounce
            )
            if wait_ms > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(replaced.wait(), wait_ms / 1000)
            if (stale := self._stale(now, replaced)) is not None:
                return self._nothing(stale)
        n_candidates = 1 if request.automatic and fit is None else settings.candidates
        suggestions, reason = await self._ask(request, now, replaced, n_candidates)
        if reason is None and n_candidates < settings.candidates and not self._is_enough(request, now, suggestions):
            suggestions, reason = await self._ask(request, now, replaced, settings.candidates)
        return self._show(request, now, suggestions, reason)

    def _stale(self, now: Snapshot, replaced: asyncio.Event) -> Reason | None:
        """Return why the request goes no further: a newer one replaced it, or its text is not the editor's any more."""
        if replaced.is_set():
            return SUPERSEDED
        return None if self._snapshots.is_current(now) else MOVED

    def _refusal(self, now: Snapshot, after: str = "", *, automatic: bool = True) -> Reason | None:
        """Return why nothing is suggested, as far as that is known without parsing."""
        reasons = decisions.reasons(
            now.settings,
            automatic=automatic,
            after=after,
            language_id=now.base.language_id,
            n_chars=len(now.index.text),
            refused=now.refused,
            engine=self._engine.trouble(),
            lost=now.lost,
        )
        return next(reasons, None)

    def _to_show(
        self, request: SuggestionRequest, now: Snapshot, suggestions: tuple[Suggestion, ...]
    ) -> tuple[tuple[Suggestion, ...], Reason | None]:
        return visible(suggestions, partial(self._is_unwanted, now), now.settings, automatic=request.automatic)

    def _is_unwanted(self, now: Snapshot, suggestion: Suggestion) -> bool:
        document, language = now.document, languages.get(now.document.language)
        keywords = languages.words(language) if language is not None else frozenset[str]()
        return self._unwanted.holds(now.base.uri, document.text, now.offset, suggestion.text, self._clock(), keywords)

    def _is_enough(self, request: SuggestionRequest, now: Snapshot, suggestions: tuple[Suggestion, ...]) -> bool:
        """Return whether no further candidates are needed: not all of these were rejected or removed by the user."""
        return request.automatic and not (suggestions and all(self._is_unwanted(now, each) for each in suggestions))

    async def _ask(self, request: SuggestionRequest, now: Snapshot, replaced: asyncio.Event, n_candidates: int) -> EngineAnswer:
        """Return the engine's suggestions, or the reason for none; join a running request where its answer may fit."""
        flight = self._flights.joinable(now.place, self.rhythm.latency_ms)
        if flight is not None and flight.n_candidates >= n_candidates:
            found, reason = await flight.wait(replaced, raises=not request.automatic)
            if reason is SUPERSEDED:
                return (), SUPERSEDED
            fit = decisions.advance(flight.place, now.place, found, flight.n_candidates) if found else None
            if (fit is not None and self._to_show(request, now, fit.suggestions)[0]) or flight.place == now.place:
                suggestions = fit.suggestions if fit is not None else ()
                return suggestions, None if suggestions else reason or NO_ANSWER
        return await self._start(now, n_candidates).wait(replaced, raises=not request.automatic)

    def _start(self, now: Snapshot, n_candidates: int) -> Flight:
        """Return a new request to the engine; cancel the document's older ones."""
        self._end_background(now.place.uri, is_ahead=True)
        return self._flights.start(now.place, n_candidates, self._fill(now, n_candidates))

    async def _fill(self, now: Snapshot, n_candidates: int, lane: str = "") -> EngineAnswer:
        """Return the engine's suggestions for the snapshot, or why there are none; cache them."""
        settings = now.settings
        engine = await self._engine.for_document(now.document.uri, lane)
        syntax, hole, context = self._asked(now, n_candidates)
        started = self._clock()
        answer = await pipeline.infill(
            engine,
            now.document,
            (hole,),
            context,
            syntax=syntax,
            is_file=now.is_file,
            token_threshold=settings.token_threshold,
        )
        latency_ms = 1000 * (self._clock() - started)
        self.rhythm = self.rhythm.answered(latency_ms)
        suggestions = answer.suggestions
        # Without candidates, only the clock says whether the deadline ended the work.
        is_over = bool(settings.deadline) and latency_ms >= settings.deadline
        is_late = answer.is_cut_short or (is_over and not answer.n_candidates)
        # Do not cache an answer that the deadline cut short.
        if not is_late and all(suggestion.finished for suggestion in suggestions):
            self._cache.keep(now.place, suggestions, n_candidates, self._clock())
        if suggestions:
            return suggestions, None
        return suggestions, out_of_time(settings) if is_late and settings.deadline else Reason("noAnswer", answer.reason)

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
        await self._start(now, 1).wait(asyncio.Event(), raises=False)
        late = self._cache.find(now.place, self._clock())
        if late is not None and self._to_show(request, now, late.suggestions)[0]:
            on_late(now.base)

    async def _prepare(self, uri: str, offset: int) -> None:
        """Let the engine read the text around the cursor, if a suggestion could be asked for there."""
        await asyncio.sleep(ARRIVAL_S)
        now = await self._snapshots.take(uri, offset)
        if now is None or not self._snapshots.is_current(now) or self._flights.is_running(uri):
            return
        if self._refusal(now) is None and self._cache.find(now.place, self._clock()) is None:
            syntax, hole, context = self._asked(now, 1)
            await self._engine.prepare(pipeline.to_request(now.document, (hole,), context, syntax=syntax))

    # Reply

    def _show(
        self, request: SuggestionRequest, now: Snapshot, suggestions: tuple[Suggestion, ...], reason: Reason | None = None
    ) -> Reply:
        """Return the reply with what may be shown of the suggestions. `reason` says why there are none."""
        to_show, unshown = self._to_show(request, now, suggestions)
        if (reason := reason or unshown) is not None:
            may_go_on = request.automatic and now.settings.speculate and self._snapshots.is_current(now)
            if reason.code == "deadline" and may_go_on and self._on_late:
                self._in_background(request.uri, request.offset, self._answer_late(request, now, self._on_late))
            return self._nothing(reason)
        doc = self._snapshots.documents.get(request.uri)
        is_current = self._snapshots.is_current(now)
        if request.selected is not None and is_current:
            span, selected_text = request.selected
            wholes = tuple(suggestion.with_text(selected_text + suggestion.text) for suggestion in to_show)
            answer = Reply(now.index, span.start, wholes, span)
        elif is_current:
            answer = Reply(now.index, request.offset, to_show)
        elif (
            doc is not None
            and request.selected is None
            and (moved := decisions.realigned(now.index.text, request.offset, to_show, doc.index.text))
        ):
            answer = Reply(doc.index, *moved)
        else:
            return self._nothing(MOVED)
        if answer.replaced is None:
            self._unwanted.offer(request.uri, answer.index.text, answer.at, answer.suggestions[0].text)
        self._on_outcome(None)
        if request.automatic and request.selected is None and is_current:
            self._look_ahead(now, answer.suggestions[0])
        return answer

    def _nothing(self, reason: Reason) -> Reply:
        self._on_outcome(reason)
        return Reply(positions.lines(""))

    def _look_ahead(self, now: Snapshot, suggestion: Suggestion) -> None:
        """Ask the engine now for the text after the suggestion, in case the user accepts it."""
        is_slow = not self.rhythm.latencies_ms or self.rhythm.latency_ms > AHEAD_LATENCY_MS
        if not now.settings.speculate or is_slow or self._flights.is_running(now.place.uri) or self._engine.trouble():
            return
        after = now.accepting(suggestion.text)
        follows = after.document.text[after.offset : after.offset + 1]
        if self._cache.find(after.place, self._clock()) is None and not (follows.isalnum() or follows == "_"):
            self._in_background(after.place.uri, after.offset, self._fill(after, 1, "ahead"), is_ahead=True)

    # Events from the editor

    def arrived(self, uri: str, offset: int) -> None:
        """Record that the cursor is at this place, where the user may type next."""
        if self._background.get((uri, False), (-1, None))[0] != offset:
            self._in_background(uri, offset, self._prepare(uri, offset))

    def _in_background(self, uri: str, offset: int, work: Coroutine[None, None, object], *, is_ahead: bool = False) -> None:
        """Start work that no request waits for, and end the document's older work of the same kind."""
        self._end_background(uri, is_ahead=is_ahead)
        task: asyncio.Task[object] = asyncio.ensure_future(work)
        self._background[uri, is_ahead] = offset, task

        def ended(task: asyncio.Task[object]) -> None:
            if self._background.get((uri, is_ahead), (offset, None))[1] is task:
                del self._background[uri, is_ahead]
            # A request for the same place will fail on the engine's error too, and report it.
            if not task.cancelled() and (error := task.exception()) and not isinstance(error, EngineError):
                log.error("work in the background failed", exc_info=error)

        task.add_done_callback(ended)

    def _end_background(self, uri: str, *, is_ahead: bool = False) -> None:
        if (work := self._background.pop((uri, is_ahead), None)) is not None:
            work[1].cancel()

    def typed(self, uri: str, before: str, text: str) -> None:
        """Record that the text of a document changed."""
        self._end_background(uri)
        self.rhythm = self.rhythm.typed(self._clock())
        self._unwanted.change(uri, before, text, self._clock())

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._flights.cancel(uri)
        for is_ahead in (False, True):
            self._end_background(uri, is_ahead=is_ahead)
        if (replaced := self._replaced.get(uri)) is not None:
            replaced.set()
        self._unwanted.forget(uri)
        self._cache.forget(uri)
        self._outlines.forget(uri)

    def forget_answers(self) -> None:
        """Empty the cache; answers depend on the settings."""
        self._cache = Cache()

    def reset(self) -> None:
        """Empty the cache and forget the measured latencies; both depend on the engine."""
        self.forget_answers()
        self.rhythm = replace(self.rhythm, latencies_ms=())

    async def close(self) -> None:
        """End all waiting requests and the engine's work for them."""
        for replaced in self._replaced.values():
            replaced.set()
        tasks = [task for _, task in self._background.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._flights.close()
        await self._outlines.close()


# --- The running requests to the engine that requests from the editor may wait for: for each document one


@dataclass(eq=False, slots=True)
class Flight:
    """One request to the engine for a place and a number of candidates, which several requests from the editor may wait for."""

    place: Place
    n_candidates: int
    started: float
    task: asyncio.Future[EngineAnswer]
    n_waiting: int = 0

    async def wait(self, replaced: asyncio.Event, *, raises: bool) -> EngineAnswer:
        """Return the answer; that it is superseded when `replaced` is set first, or the request was cancelled.

        Raises EngineError with `raises`; without it, the error is the reason for no suggestions, as any other always is.
        """
        self.n_waiting += 1
        replacing = asyncio.ensure_future(replaced.wait())
        try:
            await asyncio.wait((self.task, replacing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            replacing.cancel()
            self.n_waiting -= 1
            if not self.n_waiting and not self.task.done():
                asyncio.get_running_loop().call_later(GRACE_S, lambda: self.n_waiting or self.task.cancel())
        if replaced.is_set() or not self.task.done() or self.task.cancelled():
            return (), SUPERSEDED
        error = self.task.exception()
        if error is None:
            return self.task.result()
        if not isinstance(error, EngineError):
            return (), decisions.failed(error)
        if raises:
            raise error
        return (), Reason("noAnswer", str(error))


class Flights:
    """The running requests of one session."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with no request; `clock` returns the time in seconds."""
        self._clock = clock
        self._running: dict[str, Flight] = {}

    def is_running(self, uri: str) -> bool:
        return uri in self._running

    def joinable(self, place: Place, latency_ms: float) -> Flight | None:
        """Return the running request whose answer may fit this place; None when there is none."""
        flight = self._running.get(place.uri)
        if flight is None or flight.task.done():
            return None
        age_ms = 1000 * (self._clock() - flight.started)
        return flight if decisions.joins(flight.place, place, age_ms=age_ms, latency_ms=latency_ms) else None

    def start(self, place: Place, n_candidates: int, work: Coroutine[None, None, EngineAnswer]) -> Flight:
        """Return a new running request; cancel the document's older one."""
        self.cancel(place.uri)
        flight = self._running[place.uri] = Flight(place, n_candidates, self._clock(), asyncio.ensure_future(work))

        def settled(task: asyncio.Future[EngineAnswer]) -> None:
            if self._running.get(place.uri) is flight:
                del self._running[place.uri]
            if not task.cancelled() and (error := task.exception()) and not isinstance(error, EngineError):
                log.error("a request failed", exc_info=error)

        flight.task.add_done_callback(settled)
        return flight

    def cancel(self, uri: str) -> None:
        """Cancel a document's request."""
        if (older := self._running.pop(uri, None)) is not None:
            older.task.cancel()

    async def close(self) -> None:
        """Cancel all requests."""
        tasks = [flight.task for flight in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- Whether to show an answer. Pure


def visible(
    suggestions: tuple[Suggestion, ...], is_unwanted: Callable[[Suggestion], bool], settings: Settings, *, automatic: bool
) -> tuple[tuple[Suggestion, ...], Reason | None]:
    """Return the suggestions to show, best first, or the reason for none.

    An unprompted request gets at most one suggestion, which must reach the threshold and not be unwanted: rejected or removed
    by the user. Without those the others are likelier. An explicit request gets up to `settings.candidates` suggestions.
    """
    if not suggestions:
        return (), NO_ANSWER
    if not automatic:
        return suggestions[: settings.candidates], None
    unwanted = [suggestion for suggestion in suggestions if is_unwanted(suggestion)]
    excluded = [suggestion.confidence for suggestion in unwanted]
    wanted = [
        (suggestion, confidence.without(excluded, suggestion.confidence))
        for suggestion in suggestions
        if suggestion not in unwanted
    ]
    if not wanted:
        return (), Reason("rejected", "you rejected or removed the same text here")
    for suggestion, sureness in wanted:
        if confidence.is_sure(sureness, settings.suggestion_threshold):
            return (suggestion,), None
    if not any(suggestion.finished for suggestion, _ in wanted):
        return (), out_of_time(settings)
    match max((sureness for _, sureness in wanted), key=confidence.order):
        case Calibrated(probability):
            why = f"is right with a probability of {probability:.2f}, below {settings.threshold:.2f}"
        case Ranked(_, True):
            why = "was cut short, or contradicts the text around it"
        case Ranked():
            why = "comes from a model that is not calibrated; `dg-lsp calibrate` measures how often it is right"
    return (), Reason("unsure", f"the best answer {why}")


def out_of_time(settings: Settings) -> Reason:
    """Return the reason for no suggestion where the deadline ended the engine's work."""
    limit = f"the time ({settings.deadline / 1000:g} s) ran out"
    return Reason("deadline", f"{limit}; raise `completion.deadline`, or choose a faster model")
