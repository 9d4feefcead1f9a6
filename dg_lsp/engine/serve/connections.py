"""Limit the number of connections, and the time in which each must send its request.

Front ends use the Unix socket and other clients use the port. Each kind has its own budget, so neither can lock out the
other. An idle connection is closed when a new one needs its place.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from dataclasses import dataclass, field

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("dg_lsp.engine")

# Generous: a client sends its headers at once, and a body of 2 MB in less than a second.
HEAD_S = 10.0
BODY_S = 30.0
# The server accepts at most this many connections at a time. Each exceeds the budget only briefly.
BACKLOG = 32
MAX_PORT_CONNECTIONS = 64
MAX_SOCKET_CONNECTIONS = 256


@dataclass(slots=True)
class Budget:
    """The limit for one kind of connection, and its open connections, longest idle first."""

    limit: int
    members: dict[Connection, None] = field(default_factory=dict)

    def admit(self, new: Connection) -> bool:
        """Add a connection and return True; close an idle one if the budget is full. Return False if all are busy."""
        if len(self.members) >= self.limit:
            idle = [member for member in self.members if not member.is_busy]
            if not idle:
                return False
            # Close a connection that has never sent a request first: a client that sent one will probably send another.
            idle = [member for member in idle if member.is_new] or idle
            self.remove(idle[0])
            idle[0].drop("too many connections")
        self.members[new] = None
        return True

    def touch(self, member: Connection) -> None:
        """Move a connection to the end of the order, because it was just busy."""
        if member in self.members:
            del self.members[member]
            self.members[member] = None

    def remove(self, member: Connection) -> None:
        """Remove a connection, if it is present."""
        self.members.pop(member, None)


@dataclass(slots=True)
class Budgets:
    """One budget for the Unix socket and one for the port."""

    unix: Budget
    port: Budget

    @classmethod
    def for_process(cls) -> Budgets:
        """Return budgets that leave most of this process's file descriptors for other uses."""
        n_files = _most_files()
        return cls(Budget(min(MAX_SOCKET_CONNECTIONS, n_files // 4)), Budget(min(MAX_PORT_CONNECTIONS, n_files // 8)))


class Connection(H11Protocol):
    """A connection that counts in a budget and closes when its request does not arrive in time."""

    budgets: Budgets

    _budget: Budget | None = None
    _timer: asyncio.TimerHandle | None = None
    _phase = ""

    @property
    def is_busy(self) -> bool:
        """Whether a request has arrived and its response is incomplete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_new(self) -> bool:
        """Whether no request has arrived yet."""
        return self.cycle is None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the connection, or close it at once if the budget is full."""
        super().connection_made(transport)
        raw_socket = transport.get_extra_info("socket")
        is_unix = sys.platform != "win32" and raw_socket is not None and raw_socket.family == socket.AF_UNIX
        budget = self.budgets.unix if is_unix else self.budgets.port
        if not budget.admit(self):
            log.warning("refused a connection: all %d connections are busy", budget.limit)
            transport.abort()
            return
        self._budget = budget
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read data, and restart the timeout."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Mark the connection as idle, and wait for the next request."""
        super().on_response_complete()
        if self._budget is not None:
            self._budget.touch(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from its budget, and stop its timeout."""
        if self._budget is not None:
            self._budget.remove(self)
        self._stop_watch()
        super().connection_lost(exc)

    def drop(self, why: str) -> None:
        """Close the connection without a response, and log the reason."""
        log.info("closed a connection: %s", why)
        self.transport.abort()

    def _watch(self) -> None:
        """Start a timeout for the part of the request that is due now, or stop the timeout if none is."""
        phase = self._awaited()
        if phase == self._phase:
            return
        self._stop_watch()
        self._phase = phase
        if phase:
            patience_s = HEAD_S if phase == "headers" else BODY_S
            why = f"its {phase} did not arrive within {patience_s:g} s"
            self._timer = self.loop.call_later(patience_s, self.drop, why)

    def _awaited(self) -> str:
        """Return the part of a request that the client must send now: "headers", "body", or "" for nothing."""
        if self.transport.is_closing():
            return ""
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        # A client may pause between two requests, but neither within a request nor before its first one.
        is_begun = self.is_new or bool(self.conn.trailing_data[0])
        return "headers" if self.conn.their_state is h11.IDLE and is_begun else ""

    def _stop_watch(self) -> None:
        self._phase = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def within(budgets: Budgets) -> type[Connection]:
    """Return a subclass of Connection with these budgets, because uvicorn creates the connections itself."""
    return type("Connection", (Connection,), {"budgets": budgets})


def _most_files() -> int:
    try:
        import resource
    except ImportError:
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1024 if soft == resource.RLIM_INFINITY else max(soft, 32)
