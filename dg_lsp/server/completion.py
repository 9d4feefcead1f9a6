"""One request for suggestions, from the editor's position to what it shows: reuse, wait, ask, show.

Everything that decides is elsewhere, and pure: `when` not to ask, how long to wait (`debounce`), what an earlier answer is
worth (`reuse`), whether to `show` one. Here is the order, and what is in flight. A newer request for a document ends an
older one's waiting with no suggestions, and the engine's work with it, unless its answer may still fit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from dg_lsp.core import holes, polish, positions
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Budget, Document, Hole, Snippet, Span
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import Suggestion
from dg_lsp.infill.port import EngineError
from dg_lsp.server import debounce, reuse, show, when
from dg_lsp.server.debounce import Rhythm
from dg_lsp.server.nearby import Nearby
from dg_lsp.server.outline import Outlines
from dg_lsp.server.resident import Resident
from dg_lsp.server.reuse import Cache, Offer, Place, Rejections
from dg_lsp.server.settings import Settings
from dg_lsp.server.stats import Statistics
from dg_lsp.server.sync import Documents, Open
from dg_lsp.server.when import Moment, Reason

log = logging.getLogger(__name__)

# An answer that nobody waits for any more may be wanted again by the next keystroke's request.
GRACE_S = 0.15
# Above this, looking ahead would only keep the machine busy.
AHEAD_LATENCY_MS = 400.0

SUPERSEDED = Reason("superseded", "a newer request took this one's place")
MOVED = Reason("moved", "the text changed while the answer was made")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for suggestions at an offset. `selected` is what the editor's own list would put in place of a span."""

    uri: str
    offset: int
    automatic: bool
    selected: tuple[Span, str] | None = None
    client_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What to show: text to insert at an offset of this text, or instead of `replaced`."""

    index: positions.Lines
    at: int = 0
    offers: tuple[Offer, ...] = ()
    replaced: Span | None = None


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The text as it was at entry, with the editor's own selection in it, and the cursor in that text."""

    document: Document
    offset: int
    place: Place
    syntax: Callable[[], Syntax | None]


class _Job:
    """One question to the engine, which several requests may wait for."""

    def __init__(self, place: Place, asked: int, started: float) -> None:
        self.place, self.asked, self.started = place, asked, started
        self.task: asyncio.Future[tuple[tuple[Offer, ...], str]]
        self.n_waiting = 0


class Completer:
    """All requests for suggestions of one session."""

    def __init__(
        self,
        documents: Documents,
        resident: Resident,
        nearby: Nearby,
        statistics: Statistics,
        settings: Callable[[str], Settings],
        clock: Callable[[], float],
        noted: Callable[[Reason | None], None],
    ) -> None:
        """`noted` hears why a request was not answered, None when it was."""
        self._documents, self._resident, self._nearby, self._statistics = documents, resident, nearby, statistics
        self._settings, self._clock, self._noted = settings, clock, noted
        self.rhythm = Rhythm()
        self._cache, self._rejections = Cache(), Rejections()
        self._outlines = Outlines(clock)
        self._ids = itertools.count(1)
        self._turns: dict[str, asyncio.Event] = {}
        self._jobs: dict[str, _Job] = {}
        self._ahead: dict[str, _Job] = {}
        self._shown: dict[str, tuple[str, int, Offer]] = {}
        self._offered: dict[int, Offer] = {}

    async def complete(self, ask: Ask) -> Answer:
        """Return what to show; never raises but CancelledError, and EngineError for a request that was made by hand."""
        turn = asyncio.Event()
        if (older := self._turns.get(ask.uri)) is not None:
            older.set()
        self._turns[ask.uri] = turn
        try:
            return await self._complete(ask, turn)
        finally:
            if self._turns.get(ask.uri) is turn:
                del self._turns[ask.uri]

    async def _complete(self, ask: Ask, turn: asyncio.Event) -> Answer:
        found = self._documents.get(ask.uri)
        if found is None:
            return self._nothing(Reason("unknown", "the document is not open"))
        settings, index = self._settings(ask.uri), found.index
        await self._nearby.look(ask.uri)
        if turn.is_set():
            return self._nothing(SUPERSEDED)
        if found.index.text is not index.text:
            return self._nothing(MOVED)
        moment = self._moment(ask, found)
        if (reason := when.reason(moment, settings)) is not None:
            return self._nothing(reason)
        now = _snapshot(found, ask)
        kept = self._cache.find(now.place, self._clock())
        if kept is not None and (ask.automatic or kept.asked >= settings.candidates):
            self._statistics.counts.add("typed through" if kept.typed else "cached")
            return self._show(ask, now, index, kept.offers)
        if ask.automatic:
            # Only now, since it parses, and an answer that is there already needs none of it.
            moment = replace(moment, scope=when.scope_at(found.near(ask.offset), ask.offset))
            if (reason := when.reason(moment, settings)) is not None:
                return self._nothing(reason)
        if ask.automatic and self._joinable(now.place) is None:
            wait_ms = debounce.wait_ms(
                self.rhythm, self._clock(), moment.before, moment.after, client_ms=ask.client_ms, fixed=settings.debounce
            )
            if await _set_within(turn, wait_ms / 1000):
                return self._nothing(SUPERSEDED)
            if found.index.text is not index.text:
                return self._nothing(MOVED)
        offers, reason = await self._asked(ask, now, turn)
        if reason is not None:
            return self._nothing(reason)
        return self._show(ask, now, index, offers)

    async def _asked(self, ask: Ask, now: _Snapshot, turn: asyncio.Event) -> tuple[tuple[Offer, ...], Reason | None]:
        """Return the engine's offers, those of a question in flight where they fit."""
        wanted = 1 if ask.automatic else self._settings(ask.uri).candidates
        job = self._joinable(now.place)
        if job is not None and job.asked >= wanted:
            answer = await self._wait(job, turn, ask)
            if answer is None:
                return (), SUPERSEDED
            fit = reuse.advance(job.place, now.place, answer[0], job.asked) if answer[0] else None
            if fit is not None or job.place == now.place:
                self._statistics.counts.add("joined")
                offers = fit.offers if fit is not None else ()
                return offers, None if offers else _no_answer(answer[1])
        answer = await self._wait(self._ask(now, wanted), turn, ask)
        if answer is None:
            return (), SUPERSEDED
        return answer[0], None if answer[0] else _no_answer(answer[1])

    # What is in flight

    def _joinable(self, place: Place) -> _Job | None:
        job = self._jobs.get(place.uri)
        if job is None or job.task.done():
            return None
        age_ms = 1000 * (self._clock() - job.started)
        return job if reuse.joins(job.place, place, age_ms=age_ms, latency_ms=self.rhythm.latency_ms) else None

    def _ask(self, now: _Snapshot, wanted: int) -> _Job:
        """Return a new question, in place of the document's older ones."""
        for jobs in (self._jobs, self._ahead):
            if (older := jobs.pop(now.place.uri, None)) is not None:
                older.task.cancel()
        job = _Job(now.place, wanted, self._clock())
        self._jobs[now.place.uri] = job
        job.task = asyncio.ensure_future(self._fill(now, wanted))
        job.task.add_done_callback(lambda task: self._settled(job, task))
        return job

    async def _wait(self, job: _Job, turn: asyncio.Event, ask: Ask) -> tuple[tuple[Offer, ...], str] | None:
        """Return the job's answer; None when the turn is over first."""
        job.n_waiting += 1
        over = asyncio.ensure_future(turn.wait())
        try:
            await asyncio.wait((job.task, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            job.n_waiting -= 1
            self._let_go(job)
        if turn.is_set() or not job.task.done() or job.task.cancelled():
            return None
        try:
            return job.task.result()
        except EngineError as error:
            if not ask.automatic:
                raise
            return (), str(error)

    def _let_go(self, job: _Job) -> None:
        """Give a job that nobody waits for a moment, in case it is wanted again."""
        if job.n_waiting or job.task.done():
            return

        def end() -> None:
            if not job.n_waiting:
                job.task.cancel()

        asyncio.get_running_loop().call_later(GRACE_S, end)

    def _settled(self, job: _Job, task: asyncio.Future[tuple[tuple[Offer, ...], str]]) -> None:
        if self._jobs.get(job.place.uri) is job:
            del self._jobs[job.place.uri]
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, EngineError):
            log.error("a request failed", exc_info=error)

    async def _fill(self, now: _Snapshot, wanted: int, turn: str = "") -> tuple[tuple[Offer, ...], str]:
        """Return the engine's offers for the snapshot, and why there is none; keep them."""
        settings = self._settings(now.document.uri)
        engine = await self._resident.engine(now.document.uri, turn)
        syntax = now.syntax()
        hole = holes.at_cursor(now.document, now.offset, syntax)
        related = self._related(now.document, settings)
        asked = pipeline.Settings(
            window_chars=settings.window_chars,
            budget=Budget(ms=settings.deadline, candidates=wanted),
            path=self._nearby.name(now.document.uri),
            previous=self._cache.left_over(now.place, self._clock()),
        )
        started = self._clock()
        self._statistics.counts.add("asked")
        current = self._documents.get(now.document.uri)
        quick = self._outlines.quick(now.document.uri, syntax, settings.window_chars, current.syntax if current else None)
        answer = await pipeline.infill(engine, now.document, (hole,), asked, syntax=quick, related=related)
        if answer.fired:
            log.debug("polished by %s", ", ".join(answer.fired))
        latency_ms = 1000 * (self._clock() - started)
        self.rhythm = self.rhythm.answered(latency_ms)
        self._statistics.counts.took(latency_ms)
        offers = tuple(self._offer(item, hole, now, syntax, settings) for item in answer.suggestions)
        # A deadline's half of an answer is worth showing, but not worth keeping.
        if all(item.candidate.finished for item in answer.suggestions):
            self._cache.keep(now.place, offers, wanted, self._clock())
        return offers, answer.reason

    def _offer(self, item: Suggestion, hole: Hole, now: _Snapshot, syntax: Syntax | None, settings: Settings) -> Offer:
        text = item.edits[0].text
        doubt = show.doubt(item.candidate, text, hole.lead, settings.token_threshold)
        whole = _with(now, syntax, text) if doubt is not None else None
        ends: tuple[int, ...] = ()
        # Broken code hides what a cut would break.
        if whole is not None and not whole.errors:
            ends = tuple(end - now.offset for end in whole.token_ends(Span(now.offset, now.offset + len(text))))
        for cut in show.cuts(text, doubt, ends):
            shorter = _with(now, syntax, cut)
            # What is half typed may have an error that the whole answer has not.
            if whole is not None and shorter is not None and syntaxes.adds_errors(shorter, whole):
                continue
            # A text that was cut is judged like any other: `x = self.` is no error to the parser where a line follows.
            alone = replace(item.candidate, texts=(cut[len(hole.lead) :],))
            if polished := polish.to_edits(alone, (hole,), now.document, syntax=syntax).edits:
                text = polished[0].text
                break
        return Offer(text, item.candidate.score, next(self._ids))

    def _related(self, document: Document, settings: Settings) -> tuple[Snippet, ...]:
        cells = self._documents.cells_before(document.uri)
        name = self._nearby.name(document.uri)
        near = tuple(
            Snippet(f"{name} (cell)", cell.text[max(len(cell.text) - settings.related_chars, 0) :])
            for cell in cells[-4:]
            if cell.text.strip() and settings.related_chars
        )
        return (*near, *self._nearby.related(document, settings.related_chars))

    # What is shown

    def _show(self, ask: Ask, now: _Snapshot, index: positions.Lines, offers: tuple[Offer, ...]) -> Answer:
        settings, clock = self._settings(ask.uri), self._clock()
        shown, reason = show.visible(offers, now.place, self._rejections, settings, clock, automatic=ask.automatic)
        if reason is not None:
            return self._nothing(reason)
        found = self._documents.get(ask.uri)
        answer = Answer(index, ask.offset, shown)
        if ask.selected is not None:
            span, chosen = ask.selected
            answer = Answer(index, span.start, tuple(replace(offer, text=chosen + offer.text) for offer in shown), span)
        if found is None or found.index.text is not index.text:
            moved = None
            if found is not None and ask.selected is None:
                moved = reuse.realigned(index.text, ask.offset, shown, found.index.text)
            if moved is None or found is None:
                return self._nothing(MOVED)
            answer = Answer(found.index, *moved)
        self._remember(ask, answer)
        self._noted(None)
        if ask.automatic and ask.selected is None and found.index.text is index.text:
            self._look_ahead(now, answer.offers[0])
        return answer

    def _remember(self, ask: Ask, answer: Answer) -> None:
        self._statistics.counts.add("shown")
        for offer in answer.offers:
            self._offered.pop(offer.id, None)
            self._offered[offer.id] = offer
        while len(self._offered) > 200:
            del self._offered[next(iter(self._offered))]
        if answer.replaced is None:
            self._shown[ask.uri] = (answer.index.text, answer.at, answer.offers[0])

    def _nothing(self, reason: Reason) -> Answer:
        self._statistics.counts.add(f"not: {reason.code}")
        self._noted(reason)
        return Answer(positions.lines(""))

    def _look_ahead(self, now: _Snapshot, offer: Offer) -> None:
        """Ask already for what follows the suggestion once it is accepted."""
        uri = now.document.uri
        settings = self._settings(uri)
        slow = not self.rhythm.latencies_ms or self.rhythm.latency_ms > AHEAD_LATENCY_MS
        if not settings.speculate or slow or self._jobs.get(uri) is not None or self._resident.trouble():
            return
        text, at = now.document.text, now.offset
        document = replace(now.document, text=text[:at] + offer.text + text[at:])
        offset = at + len(offer.text)
        place = reuse.place(uri, document.text, offset)
        if self._cache.find(place, self._clock()) is not None or _is_word(document.text[offset : offset + 1]):
            return
        if (older := self._ahead.pop(uri, None)) is not None:
            older.task.cancel()
        after = _Snapshot(document, offset, place, lambda: syntaxes.of(document, now.syntax()))
        job = _Job(place, 1, self._clock())
        self._ahead[uri] = job
        job.task = asyncio.ensure_future(self._fill(after, 1, "ahead"))
        job.task.add_done_callback(lambda task: self._looked(uri, job, task))

    def _looked(self, uri: str, job: _Job, task: asyncio.Future[tuple[tuple[Offer, ...], str]]) -> None:
        if self._ahead.get(uri) is job:
            del self._ahead[uri]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nobody waits for it; a request for the same place will meet the same trouble and tell of it.
            log.debug("looking ahead failed: %s", error)

    # What the editor tells

    def typed(self, uri: str) -> None:
        """Take note that a document changed."""
        self.rhythm = self.rhythm.typed(self._clock())
        shown, found = self._shown.get(uri), self._documents.get(uri)
        if shown is None or found is None:
            return
        text, at, offer = shown
        result = reuse.outcome(text, at, offer.text, found.index.text)
        if result == "typing":
            return
        del self._shown[uri]
        if result == "taken":
            self.accepted(offer.id)
        elif result == "rejected":
            self._statistics.counts.add("rejected")
            self._rejections = self._rejections.add(reuse.place(uri, text, at), offer.text, self._clock())

    def accepted(self, offer_id: int) -> None:
        """Count a suggestion that was accepted, once."""
        offer = self._offered.pop(offer_id, None)
        if offer is not None:
            self._statistics.counts.add("accepted")
            self._statistics.counts.add("characters accepted", len(offer.text))

    def accepted_in_part(self, offer_id: int, n_units: int) -> None:
        """Count a suggestion of which a part was accepted."""
        if offer_id in self._offered and n_units > 0:
            self._statistics.counts.add("accepted in part")

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        for jobs in (self._jobs, self._ahead):
            if (job := jobs.pop(uri, None)) is not None:
                job.task.cancel()
        if (turn := self._turns.get(uri)) is not None:
            turn.set()
        self._shown.pop(uri, None)
        self._cache.forget(uri)
        self._outlines.forget(uri)
        self._rejections = self._rejections.without(uri)

    def forget_answers(self) -> None:
        """Forget all answers: other settings give others."""
        self._cache = Cache()

    def reset(self) -> None:
        """Forget all answers and how long they took: another engine gives others."""
        self.forget_answers()
        self.rhythm = replace(self.rhythm, latencies_ms=())

    async def close(self) -> None:
        """End all that is in flight."""
        for turn in self._turns.values():
            turn.set()
        tasks = [job.task for jobs in (self._jobs, self._ahead) for job in jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._outlines.close()

    def _moment(self, ask: Ask, found: Open) -> Moment:
        index = found.index
        line = index.at(ask.offset)
        return Moment(
            automatic=ask.automatic,
            before=index.text[index.starts[line] : ask.offset],
            after=index.text[ask.offset : index.ends[line]],
            language_id=found.language_id,
            n_chars=len(index.text),
            refused=self._nearby.refused(ask.uri),
            engine=self._resident.trouble() if ask.automatic else "",
            lost=found.lost,
        )


def _snapshot(found: Open, ask: Ask) -> _Snapshot:
    document, offset = found.document, ask.offset
    if ask.selected is None:
        place = reuse.place(ask.uri, document.text, offset)
        return _Snapshot(document, offset, place, _once(document, lambda: found.near(offset)))
    span, chosen = ask.selected
    whole = replace(document, text=document.text[: span.start] + chosen + document.text[span.end :])
    offset = span.start + len(chosen)
    before = found.near(span.start)
    return _Snapshot(whole, offset, reuse.place(ask.uri, whole.text, offset), lambda: syntaxes.of(whole, before))


def _once(document: Document, current: Callable[[], Syntax | None]) -> Callable[[], Syntax | None]:
    """Return what gives the syntax of this very text, though the document may have moved on when it is asked."""

    def syntax() -> Syntax | None:
        found = current()
        if found is not None and found.text is not document.text:
            found = syntaxes.of(document, found)
        return found

    return syntax


def _with(now: _Snapshot, syntax: Syntax | None, text: str) -> Syntax | None:
    """Return the syntax of the document with this text at the cursor."""
    at = now.offset
    return syntaxes.of(replace(now.document, text=now.document.text[:at] + text + now.document.text[at:]), syntax)


def _no_answer(why: str) -> Reason:
    return Reason("noAnswer", why or "the model has no answer here")


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    if timeout_s > 0:
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
    return event.is_set()
