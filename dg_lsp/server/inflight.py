"""Questions to the engine that are under way: one for each document, and one that looks ahead of it.

Knows tasks and time; nothing of what is asked or what becomes of an answer. Several requests may wait for one question,
and one that nobody waits for any more is kept for a moment, in case the next keystroke wants it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from dg_lsp.infill.port import EngineError
from dg_lsp.server import reuse
from dg_lsp.server.reuse import Offer, Place

log = logging.getLogger(__name__)

# An answer that nobody waits for any more may be wanted again by the next keystroke's request.
GRACE_S = 0.15

# The offers, and why there is none.
EngineAnswer = tuple[tuple[Offer, ...], str]


class Flight:
    """One question to the engine, which several requests may wait for."""

    def __init__(self, place: Place, n_candidates: int, started: float, task: asyncio.Future[EngineAnswer]) -> None:
        """Hold a question that was asked at this place, for so many candidates."""
        self.place, self.n_candidates, self.started, self.task = place, n_candidates, started, task
        self.n_waiting = 0

    async def wait(self, turn: asyncio.Event, *, raises: bool) -> EngineAnswer | None:
        """Return the answer; None when the turn is over first.

        An engine that fails raises EngineError with `raises`, and is a reason for no offers without.
        """
        self.n_waiting += 1
        over = asyncio.ensure_future(turn.wait())
        try:
            await asyncio.wait((self.task, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            self.n_waiting -= 1
            self._let_go()
        if turn.is_set() or not self.task.done() or self.task.cancelled():
            return None
        try:
            return self.task.result()
        except EngineError as error:
            if raises:
                raise
            return (), str(error)

    def _let_go(self) -> None:
        """Give a question that nobody waits for a moment, in case it is wanted again."""
        if self.n_waiting or self.task.done():
            return

        def end() -> None:
            if not self.n_waiting:
                self.task.cancel()

        asyncio.get_running_loop().call_later(GRACE_S, end)


class Flights:
    """The questions of one session."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Have none."""
        self._clock = clock
        self._asked: dict[str, Flight] = {}
        self._ahead: dict[str, Flight] = {}

    def has(self, uri: str) -> bool:
        """Return whether a question for this document is under way, one that looks ahead left out."""
        return uri in self._asked

    def joinable(self, place: Place, latency_ms: float) -> Flight | None:
        """Return the question under way that is worth waiting for at this place; None where there is none."""
        flight = self._asked.get(place.uri)
        if flight is None or flight.task.done():
            return None
        age_ms = 1000 * (self._clock() - flight.started)
        return flight if reuse.joins(flight.place, place, age_ms=age_ms, latency_ms=latency_ms) else None

    def start(self, place: Place, n_candidates: int, work: Coroutine[None, None, EngineAnswer]) -> Flight:
        """Return a new question, in place of the document's older ones."""
        self._cancel(place.uri)
        return self._start(self._asked, place, n_candidates, work)

    def look_ahead(self, place: Place, work: Coroutine[None, None, EngineAnswer]) -> None:
        """Ask for what nobody waits for yet, in place of what was asked ahead for the document before."""
        if (older := self._ahead.pop(place.uri, None)) is not None:
            older.task.cancel()
        self._start(self._ahead, place, 1, work)

    def forget(self, uri: str) -> None:
        """End a document's questions."""
        self._cancel(uri)

    async def close(self) -> None:
        """End all that is under way."""
        tasks = [flight.task for flights in (self._asked, self._ahead) for flight in flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel(self, uri: str) -> None:
        for flights in (self._asked, self._ahead):
            if (older := flights.pop(uri, None)) is not None:
                older.task.cancel()

    def _start(
        self, flights: dict[str, Flight], place: Place, n_candidates: int, work: Coroutine[None, None, EngineAnswer]
    ) -> Flight:
        flight = Flight(place, n_candidates, self._clock(), asyncio.ensure_future(work))
        flights[place.uri] = flight
        flight.task.add_done_callback(lambda task: self._settled(flights, flight, task))
        return flight

    def _settled(self, flights: dict[str, Flight], flight: Flight, task: asyncio.Future[EngineAnswer]) -> None:
        if flights.get(flight.place.uri) is flight:
            del flights[flight.place.uri]
        if task.cancelled() or (error := task.exception()) is None:
            return
        if flights is self._ahead:
            # Nobody waits for it; a request for the same place will meet the same trouble and tell of it.
            log.debug("looking ahead failed: %s", error)
        elif not isinstance(error, EngineError):
            log.error("a request failed", exc_info=error)
