"""The interface to the engine's requests and model; every method may be called from any thread.

`queue_policy` decides which request runs next, `job_queue` holds the requests behind a lock, and `worker` runs them on its
own thread. Knows listeners as functions. Knows nothing of HTTP or tensors.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.serve.job_queue import BusyError, JobQueue, UnavailableError
from dg_lsp.engine.serve.queue_policy import Emit, Job, Limits
from dg_lsp.engine.serve.worker import Load, Worker
from dg_lsp.engine.task import Filler
from dg_lsp.wire.messages import Ask, Status

__all__ = ["BusyError", "Job", "Limits", "Load", "Scheduler", "UnavailableError"]


class Scheduler:
    """The request queue and its worker thread."""

    def __init__(
        self,
        load: Load,
        *,
        limits: Limits | None = None,
        on_status: Callable[[Status], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the queue and the thread. The model is loaded by `warm` or by the first request."""
        limits = limits or Limits()
        self._queue = JobQueue(limits, clock)
        self._worker = Worker(self._queue, load, max_rows=limits.rows, on_status=on_status, clock=clock)
        self._thread = threading.Thread(target=self._worker.run, name="dg-lsp-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Fail all jobs with "stopping", and end the thread after its current step."""
        self._queue.ask_for("close")
        self._thread.join(timeout_s)

    def warm(self) -> None:
        """Start loading the model if it is unloaded; return at once."""
        self._queue.ask_for("load")

    def unload(self) -> None:
        """Unload the model if there is no job; return at once."""
        self._queue.ask_for("unload")

    def expect(self, request: InfillRequest) -> None:
        """Have the model prepare for a probable request once it is loaded and idle; return at once."""
        self._queue.expect(request)

    def submit(self, ask: Ask, emit: Emit) -> Job:
        """Return a new job. Its events go to `emit`, from any thread. Raises BusyError or UnavailableError."""
        return self._queue.submit(ask, emit)

    def cancel(self, job: Job) -> None:
        """Cancel a job within one step; do nothing if it is over."""
        self._queue.cancel(job)

    def sweep(self) -> None:
        """End cancelled, superseded and overdue jobs that have not started, even while the thread is busy loading."""
        self._queue.sweep()

    @property
    def counts(self) -> Counter[str]:
        """How requests ended, and the milliseconds they took, by name."""
        return self._queue.counts

    def status(self) -> Status:
        """Return the model's state."""
        return self._queue.status

    def filler(self) -> Filler | None:
        """Return the model, for methods that are safe on any thread; None if it is not loaded."""
        return self._worker.filler

    def load_of(self) -> tuple[int, int]:
        """Return the numbers of running and of waiting jobs."""
        return self._queue.sizes()

    def last_used(self) -> float:
        """Return the time of the last work on a job, by the scheduler's clock; the current time if there are jobs."""
        return self._queue.last_used()
