"""The state of an engine's process: its queue and worker, its settings, and its leases.

The connections of our own clients, the endpoints of other clients and the life of the process share it. All of it runs on the
event loop; the worker's thread reaches it only through the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Generic, TypeVar

from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.serve.queue import Emit, Job, Queue, RefusalError
from dg_lsp.engine.serve.worker import Load, Worker
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import EngineId, EngineSettings
from dg_lsp.wire.messages import PROTOCOL, Ask, Bye, Done, Event, Fields, Problem, Status, WireError

log = logging.getLogger("dg_lsp.engine")

BUILD = discovery.current_build()
"""The build of this process, read before its files can be replaced."""
MAX_WAITING_EVENTS = 16
LAST = (Done, Problem, Bye)
"""The kinds of events that end a stream."""
T = TypeVar("T")


class Inbox(Generic[T]):
    """What is to be sent to one client. Any thread may put; only the loop takes."""

    def __init__(self) -> None:
        """Start empty, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[T] = asyncio.Queue()

    def put(self, event: T) -> None:
        """Add an event from any thread. Do nothing once the loop is closed."""
        call_soon(self._loop, self._events.put_nowait, event)

    def is_slow(self) -> bool:
        """Return whether more than `MAX_WAITING_EVENTS` events wait for the reader."""
        return self._events.qsize() > MAX_WAITING_EVENTS

    async def take(self, timeout_s: float) -> T | None:
        """Return the next event, or None after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._events.get()
        except TimeoutError:
            return None


class Service:
    """One engine: its queue and worker, its settings, and a lease for each client. `changed` is set when it may end or unload.

    A lease is the function that sends its client an event.
    """

    def __init__(
        self,
        load: Load,
        engine_id: EngineId,
        settings: EngineSettings,
        *,
        url: str = "",
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the service; `on_stop` is called before clients learn that it stops."""
        self.queue = Queue()
        self.worker = Worker(self.queue, load, self._on_status)
        self.engine_id, self.settings, self.url = engine_id, settings, url
        self.started = self.last_lease = time.monotonic()
        self.stop_when_idle = False
        self.stopping = asyncio.Event()
        self.changed = asyncio.Event()
        self.leases: set[Emit] = set()
        self._on_stop = on_stop

    def start(self) -> None:
        """Start the worker and load the model. Call this on the event loop."""
        self._loop = asyncio.get_running_loop()
        self.worker.start()
        self.queue.order("load")

    def take_lease(self, emit: Emit) -> None:
        """Count a client until `end_lease`, load the model for it, and send it the engine's states."""
        self.leases.add(emit)
        emit(self.queue.status)
        self.queue.order("load")

    def end_lease(self, emit: Emit) -> None:
        self.leases.discard(emit)
        self.last_lease = time.monotonic()
        self.changed.set()

    def submit(self, ask: Ask, emit: Emit) -> Job:
        """Return a new job, whose events go to `emit`, from any thread. Raises RefusalError."""

        def sent(event: Event) -> None:
            emit(event)
            if isinstance(event, LAST):
                # A job may end after its client has disconnected. Only this wakes the shutdown check then.
                call_soon(self._loop, self.changed.set)

        job = self.queue.submit(ask, sent)
        if ask.request.budget.ms:
            # The worker checks deadlines, but it may be busy loading the model.
            self._loop.call_later(ask.request.budget.ms / 1000, self.queue.sweep)
        return job

    def change(self, fields: Fields) -> dict[str, Any]:
        """Let the engine run with these settings from its next step on, and return all settings; raise WireError."""
        now = self.settings
        self.settings = replace(
            now,
            threads=fields.integer("threads", now.threads, high=1024),
            unload_after_s=max(0.0, fields.number("unload_after_s", now.unload_after_s)),
            exit_after_s=max(0.0, fields.number("exit_after_s", now.exit_after_s)),
        )
        if (filler := self.worker.filler) is not None:
            filler.limit(self.settings.threads)
        self.changed.set()
        return asdict(self.settings)

    def shut_down(self, fields: Fields) -> dict[str, Any]:
        """Stop now, or once there are no leases and no requests, and return their numbers; raise WireError."""
        when = fields.choice("when", ("idle", "now"), "idle")
        before = {"when": when, "leases": len(self.leases), "requests": sum(self.queue.sizes())}
        if when == "now":
            self.stop("the engine received a shutdown request")
        else:
            self.stop_when_idle = True
            self.changed.set()
        return before

    def stop(self, message: str) -> None:
        """Stop as soon as possible: send each client `bye` with this message."""
        if not self.stopping.is_set():
            log.info("%s", message)
            self._on_stop()
            self.stopping.set()
            for emit in self.leases:
                emit(Bye(message))
        self.changed.set()

    def info(self) -> dict[str, Any]:
        status = self.queue.status
        running, waiting = self.queue.sizes()
        filler = self.worker.filler
        about: dict[str, Any] = dict(filler.about()) if filler else {}
        device_bytes, device_free_bytes = about.pop("device_bytes", None), about.pop("device_free_bytes", None)
        return {
            "name": "dg-lsp",
            "version": BUILD,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "url": self.url,
            **asdict(status),
            "model": self.engine_id.model,
            "dtype": self.engine_id.dtype,
            "device": self.engine_id.device,
            **about,
            "leases": len(self.leases),
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
        for emit in self.leases:
            emit(status)
        self.changed.set()


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Schedule a function on the loop from any thread. Do nothing once the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def refusal_of(error: Exception) -> RefusalError:
    """Return how a client is told of an error; log one that is the engine's own."""
    match error:
        case RefusalError():
            return error
        case WireError():
            return RefusalError("bad_request", str(error))
    log.error("a request failed", exc_info=error)
    return RefusalError("engine_failed", f"the engine failed on this request ({type(error).__name__}); its log says where")
