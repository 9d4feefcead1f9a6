"""The life of an engine in any order of events: no request waits for ever, the next one is served, one start at a time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.client.engine import START_PATIENCE_S
from dg_lsp.client.life import FAILED_PAUSE_S, Life, LifeState

STARTING = LifeState("starting", "starting the engine with model toy")
LOADING, READY = LifeState("loading", "reading weights", 0.5), LifeState("ready")
UP = Life(model="toy").asked(0).reported(LOADING).reported(READY)


def is_restarted(before: Life, after: Life) -> bool:
    """Return whether the connection is given up, and another engine started."""
    return after.epoch > before.epoch and after.state == STARTING


def test_the_first_request_starts_the_engine_and_the_next_does_not() -> None:
    life = Life(model="toy").asked(0)
    assert (life.state, life.pause_s(0)) == (STARTING, 0)
    assert life.asked(1) == life


def test_ready_follows_from_the_engine_not_from_an_answer() -> None:
    assert UP.state == READY
    assert UP.state.trouble(0) == ""
    loading = Life().asked(0).reported(LOADING)
    assert loading.answered(1) == loading


def test_a_crash_starts_the_engine_again_at_once() -> None:
    life = UP.ended(5)
    assert is_restarted(UP, life)
    assert life.pause_s(5) == 0


def test_an_engine_that_ends_on_purpose_stays_ready_and_is_started_by_the_next_request() -> None:
    life = UP.ended(5, is_crash=False)
    assert (life.state, life.epoch) == (READY, UP.epoch + 1)
    assert life.asked(6).state == STARTING


def test_an_engine_that_ends_before_it_served_counts_as_crashed() -> None:
    loading = Life(model="toy").asked(0).reported(LOADING)
    assert is_restarted(loading, loading.ended(1, is_crash=False))


def test_three_crashes_without_an_answer_between_them_pause_the_starts() -> None:
    life = Life().asked(0).ended(1).ended(2).ended(3)
    assert life.state == LifeState(
        "failed", "the engine crashed 3 times; the next request after 5 min starts it again", until=301
    )
    assert (life.asked(300), life.closed_for_s(21), life.closed_for_s(301)) == (life, 280, 0)
    assert (life.asked(301).state.name, life.pause_s(301), life.pause_s(1000)) == ("starting", 1, 0)


def test_an_engine_that_is_killed_again_and_again_but_answers_between_is_always_started() -> None:
    life = UP
    for second in range(20):
        life = life.answered(second).ended(second)
        assert life.state == STARTING
        life = life.reported(READY)


def test_after_a_failure_the_engine_is_retried_later() -> None:
    life = Life(model="toy").asked(0).refused(1, "there is no such model")
    assert life.state == LifeState("failed", "there is no such model", until=1 + FAILED_PAUSE_S)
    assert (life.state.trouble(2), life.state.trouble(60)) == ("there is no such model", "")
    assert life.asked(2) == life
    assert life.asked(60).state == STARTING


def test_an_engine_that_failed_on_a_request_runs_on_and_the_next_answer_ends_the_failure() -> None:
    failed = UP.answered(5, "it can't")
    assert failed.state == LifeState("failed", "it can't", until=5 + FAILED_PAUSE_S)
    assert failed.epoch == UP.epoch
    assert failed.asked(100) == failed.reported(READY) == failed
    assert failed.answered(6).state == READY
    assert is_restarted(failed, failed.ended(7))


def test_a_server_that_wants_a_pause_is_no_failure_and_gets_no_unprompted_request_in_it() -> None:
    paused = UP.answered(5, "busy until 12:00:00", 30)
    assert paused.state == LifeState("ready", "busy until 12:00:00", until=35, is_pause=True)
    assert [paused.state.trouble(now) for now in (34.9, 35)] == ["busy until 12:00:00", ""]
    assert paused.asked(6) == paused.reported(READY) == paused
    assert paused.answered(36).state == READY
    unloaded = Life(model="toy").asked(0).refused(1, "busy", 3000)
    assert unloaded.state == LifeState("failed", "busy", until=3001, is_pause=True)
    assert (unloaded.asked(3000), unloaded.asked(3001).state) == (unloaded, STARTING)


def test_what_an_abandoned_engine_reports_late_changes_nothing() -> None:
    for life in (Life(), UP.ended(5, is_crash=False), UP.refused(5, "why"), UP.stopped()):
        for late in (life.reported(LOADING), life.reported(READY), life.ended(6), life.answered(6), life.answered(6, "why")):
            assert late == life


Event = Callable[[Life], Life]
Key = Literal["key", "by hand", "cancel", "kill", "freeze", "leave", "stop", "fail", "wait"]


@dataclass
class World:
    """A machine with one engine at a time, and a front end that carries out what its life asks for. Its clock is a number."""

    how_starts: list[tuple[str, float]]
    """What becomes of each start, in turn, and after how long; "up" once these are used up."""
    now: float = 0.0
    life: Life = field(default_factory=Life)
    queue: list[tuple[float, int, int, bool, Event]] = field(default_factory=list)
    """What happens when, in which epoch, and whether it ends a join."""
    order: itertools.count[int] = field(default_factory=itertools.count)
    joins: int = 0
    """How many joins are under way."""
    n_starts: int = 0
    epoch: int = 0
    """Grows with each drop: what a dropped connection would still say is not heard."""
    waiting: list[float] = field(default_factory=list)
    """When each request that waits for the engine came."""
    served: int = 0
    refused: int = 0

    def live(self, life: Life) -> None:
        before, self.life = self.life, life
        if life.epoch != before.epoch:
            self.joins, self.epoch = 0, self.epoch + 1
        if life.state.name == "starting" and not self.joins:
            self.joins += 1
            self.n_starts += 1
            self.join(life.pause_s(self.now))
        self.settle()

    def later(self, delay_s: float, event: Event, *, ends_join: bool = True) -> None:
        heapq.heappush(self.queue, (self.now + delay_s, next(self.order), self.epoch, ends_join, event))

    def join(self, delay_s: float) -> None:
        how, takes_s = self.how_starts.pop(0) if self.how_starts else ("up", 1.0)
        at = delay_s + takes_s
        then = self.now + at
        match how:
            case "up":
                self.later(at / 2, lambda life: life.reported(LOADING))
                self.later(at, lambda life: life.reported(READY))
            case "crash" | "silent":
                self.later(at, lambda life: life.ended(then))
            case "stuck" | "refused":
                self.later(at, lambda life: life.refused(then, "the model could not be loaded"))
        if how == "never":
            # Every join has this deadline of its own, whatever it does.
            limit = self.now + START_PATIENCE_S
            self.later(START_PATIENCE_S, lambda life: life.refused(limit, "no engine could be started"))

    def settle(self) -> None:
        """Answer or refuse who waits, as the client does at each change of state."""
        match self.life.state.name:
            case "ready" if self.life.is_linked:
                self.served += len(self.waiting)
                if self.waiting:
                    self.waiting.clear()
                    self.life = self.life.answered(self.now)
            case "failed":
                self.refused += len(self.waiting)
                self.waiting.clear()

    def ask(self, *, by_hand: bool) -> bool:
        """Ask as a front end does; return whether the engine was asked at all."""
        if not by_hand and self.life.state.trouble(self.now):
            return False
        self.waiting.append(self.now)
        self.live(self.life.asked(self.now))
        return True

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.queue and self.queue[0][0] <= until:
            self.now, _, epoch, ends_join, event = heapq.heappop(self.queue)
            if epoch == self.epoch:
                self.joins = 0 if ends_join else self.joins
                self.live(event(self.life))
        self.now = until

    def do(self, what: Key) -> None:
        up = self.life.is_linked
        match what:
            case "key":
                # A key ends the request before it.
                if self.waiting:
                    self.do("cancel")
                self.ask(by_hand=False)
            case "by hand":
                self.ask(by_hand=True)
            case "cancel":
                if self.waiting:
                    self.waiting.pop()
            case "kill" if up:
                self.live(self.life.ended(self.now))
            case "leave" if up:
                self.live(self.life.ended(self.now, is_crash=False))
            case "freeze" if up:
                then = self.now + 15
                self.later(15, lambda life: life.ended(then), ends_join=False)
            case "fail" if self.life.state.name == "loading":
                self.live(self.life.refused(self.now, "the model could not be loaded"))
            case "stop":
                self.waiting.clear()
                self.live(self.life.stopped())


HOW = st.sampled_from(["up", "crash", "silent", "stuck", "refused", "never"])
STARTS = st.lists(st.tuples(HOW, st.floats(0.1, 60)), max_size=8)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["key", "key", "key", "by hand", "cancel", "kill", "freeze", "leave", "stop", "fail", "wait"]),
        st.floats(0, 20),
    ),
    max_size=60,
)


@given(STARTS, STEPS)
@example([("up", 10.0)], [("by hand", 7.0), ("fail", 1.0)])  # while it loads
def test_whatever_happens_no_request_waits_for_ever_and_the_next_one_is_served(
    starts: list[tuple[str, float]], steps: list[tuple[Key, float]]
) -> None:
    world = World(list(starts))
    for what, seconds in steps:
        world.do(what)
        # What a start, its pauses and as many tries as the breaker allows may take; nothing waits longer.
        most_s = 4 * (START_PATIENCE_S + 2)
        assert all(world.now - since <= most_s for since in world.waiting)
        world.run(seconds)
    # Starts work again from here on: what was asked is answered or refused, and a user who types gets an answer.
    world.how_starts.clear()
    world.run(700)
    assert not world.waiting
    n_served = world.served
    for _ in range(10):
        world.do("key")
        world.run(5)
    assert world.served > n_served, world.life
    assert world.life.state == READY


@given(st.lists(st.floats(0.01, 3), min_size=5, max_size=80))
def test_keys_faster_than_a_start_do_not_keep_the_engine_from_coming_up(gaps: list[float]) -> None:
    world = World([("up", 5.0)])
    world.ask(by_hand=True)
    world.run(30)
    world.do("kill")
    for gap in gaps:
        # Each key ends the request before it, though that one waits for the start.
        world.do("cancel")
        world.ask(by_hand=True)
        world.run(gap)
        assert world.n_starts == 2
    world.run(10)
    assert world.life.state == READY
    world.do("key")
    assert not world.waiting
