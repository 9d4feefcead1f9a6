"""Spread calls over servers that serve the same model: the least loaded first, as many at once as each admits.

A server that can't be reached or fails is left out for a while, and its calls go to the others. One that says that it has
too many requests gets fewer at a time. Knows servers and calls. Knows nothing of what is asked.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TypeVar

from dg_lsp.engine.backends.http_client import Call, RemoteError, Server, ServerClient, outcome_of
from dg_lsp.wire.fields import Fields

FIRST_CALLS = 32
MOST_CALLS = 256
"""So many calls a server gets at once at first, and at most; it gets more while it answers."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MOST_REFUSALS = 8
OVERLOADED = frozenset({429, 503})
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Replica:
    """One server: calls under way and how many it admits, and until when it is left out after so many failures."""

    client: ServerClient
    n_calls: int = 0
    admits: int = FIRST_CALLS
    back_at: float = 0.0
    n_failures: int = 0
    last_used: int = 0
    is_checked: bool = True


@dataclass(slots=True, eq=False)
class _Trip:
    """A call on its way: its answer to come, the servers that failed it, and how often one was too busy for it."""

    call: Call
    answer: Future[Fields] = field(default_factory=Future)
    tried: set[int] = field(default_factory=set)
    n_refusals: int = 0
    under_way: Future[Fields] | None = None

    def end(self, outcome: Fields | RemoteError) -> None:
        try:
            if isinstance(outcome, RemoteError):
                self.answer.set_exception(outcome)
            else:
                self.answer.set_result(outcome)
        except InvalidStateError:  # cancelled meanwhile
            return


class Replicas:
    """Several servers as one client; `close` ends all of their threads."""

    def __init__(self, servers: Sequence[Server], clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clients' threads; nothing is sent yet."""
        self.replicas = [Replica(ServerClient(server)) for server in servers]
        self.check: Callable[[ServerClient], None] = lambda _client: None
        """Called on a thread before a server is used that was away at first; raises RemoteError for one of another kind."""
        self._clock = clock
        self._lock = threading.RLock()
        self._waiting: deque[_Trip] = deque()
        self._n_sent = 0
        self._is_closed = False
        self._timer: threading.Timer | None = None

    @property
    def server(self) -> Server:
        """The first server."""
        return self.replicas[0].client.server

    @property
    def host(self) -> str:
        """The servers' names."""
        return ", ".join(replica.client.host for replica in self.replicas)

    def first(self, look: Callable[[ServerClient], Result]) -> Result:
        """Return what the first server that is there comes to; raise the first one's RemoteError where none is.

        Those before it are left out for a while; those after it are not checked yet.
        """
        errors: list[RemoteError] = []
        for idx, replica in enumerate(self.replicas):
            try:
                result = look(replica.client)
            except RemoteError as error:
                if not _is_the_servers(error):
                    raise
                errors.append(error)
                self.leave_out(replica, is_checked=False)
                continue
            for later in self.replicas[idx + 1 :]:
                later.is_checked = False
            return result
        raise errors[0]

    def check_others(self) -> None:
        """Check the servers that were not; raise RemoteError for one that serves something else, leave out those away."""
        for replica in self.replicas:
            if replica.is_checked or replica.n_failures:
                continue
            try:
                self.check(replica.client)
                replica.is_checked = True
            except RemoteError as error:
                if not _is_the_servers(error):
                    raise
                self.leave_out(replica, is_checked=False)

    def leave_out(self, replica: Replica, *, is_checked: bool) -> None:
        """Leave a server out for a while, longer with each failure in a row."""
        with self._lock:
            replica.n_failures += 1
            replica.is_checked = is_checked
            replica.admits = 1
            pause_s = min(FIRST_PAUSE_S * 2 ** (replica.n_failures - 1), LONGEST_PAUSE_S)
            replica.back_at = self._clock() + pause_s

    def send(self, call: Call, done: Callable[[], None] = lambda: None) -> Future[Fields]:
        """Return the answer to come, from whichever server; it fails with RemoteError alone, when all of them failed.

        Cancelling it closes its connection. `done` is called, on a thread of a client, when it is there or has failed.
        """
        trip = _Trip(call)
        trip.answer.add_done_callback(lambda answer: self._dropped(trip) if answer.cancelled() else None)
        trip.answer.add_done_callback(lambda _: done())
        with self._lock:
            self._waiting.append(trip)
        self._drain()
        return trip.answer

    def ask(self, call: Call) -> Fields:
        """Return the answer; raise RemoteError when there is none."""
        outcome = outcome_of(self.send(call))
        if isinstance(outcome, RemoteError):
            raise outcome
        return outcome

    def close(self) -> None:
        """Drop what is under way and end the threads; a second time does nothing."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = list(self._waiting), deque()
            if self._timer:
                self._timer.cancel()
        for trip in waiting:
            trip.end(RemoteError("the connection to the server is closed"))
        for replica in self.replicas:
            replica.client.close()

    def _drain(self) -> None:
        """Send what waits, as far as servers admit it."""
        while True:
            with self._lock:
                if not self._waiting or self._is_closed:
                    return
                trip = self._waiting[0]
                replica = None if trip.answer.cancelled() else self._choose(trip)
                if replica is None and not trip.answer.cancelled():
                    self._wake_later()
                    return
                self._waiting.popleft()
                if replica is None:
                    continue
                self._n_sent += 1
                replica.n_calls, replica.last_used = replica.n_calls + 1, self._n_sent
            self._start(trip, replica)

    def _start(self, trip: _Trip, replica: Replica) -> None:
        under_way = replica.client.send(trip.call)
        trip.under_way = under_way
        under_way.add_done_callback(lambda future: self._ended(trip, replica, future))
        if trip.answer.cancelled():
            under_way.cancel()

    def _choose(self, trip: _Trip) -> Replica | None:
        """Return the server for a call; None while all that could take it have enough."""
        now = self._clock()
        for replica in self.replicas:
            if not replica.is_checked and replica.back_at <= now:
                self._check_later(replica)
        untried = [replica for replica in self.replicas if id(replica) not in trip.tried and replica.is_checked]
        here = [replica for replica in untried if replica.back_at <= now]
        if not here and not any(replica.n_calls for replica in self.replicas) and not trip.n_refusals:
            here = sorted(untried, key=lambda replica: replica.back_at)[:1]  # rather than nobody
        free = [replica for replica in here if replica.n_calls < replica.admits]
        return min(free, key=lambda replica: (replica.n_calls, replica.last_used), default=None)

    def _ended(self, trip: _Trip, replica: Replica, future: Future[Fields]) -> None:
        outcome: Fields | RemoteError | None = outcome_of(future)
        with self._lock:
            replica.n_calls -= 1
        if trip.answer.cancelled():
            self._drain()
            return
        if isinstance(outcome, RemoteError) and _is_the_servers(outcome):
            with self._lock:
                if outcome.status in OVERLOADED:
                    trip.n_refusals += 1
                    replica.admits = max(1, replica.n_calls // 2)
                    replica.back_at = self._clock() + FIRST_PAUSE_S
                else:
                    trip.tried.add(id(replica))
                    self.leave_out(replica, is_checked=replica.is_checked)
                is_over = len(trip.tried) == sum(each.is_checked for each in self.replicas) or trip.n_refusals > MOST_REFUSALS
                if not is_over and not self._is_closed:
                    self._waiting.appendleft(trip)
                    outcome = None
        else:
            with self._lock:
                replica.admits, replica.n_failures = min(replica.admits + 1, MOST_CALLS), 0
        if outcome is not None:
            trip.end(outcome)
        self._drain()

    def _dropped(self, trip: _Trip) -> None:
        if trip.under_way is not None:
            trip.under_way.cancel()

    def _wake_later(self) -> None:
        """Look again when the first server is back, where no answer will do so before."""
        if self._timer is not None:
            return
        back_at = min((replica.back_at for replica in self.replicas if replica.back_at > self._clock()), default=math.inf)
        if back_at < math.inf:
            self._timer = threading.Timer(back_at - self._clock() + 0.001, self._wake)
            self._timer.daemon = True
            self._timer.start()

    def _wake(self) -> None:
        with self._lock:
            self._timer = None
        self._drain()

    def _check_later(self, replica: Replica) -> None:
        replica.back_at = math.inf
        threading.Thread(target=self._checked, args=(replica,), name="dg-lsp-replica", daemon=True).start()

    def _checked(self, replica: Replica) -> None:
        try:
            self.check(replica.client)
        except RemoteError:
            self.leave_out(replica, is_checked=False)
        else:
            with self._lock:
                replica.is_checked, replica.back_at, replica.n_failures = True, 0.0, 0
        self._drain()


def _is_the_servers(error: RemoteError) -> bool:
    """Return whether another server may answer: this one is away, broken or too busy, and the call is not at fault."""
    return error.status == 0 or error.status in OVERLOADED or error.status >= 500
