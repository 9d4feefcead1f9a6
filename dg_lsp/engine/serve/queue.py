"""The engine's one queue: which request runs next, which are refused or over.

The policy is pure functions over jobs; the caller passes the time. The `Queue` holds the jobs behind one lock, which its worker
(`worker`) asks after each step of the model.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.common.task import Concurrency, Task
from dg_lsp.wire.messages import Ask, Done, ErrorCode, Event, Problem, Reason, Status

log = logging.getLogger("dg_lsp.engine")

SHORT_STEPS = 32  # with the embedded model, the rest of a line takes at most 32 steps, and several lines take 60
LONG_EVERY = 4  # while there are short requests, long ones get one turn in this many
SENDING_S = 0.02  # time for the event loop to send an answer
STATUS_OF: dict[ErrorCode, int] = {"bad_request": 400, "busy": 429, "out_of_memory": 507, "engine_failed": 500}
Order = Literal["load", "unload", "close"]
Emit = Callable[[Event], None]


class RefusalError(Exception):
    """A request is refused because of a problem; `status` is that of HTTP, by default the code's."""

    def __init__(self, code: ErrorCode, message: str, status: int = 0, retry_s: float = 0.0) -> None:
        super().__init__(message)
        self.problem, self.status = Problem(code, message, retry_s), status or STATUS_OF.get(code, 503)


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum numbers of running requests of one priority, and of waiting requests."""

    running: int = 8
    queued: int = 64


@dataclass(slots=True, eq=False)
class Job:
    """One request, from its arrival to its last event. Times are in seconds of the queue's clock.

    The fields are what the queue decides by at each turn, and what the worker continues from.
    """

    ask: Ask
    emit: Emit
    order: int
    due: float | None = None
    started_at: float | None = None
    last_turn: int = -1
    task: Task | None = None
    end: Reason | None = None
    over: bool = False
    steps: int = 0
    drafted_at: float = 0.0
    spent_ms: float = 0.0


def choose(
    jobs: Sequence[Job], limits: Limits, has_room: Callable[[], bool] = lambda: True, *, turn: int = 0, short_steps: int = 1
) -> Job | None:
    """Return the job to run next, or None if no job can run: interactive before batch.

    The choice is made again after each step, so a batch job delays an interactive one by at most one step.
    If memory has no room for another job, the job waits until any running job ends, whatever its priority.

    The first `short_steps` steps of each job run in order of arrival, so most jobs finish before the next one starts. With
    equal shares, all jobs would finish about when the last one does. Longer jobs share every fourth turn, and every turn
    if there are no short ones. With `short_steps` 1, all jobs start at once and share.
    This is foreground-background scheduling with two levels (Kleinrock, Queueing Systems II, 1976, chapter 4).
    """
    is_working = any(job.started_at is not None for job in jobs)
    for priority in ("interactive", "batch"):
        under_way = [job for job in jobs if job.ask.priority == priority and job.started_at is not None]
        waiting = [job for job in jobs if job.ask.priority == priority and job.started_at is None]
        room = max(0, limits.running - len(under_way)) if waiting else 0
        if room and is_working and not has_room():
            room = 0
        able = under_way + sorted(waiting, key=lambda job: job.order)[:room]
        short = [job for job in able if job.steps < short_steps]
        long = [job for job in able if job.steps >= short_steps]
        # Turns of ended jobs count too, because each keystroke ends a job.
        is_due = short_steps > 1 and turn >= LONG_EVERY + max((job.last_turn for job in long), default=turn)
        if short and not is_due:
            return min(short, key=lambda job: job.order)
        if long:
            return min(long, key=lambda job: (job.last_turn, job.order))
    return None


def is_crowded(jobs: Sequence[Job], ask: Ask, limits: Limits) -> bool:
    """Return whether the ask must be refused. Batch requests may fill only half of the queue."""
    waiting = sum(job.started_at is None for job in jobs)
    return waiting >= (limits.queued if ask.priority == "interactive" else max(1, limits.queued // 2))


def superseded(jobs: Sequence[Job], ask: Ask) -> tuple[Job, ...]:
    """Return the jobs that this newer ask of the same client and document replaces."""
    if not ask.document:
        return ()
    return tuple(job for job in jobs if (job.ask.client, job.ask.document) == (ask.client, ask.document))


def end_reason(job: Job, now: float) -> Reason | None:
    """Return the reason to end a job now, or None to continue it."""
    if job.end is not None:
        return job.end
    return "deadline" if job.due is not None and now >= job.due else None


class Work(NamedTuple):
    """What the worker does next: an order, a `turn` of the model, or preparing for the request that it expects.

    A turn ends the jobs in `over` for their reasons, then steps `job`, or none if no job can run.
    """

    kind: Literal["load", "unload", "close", "turn", "foresee"]
    job: Job | None = None
    over: tuple[tuple[Job, Reason], ...] = ()


class Queue:
    """The waiting and running jobs, and the pending order to the worker. Any thread may call any method.

    One lock guards the jobs and the orders, because a decision reads all of them.
    """

    def __init__(self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.clock = limits or Limits(), clock
        self.status = Status("unloaded")
        """The model's state, as the worker reported it last."""
        self._changed = threading.Condition()
        self._jobs: list[Job] = []
        self._numbers, self._turns = itertools.count(), itertools.count()
        self._pending: Order | None = None
        self._last_used = clock()
        self._has_answered = False
        self._foresee_at = math.inf  # by the clock
        self._expected: InfillRequest | None = None

    # Called by the routes and the process.

    def order(self, order: Order) -> None:
        """Order the worker to load, to unload or to end; return at once.

        Without effect if the model is loaded or unloaded already. A job that comes first cancels an order to unload.
        """
        needs = {"load": "unloaded", "unload": "ready"}
        with self._changed:
            if order == "close" or (self.status.state == needs[order] and self._pending is None):
                self._pending = order
                self._changed.notify_all()

    def expect(self, request: InfillRequest) -> None:
        """Have the model prepare for a probable request once it is loaded and idle; return at once."""
        with self._changed:
            self._expected, self._foresee_at = request, 0.0
            self._changed.notify_all()

    def submit(self, ask: Ask, emit: Emit) -> Job:
        """Return a new job. Its events go to `emit`, from any thread. Raises RefusalError."""
        now, ms = self.clock(), ask.request.budget.ms
        with self._changed:
            if self._pending == "close":
                raise RefusalError("stopping", "the engine is stopping")
            if self.status.state == "failed":
                raise RefusalError("not_loaded", self.status.message)
            older = superseded(self._jobs, ask)
            for job in older:
                job.end = job.end or "superseded"
            # A superseded job does not count as waiting, although the worker has not removed it yet.
            if is_crowded([job for job in self._jobs if job.end is None], ask, self.limits):
                waiting = sum(job.started_at is None for job in self._jobs)
                raise RefusalError("busy", f"the engine is busy: {waiting} requests are already waiting")
            job = Job(ask, emit, next(self._numbers), due=now + ms / 1000 if ms else None)
            self._jobs.append(job)
            if job.ask.priority == "interactive":
                self._expected = None  # this request is newer than the expected one
            self._changed.notify_all()
        if older:
            self.sweep()
        return job

    def cancel(self, job: Job) -> None:
        """Cancel a job within one step; do nothing if it is over."""
        if job.over:
            return
        with self._changed:
            job.end = job.end or "cancelled"
            self._changed.notify_all()
        self.sweep()

    def sweep(self) -> None:
        """End cancelled, superseded and overdue jobs that have not started, even while the worker is busy loading."""
        now = self.clock()
        with self._changed:
            # The worker starts none of these, because they have a reason to end.
            over = [(job, reason) for job in self._jobs if job.started_at is None and (reason := end_reason(job, now))]
        for job, reason in over:
            self.finish(job, reason)

    def sizes(self) -> tuple[int, int]:
        with self._changed:
            n_running = sum(job.started_at is not None for job in self._jobs)
            return n_running, len(self._jobs) - n_running

    def last_used(self) -> float:
        """Return the time of the last work on a job, by the queue's clock; the current time if there are jobs."""
        with self._changed:
            return self.clock() if self._jobs else self._last_used

    # Called by the worker.

    def next_work(self, concurrency: Concurrency | None, has_room: Callable[[], bool]) -> Work:
        """Wait for work and return it. `concurrency` is that of the loaded model; None if no model is loaded."""
        with self._changed:
            while not (self._pending or self._jobs or (left_s := self._foresee_at - self.clock()) <= 0):
                self._changed.wait(left_s if left_s < math.inf else None)
            if self._has_answered and not self._jobs:
                # Let the event loop send the last answer first. Otherwise it would have to wait for this thread.
                self._has_answered = False
                self._changed.wait(SENDING_S)
            order = self._pending
            if order == "close":
                return Work("close")
            self._pending = None
            if order == "unload" and not self._jobs:
                self._foresee_at = math.inf
                return Work("unload")
            if concurrency is None and (order == "load" or self._jobs):
                return Work("load")
            if not self._jobs:
                return Work("foresee")
            now, turn = self.clock(), next(self._turns)
            over = tuple((job, reason) for job in self._jobs if (reason := end_reason(job, now)))
            able = [job for job in self._jobs if not end_reason(job, now)] if over else self._jobs
            # What another machine does for several jobs, it does at once.
            short_steps = 1 if concurrency == "independent" else SHORT_STEPS
            job = choose(able, self.limits, has_room, turn=turn, short_steps=short_steps)
            if job is not None:
                job.last_turn = turn
                job.started_at = now if job.started_at is None else job.started_at
            return Work("turn", job, over)

    def take_expected(self) -> InfillRequest | None:
        """Return the request expected since the last call, or None; preparation pauses until it is requested again."""
        with self._changed:
            expected, self._expected, self._foresee_at = self._expected, None, math.inf
            return expected

    def foresee_in(self, seconds: float) -> None:
        """Note that more preparation remains, which may go on in so many seconds."""
        with self._changed:
            self._foresee_at = min(self._foresee_at, self.clock() + seconds)

    def touch(self) -> None:
        self._last_used = self.clock()

    def finish(self, job: Job, reason: Reason, candidates: Sequence[Candidate] = ()) -> None:
        """Remove a job, and emit its candidates and `done` with its cost; do nothing if it was already removed."""
        if not self._remove(job):
            return
        for candidate in candidates:
            job.emit(candidate)
        cache = job.task.cache() if job.task else {}
        # If a model does not report its stages, all of its time counts for the answer.
        milliseconds = dict(job.task.milliseconds if job.task else {}) or {"denoise": job.spent_ms}
        prompt_ms = milliseconds.pop("prefill", 0.0)
        n_prompt, n_cached = cache.get("tokens", 0), cache.get("reused", 0)
        _end(job, Done(reason, job.steps, prompt_ms, sum(milliseconds.values()), n_prompt, n_cached))

    def fail(self, job: Job, code: ErrorCode, message: str, retry_s: float = 0.0) -> None:
        if self._remove(job):
            _end(job, Problem(code, message, retry_s))

    def fail_all(self, code: ErrorCode, message: str) -> None:
        with self._changed:
            jobs = tuple(self._jobs)
        for job in jobs:
            self.fail(job, code, message)

    def _remove(self, job: Job) -> bool:
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            self._last_used = self.clock()
            self._foresee_at, self._has_answered = 0.0, True
            return True


def _end(job: Job, last: Event) -> None:
    job.over = True
    job.emit(last)
    task, job.task = job.task, None
    if task is not None:
        try:
            task.close()  # last, because this may take a while
        except Exception as error:  # the request is over; what failed was only keeping what a later one can use
            log.warning("could not close a request", exc_info=error)
