"""Distribute calls over several servers of the same model: the least loaded first, each up to its current limit.

A server that fails or can't be reached is left out for a while, and its calls go to the others. A server that reports
too many requests gets fewer at a time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerAddress, ServerClient, outcome_of
from dg_lsp.wire.messages import Fields

log = logging.getLogger("dg_lsp.engine")

FIRST_CALLS = 32
MOST_CALLS = 256
"""The first and the highest limit of concurrent calls to one server. Each answer raises the limit by one."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MOST_REFUSALS = 8
OVERLOADED = frozenset({429, 503})
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Replica:
    """One server: its running calls, its limit (`admits`), its failures in a row, and when it is used again (`back_at`)."""

    client: ServerClient
    n_calls: int = 0
    admits: int = FIRST_CALLS
    back_at: float = 0.0
    n_failures: int = 0
    last_used: int = 0
    is_checked: bool = True


@dataclass(slots=True, eq=False)
class _PendingCall:
    """A call and its future answer. `tried` are the servers that failed it, `n_refusals` counts busy servers."""

    call: Call
    answer: Future[Fields] = field(default_factory=Future)
    tried: set[int] = field(default_factory=set)
    n_refusals: int = 0
    attempt: Future[Fields] | None = None

    def end(self, outcome: Fields | RemoteError) -> None:
        try:
            if isinstance(outcome, RemoteError):
                self.answer.set_exception(outcome)
            else:
                self.answer.set_result(outcome)
        except InvalidStateError:  # cancelled meanwhile
            return


class Replicas:
    """A client for several servers of one model; `close` ends all of their threads."""

    def __init__(self, servers: Sequence[ServerAddress], clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clients' threads; nothing is sent yet."""
        self.replicas = [Replica(ServerClient(server)) for server in servers]
        self.check: Callable[[ServerClient], None] = lambda _client: None
        """Called on a thread for a server that was unavailable at the start; raises RemoteError if it serves something else."""
        self._clock = clock
        self._lock = threading.RLock()
        self._waiting: deque[_PendingCall] = deque()
        self._n_sent = 0
        self._is_closed = False
        self._timer: threading.Timer | None = None
        self._wakes_at = math.inf

    @property
    def server(self) -> ServerAddress:
        """The first server."""
        return self.replicas[0].client.server

    @property
    def host(self) -> str:
        """The servers' host names."""
        return ", ".join(replica.client.host for replica in self.replicas)

    def first(self, probe: Callable[[ServerClient], Result]) -> Result:
        """Return the result of `probe` for the first available server; raise the first server's RemoteError if none is.

        Servers before it are left out for a while. Servers after it count as unchecked.
        """
        errors: list[RemoteError] = []
        for idx, replica in enumerate(self.replicas):
            try:
                result = probe(replica.client)
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
        """Check the unchecked servers and leave out unavailable ones; raise RemoteError if one serves something else."""
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

    def send(self, call: Call) -> Future[Fields]:
        """Return a future for the answer of any server. It fails only with RemoteError, when every server has failed.

        Cancelling it closes its connection.
        """
        pending = _PendingCall(call)

        def drop(answer: Future[Fields]) -> None:
            if answer.cancelled() and pending.attempt is not None:
                pending.attempt.cancel()

        pending.answer.add_done_callback(drop)
        with self._lock:
            self._waiting.append(pending)
        self._drain()
        return pending.answer

    def ask(self, call: Call) -> Fields:
        """Send a call and return its answer; raise RemoteError if it fails."""
        outcome = outcome_of(self.send(call))
        if isinstance(outcome, RemoteError):
            raise outcome
        return outcome

    def close(self) -> None:
        """Cancel all calls and end the threads. Calling it again does nothing."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = list(self._waiting), deque()
            if self._timer:
                self._timer.cancel()
        for pending in waiting:
            pending.end(RemoteError("the connection to the server is closed"))
        for replica in self.replicas:
            replica.client.close()

    def _drain(self) -> None:
        """Send the waiting calls, up to the servers' limits."""
        while True:
            with self._lock:
                if not self._waiting or self._is_closed:
                    return
                pending = self._waiting[0]
                # One reading of the clock for both: a pause that ends in between would be neither over nor waited for.
                now = self._clock()
                replica = None if pending.answer.cancelled() else self._choose(pending, now)
                if replica is None and not pending.answer.cancelled():
                    self._wake_later(now)
                    return
                self._waiting.popleft()
                if replica is None:
                    continue
                self._n_sent += 1
                replica.n_calls, replica.last_used = replica.n_calls + 1, self._n_sent
            pending.attempt = attempt = replica.client.send(pending.call)
            attempt.add_done_callback(partial(self._ended, pending, replica))
            if pending.answer.cancelled():
                attempt.cancel()

    def _choose(self, pending: _PendingCall, now: float) -> Replica | None:
        """Return the server for a call; None while every usable server is at its limit."""
        for replica in self.replicas:
            if not replica.is_checked and replica.back_at <= now:
                replica.back_at = math.inf
                threading.Thread(target=self._checked, args=(replica,), name="dg-lsp-replica", daemon=True).start()
        untried = [replica for replica in self.replicas if id(replica) not in pending.tried and replica.is_checked]
        available = [replica for replica in untried if replica.back_at <= now]
        if not available and not any(replica.n_calls for replica in self.replicas) and not pending.n_refusals:
            available = sorted(untried, key=lambda replica: replica.back_at)[:1]  # rather than no server at all
        free = [replica for replica in available if replica.n_calls < replica.admits]
        return min(free, key=lambda replica: (replica.n_calls, replica.last_used), default=None)

    def _ended(self, pending: _PendingCall, replica: Replica, future: Future[Fields]) -> None:
        outcome: Fields | RemoteError | None = outcome_of(future)
        with self._lock:
            replica.n_calls -= 1
        if pending.answer.cancelled():
            self._drain()
            return
        if isinstance(outcome, RemoteError) and _is_the_servers(outcome):
            with self._lock:
                if outcome.status in OVERLOADED:
                    pending.n_refusals += 1
                    replica.admits = max(1, replica.n_calls // 2)
                    replica.back_at = self._clock() + FIRST_PAUSE_S
                else:
                    pending.tried.add(id(replica))
                    self.leave_out(replica, is_checked=replica.is_checked)
                is_over = (
                    len(pending.tried) == sum(each.is_checked for each in self.replicas) or pending.n_refusals > MOST_REFUSALS
                )
                if not is_over and not self._is_closed:
                    self._waiting.appendleft(pending)
                    outcome = None
        else:
            with self._lock:
                replica.admits, replica.n_failures = min(replica.admits + 1, MOST_CALLS), 0
        if outcome is not None:
            pending.end(outcome)
        self._drain()

    def _wake_later(self, now: float) -> None:
        """Schedule another attempt for when the first server may be used again."""
        back_at = min((replica.back_at for replica in self.replicas if replica.back_at > now), default=math.inf)
        if back_at >= self._wakes_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = back_at
        self._timer = threading.Timer(back_at - now + 0.001, self._wake, (back_at,))
        self._timer.daemon = True
        self._timer.start()

    def _wake(self, back_at: float) -> None:
        with self._lock:
            # A timer that was replaced can still fire, and is then not the one that is being waited for.
            if self._wakes_at == back_at:
                self._wakes_at, self._timer = math.inf, None
        self._drain()

    def _checked(self, replica: Replica) -> None:
        try:
            self.check(replica.client)
        except Exception as error:
            if not isinstance(error, RemoteError):
                log.exception("checking %s failed", replica.client.host)
            # After any error: the server is left out until this ends.
            self.leave_out(replica, is_checked=False)
        else:
            with self._lock:
                replica.is_checked, replica.back_at, replica.n_failures = True, 0.0, 0
        self._drain()


def _is_the_servers(error: RemoteError) -> bool:
    """Return whether the server caused the error, not the call: it is unreachable, broken or busy."""
    return error.status == 0 or error.status in OVERLOADED or error.status >= 500
