"""Which request has the next turn, which step together, and which are refused, replaced or over.

Functions over jobs: no thread, and no clock but what the caller passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dg_lsp.core.values import Candidate
from dg_lsp.engine.task import Concurrency, Task
from dg_lsp.wire.messages import Ask, Event, Priority, Reason

SHORT_STEPS = 32  # with the embedded model the rest of a line takes at most so many, several lines 60
LONG_EVERY = 4  # of so many turns long requests have one, while there are short ones
Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests of one priority that may be under way at once, requests that may wait, and rows that one pass may have."""

    running: int = 8
    queued: int = 64
    rows: int = 32


@dataclass(slots=True, eq=False)
class Job:
    """One request, from its arrival to its last event. Times are the scheduler's clock's, in seconds."""

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
    last_early: Candidate | None = None
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
        if other is not job and other.task is not None and other.priority == job.priority and not end_reason(other, now)
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


def end_reason(job: Job, now: float) -> Reason | None:
    """Return why a job should be worked on no more, or None."""
    if job.end is not None:
        return job.end
    return "deadline" if job.due is not None and now >= job.due else None


def short_steps(concurrency: Concurrency) -> int:
    """Return how many steps of a job count as short, for `choose`."""
    # Where several at once are served no faster than one after the other, they are served one after the other.
    return SHORT_STEPS if concurrency == "in turns" else 1
