"""One engine as its clients see it: its queue and worker, its leases and facts.

Runs on the event loop; the worker's thread reaches it only through the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable

from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.serve.jobs import Limits, Load, Queue, Worker
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import EngineId, EngineSettings
from dg_lsp.wire.messages import PROTOCOL, Bye, Done, Event, Problem, Status

log = logging.getLogger("dg_lsp.engine")

BUILD = discovery.current_build()
"""The build of this process, read before its files can be replaced."""

MAX_WAITING_EVENTS = 16
LAST = (Done, Problem, Bye)
"""The kinds of events that end a stream."""


class Inbox:
    """The event queue of one job or one lease. Any thread may put; only the loop takes."""

    def __init__(self, changed: asyncio.Event) -> None:
        """Start empty, on the running loop; `changed` is set with the last event."""
        self._loop, self._changed = asyncio.get_running_loop(), changed
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        """Add an event from any thread. Do nothing once the loop is closed."""
        call_soon(self._loop, self._put, event)

    def _put(self, event: Event) -> None:
        self._events.put_nowait(event)
        if isinstance(event, LAST):
            # A job may end after its client has disconnected. Only this wakes the shutdown check then.
            self._changed.set()

    def is_slow(self) -> bool:
        """Return whether more than `MAX_WAITING_EVENTS` events wait for the reader."""
        return self._events.qsize() > MAX_WAITING_EVENTS

    async def take(self, timeout_s: float) -> Event | None:
        """Return the next event, or None after the timeout."""
        try:
            return await asyncio.wait_for(self._events.get(), timeout_s)
        except TimeoutError:
            return None


class Service:
    """One engine: its queue and worker, its leases and its settings. `changed` is set when the process may end or unload.

    It holds the whole state of the engine's process, which the routes and the life of the process share.
    """

    def __init__(
        self,
        load: Load,
        limits: Limits,
        engine_id: EngineId,
        settings: EngineSettings,
        *,
        url: str = "",
    ) -> None:
        """Create the queue and the worker; `start` starts them."""
        self.queue = Queue(limits)
        self.worker = Worker(self.queue, load, self._on_status)
        self.engine_id, self.settings, self.url = engine_id, settings, url
        self.started = self.last_lease = time.monotonic()
        self.stop_when_idle = False
        self.stopping = asyncio.Event()
        self.changed = asyncio.Event()
        self._leases: set[Inbox] = set()

    def start(self) -> None:
        """Start the worker and load the model. Call this on the event loop."""
        self._loop = asyncio.get_running_loop()
        self.worker.start()
        self.queue.order("load")

    @property
    def n_leases(self) -> int:
        """The number of clients that hold a lease."""
        return len(self._leases)

    def take_lease(self, *, warm: bool) -> Inbox:
        """Return a new user's inbox, which receives the engine's states. `warm` loads the model if it is unloaded."""
        inbox = Inbox(self.changed)
        self._leases.add(inbox)
        inbox.put(self.queue.status)
        if warm:
            self.queue.order("load")
        return inbox

    def end_lease(self, inbox: Inbox) -> None:
        """Remove a user's lease."""
        self._leases.discard(inbox)
        self.last_lease = time.monotonic()
        self.changed.set()

    def change(self, settings: EngineSettings) -> None:
        """Run with these settings from now on."""
        self.settings = settings
        if (filler := self.worker.filler) is not None:
            filler.limit(settings.threads, settings.rows)
        self.changed.set()

    def stop(self, message: str) -> None:
        """Stop as soon as possible: send each user `bye` with this message, and answer all jobs."""
        if not self.stopping.is_set():
            log.info("%s", message)
            self.stopping.set()
            for inbox in self._leases:
                inbox.put(Bye(message))
        self.changed.set()

    def info(self) -> dict[str, object]:
        """Return the facts that `GET /v1/info` sends."""
        status = self.queue.status
        running, waiting = self.queue.sizes()
        filler = self.worker.filler
        about: dict[str, object] = dict(filler.about()) if filler else {}
        device_bytes, device_free_bytes = about.pop("device_bytes", None), about.pop("device_free_bytes", None)
        return {
            "name": "dg-lsp",
            "version": BUILD,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "url": self.url,
            "state": status.state,
            "message": status.message,
            "fraction": status.fraction,
            "model": self.engine_id.model,
            "revision": self.engine_id.revision,
            "dtype": self.engine_id.dtype,
            "device": self.engine_id.device,
            **about,
            "leases": self.n_leases,
            "running": running,
            "waiting": waiting,
            "memory": {
                "rss_bytes": machine.resident_bytes(),
                "free_bytes": machine.free_bytes(),
                "device_bytes": device_bytes,
                "device_free_bytes": device_free_bytes,
            },
            "uptime_s": round(time.monotonic() - self.started, 3),
            "unload_after_s": self.settings.unload_after_s,
            "exit_after_s": self.settings.exit_after_s,
        }

    def _on_status(self, status: Status) -> None:
        """Send a new status to all users; called by the worker's thread."""
        call_soon(self._loop, self._send_to_leases, status)

    def _send_to_leases(self, status: Status) -> None:
        for inbox in self._leases:
            inbox.put(status)
        self.changed.set()


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Schedule a function on the loop from any thread. Do nothing once the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise
