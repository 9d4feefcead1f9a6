"""Decide which job runs next, which jobs share a pass, and which are refused, superseded or over.

Pure functions over jobs. Knows no threads and no clock; the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dg_lsp.core.values import Candidate
from dg_lsp.engine.task import Concurrency, Task
from dg_lsp.wire.messages import Ask, Event, Priority, Reason

SHORT_STEPS = 32  # with the embedded model, the rest of a line takes at most 32 steps, and several lines take 60
LONG_EVERY = 4  # while there are short requests, long ones get one turn in this many
Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum numbers of running requests of one priority, of waiting requests, and of rows in one pass."""

    running: int = 8
    queued: int = 64
    rows: int = 32


@dataclass(slots=True, eq=False)
class Job:
    """One request, from its arrival to its last event. Times are in seconds of the scheduler's clock."""

    ask: Ask
    emit: Emit
    order: int
    arrived_at: float
    due: float | None = None
    started_at: float | None = None
    last_turn: int = -1
    task: Task | None = None
    end: Reason | None = None
    over: bool = False
    steps: int = 0
    drafted_at: float = 0.0
    last_early: Candidate | None = None
    spent_ms: float = 0.0

    @property
    def priority(self) -> Priority:
        """The ask's priority."""
        return self.ask.priority


def choose(
    jobs: Sequence[Job], limits: Limits, has_room: Callable[[], bool] = lambda: True, *, turn: int = 0, short_steps: int = 1
) -> Job | None:
    """Return the job to run next, or None if no job can run: interactive before batch, then by `is_next`.

    The choice is made again after each step, so a batch job delays an interactive one by at most one step.
    If memory has no room for another job, the job waits until any running job ends, whatever its priority.
    """
    is_working = any(job.started_at is not None for job in jobs)
    for priority in ("interactive", "batch"):
        under_way = [job for job in jobs if job.priority == priority and job.started_at is not None]
        waiting = [job for job in jobs if job.priority == priority and job.started_at is None]
        room = max(0, limits.running - len(under_way)) if waiting else 0
        if room and is_working and not has_room():
            room = 0
        able = under_way + sorted(waiting, key=lambda job: job.order)[:room]
        if able:
            return is_next(able, turn, short_steps)
    return None


def is_next(able: Sequence[Job], turn: int, short_steps: int) -> Job:
    """Return the job to run next among jobs of equal priority.

    The first `short_steps` steps of each job run in order of arrival, so most jobs finish before the next one starts. With
    equal shares, all jobs would finish about when the last one does. Longer jobs share every fourth turn, and every turn
    if there are no short ones. With `short_steps` 1, all jobs start at once and share.
    This is foreground-background scheduling with two levels (Kleinrock, Queueing Systems II, 1976, chapter 4).
    """
    short = [job for job in able if job.steps < short_steps]
    long = [job for job in able if job.steps >= short_steps]
    # Turns of ended jobs count too, because each keystroke ends a job.
    is_due = short_steps > 1 and turn >= LONG_EVERY + max((job.last_turn for job in long), default=turn)
    if short and not is_due:
        return min(short, key=lambda job: job.order)
    return min(long, key=lambda job: (job.last_turn, job.order))


def company(jobs: Sequence[Job], job: Job, now: float) -> list[Job]:
    """Return the jobs that may share a pass with this job: this job first, then those that waited longest.

    All have the same priority. The rows of a batch job would make each step of an interactive job longer, and a keystroke
    may wait for at most one batch step.
    """
    others = [
        other
        for other in jobs
        if other is not job and other.task is not None and other.priority == job.priority and not end_reason(other, now)
    ]
    return [job, *sorted(others, key=lambda other: other.last_turn)]


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


def short_steps(concurrency: Concurrency) -> int:
    """Return the number of steps that run in order of arrival, for `choose`."""
    # If running jobs together is no faster, run one after the other.
    return SHORT_STEPS if concurrency == "in turns" else 1
