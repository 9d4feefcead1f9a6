"""How many threads a pass on a processor uses: all physical cores while they are free, fewer while other programs need them.

A pass whose threads all have a core takes as much processor time as wall-clock time in each of them. If it takes less, some
thread waits for a core and all others wait for that thread. So two times of the last passes say how many cores are free.
`before_torch` lets waiting threads sleep soon, so that their processor time is work. The number may change between two layers:
a pass of a quarter of a second took three with two threads, while another program began to need a core.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import torch

MOST = 8  # small passes gain nothing beyond
WINDOW_MS = 300.0  # of passes, for one decision
SOON_MS, SHARED = 100.0, 0.6  # after so much there are fewer threads if each has less of a core: they share one
FULL = 0.92  # of the wall-clock time of each thread is processor time: perhaps one more core is free
FREE = 0.75  # as much is needed to keep a thread
RETRY_MS, LONGEST_RETRY_MS = 250.0, 2_000.0  # of passes between two trials of more threads; twice as long after each failure
STALE_S = 1.0  # without a pass: all that are allowed are tried again, because what was busy then may be free


@dataclass(frozen=True, slots=True)
class Plan:
    """How many threads the next pass uses, with what decides when that changes: the times since the last decision.

    `waited` are the milliseconds of passes since the number changed, of which `retry` are needed before more are tried.
    """

    threads: int
    limit: int
    wall: float = 0.0
    processor: float = 0.0
    waited: float = 0.0
    retry: float = RETRY_MS


def after(plan: Plan, wall_ms: float, processor_ms: float) -> Plan:
    """Return the plan after a pass that took these times, the processor time in all of its threads together."""
    wall, processor, threads = plan.wall + wall_ms, plan.processor + processor_ms, plan.threads
    is_shared = threads > 1 and wall >= SOON_MS and processor < SHARED * threads * wall
    if wall < WINDOW_MS and not is_shared:
        return replace(plan, wall=wall, processor=processor)
    n_cores, waited = processor / wall, plan.waited + wall
    if threads > 1 and n_cores < FREE * threads:
        fewer = min(max(1, int(n_cores + 1 - FREE)), threads - 1)
        return Plan(fewer, plan.limit, retry=min(2 * plan.retry, LONGEST_RETRY_MS))
    retry = max(RETRY_MS, plan.retry / 2) if threads == plan.limit else plan.retry
    if threads < plan.limit and n_cores >= FULL * threads and waited >= retry:
        return Plan(min(2 * threads, plan.limit), plan.limit, retry=retry)
    return Plan(threads, plan.limit, waited=waited, retry=retry)


class Cores:
    """The threads of a model's passes, at most `usual` or as many as `asked`. Only the model's thread may call `used`.

    They are that many unless they follow what is free.
    """

    def __init__(self, usual: int, asked: int = 0, *, follows: bool) -> None:
        self._usual, self._limit = usual, asked or usual
        self._plan = Plan(self._limit, self._limit)
        # Another implementation of threads than OpenMP can't change their number once it has some.
        self._follows = follows and bool(torch.backends.openmp.is_available())  # type: ignore[no-untyped-call]
        self.wall_ms = self.processor_ms = 0.0  # of all passes
        self._times = 0.0, 0.0

    @property
    def threads(self) -> int:
        """The number of threads of the next pass."""
        return min(self._plan.threads, self._limit)

    @property
    def why(self) -> str:
        """The reason for the number."""
        return f"at most {self._limit}, fewer while other programs need the cores" if self._follows else "a fixed number"

    def limit_to(self, asked: int) -> None:
        """Use at most this many threads from the next pass on; 0 for as many as usual. Any thread may call this."""
        self._limit = asked or self._usual

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Run the block's passes with the threads that are free, and learn from its times."""
        global _used
        now = time.perf_counter(), time.process_time()
        if self._plan.limit != self._limit or now[0] - self._times[0] > STALE_S:
            self._plan = Plan(self._limit, self._limit, retry=self._plan.retry)
        self._set()
        self._times, _used = now, self
        try:
            yield
        finally:
            _used = None
        self.learn()

    def learn(self, *, counts: bool = True) -> None:
        """Change the number of threads if the times since the last call say so; they do not if that was no pass."""
        before, self._times = self._times, (time.perf_counter(), time.process_time())
        wall_ms, processor_ms = (1000 * (now - then) for now, then in zip(self._times, before, strict=True))
        self.wall_ms, self.processor_ms = self.wall_ms + wall_ms, self.processor_ms + processor_ms
        if self._follows and counts:
            self._plan = after(self._plan, wall_ms, processor_ms)
            self._set()

    def _set(self) -> None:
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)


_used: Cores | None = None  # by the pass that is running


def before_layer(index: int) -> None:
    """Let the running pass change its number of threads, if the times of its layers say so."""
    if _used is not None:
        _used.learn(counts=index > 0)  # before the first one, a single thread prepares the pass
