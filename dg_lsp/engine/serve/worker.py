"""Run the queue's jobs one step at a time, on the only thread that uses the model.

A step is never interrupted. Between steps, the worker checks cancellations, deadlines and the queue. It also loads and
unloads the model.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from dg_lsp.core.values import Candidate
from dg_lsp.engine.serve.jobs import Job, Queue
from dg_lsp.engine.task import Filler, OnProgress, UserError
from dg_lsp.wire.messages import Draft, Reason, Status

log = logging.getLogger("dg_lsp.engine")

DRAFT_EVERY_S = 0.03
Load = Callable[[OnProgress], Filler]


class Worker:
    """The loaded model, and the thread that runs the queue's jobs on it.

    `filler` is None if no model is loaded. Other threads may call those of its methods that are safe on any thread.
    """

    def __init__(self, queue: Queue, load: Load, on_status: Callable[[Status], None] = lambda _: None) -> None:
        """Create the thread. `load` returns the model; it is called for the first job, or on an order of the queue."""
        self.filler: Filler | None = None
        self._queue, self._load, self._on_status, self._clock = queue, load, on_status, queue.clock
        self._rows, self._has_finished = queue.limits.rows, False
        self._thread = threading.Thread(target=self._run, name="dg-lsp-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Fail all jobs with "stopping", and end the thread after its current step."""
        self._queue.order("close")
        self._thread.join(timeout_s)

    def is_on_gpu(self) -> bool:
        """Return whether a model is loaded on a GPU."""
        filler = self.filler
        return filler is not None and filler.is_on_gpu()

    def _run(self) -> None:
        while True:
            if self._has_finished:
                self._has_finished = False
                return_freed_memory()
            # No local variable may hold the model here, or unloading would not free it.
            concurrency = None if self.filler is None else self.filler.concurrency()
            work = self._queue.next_work(concurrency, self._has_room)
            match work.kind:
                case "close":
                    return self._queue.fail_all("stopping", "the engine is stopping")
                case "load":
                    self._get_model()
                case "unload":
                    self._drop_model()
                case "foresee":
                    self._foresee()
                case "turn":
                    for over, reason in work.over:
                        self._finish(over, reason)
                    if work.job is not None and self.filler is not None:
                        self._step(work.job, self.filler)

    def _step(self, job: Job, filler: Filler) -> None:
        """Run one step of a job, and of the jobs that share its pass."""
        for each in self._predict_together(job, filler):
            if each.end is None:
                self._advance(each, filler)

    def _has_room(self) -> bool:
        """Return whether memory has room for another job; True if this can't be measured."""
        try:
            return self.filler is None or self.filler.has_room()
        except Exception as error:  # a failed measurement must not stop all later jobs
            log.warning("could not measure the free memory", exc_info=error)
            return True

    def _foresee(self) -> None:
        """Do one short unit of preparation for the next request. It does not count as use of the engine."""
        expected = self._queue.take_expected()
        if self.filler is None:
            return
        try:
            if expected is not None:
                self.filler.expect(expected)
            if self.filler.foresee():
                self._queue.foresee_more()
        except Exception as error:  # no client waits for this, so only the log gets the error
            log.warning("could not prepare for the next request", exc_info=error)
            if is_out_of_memory(error):
                give_back_memory()

    def _predict_together(self, job: Job, filler: Filler) -> list[Job]:
        """Return the jobs to step now, `job` first: those that one shared pass was done for, or `job` alone."""
        if filler.concurrency() != "joined" or job.task is None:
            return [job]
        jobs = self._queue.batchable(job)
        tasks = [each.task for each in jobs if each.task is not None]
        if len(tasks) < 2:  # no other job to share a pass with
            return [job]
        began = self._clock()
        try:
            shared_indexes = filler.predict_together(tasks, self._rows)
        except Exception as error:  # each job steps alone next, which shows which one fails
            log.warning("a shared pass for %d requests failed; each continues alone", len(tasks), exc_info=error)
            if is_out_of_memory(error):
                self._rows = max(1, self._rows // 2)
                give_back_memory()
            return [job]
        took_ms = 1000 * (self._clock() - began)
        for index in shared_indexes:
            jobs[index].spent_ms += took_ms
            self._queue.count_turn(jobs[index])
        return [jobs[index] for index in shared_indexes] or [job]

    def _advance(self, job: Job, filler: Filler) -> None:
        """Run one step of a job and emit its events; create its task before the first step."""
        try:
            if job.task is None:
                try:
                    job.task = filler.start(job.ask.request)
                except ValueError as error:
                    return self._queue.fail(job, "bad_request", str(error))
                if job.ask.priority == "interactive":
                    filler.expect(job.ask.request)  # a user who types will probably send a similar request next
                if job.due is not None:
                    job.task.finish_in(1000 * (job.due - self._clock()))
            before = self._clock()
            has_more = job.task.step()
            job.spent_ms += 1000 * (self._clock() - before)
            job.steps += 1
            self._queue.counts["steps"] += 1
            if not has_more:
                return self._finish(job, "finished")
            if job.ask.drafts and self._clock() - job.drafted_at >= DRAFT_EVERY_S and job.end is None:
                job.drafted_at = self._clock()
                job.emit(Draft(job.task.drafts(), job.steps))
        except Exception as error:  # one bad request must not end a process that took minutes to load
            self._fail_with(job, error)
        return None

    def _finish(self, job: Job, reason: Reason) -> None:
        candidates: tuple[Candidate, ...] = ()
        self._has_finished |= reason in ("finished", "deadline")  # what cancelled jobs leave is small, and someone types
        try:
            if reason in ("finished", "deadline") and job.task is not None:
                candidates = job.task.candidates()
        except Exception as error:  # as above
            return self._fail_with(job, error)
        if reason == "deadline":
            candidates = tuple(replace(candidate, finished=False) for candidate in candidates)
        budget = job.ask.request.budget
        return self._queue.finish(job, reason, candidates[: budget.candidates + budget.spares])

    def _fail_with(self, job: Job, error: Exception) -> None:
        self._has_finished = True
        log.error("a request failed", exc_info=error)
        if isinstance(error, UserError):
            self._queue.fail(job, "engine_failed", str(error))
        elif is_out_of_memory(error):
            message = "the engine ran out of memory on this request; a smaller model or context may fit"
            self._queue.fail(job, "out_of_memory", message)
            if self.filler is not None:
                self.filler.trim()
            give_back_memory()
        else:
            message = f"the engine failed on this request ({type(error).__name__}); its log says where"
            self._queue.fail(job, "engine_failed", message)

    def _get_model(self) -> None:
        self._set_status(Status("loading"))
        try:
            self.filler = self._load(lambda text, fraction: self._set_status(Status("loading", text, fraction)))
        except Exception as error:  # whatever a loader raises, the user must see it and the process must end cleanly
            message = f"the model could not be loaded: {error or type(error).__name__}"
            # The log gets the message with the status below.
            if not isinstance(error, UserError):
                log.exception("could not load the model")
                message += "; the engine's log says where"
            if is_out_of_memory(error):
                message = "the model could not be loaded: there is not enough memory for it"
            self._queue.touch()  # the engine ends soon, but its clients need time to read the message
            self._set_status(Status("failed", message))
            self._queue.fail_all("not_loaded", message)
            return
        self._queue.touch()
        self._rows = self._queue.limits.rows  # the limit that ran out of memory was that of the last model
        self._set_status(Status("ready", "", 1.0))

    def _drop_model(self) -> None:
        self.filler = None
        give_back_memory()
        self._set_status(Status("unloaded", "unloaded after idling"))

    def _set_status(self, status: Status) -> None:
        self._queue.status = status
        log.info("model %s%s", status.state, f": {status.message}" if status.message else "")
        self._on_status(status)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the error means out of memory. torch has an error class for this on a GPU, but none on a CPU."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def return_freed_memory() -> None:
    """Return what the process has freed to the system; do nothing where the C library has no function for it.

    Tensors of many sizes leave holes that no later one fits. They were a third of the engine's memory. It takes a few ms.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # musl, macOS; Windows has no handle of the process
        ctypes.CDLL(None).malloc_trim(0)


def give_back_memory() -> None:
    """Collect garbage, and return unused memory to the system, and the GPU allocator's to the device."""
    gc.collect()
    return_freed_memory()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
