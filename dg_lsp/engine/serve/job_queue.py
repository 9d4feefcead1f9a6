"""The waiting and running requests, behind one lock; every method may be called from any thread.

Also holds the worker's pending order (load, unload or close) and counts how requests end. Knows the queue policy.
Knows nothing of models.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Literal

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.serve import queue_policy
from dg_lsp.engine.serve.queue_policy import Emit, Job, Limits, end_reason
from dg_lsp.engine.task import Concurrency
from dg_lsp.wire.messages import Accepted, Ask, CacheUse, Done, ErrorCode, Problem, Reason, Status, Timings

SENDING_S = 0.02  # time for the event loop to send an answer
STAGES = ("prefill", "draft", "denoise", "score")
Work = Literal["turn", "load", "unload", "foresee", "close"]


class BusyError(Exception):
    """The queue is full; the message is a sentence for the user."""


class UnavailableError(Exception):
    """The engine can't take requests: its model could not be loaded, or it is stopping."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code


class JobQueue:
    """The jobs, the pending order to the worker, and the model's last reported state."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._changed = threading.Condition()
        self._jobs: list[Job] = []
        self._numbers = itertools.count()
        self._turns = itertools.count()
        self._pending: Literal["nothing", "load", "unload", "close"] = "nothing"
        self._last_used = clock()
        self._may_foresee = self._has_answered = False
        self._expected: InfillRequest | None = None
        self.status = Status("unloaded")
        self.counts: Counter[str] = Counter()

    # Called by the scheduler.

    def ask_for(self, order: Literal["load", "unload", "close"]) -> None:
        """Order the worker to load, to unload or to end. Ignore the first two if the model's state does not allow them."""
        expected_state = {"load": "unloaded", "unload": "ready"}
        with self._changed:
            if order == "close" or (self.status.state == expected_state[order] and self._pending == "nothing"):
                self._pending = order
                self._changed.notify_all()

    def expect(self, request: InfillRequest) -> None:
        """Have the model prepare for this request once it is loaded and idle."""
        with self._changed:
            self._expected, self._may_foresee = request, True
            self._changed.notify_all()

    def submit(self, ask: Ask, emit: Emit) -> Job:
        """Return a new job. Its events go to `emit`, from any thread. Raises BusyError or UnavailableError."""
        now = self._clock()
        with self._changed:
            if self._pending == "close":
                raise UnavailableError("stopping", "the engine is stopping")
            if self.status.state == "failed":
                raise UnavailableError("not_loaded", self.status.message)
            older = queue_policy.superseded(self._jobs, ask)
            for job in older:
                job.end = job.end or "superseded"
            self.counts["superseded"] += len(older)
            # A superseded job does not count as waiting, although the worker has not removed it yet.
            if queue_policy.is_crowded([job for job in self._jobs if job.end is None], ask, self._limits):
                self.counts["refused"] += 1
                waiting = sum(job.started_at is None for job in self._jobs)
                raise BusyError(f"the engine is busy: {waiting} requests are already waiting")
            ms = ask.request.budget.ms
            job = Job(ask, emit, next(self._numbers), now, due=now + ms / 1000 if ms else None)
            emit(Accepted(f"{job.order:x}", sum(other.end is None for other in self._jobs)))
            self._jobs.append(job)
            if job.priority == "interactive":
                self._expected = None  # this request is newer than the expected one
            self.counts["requests"] += 1
            self._changed.notify_all()
        self.sweep()
        return job

    def cancel(self, job: Job) -> None:
        """Cancel a job within one step; do nothing if it is over."""
        with self._changed:
            job.end = job.end or "cancelled"
            self._changed.notify_all()
        self.sweep()

    def sweep(self) -> None:
        """End cancelled, superseded and overdue jobs that have not started, even while the worker is busy loading."""
        now = self._clock()
        with self._changed:
            over = [job for job in self._jobs if job.started_at is None and end_reason(job, now)]
            for job in over:
                self._jobs.remove(job)
        for job in over:
            self.say_done(job, end_reason(job, now) or "cancelled")

    def sizes(self) -> tuple[int, int]:
        """Return the numbers of running and of waiting jobs."""
        with self._changed:
            n_running = sum(job.started_at is not None for job in self._jobs)
            return n_running, len(self._jobs) - n_running

    def last_used(self) -> float:
        """Return the time of the last work on a job, by the queue's clock; the current time if there are jobs."""
        with self._changed:
            return self._clock() if self._jobs else self._last_used

    # Called by the worker.

    def next_work(self, concurrency: Concurrency | None, has_room: Callable[[], bool]) -> tuple[Work, Job | None]:
        """Wait for work and return it; with "turn", also the job to step, or None if no job can run.

        `concurrency` is that of the loaded model; None if no model is loaded.
        """
        with self._changed:
            while not (self._pending != "nothing" or self._jobs or self._may_foresee):
                self._changed.wait()
            if self._has_answered and not self._jobs:
                # Let the event loop send the last answer first. Otherwise it would have to wait for this thread.
                self._has_answered = False
                self._changed.wait(SENDING_S)
            order, self._pending = self._pending, "close" if self._pending == "close" else "nothing"
            if order in ("close", "unload"):
                return order, None
            if order == "nothing" and not self._jobs:
                return "foresee", None
            if concurrency is None:
                return "load", None
            return "turn", self._take_turn(concurrency, has_room) if order == "nothing" else None

    def _take_turn(self, concurrency: Concurrency, has_room: Callable[[], bool]) -> Job | None:
        now, turn = self._clock(), next(self._turns)
        able = [job for job in self._jobs if not end_reason(job, now)]
        short_steps = queue_policy.short_steps(concurrency)
        job = queue_policy.choose(able, self._limits, has_room, turn=turn, short_steps=short_steps)
        if job is not None:
            job.last_turn = turn
            job.started_at = now if job.started_at is None else job.started_at
        return job

    def company(self, job: Job) -> list[Job]:
        """Return the jobs that may share a pass with this job, this job first."""
        with self._changed:
            return queue_policy.company(self._jobs, job, self._clock())

    def count_turn(self, job: Job) -> None:
        """Note that a job had a turn together with another job."""
        job.last_turn = next(self._turns)

    def due(self) -> list[tuple[Job, Reason]]:
        """Return the jobs that must end now, each with the reason."""
        now = self._clock()
        with self._changed:
            return [(job, reason) for job in self._jobs if (reason := end_reason(job, now))]

    def take_expected(self) -> InfillRequest | None:
        """Return the request expected since the last call, or None; preparation pauses until it is requested again."""
        with self._changed:
            expected, self._expected, self._may_foresee = self._expected, None, False
            return expected

    def foresee_more(self) -> None:
        """Note that more preparation remains."""
        with self._changed:
            self._may_foresee = True

    def forget_foreseeing(self) -> bool:
        """Return whether there is no job, so that the model may be unloaded; if so, stop preparing."""
        with self._changed:
            if not self._jobs:
                self._may_foresee = False
            return not self._jobs

    def touch(self) -> None:
        """Record the current time as the last use of the engine."""
        self._last_used = self._clock()

    def remove(self, job: Job) -> bool:
        """Remove a job; return whether it was still in the queue."""
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            self._last_used = self._clock()
            self._may_foresee = self._has_answered = True
            return True

    def say_done(self, job: Job, reason: Reason) -> None:
        """Emit the last event of a removed job, with its timings, and close its task."""
        job.over = True
        now = self._clock()
        cache = job.task.cache() if job.task else {}
        cache_use = CacheUse(cache.get("tokens", 0), cache.get("reused", 0))
        # If a model does not report its stages, count all of its time as denoising.
        milliseconds = (job.task.milliseconds if job.task else {}) or {"denoise": job.spent_ms}
        queue_ms = 1000 * ((now if job.started_at is None else job.started_at) - job.arrived_at)
        timings = Timings(queue_ms, **{f"{stage}_ms": milliseconds.get(stage, 0.0) for stage in STAGES})
        self.counts[f"done_{reason}"] += 1
        self.counts["cache_tokens"] += cache_use.tokens
        self.counts["cache_reused"] += cache_use.reused
        for name, ms in asdict(timings).items():
            self.counts[name] += round(ms)
        job.emit(Done(reason, job.steps, timings, cache_use))
        _close_task(job)  # last, because this may take a while

    def fail(self, job: Job, code: ErrorCode, message: str) -> None:
        """Remove a job and emit the problem; do nothing if the job was already removed."""
        if self.remove(job):
            job.over = True
            self.counts["failed"] += 1
            job.emit(Problem(code, message))
            _close_task(job)

    def fail_all(self, code: ErrorCode, message: str) -> None:
        """Fail every job in the queue."""
        with self._changed:
            jobs = tuple(self._jobs)
        for job in jobs:
            self.fail(job, code, message)


def _close_task(job: Job) -> None:
    task, job.task = job.task, None
    if task is not None:
        task.close()
