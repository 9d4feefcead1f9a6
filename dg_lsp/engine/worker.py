"""Work on the queue's jobs one step at a time, on one thread: the only one that touches the model.

A step is the only unit that is never interrupted; between steps the worker looks at cancellations, deadlines and the queue.
It loads and unloads the model as well. Knows the model as a `Filler`. Knows nothing of HTTP or tensors.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from dataclasses import replace

from dg_lsp.core.values import Candidate
from dg_lsp.engine.job_queue import JobQueue
from dg_lsp.engine.queue_policy import Job
from dg_lsp.engine.task import Filler, Say, UserError
from dg_lsp.wire.messages import Draft, Found, Reason, Status

log = logging.getLogger("dg_lsp.engine")

DRAFT_EVERY_S = 0.03
Load = Callable[[Say], Filler]


class Worker:
    """The loaded model and the thread's loop around it."""

    def __init__(
        self,
        queue: JobQueue,
        load: Load,
        *,
        max_rows: int,
        on_status: Callable[[Status], None],
        clock: Callable[[], float],
    ) -> None:
        self._queue, self._load, self._on_status, self._clock = queue, load, on_status, clock
        self._max_rows = self._rows = max_rows
        self.filler: Filler | None = None

    def run(self) -> None:
        """Work until the queue says to close."""
        while True:
            # No variable of this loop holds the model: unloading frees it.
            concurrency = None if self.filler is None else self.filler.concurrency()
            work, job = self._queue.next_work(concurrency, self._has_room)
            if work == "close":
                return self._queue.fail_all("stopping", "the engine is stopping")
            if work == "unload":
                self._drop_model()
            elif work == "foresee":
                self._foresee()
            elif self.filler is None:
                self._get_model()
            else:
                self._turn(job, self.filler)

    def _turn(self, job: Job | None, filler: Filler) -> None:
        """End the jobs that are over, then do a step of the job whose turn it is and of those that step with it."""
        for over, reason in self._queue.due():
            self._finish(over, reason)
        if job is not None and not job.over:
            for each in self._predict_together(job, filler):
                if each.end is None:
                    self._advance(each, filler)

    def _has_room(self) -> bool:
        """Return whether the model's memory admits one more job; yes where it can't tell."""
        try:
            return self.filler is None or self.filler.has_room()
        except Exception as error:  # a device that tells nothing fails the job that needs it, not all that follow
            log.warning("how much memory is free could not be told", exc_info=error)
            return True

    def _foresee(self) -> None:
        """Do a short unit of what a next request may need; it counts as no use of the engine."""
        expected = self._queue.take_expected()
        if self.filler is None:
            return
        try:
            if expected is not None:
                self.filler.expect(expected)
            if self.filler.foresee():
                self._queue.foresee_more()
        except Exception as error:  # nobody asked for it, so nobody needs to hear of it
            log.warning("what a next request may need could not be done ahead", exc_info=error)
            if is_out_of_memory(error):
                give_back_memory()

    def _predict_together(self, job: Job, filler: Filler) -> list[Job]:
        """Return the jobs whose turn it is, it first: those that one pass was done for, or it alone."""
        if filler.concurrency() != "joined" or job.task is None:
            return [job]
        jobs = self._queue.company(job)
        tasks = [each.task for each in jobs if each.task is not None]
        if len(tasks) < 2:  # nobody to share with
            return [job]
        began = self._clock()
        try:
            chosen = filler.predict_together(tasks, self._rows)
        except Exception as error:  # whose fault it is shows when each steps alone
            log.warning("a pass for %d requests failed; each goes on alone", len(tasks), exc_info=error)
            if is_out_of_memory(error):
                self._rows = max(1, self._rows // 2)
                give_back_memory()
            return [job]
        took_ms = 1000 * (self._clock() - began)
        for index in chosen:
            jobs[index].spent_ms += took_ms
            self._queue.count_turn(jobs[index])
        return [jobs[index] for index in chosen] or [job]

    def _advance(self, job: Job, filler: Filler) -> None:
        """Do one step of a job, the first one after making its task; tell what there is to tell."""
        try:
            if job.task is None:
                try:
                    job.task = filler.start(job.ask.request)
                except ValueError as error:
                    return self._queue.fail(job, "bad_request", str(error))
                if job.priority == "interactive":
                    filler.expect(job.ask.request)  # who types goes on typing
                if job.ask.early:
                    job.task.hurry()
            before = self._clock()
            has_more = job.task.step()
            job.spent_ms += 1000 * (self._clock() - before)
            job.steps += 1
            self._queue.counts["steps"] += 1
            if not has_more:
                return self._finish(job, "finished")
            if job.ask.early and job.end is None:
                _tell_early(job, job.task.early())
            if job.ask.drafts and self._clock() - job.drafted >= DRAFT_EVERY_S and job.end is None:
                job.drafted = self._clock()
                job.emit(Draft(job.task.drafts(), job.steps))
        except Exception as error:  # one bad request must not end a process that took minutes to load
            self._fail_with(job, error)
        return None

    def _finish(self, job: Job, reason: Reason) -> None:
        candidates: tuple[Candidate, ...] = ()
        try:
            if reason in ("finished", "deadline") and job.task is not None:
                candidates = job.task.candidates()
            if reason == "deadline":
                candidates = tuple(replace(candidate, finished=False) for candidate in candidates)
        except Exception as error:  # as above
            return self._fail_with(job, error)
        if self._queue.remove(job):
            for candidate in candidates[: job.ask.request.budget.candidates]:
                job.emit(Found(candidate))
            self._queue.say_done(job, reason)
        return None

    def _fail_with(self, job: Job, error: Exception) -> None:
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
        self._tell(Status("loading"))
        try:
            self.filler = self._load(lambda text, fraction: self._tell(Status("loading", text, fraction)))
        except Exception as error:  # whatever a loader raises, the user is told and the process ends in good order
            log.exception("the model could not be loaded")
            message = f"the model could not be loaded: {error or type(error).__name__}"
            if is_out_of_memory(error):
                message = "the model could not be loaded: there is not enough memory for it"
            self._tell(Status("failed", message))
            self._queue.fail_all("not_loaded", message)
            return
        self._queue.touch()
        self._rows = self._max_rows  # what was too much for the last model need not be for this one
        self._tell(Status("ready", "", 1.0))

    def _drop_model(self) -> None:
        if self._queue.forget_foreseeing():
            self.filler = None
            give_back_memory()
            self._tell(Status("unloaded", "unloaded after idling"))

    def _tell(self, status: Status) -> None:
        self._queue.status = status
        log.info("model %s%s", status.state, f": {status.message}" if status.message else "")
        self._on_status(status)


def _tell_early(job: Job, candidate: Candidate | None) -> None:
    """Tell the best candidate so far where it reads otherwise than the one told before."""
    if candidate is not None and (job.last_early is None or job.last_early.texts != candidate.texts):
        job.last_early = candidate
        job.emit(Found(replace(candidate, finished=False), early=True))


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the error says that memory ran out; torch has a class of its own for a GPU and none for a CPU."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def give_back_memory() -> None:
    """Collect what is unreachable, and let a GPU's allocator return what it keeps."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
