"""The requests that wait and those under way, behind one lock; any thread may call.

Holds what the worker is told to do besides, and counts how requests ended. Knows the queue policy. Knows nothing of models.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Literal

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine import queue_policy
from dg_lsp.engine.queue_policy import Emit, Job, Limits, end_reason
from dg_lsp.engine.task import Concurrency
from dg_lsp.wire.messages import Accepted, Ask, CacheUse, Done, ErrorCode, Problem, Reason, Status, Timings

SENDING_S = 0.02  # within which an answer has left
STAGES = ("prefill", "draft", "denoise", "score")
Work = Literal["turn", "load", "unload", "foresee", "close"]


class BusyError(Exception):
    """The queue is full; the message is a sentence for the user."""


class UnavailableError(Exception):
    """The engine can't take requests: its model could not be loaded, or it is ending."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        """Hold what an answer in progress would have been told."""
        super().__init__(message)
        self.code: ErrorCode = code


class JobQueue:
    """The jobs, the pending order to the worker, and the model's state as it was last told."""

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

    # What others ask.

    def ask_for(self, order: Literal["load", "unload", "close"]) -> None:
        """Tell the worker to load, to unload or to end; the first two only where the model's state allows them."""
        expected_state = {"load": "unloaded", "unload": "ready"}
        with self._changed:
            if order == "close" or (self.status.state == expected_state[order] and self._pending == "nothing"):
                self._pending = order
                self._changed.notify_all()

    def expect(self, request: InfillRequest) -> None:
        """Have the model read ahead for a request, once it is loaded and idle."""
        with self._changed:
            self._expected, self._may_foresee = request, True
            self._changed.notify_all()

    def submit(self, ask: Ask, emit: Emit) -> Job:
        """Return the job, whose events go to `emit` from any thread; raise BusyError or UnavailableError."""
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
            # A superseded job that still waits has left the queue in all but name.
            if queue_policy.is_crowded([job for job in self._jobs if job.end is None], ask, self._limits):
                self.counts["refused"] += 1
                waiting = sum(job.begun is None for job in self._jobs)
                raise BusyError(f"the engine is busy: {waiting} requests are waiting already")
            ms = ask.request.budget.ms
            job = Job(ask, emit, next(self._numbers), now, due=now + ms / 1000 if ms else None)
            emit(Accepted(f"{job.order:x}", sum(other.end is None for other in self._jobs)))
            self._jobs.append(job)
            if job.priority == "interactive":
                self._expected = None  # what was announced before is not the newest any more
            self.counts["requests"] += 1
            self._changed.notify_all()
        self.sweep()
        return job

    def cancel(self, job: Job) -> None:
        """Stop work on a job within one step; a job that is over stays so."""
        with self._changed:
            job.end = job.end or "cancelled"
            self._changed.notify_all()
        self.sweep()

    def sweep(self) -> None:
        """End the jobs that wait for nothing any more and were never begun, while the worker may be busy loading."""
        now = self._clock()
        with self._changed:
            over = [job for job in self._jobs if job.begun is None and end_reason(job, now)]
            for job in over:
                self._jobs.remove(job)
        for job in over:
            self.say_done(job, end_reason(job, now) or "cancelled")

    def sizes(self) -> tuple[int, int]:
        """Return how many jobs are under way, and how many wait."""
        with self._changed:
            n_begun = sum(job.begun is not None for job in self._jobs)
            return n_begun, len(self._jobs) - n_begun

    def last_used(self) -> float:
        """Return when a job was last worked on, by the queue's clock; now, while there are any."""
        with self._changed:
            return self._clock() if self._jobs else self._last_used

    # What the worker asks.

    def next_work(self, concurrency: Concurrency | None, has_room: Callable[[], bool]) -> tuple[Work, Job | None]:
        """Wait for something to do and return what: a "turn" comes with the job whose turn it is, if any can run.

        `concurrency` is the loaded model's, None while none is loaded.
        """
        with self._changed:
            while not (self._pending != "nothing" or self._jobs or self._may_foresee):
                self._changed.wait()
            if self._has_answered and not self._jobs:
                # The answer goes out first: the thread that sends it would have to wait for this one.
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
            job.begun = now if job.begun is None else job.begun
        return job

    def company(self, job: Job) -> list[Job]:
        """Return the jobs that may step in one pass with a job, it first."""
        with self._changed:
            return queue_policy.company(self._jobs, job, self._clock())

    def count_turn(self, job: Job) -> None:
        """Note that a job had a turn beside another."""
        job.last_turn = next(self._turns)

    def due(self) -> list[tuple[Job, Reason]]:
        """Return the jobs that should be worked on no more, and why."""
        now = self._clock()
        with self._changed:
            return [(job, reason) for job in self._jobs if (reason := end_reason(job, now))]

    def take_expected(self) -> InfillRequest | None:
        """Return the request that was announced since the last call; nothing more is foreseen until there is reason."""
        with self._changed:
            expected, self._expected, self._may_foresee = self._expected, None, False
            return expected

    def foresee_more(self) -> None:
        """Note that reading ahead is not done."""
        with self._changed:
            self._may_foresee = True

    def forget_foreseeing(self) -> bool:
        """Return whether no job is there, so that the model can go; then nothing is to be foreseen either."""
        with self._changed:
            if not self._jobs:
                self._may_foresee = False
            return not self._jobs

    def touch(self) -> None:
        """Note that the engine is in use now."""
        self._last_used = self._clock()

    def remove(self, job: Job) -> bool:
        """Return whether the job was still in the queue, and take it out."""
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            self._last_used = self._clock()
            self._may_foresee = self._has_answered = True
            return True

    def say_done(self, job: Job, reason: Reason) -> None:
        """Send a job's last event, with what it took; the job is in the queue no more."""
        job.over = True
        now = self._clock()
        cache = job.task.cache() if job.task else {}
        cache_use = CacheUse(cache.get("tokens", 0), cache.get("reused", 0))
        # A model that does not tell its stages spent all its time on what it is for.
        milliseconds = (job.task.milliseconds if job.task else {}) or {"denoise": job.spent_ms}
        queue_ms = 1000 * ((now if job.begun is None else job.begun) - job.arrived)
        timings = Timings(queue_ms, **{f"{stage}_ms": milliseconds.get(stage, 0.0) for stage in STAGES})
        self.counts[f"done_{reason}"] += 1
        self.counts["cache_tokens"] += cache_use.tokens
        self.counts["cache_reused"] += cache_use.reused
        for name, ms in asdict(timings).items():
            self.counts[name] += round(ms)
        job.emit(Done(reason, job.steps, timings, cache_use))
        _close_task(job)  # last, as letting go of it takes a while

    def fail(self, job: Job, code: ErrorCode, message: str) -> None:
        """Take a job out of the queue and tell what went wrong; nothing where it is out already."""
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
