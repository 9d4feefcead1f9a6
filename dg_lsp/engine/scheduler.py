"""The engine's requests and its model, as the rest of the engine calls them, from any thread.

`queue_policy` decides whose turn it is, `job_queue` holds the requests behind a lock, `worker` works on them on a thread of
its own. Knows listeners as functions. Knows nothing of HTTP or tensors.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.job_queue import BusyError, JobQueue, UnavailableError
from dg_lsp.engine.queue_policy import Emit, Job, Limits
from dg_lsp.engine.task import Filler
from dg_lsp.engine.worker import Load, Worker
from dg_lsp.wire.messages import Ask, Status

__all__ = ["BusyError", "Job", "Limits", "Load", "Scheduler", "UnavailableError"]


class Scheduler:
    """The queue, and the thread that works on it."""

    def __init__(
        self,
        load: Load,
        *,
        limits: Limits | None = None,
        on_status: Callable[[Status], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the loader of the model; nothing is loaded before `warm` or the first request."""
        limits = limits or Limits()
        self._queue = JobQueue(limits, clock)
        self._worker = Worker(self._queue, load, max_rows=limits.rows, on_status=on_status, clock=clock)
        self._thread = threading.Thread(target=self._worker.run, name="dg-lsp-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Answer all jobs that the engine is stopping, and end the thread after its step."""
        self._queue.ask_for("close")
        self._thread.join(timeout_s)

    def warm(self) -> None:
        """Load the model if it is not; return at once."""
        self._queue.ask_for("load")

    def unload(self) -> None:
        """Drop the model if no job is there; return at once."""
        self._queue.ask_for("unload")

    def expect(self, request: InfillRequest) -> None:
        """Let the model read ahead, once it is loaded and idle, for a request that will probably come; return at once."""
        self._queue.expect(request)

    def submit(self, ask: Ask, emit: Emit) -> Job:
        """Return the job, whose events go to `emit` from any thread; raise BusyError or UnavailableError."""
        return self._queue.submit(ask, emit)

    def cancel(self, job: Job) -> None:
        """Stop work on a job within one step; a job that is over stays so."""
        self._queue.cancel(job)

    def sweep(self) -> None:
        """End the jobs that wait for nothing any more and were never begun, while the thread may be busy loading."""
        self._queue.sweep()

    @property
    def counts(self) -> Counter[str]:
        """How requests ended, and what they took."""
        return self._queue.counts

    def status(self) -> Status:
        """Return what the model's state is."""
        return self._queue.status

    def filler(self) -> Filler | None:
        """Return the model, for questions that need no thread of its own; None when it is not loaded."""
        return self._worker.filler

    def load_of(self) -> tuple[int, int]:
        """Return how many jobs are under way, and how many wait."""
        return self._queue.sizes()

    def last_used(self) -> float:
        """Return when a job was last worked on, by the scheduler's clock; now, while there are any."""
        return self._queue.last_used()
