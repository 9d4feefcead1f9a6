"""Decide which requests are worked on next, and work on them, one step at a time, on one thread.

A step is the only unit that is never interrupted; between steps the thread looks at cancellations, deadlines and the queue.
The decisions are functions over jobs; the thread is the only one that touches the model, also to load and to unload it.
Knows the model as a `Filler` and its listeners as functions; knows nothing of HTTP or tensors.
"""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.task import Cached, Eager, Filler, Foreseeing, Joining, Roomy, Task, Timed, Trimmed, UserError
from dg_lsp.wire.messages import (
    Accepted,
    Ask,
    CacheUse,
    Done,
    Draft,
    ErrorCode,
    Event,
    Found,
    Priority,
    Problem,
    Reason,
    Status,
    Timings,
)

log = logging.getLogger("dg_lsp.engine")

DRAFT_EVERY_S = 0.03
SENDING_S = 0.02  # within which an answer has left
SHORT_STEPS = 32  # with the embedded model the rest of a line takes at most so many, several lines 60
LONG_EVERY = 4  # of so many turns long requests have one, while there are short ones
STAGES = ("prefill", "draft", "denoise", "score")
Say = Callable[[str, float], None]
Load = Callable[[Say], Filler]
Emit = Callable[[Event], None]


class BusyError(Exception):
    """The queue is full; the message is a sentence for the user."""


class UnavailableError(Exception):
    """The engine can't take requests: its model could not be loaded, or it is ending."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        """Hold what an answer in progress would have been told."""
        super().__init__(message)
        self.code: ErrorCode = code


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests of one priority that may be under way at once, requests that may wait, and rows that one pass may have."""

    running: int = 8
    queued: int = 64
    rows: int = 32


@dataclass(slots=True, eq=False)
class Job:
    """One request, from its arrival to its last event."""

    ask: Ask
    emit: Emit
    order: int
    arrived: float
    due: float | None = None
    begun: float | None = None
    last_turn: int = -1
    task: Task | None = None
    end: Reason | None = None
    over: bool = False
    steps: int = 0
    drafted: float = 0.0
    told: Candidate | None = None
    spent_ms: float = 0.0

    @property
    def priority(self) -> Priority:
        """The ask's priority."""
        return self.ask.priority


def choose(
    jobs: Sequence[Job], limits: Limits, has_room: Callable[[], bool] = lambda: True, *, turn: int = 0, short_steps: int = 1
) -> Job | None:
    """Return the job that has this turn, None when none can run: interactive before batch, and `is_next` among equals.

    The turn comes back after each step, so a batch job delays an interactive one by one step at most.
    Where memory has no room for another job, it waits until one of those under way has ended, whatever their priority.
    """
    is_working = any(job.begun is not None for job in jobs)
    for priority in ("interactive", "batch"):
        under_way = [job for job in jobs if job.priority == priority and job.begun is not None]
        waiting = [job for job in jobs if job.priority == priority and job.begun is None]
        room = max(0, limits.running - len(under_way)) if waiting else 0
        if room and is_working and not has_room():
            room = 0
        able = under_way + sorted(waiting, key=lambda job: job.order)[:room]
        if able:
            return is_next(able, turn, short_steps)
    return None


def is_next(able: Sequence[Job], turn: int, short_steps: int) -> Job:
    """Return which of these jobs has this turn, where each is as urgent as the others.

    The first `short_steps` steps of each are done in the order of arrival, so most are answered before the next is begun:
    with equal shares all would be answered when the last is. Those that take longer share every fourth turn, and all turns
    when nobody else is there. With `short_steps` 1 all are begun at once, and share.
    This is foreground-background scheduling with two levels (Kleinrock, Queueing Systems II, 1976, chapter 4).
    """
    short = [job for job in able if job.steps < short_steps]
    long = [job for job in able if job.steps >= short_steps]
    # Turns of jobs that have ended count too: who types ends one with each key.
    is_due = short_steps > 1 and turn >= LONG_EVERY + max((job.last_turn for job in long), default=turn)
    if short and not is_due:
        return min(short, key=lambda job: job.order)
    return min(long, key=lambda job: (job.last_turn, job.order))


def company(jobs: Sequence[Job], job: Job, now: float) -> list[Job]:
    """Return the jobs that may step in one pass with a job, it first and then whoever waited longest.

    Only those of its own priority: a batch job's rows beside an interactive one's would make each of its steps longer,
    and a keystroke is to wait for one batch step at most.
    """
    others = [
        other
        for other in jobs
        if other is not job and other.task is not None and other.priority == job.priority and not ended(other, now)
    ]
    return [job, *sorted(others, key=lambda other: other.last_turn)]


def is_crowded(jobs: Sequence[Job], ask: Ask, limits: Limits) -> bool:
    """Return whether the ask must be refused. Batch work leaves half of the queue to those who type."""
    waiting = sum(job.begun is None for job in jobs)
    return waiting >= (limits.queued if ask.priority == "interactive" else max(1, limits.queued // 2))


def superseded(jobs: Sequence[Job], ask: Ask) -> tuple[Job, ...]:
    """Return the jobs that a newer ask of the same client and document makes pointless."""
    if not ask.document:
        return ()
    return tuple(job for job in jobs if (job.ask.client, job.ask.document) == (ask.client, ask.document))


def ended(job: Job, now: float) -> Reason | None:
    """Return why a job should be worked on no more, or None."""
    if job.end is not None:
        return job.end
    return "deadline" if job.due is not None and now >= job.due else None


class Scheduler:
    """The jobs, the thread that works on them, and the model it works with."""

    def __init__(
        self,
        load: Load,
        *,
        limits: Limits | None = None,
        on_status: Callable[[Status], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the loader of the model; nothing is loaded before `warm` or the first request."""
        self._load = load
        self._limits = limits or Limits()
        self._on_status = on_status
        self._clock = clock
        self._changed = threading.Condition()
        self._jobs: list[Job] = []
        self._orders = itertools.count()
        self._turns = itertools.count()
        self._filler: Filler | None = None
        self._wanted: Literal["nothing", "load", "unload", "close"] = "nothing"
        self._status = Status("unloaded")
        self._last_used = clock()
        self._rows = self._limits.rows
        self._may_foresee = self._has_answered = False
        self._expected: InfillRequest | None = None
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._work, name="dg-lsp-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Answer all jobs that the engine is stopping, and end the thread after its step."""
        with self._changed:
            self._wanted = "close"
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def warm(self) -> None:
        """Load the model if it is not; return at once."""
        with self._changed:
            if self._status.state == "unloaded" and self._wanted == "nothing":
                self._wanted = "load"
                self._changed.notify_all()

    def unload(self) -> None:
        """Drop the model if no job is there; return at once."""
        with self._changed:
            if self._status.state == "ready" and self._wanted == "nothing":
                self._wanted = "unload"
                self._changed.notify_all()

    def expect(self, request: InfillRequest) -> None:
        """Let the model read ahead, once it is loaded and idle, for a request that will probably come; return at once."""
        with self._changed:
            self._expected, self._may_foresee = request, True
            self._changed.notify_all()

    def submit(self, ask: Ask, emit: Emit) -> Job:
        """Return the job, whose events go to `emit` from any thread; raise BusyError or UnavailableError."""
        now = self._clock()
        with self._changed:
            if self._wanted == "close":
                raise UnavailableError("stopping", "the engine is stopping")
            if self._status.state == "failed":
                raise UnavailableError("not_loaded", self._status.message)
            older = superseded(self._jobs, ask)
            for job in older:
                job.end = job.end or "superseded"
            self.counts["superseded"] += len(older)
            # A superseded job that still waits has left the queue in all but name.
            if is_crowded([job for job in self._jobs if job.end is None], ask, self._limits):
                self.counts["refused"] += 1
                waiting = sum(job.begun is None for job in self._jobs)
                raise BusyError(f"the engine is busy: {waiting} requests are waiting already")
            ms = ask.request.budget.ms
            job = Job(ask, emit, next(self._orders), now, due=now + ms / 1000 if ms else None)
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
        """End the jobs that wait for nothing any more and were never begun, while the thread may be busy loading."""
        now = self._clock()
        with self._changed:
            gone = [job for job in self._jobs if job.begun is None and ended(job, now)]
            for job in gone:
                self._jobs.remove(job)
        for job in gone:
            self._say_done(job, ended(job, now) or "cancelled")

    def status(self) -> Status:
        """Return what the model's state is."""
        return self._status

    def filler(self) -> Filler | None:
        """Return the model, for questions that need no thread of its own; None when it is not loaded."""
        return self._filler

    def load_of(self) -> tuple[int, int]:
        """Return how many jobs are under way, and how many wait."""
        with self._changed:
            begun = sum(job.begun is not None for job in self._jobs)
            return begun, len(self._jobs) - begun

    def last_used(self) -> float:
        """Return when a job was last worked on, by the scheduler's clock; now, while there are any."""
        with self._changed:
            return self._clock() if self._jobs else self._last_used

    # Everything below runs on the thread.

    def _work(self) -> None:
        while True:
            job: Job | None = None
            with self._changed:
                while not (self._wanted != "nothing" or self._jobs or self._may_foresee):
                    self._changed.wait()
                if self._has_answered and not self._jobs:
                    # The answer goes out first: the thread that sends it would have to wait for this one.
                    self._has_answered = False
                    self._changed.wait(SENDING_S)
                wanted, self._wanted = self._wanted, "close" if self._wanted == "close" else "nothing"
                is_idle = wanted == "nothing" and not self._jobs
                if wanted == "nothing" and self._filler is not None:
                    job = self._take_turn(self._filler)
            if wanted == "close":
                return self._refuse_all("stopping", "the engine is stopping")
            if wanted == "unload":
                self._drop_model()
            elif is_idle:
                self._foresee()
            elif self._filler is None:
                self._get_model()
            else:
                self._end_those_due()
                if job is not None and not job.over:
                    for each in self._predict_together(job, self._filler):
                        if each.end is None:
                            self._advance(each, self._filler)

    def _foresee(self) -> None:
        """Do a short unit of what a next request may need; it counts as no use of the engine."""
        with self._changed:
            expected, self._expected, self._may_foresee = self._expected, None, False
        if not isinstance(self._filler, Foreseeing):
            return
        try:
            if expected is not None:
                self._filler.expect(expected)
            more = self._filler.foresee()
            with self._changed:
                self._may_foresee = self._may_foresee or more
        except Exception as error:  # nobody asked for it, so nobody needs to hear of it
            log.warning("what a next request may need could not be done ahead", exc_info=error)
            if is_out_of_memory(error):
                give_back_memory()

    def _take_turn(self, filler: Filler) -> Job | None:
        now = self._clock()
        # Where several at once are served no faster than one after the other, they are served one after the other.
        short_steps = SHORT_STEPS if isinstance(filler, Joining) and not filler.joins() else 1
        able = [job for job in self._jobs if not ended(job, now)]
        turn = next(self._turns)
        job = choose(able, self._limits, lambda: has_room(filler), turn=turn, short_steps=short_steps)
        if job is not None:
            job.last_turn = turn
            job.begun = now if job.begun is None else job.begun
        return job

    def _end_those_due(self) -> None:
        now = self._clock()
        with self._changed:
            due = [job for job in self._jobs if ended(job, now)]
        for job in due:
            self._finish(job, ended(job, now) or "cancelled")

    def _predict_together(self, job: Job, filler: Filler) -> list[Job]:
        """Return the jobs whose turn it is, it first: those that one pass was done for, or it alone."""
        if not isinstance(filler, Joining) or not filler.joins() or job.task is None:
            return [job]
        with self._changed:
            jobs = company(self._jobs, job, self._clock())
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
        took = 1000 * (self._clock() - began)
        for place in chosen:
            jobs[place].spent_ms += took
            jobs[place].last_turn = next(self._turns)
        return [jobs[place] for place in chosen] or [job]

    def _advance(self, job: Job, filler: Filler) -> None:
        try:
            if job.task is None:
                try:
                    job.task = filler.start(job.ask.request)
                except ValueError as error:
                    return self._fail(job, "bad_request", str(error))
                if job.priority == "interactive" and isinstance(filler, Foreseeing):
                    filler.expect(job.ask.request)  # who types goes on typing
                if job.ask.early and isinstance(job.task, Eager):
                    job.task.hurry()
            before = self._clock()
            more = job.task.step()
            job.spent_ms += 1000 * (self._clock() - before)
            job.steps += 1
            self.counts["steps"] += 1
            if not more:
                return self._finish(job, "finished")
            if job.ask.early and isinstance(job.task, Eager) and job.end is None:
                self._tell_early(job, job.task.early())
            if job.ask.drafts and self._clock() - job.drafted >= DRAFT_EVERY_S and job.end is None:
                job.drafted = self._clock()
                job.emit(Draft(job.task.drafts(), job.steps))
        except Exception as error:  # one bad request must not end a process that took minutes to load
            self._fail_with(job, error)
        return None

    def _tell_early(self, job: Job, found: Candidate | None) -> None:
        """Tell the best candidate so far where it reads otherwise than the one told before."""
        if found is not None and (job.told is None or job.told.texts != found.texts):
            job.told = found
            job.emit(Found(replace(found, finished=False), early=True))

    def _finish(self, job: Job, reason: Reason) -> None:
        try:
            wanted = reason in ("finished", "deadline") and job.task is not None
            candidates = job.task.candidates() if wanted and job.task is not None else ()
            if reason == "deadline":
                candidates = tuple(replace(candidate, finished=False) for candidate in candidates)
        except Exception as error:  # as above
            return self._fail_with(job, error)
        if self._remove(job):
            for candidate in candidates[: job.ask.request.budget.candidates]:
                job.emit(Found(candidate))
            self._say_done(job, reason)
        return None

    def _say_done(self, job: Job, reason: Reason) -> None:
        job.over = True
        now = self._clock()
        cache: Mapping[str, int] = job.task.cache() if isinstance(job.task, Cached) else {}
        used = CacheUse(cache.get("tokens", 0), cache.get("reused", 0))
        # A model that does not tell its stages spent all its time on what it is for.
        spent = job.task.milliseconds if isinstance(job.task, Timed) else {"denoise": job.spent_ms}
        queue_ms = 1000 * ((now if job.begun is None else job.begun) - job.arrived)
        timings = Timings(queue_ms, **{f"{stage}_ms": spent.get(stage, 0.0) for stage in STAGES})
        self.counts[f"done_{reason}"] += 1
        self.counts["cache_tokens"] += used.tokens
        self.counts["cache_reused"] += used.reused
        for name, ms in asdict(timings).items():
            self.counts[name] += round(ms)
        job.emit(Done(reason, job.steps, timings, used))
        job.task = None  # last, as letting go of it takes a while

    def _fail(self, job: Job, code: ErrorCode, message: str) -> None:
        if self._remove(job):
            job.over = True
            job.task = None
            self.counts["failed"] += 1
            job.emit(Problem(code, message))

    def _fail_with(self, job: Job, error: Exception) -> None:
        log.error("a request failed", exc_info=error)
        if isinstance(error, UserError):
            self._fail(job, "engine_failed", str(error))
        elif is_out_of_memory(error):
            self._fail(job, "out_of_memory", "the engine ran out of memory on this request; a smaller model or context may fit")
            if isinstance(self._filler, Trimmed):
                self._filler.trim()
            give_back_memory()
        else:
            self._fail(job, "engine_failed", f"the engine failed on this request ({type(error).__name__}); its log says where")

    def _remove(self, job: Job) -> bool:
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            self._last_used = self._clock()
            self._may_foresee = self._has_answered = True
            return True

    def _refuse_all(self, code: ErrorCode, message: str) -> None:
        with self._changed:
            jobs = tuple(self._jobs)
        for job in jobs:
            self._fail(job, code, message)

    def _get_model(self) -> None:
        self._tell(Status("loading"))
        try:
            self._filler = self._load(lambda text, fraction: self._tell(Status("loading", text, fraction)))
        except Exception as error:  # whatever a loader raises, the user is told and the process ends in good order
            log.exception("the model could not be loaded")
            message = f"the model could not be loaded: {error or type(error).__name__}"
            if is_out_of_memory(error):
                message = "the model could not be loaded: there is not enough memory for it"
            self._tell(Status("failed", message))
            self._refuse_all("not_loaded", message)
            return
        self._last_used, self._rows = self._clock(), self._limits.rows  # what was too much then need not be now
        self._tell(Status("ready", "", 1.0))

    def _drop_model(self) -> None:
        with self._changed:
            if self._jobs:
                return
        self._filler, self._may_foresee = None, False
        give_back_memory()
        self._tell(Status("unloaded", "unloaded after idling"))

    def _tell(self, status: Status) -> None:
        self._status = status
        log.info("model %s%s", status.state, f": {status.message}" if status.message else "")
        self._on_status(status)


def has_room(filler: Filler) -> bool:
    """Return whether a model's memory admits one more job; yes where it can't tell."""
    try:
        return not isinstance(filler, Roomy) or filler.has_room()
    except Exception as error:  # a device that tells nothing fails the job that needs it, not all that follow
        log.warning("how much memory is free could not be told", exc_info=error)
        return True


def is_out_of_memory(error: Exception) -> bool:
    """Return whether the error says that memory ran out; torch has a class of its own for a GPU and none for a CPU."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def give_back_memory() -> None:
    """Collect what is unreachable, and let a GPU's allocator return what it keeps."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
