"""The life of an engine in any order of events: no request waits for ever, the next one is served, one start at a time."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.infill import life
from dg_lsp.infill.life import (
    Absent,
    Answered,
    Asked,
    Breaker,
    Drop,
    Event,
    Exited,
    Failed,
    Join,
    Life,
    Loading,
    Lost,
    Ready,
    Refused,
    Silent,
    Starting,
    Stopped,
    Tell,
    Tick,
)

OURS = "1.0"


def after(*events: Event, start: Life | None = None) -> tuple[Life, tuple[life.Action, ...]]:
    """Return the life after events, and what the last of them asked for."""
    now = start or Life(own_version=OURS)
    actions: tuple[life.Action, ...] = ()
    for event in events:
        now, actions = life.next(now, event)
    return now, actions


UP = (Asked(0), Loading(0.5, "reading weights"), Ready(7, OURS))


def test_the_first_request_starts_the_engine_and_the_next_does_not() -> None:
    now, actions = after(Asked(0))
    assert (now.state, actions) == (Starting(0), (Join(0),))
    assert life.next(now, Asked(1)) == (now, ())


def test_ready_follows_from_the_engine_not_from_an_answer() -> None:
    now, actions = after(*UP)
    assert (now.state, actions) == (Ready(7, OURS), ())
    assert life.trouble(now.state, 0) == ""


def test_a_crash_starts_the_engine_again_at_once() -> None:
    now, actions = after(*UP, Exited(5, is_crash=True))
    assert (now.state, actions) == (Starting(5), (Drop(), Join(0)))


def test_an_engine_that_ends_on_purpose_is_started_by_the_next_request() -> None:
    now, actions = after(*UP, Exited(5, is_crash=False))
    assert (now.state, actions) == (Absent(), (Drop(),))
    assert life.next(now, Asked(6))[1] == (Join(0),)


def test_a_process_that_does_not_respond_is_named_and_replaced() -> None:
    now, actions = after(*UP, Silent(20, 7, is_killed=True))
    assert now.state == Starting(20)
    assert actions == (
        Tell("the engine does not respond (process 7); it was killed, and a new one is starting"),
        Drop(),
        Join(0),
    )


def test_after_a_failed_kill_the_engine_is_retried_later() -> None:
    now, _ = after(*UP, Silent(20, 7, is_killed=False))
    assert now.state == Lost("the engine does not respond (process 7); end it with: kill -9 7", 20 + life.FAILED_PAUSE_S)
    assert life.trouble(now.state, 21)
    assert life.next(now, Asked(21)) == (now, ())
    assert life.next(now, Asked(20 + life.FAILED_PAUSE_S))[1] == (Join(0),)


def test_three_crashes_without_an_answer_between_them_pause_the_starts() -> None:
    now, actions = after(Asked(0), Exited(1, is_crash=True), Exited(2, is_crash=True), Exited(3, is_crash=True))
    assert now.state == Lost("the engine crashed 3 times; the next request after 5 min starts it again", 301)
    assert Join(0) not in actions
    assert life.next(now, Asked(301))[1] == (Join(1.0),)


def test_an_engine_that_is_killed_again_and_again_but_answers_between_is_always_started() -> None:
    now = Life()
    for second in range(20):
        now, _ = after(Asked(second), Ready(second + 1, ""), Answered(), start=now)
        now, actions = after(Exited(second, is_crash=True), start=now)
        assert any(isinstance(action, Join) for action in actions)


def test_a_model_that_can_not_be_loaded_is_tried_again_after_a_pause() -> None:
    now, _ = after(Asked(0), Refused(1, "there is no such model"))
    assert now.state == Failed("there is no such model", 1 + life.FAILED_PAUSE_S)
    assert (life.trouble(now.state, 2), life.trouble(now.state, 60)) == ("there is no such model", "")
    assert life.next(now, Asked(60))[1] == (Join(0),)


def test_a_start_without_a_connection_times_out() -> None:
    now, actions = after(Asked(0), Tick(life.START_PATIENCE_S))
    assert isinstance(now.state, Failed)
    assert actions == (Drop(),)


def test_an_engine_of_another_version_is_reported() -> None:
    _, actions = after(Asked(0), Ready(7, "0.9"))
    assert actions == (
        Tell("the running engine is from dg-lsp 0.9, this is dg-lsp 1.0; it ends and is replaced when no client uses it"),
    )


@pytest.mark.parametrize("event", [Loading(1, ""), Ready(7, OURS), Exited(0, is_crash=True), Silent(0, 7, is_killed=True)])
def test_late_events_of_an_abandoned_engine_change_nothing(event: Event) -> None:
    for state in (Absent(), Failed("why", 100), Lost("why", 100)):
        assert life.next(Life(state), event) == (Life(state), ())


Key = Literal["key", "by hand", "cancel", "kill", "freeze", "leave", "stop", "fail", "wait"]


@dataclass
class World:
    """A machine with one engine at a time, and a front end that carries out what its life asks for. Its clock is a number."""

    how_starts: list[tuple[str, float]]
    """What becomes of each start, in turn, and after how long; "up" once these are used up."""
    now: float = 0.0
    life: Life = field(default_factory=lambda: Life(own_version=OURS))
    queue: list[tuple[float, int, int, Event]] = field(default_factory=list)
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

    def feed(self, event: Event) -> None:
        before = self.life.state
        self.life, actions = life.next(self.life, event)
        for action in actions:
            match action:
                case Drop():
                    self.joins, self.epoch = 0, self.epoch + 1
                case Join(delay_s):
                    self.joins += 1
                    self.n_starts += 1
                    self.join(delay_s)
        assert self.joins <= 1, "two starts at once"
        if isinstance(self.life.state, Starting):
            assert self.joins == 1, f"nothing leads out of {before} -> {self.life.state}"
        self.settle()

    def later(self, delay_s: float, event: Event) -> None:
        heapq.heappush(self.queue, (self.now + delay_s, next(self.order), self.epoch, event))

    def join(self, delay_s: float) -> None:
        how, takes_s = self.how_starts.pop(0) if self.how_starts else ("up", 1.0)
        at = delay_s + takes_s
        match how:
            case "up":
                self.later(at / 2, Loading(0.5, "reading weights"))
                self.later(at, Ready(self.n_starts, OURS))
            case "crash":
                self.later(at, Exited(self.now + at, is_crash=True))
            case "silent":
                self.later(at, Silent(self.now + at, self.n_starts, is_killed=True))
            case "stuck":
                self.later(at, Silent(self.now + at, self.n_starts, is_killed=False))
            case "refused":
                self.later(at, Refused(self.now + at, "the model could not be loaded"))
        # Every join has this deadline of its own, whatever it does.
        self.later(life.START_PATIENCE_S + 1, Tick(self.now + life.START_PATIENCE_S + 1))

    def settle(self) -> None:
        """Answer or refuse who waits, as the client does at each change of state."""
        match self.life.state:
            case Ready():
                self.served += len(self.waiting)
                if self.waiting:
                    self.waiting.clear()
                    self.life, _ = life.next(self.life, Answered())
            case Lost() | Failed():
                self.refused += len(self.waiting)
                self.waiting.clear()

    def ask(self, *, by_hand: bool) -> bool:
        """Ask as a front end does; return whether the engine was asked at all."""
        if not by_hand and life.trouble(self.life.state, self.now):
            return False
        self.waiting.append(self.now)
        self.feed(Asked(self.now))
        return True

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.queue and self.queue[0][0] <= until:
            self.now, _, epoch, event = heapq.heappop(self.queue)
            if epoch == self.epoch:
                if isinstance(event, Ready | Exited | Silent | Refused):
                    self.joins = 0
                self.feed(event)
        self.now = until

    def do(self, what: Key) -> None:
        up = isinstance(self.life.state, Loading | Ready)
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
                self.feed(Exited(self.now, is_crash=True))
            case "leave" if up:
                self.feed(Exited(self.now, is_crash=False))
            case "freeze" if up:
                self.later(15, Silent(self.now + 15, 1, is_killed=True))
            case "fail" if isinstance(self.life.state, Loading):
                self.feed(Refused(self.now, "the model could not be loaded"))
            case "stop":
                self.waiting.clear()
                self.feed(Stopped())


STARTS = st.lists(st.tuples(st.sampled_from(["up", "crash", "silent", "stuck", "refused"]), st.floats(0.1, 60)), max_size=8)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["key", "key", "key", "by hand", "cancel", "kill", "freeze", "leave", "stop", "fail", "wait"]),
        st.floats(0, 20),
    ),
    max_size=60,
)


@given(STARTS, STEPS)
def test_whatever_happens_no_request_waits_for_ever_and_the_next_one_is_served(
    starts: list[tuple[str, float]], steps: list[tuple[Key, float]]
) -> None:
    world = World(list(starts))
    for what, seconds in steps:
        world.do(what)
        # What a start, its pauses and as many tries as the breaker allows may take; nothing waits longer.
        most_s = 4 * (life.START_PATIENCE_S + 2)
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
    assert isinstance(world.life.state, Ready)


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
    assert isinstance(world.life.state, Ready)
    world.do("key")
    assert not world.waiting


def test_a_breaker_drops_all_but_the_last_crash_after_an_answer() -> None:
    assert Breaker((1.0, 2.0)).answered() == Breaker((2.0,))
    assert Breaker((2.0,)).answered() == Breaker((2.0,))


def test_a_breaker_counts_what_is_recent() -> None:
    breaker = Breaker()
    assert (breaker.closed_for_s(0), breaker.pause_s(0)) == (0, 0)
    breaker = breaker.crashed(0)
    assert (breaker.closed_for_s(1), breaker.pause_s(1)) == (0, 0)
    breaker = breaker.crashed(10)
    assert (breaker.closed_for_s(11), breaker.pause_s(11)) == (0, 1)
    breaker = breaker.crashed(20)
    assert breaker.closed_for_s(21) == 279
    assert breaker.closed_for_s(300) == 0
    assert breaker.pause_s(1000) == 0
