"""The engine's one worker: the only thread that uses the model.

It runs the queue's jobs one step at a time. A step is never interrupted: cancellations, deadlines and the queue are checked
between steps. It also loads and unloads the model, and goes on after a failure of a request, of memory or of the GPU. So it
handles each BaseException of the model: a panic of a library in Rust is no Exception, and would end the thread alone.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace

from dg_lsp import is_out_of_memory
from dg_lsp.core import wording
from dg_lsp.core.values import Candidate
from dg_lsp.engine.common.task import Filler, OnProgress, UserError
from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.model.recovery import give_back_memory, is_gpu_lost, return_freed_memory
from dg_lsp.engine.serve.queue import Job, Queue
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
        self._has_finished = False
        self._thread = threading.Thread(target=self._run, name="dg-lsp-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Fail all jobs with "stopping", and end the thread after its current step."""
        self._queue.order("close")
        self._thread.join(timeout_s)

    def is_on_gpu(self) -> bool:
        filler = self.filler
        return filler is not None and filler.is_on_gpu

    def _run(self) -> None:
        while True:
            if self._has_finished:
                self._has_finished = False
                return_freed_memory()
            # No local variable may hold the model here, or unloading would not free it.
            concurrency = None if self.filler is None else self.filler.concurrency
            work = self._queue.next_work(concurrency, self._has_room)
            match work.kind:
                case "close":
                    return self._queue.fail_all("stopping", "the engine is stopping")
                case "load":
                    self._get_model()
                case "unload":
                    self.filler = None
                    give_back_memory()
                    self._set_status(Status("unloaded", "unloaded after idling"))
                case "foresee":
                    self._foresee()
                case "turn":
                    for over, reason in work.over:
                        self._finish(over, reason)
                    if work.job is not None and work.job.end is None and self.filler is not None:
                        self._advance(work.job, self.filler)

    def _has_room(self) -> bool:
        """Return whether memory has room for another job; True if this can't be measured."""
        try:
            return self.filler is None or self.filler.has_room()
        except BaseException as error:  # a failed measurement must not stop all later jobs
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
            if (seconds := self.filler.foresee()) is not None:
                self._queue.foresee_in(seconds)
        except BaseException as error:  # no client waits for this, so only the log gets the error
            log.warning("could not prepare for the next request", exc_info=error)
            if self._has_lost_gpu(error):
                return
            if is_out_of_memory(error):
                give_back_memory()

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
            if not has_more:
                return self._finish(job, "finished")
            if job.ask.drafts and self._clock() - job.drafted_at >= DRAFT_EVERY_S and job.end is None:
                job.drafted_at = self._clock()
                job.emit(Draft(job.task.drafts(), job.steps))
        except BaseException as error:  # one bad request must not end a process that took minutes to load
            self._fail_with(job, error)
        return None

    def _finish(self, job: Job, reason: Reason) -> None:
        candidates: tuple[Candidate, ...] = ()
        self._has_finished |= reason in ("finished", "deadline")  # what cancelled jobs leave is small, and someone types
        try:
            if reason in ("finished", "deadline") and job.task is not None:
                candidates = job.task.candidates()
        except BaseException as error:  # as above
            return self._fail_with(job, error)
        if reason == "deadline":
            candidates = tuple(replace(candidate, finished=False) for candidate in candidates)
        budget = job.ask.request.budget
        return self._queue.finish(job, reason, candidates[: budget.candidates + budget.spares])

    def _fail_with(self, job: Job, error: BaseException) -> None:
        self._has_finished = True
        log.error("a request failed", exc_info=error)
        if self._has_lost_gpu(error):
            return
        if isinstance(error, UserError):
            self._queue.fail(job, "busy" if error.retry_s else "engine_failed", str(error), error.retry_s)
        elif is_out_of_memory(error):
            message = "the engine ran out of memory on this request; a smaller model or context may fit"
            self._queue.fail(job, "out_of_memory", message)
            traceback.clear_frames(error.__traceback__)  # what the request used is free from now on
            if self.filler is not None:
                self.filler.trim()
            give_back_memory()
        else:
            message = f"the engine failed on this request ({type(error).__name__}); its log says where"
            self._queue.fail(job, "engine_failed", message)

    def _has_lost_gpu(self, error: BaseException) -> bool:
        """Return whether the error means that the GPU is lost; if so, fail all jobs, and load the model on the processor."""
        if self.filler is None or not self.filler.is_on_gpu or not is_gpu_lost(error):
            return False
        machine.lose_gpu(wording.reason(error))
        self._queue.fail_all("engine_failed", "the GPU failed on this request; the model is loaded again on the processor")
        self.filler = None
        self._set_status(Status("unloaded", "the GPU failed"))  # a model that is ready is not loaded again
        self._queue.order("load")
        return True

    def _get_model(self) -> None:
        self._set_status(Status("loading"))
        try:
            self.filler = self._load(lambda text, fraction: self._set_status(Status("loading", text, fraction)))
        except BaseException as error:  # whatever a loader raises, the user must see it and the process must end cleanly
            message = f"the model could not be loaded: {wording.reason(error)}"
            # The log gets the message with the status below.
            if is_out_of_memory(error) and not isinstance(error, UserError):
                message = "the model could not be loaded: there is too little memory for it; close other programs"
            elif not isinstance(error, UserError):
                log.exception("could not load the model")
                message += "; the engine's log says where"
            self._queue.touch()  # the engine ends soon, but its clients need time to read the message
            self._set_status(Status("failed", message, retry_s=error.retry_s if isinstance(error, UserError) else 0.0))
            self._queue.fail_all("not_loaded", message)
            return
        self._queue.touch()
        self._set_status(Status("ready", "", 1.0))

    def _set_status(self, status: Status) -> None:
        self._queue.status = status
        log.info("model %s%s", status.state, f": {status.message}" if status.message else "")
        self._on_status(status)
