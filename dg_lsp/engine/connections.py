"""Keep connections from using up the process: how many there are, and how long each may take to say what it wants.

Front ends come through the Unix socket and other clients through the port; each kind has a budget of its own, so that
neither can lock out the other. A connection that does nothing makes room for a new one. Knows uvicorn's connections;
knows nothing of requests.
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

# A client writes its headers at once, and a body of 2 MB in less than a second.
HEAD_S = 10.0
BODY_S = 30.0
# At most so many connections are accepted in one go, each for a moment beyond the budget.
BACKLOG = 32
MAX_PORT_CONNECTIONS = 64
MAX_SOCKET_CONNECTIONS = 256


@dataclass(slots=True)
class Budget:
    """How many connections of one kind there may be, and those that there are, the longest idle first."""

    limit: int
    members: dict[Connection, None] = field(default_factory=dict)

    def admit(self, new: Connection) -> bool:
        """Take a connection in, in place of an idle one where the budget is used up; return whether there is room."""
        if len(self.members) >= self.limit:
            idle = [member for member in self.members if not member.is_busy]
            if not idle:
                return False
            # One that has asked before will ask again; one that never did has less to lose.
            idle = [member for member in idle if member.is_new] or idle
            self.remove(idle[0])
            idle[0].drop("there are too many connections")
        self.members[new] = None
        return True

    def touch(self, member: Connection) -> None:
        """Note that a connection has just been busy."""
        if member in self.members:
            del self.members[member]
            self.members[member] = None

    def remove(self, member: Connection) -> None:
        """Forget a connection."""
        self.members.pop(member, None)


@dataclass(slots=True)
class Budgets:
    """One budget for the Unix socket and one for the port."""

    unix: Budget
    port: Budget

    @classmethod
    def for_process(cls) -> Budgets:
        """Return budgets that leave most of what this process may open for everything else."""
        n_files = _most_files()
        return cls(Budget(min(MAX_SOCKET_CONNECTIONS, n_files // 4)), Budget(min(MAX_PORT_CONNECTIONS, n_files // 8)))


class Connection(H11Protocol):
    """A connection within a budget, which ends when its client does not come to the point."""

    budgets: Budgets

    _budget: Budget | None = None
    _timer: asyncio.TimerHandle | None = None
    _phase = ""

    @property
    def is_busy(self) -> bool:
        """Whether a request has come and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_new(self) -> bool:
        """Whether no request has come yet."""
        return self.cycle is None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or end at once where there is no room."""
        super().connection_made(transport)
        used = transport.get_extra_info("socket")
        is_unix = sys.platform != "win32" and used is not None and used.family == socket.AF_UNIX
        budget = self.budgets.unix if is_unix else self.budgets.port
        if not budget.admit(self):
            log.warning("a connection is refused: all %d are busy", budget.limit)
            transport.abort()
            return
        self._budget = budget
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self._budget is not None:
            self._budget.touch(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._budget is not None:
            self._budget.remove(self)
        self._stop_watch()
        super().connection_lost(exc)

    def drop(self, why: str) -> None:
        """End the connection without an answer."""
        log.info("a connection is closed: %s", why)
        self.transport.abort()

    def _watch(self) -> None:
        """Have the connection end in time, unless what was to come has come."""
        phase = self._awaited()
        if phase == self._phase:
            return
        self._stop_watch()
        self._phase = phase
        if phase:
            patience_s = HEAD_S if phase == "headers" else BODY_S
            why = f"its {phase} did not come within {patience_s:g} s"
            self._timer = self.loop.call_later(patience_s, self.drop, why)

    def _awaited(self) -> str:
        """Return what the client has to send now, "" for nothing."""
        if self.transport.is_closing():
            return ""
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        # Between two requests a client may take its time, but not in the middle of one, nor before the first.
        is_begun = self.is_new or bool(self.conn.trailing_data[0])
        return "headers" if self.conn.their_state is h11.IDLE and is_begun else ""

    def _stop_watch(self) -> None:
        self._phase = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def within(budgets: Budgets) -> type[Connection]:
    """Return the class of connections within these budgets, which uvicorn makes itself."""
    return type("Connection", (Connection,), {"budgets": budgets})


def _most_files() -> int:
    try:
        import resource
    except ImportError:
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1024 if soft == resource.RLIM_INFINITY else max(soft, 32)
