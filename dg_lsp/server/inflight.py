"""Running requests to the engine: for each document one, and one that asks ahead for the text after a suggestion.

Several requests from the editor may wait for one flight, a running request to the engine. A flight that no request waits
for is cancelled after a short delay, because the next keystroke's request may still join it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from dg_lsp.infill.port import EngineError
from dg_lsp.server import reuse
from dg_lsp.server.reuse import Offer, Place

log = logging.getLogger(__name__)

# A flight without waiting requests runs on for this long, so that the next keystroke's request can join it.
GRACE_S = 0.15

# The offers, and the reason when there are none.
EngineAnswer = tuple[tuple[Offer, ...], str]


class Flight:
    """One request to the engine, which several requests from the editor may wait for."""

    def __init__(self, place: Place, n_candidates: int, started: float, task: asyncio.Future[EngineAnswer]) -> None:
        """Hold a request that was sent for this place and this number of candidates."""
        self.place, self.n_candidates, self.started, self.task = place, n_candidates, started, task
        self.n_waiting = 0

    async def wait(self, replaced: asyncio.Event, *, raises: bool) -> EngineAnswer | None:
        """Return the answer; None when `replaced` is set first, or the request was cancelled.

        When the engine fails, raises EngineError with `raises`; without it, the error is the reason for no offers.
        """
        self.n_waiting += 1
        replacing = asyncio.ensure_future(replaced.wait())
        try:
            await asyncio.wait((self.task, replacing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            replacing.cancel()
            self.n_waiting -= 1
            self._cancel_if_unused()
        if replaced.is_set() or not self.task.done() or self.task.cancelled():
            return None
        try:
            return self.task.result()
        except EngineError as error:
            if raises:
                raise
            return (), str(error)

    def _cancel_if_unused(self) -> None:
        """Cancel the request after a delay, unless another request waits for it by then."""
        if self.n_waiting or self.task.done():
            return

        def end() -> None:
            if not self.n_waiting:
                self.task.cancel()

        asyncio.get_running_loop().call_later(GRACE_S, end)


class Flights:
    """The running requests of one session."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with no request; `clock` returns the time in seconds."""
        self._clock = clock
        self._direct: dict[str, Flight] = {}
        self._ahead: dict[str, Flight] = {}

    def has(self, uri: str) -> bool:
        """Return whether a request for this document is running; one that asks ahead does not count."""
        return uri in self._direct

    def joinable(self, place: Place, latency_ms: float) -> Flight | None:
        """Return the running request whose answer may fit this place; None when there is none."""
        flight = self._direct.get(place.uri)
        if flight is None or flight.task.done():
            return None
        age_ms = 1000 * (self._clock() - flight.started)
        return flight if reuse.joins(flight.place, place, age_ms=age_ms, latency_ms=latency_ms) else None

    def start(self, place: Place, n_candidates: int, work: Coroutine[None, None, EngineAnswer]) -> Flight:
        """Return a new running request; cancel the document's older ones."""
        self._cancel(place.uri)
        return self._start(self._direct, place, n_candidates, work)

    def look_ahead(self, place: Place, work: Coroutine[None, None, EngineAnswer]) -> None:
        """Start a request that asks ahead; cancel the document's earlier one."""
        if (older := self._ahead.pop(place.uri, None)) is not None:
            older.task.cancel()
        self._start(self._ahead, place, 1, work)

    def forget(self, uri: str) -> None:
        """Cancel a document's requests."""
        self._cancel(uri)

    async def close(self) -> None:
        """Cancel all requests."""
        tasks = [flight.task for flights in (self._direct, self._ahead) for flight in flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel(self, uri: str) -> None:
        for flights in (self._direct, self._ahead):
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
            # No request waits for it. A request for the same place will fail too, and report the error.
            log.debug("asking ahead failed: %s", error)
        elif not isinstance(error, EngineError):
            log.error("a request failed", exc_info=error)
