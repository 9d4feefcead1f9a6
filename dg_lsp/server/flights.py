"""The running requests to the engine: for each document one, and one that asks ahead for the text after a suggestion.

Several requests from the editor may wait for one flight, a running request to the engine. A flight that no request waits for
is cancelled after a short delay, because the next keystroke's request may still join it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from dg_lsp.client.port import EngineError
from dg_lsp.infill.pipeline import Suggestion
from dg_lsp.server import decisions
from dg_lsp.server.decisions import Place, Reason

log = logging.getLogger(__name__)

# A flight without waiting requests runs on for this long, so that the next keystroke's request can join it.
GRACE_S = 0.15

# The suggestions, and the reason when there are none.
EngineAnswer = tuple[tuple[Suggestion, ...], Reason | None]


@dataclass(eq=False, slots=True)
class Flight:
    """One request to the engine for a place and a number of candidates, which several requests from the editor may wait for."""

    place: Place
    n_candidates: int
    started: float
    task: asyncio.Future[EngineAnswer]
    n_waiting: int = 0

    async def wait(self, replaced: asyncio.Event, *, raises: bool) -> EngineAnswer | None:
        """Return the answer; None when `replaced` is set first, or the request was cancelled.

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
            return None
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
        self.direct: dict[str, Flight] = {}
        """The running request of each document, without those that ask ahead."""
        self._ahead: dict[str, Flight] = {}

    def joinable(self, place: Place, latency_ms: float) -> Flight | None:
        """Return the running request whose answer may fit this place; None when there is none."""
        flight = self.direct.get(place.uri)
        if flight is None or flight.task.done():
            return None
        age_ms = 1000 * (self._clock() - flight.started)
        return flight if decisions.joins(flight.place, place, age_ms=age_ms, latency_ms=latency_ms) else None

    def start(
        self, place: Place, n_candidates: int, work: Coroutine[None, None, EngineAnswer], *, is_ahead: bool = False
    ) -> Flight:
        """Return a new running request; cancel the document's older ones, or with `is_ahead` the one that asks ahead."""
        self.cancel(place.uri, only_ahead=is_ahead)
        flights = self._ahead if is_ahead else self.direct
        flight = flights[place.uri] = Flight(place, n_candidates, self._clock(), asyncio.ensure_future(work))

        def settled(task: asyncio.Future[EngineAnswer]) -> None:
            if flights.get(place.uri) is flight:
                del flights[place.uri]
            if task.cancelled() or (error := task.exception()) is None:
                return
            if is_ahead:
                # No request waits for it. A request for the same place will fail too, and report the error.
                log.debug("asking ahead failed: %s", error)
            elif not isinstance(error, EngineError):
                log.error("a request failed", exc_info=error)

        flight.task.add_done_callback(settled)
        return flight

    def cancel(self, uri: str, *, only_ahead: bool = False) -> None:
        """Cancel a document's requests."""
        for flights in (self._ahead,) if only_ahead else (self.direct, self._ahead):
            if (older := flights.pop(uri, None)) is not None:
                older.task.cancel()

    async def close(self) -> None:
        """Cancel all requests."""
        tasks = [flight.task for flights in (self.direct, self._ahead) for flight in flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
