"""Whose turn it is, and what becomes of jobs that are cancelled, late, newer, too many or broken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dg_lsp.core import confidence
from dg_lsp.core.values import Budget, Candidate, Hole, InfillRequest, Span
from dg_lsp.engine.backends.remote import RemoteFiller
from dg_lsp.engine.local import LocalFiller
from dg_lsp.engine.queue_policy import choose, company, is_crowded, superseded
from dg_lsp.engine.scheduler import BusyError, Job, Limits, Scheduler, UnavailableError
from dg_lsp.engine.task import Filler
from dg_lsp.wire.messages import Accepted, Ask, Done, Draft, Event, Found, Priority, Problem, Status
from tests.engine import toy_filler
from tests.engine.engine_kit import gate, request, wait_until


def ask(client: str = "c", document: str = "", priority: Priority = "interactive") -> Ask:
    return Ask(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),)), client, document, priority)


def job(order: int, priority: Priority = "interactive", *, begun: bool = False, last_turn: int = -1, document: str = "") -> Job:
    made = Job(ask(document=document, priority=priority), lambda _: None, order, 0.0, last_turn=last_turn)
    made.started_at, made.steps = (0.0, 1) if begun else (None, 0)
    return made


def check_choice(jobs: list[Job], order: int | None, limits: Limits | None = None) -> None:
    chosen = choose(jobs, limits or Limits())
    assert (chosen.order if chosen else None) == order


def turns(lengths: Sequence[int], short_steps: int, *, most: int = 1000) -> list[int]:
    """Return whose turn it was, one after the other, of interactive jobs with so many steps that arrive at once."""
    jobs, had = [job(order) for order in range(len(lengths))], list[int]()
    while jobs and len(had) < most:
        chosen = choose(jobs, Limits(running=len(lengths)), turn=len(had), short_steps=short_steps)
        assert chosen is not None
        chosen.started_at, chosen.last_turn, chosen.steps = 0.0, len(had), chosen.steps + 1
        had.append(chosen.order)
        if chosen.steps == lengths[chosen.order]:
            jobs.remove(chosen)
    return had


def test_choose_returns_none_without_jobs() -> None:
    check_choice([], None)


def test_interactive_goes_before_an_earlier_running_batch_job() -> None:
    check_choice([job(0, "batch", begun=True, last_turn=4), job(1)], 1)


def test_a_new_job_steps_before_running_ones_step_again() -> None:
    check_choice([job(0, begun=True, last_turn=0), job(1, begun=True, last_turn=1), job(2)], 2)


def test_equal_jobs_take_turns() -> None:
    check_choice([job(0, begun=True, last_turn=7), job(1, begun=True, last_turn=6)], 1)


def test_among_new_jobs_the_oldest_goes_first() -> None:
    check_choice([job(3), job(2)], 2)


def test_short_jobs_finish_in_order_if_joining_is_no_faster() -> None:
    assert turns([3, 2, 3], 4) == [0, 0, 0, 1, 1, 2, 2, 2]
    assert turns([3, 2, 3], 1) == [0, 1, 2, 0, 1, 2, 0, 2]


def test_a_long_job_gets_every_fourth_turn_beside_short_ones() -> None:
    assert turns([6, 4, 4], 4) == [0, 0, 0, 0, 1, 1, 1, 0, 1, 2, 2, 0, 2, 2]


def test_short_jobs_get_three_of_four_turns_beside_any_number_of_long_ones() -> None:
    had = turns([99] * 7 + [20], 4, most=60)
    first = had.index(7)
    assert had[first : first + 6].count(7) == 4
    # All others had their first steps by then, and are long.
    assert set(had[:first]) == set(range(7))


def test_a_long_job_gets_every_fourth_turn_while_keystrokes_replace_short_ones() -> None:
    long, had = job(0, begun=True, last_turn=0), list[bool]()
    long.steps = 40
    for turn in range(1, 13):
        chosen = choose([long, job(turn)], Limits(), turn=turn, short_steps=32)
        assert chosen is not None
        chosen.last_turn = turn
        had.append(chosen is long)
    assert had == [False, False, False, True] * 3


def test_running_jobs_never_exceed_the_limit() -> None:
    check_choice([job(0, begun=True, last_turn=9), job(1)], 0, Limits(running=1))


def test_running_batch_jobs_take_no_place_from_interactive_ones() -> None:
    check_choice([job(0, "batch", begun=True, last_turn=9), job(1)], 1, Limits(running=1))


def test_batch_jobs_fill_at_most_half_of_the_queue() -> None:
    jobs = [job(order, "batch") for order in range(2)]
    assert is_crowded(jobs, ask(priority="batch"), Limits(queued=4))
    assert not is_crowded(jobs, ask(), Limits(queued=4))
    assert is_crowded(jobs * 2, ask(), Limits(queued=4))


def test_only_the_same_client_and_document_are_superseded() -> None:
    mine, other = job(0, document="a.py"), job(1, document="b.py")
    assert superseded([mine, other], ask(document="a.py")) == (mine,)
    assert superseded([mine, other], ask(client="d", document="a.py")) == ()
    assert superseded([job(0)], ask()) == ()


def test_no_job_starts_beside_others_without_memory() -> None:
    working, batch = job(0, begun=True, last_turn=9), job(0, "batch", begun=True, last_turn=9)
    assert choose([working, job(1)], Limits(), lambda: False) is working
    assert choose([batch, job(1)], Limits(), lambda: False) is batch
    assert choose([job(1)], Limits(), lambda: False) is not None


def test_running_jobs_of_one_priority_may_share_a_pass() -> None:
    under_way = [job(order, begun=True, last_turn=9 - order) for order in range(3)]
    batch, new, gone = job(3, "batch", begun=True), job(4), job(5, begun=True)
    model = toy_filler.ToyFiller("auto")
    for each in (*under_way, batch, gone):
        each.task = model.start(request())
    gone.end = "cancelled"
    assert company([*under_way, batch, new, gone], under_way[1], 0.0) == [under_way[1], under_way[2], under_way[0]]
    assert company([*under_way, batch, new, gone], batch, 0.0) == [batch]


@dataclass
class Heard:
    """The events of one job."""

    events: list[Event] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Done | Problem):
            self.over.set()

    def all(self) -> list[Event]:
        assert self.over.wait(30)
        return self.events

    def last(self) -> Event:
        return self.all()[-1]

    def reason(self) -> str:
        last = self.last()
        assert isinstance(last, Done)
        return last.reason

    def candidates(self) -> list[Candidate]:
        return [event.candidate for event in self.all() if isinstance(event, Found)]


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def scheduler(
    load: Callable[[Callable[[str, float], None]], Filler] | None = None,
    *,
    limits: Limits | None = None,
    clock: Clock | None = None,
) -> Iterator[tuple[Scheduler, list[Status]]]:
    """The real thread around the toy model."""
    told: list[Status] = []
    made = Scheduler(
        load or (lambda say: toy_filler.load("toy", device="auto", threads=0, say=say)),
        limits=limits,
        on_status=told.append,
        clock=clock or Clock(),
    )
    made.start()
    try:
        yield made, told
    finally:
        made.close()


def submit(to: Scheduler, script: dict[str, object], *, ms: int = 0, n: int = 1, **envelope: object) -> tuple[Job, Heard]:
    heard = Heard()
    return to.submit(Ask(request(script, ms=ms, n=n), **envelope), heard), heard  # type: ignore[arg-type]


def refuses(scheduler: Scheduler) -> bool:
    try:
        submit(scheduler, {})
    except UnavailableError as error:
        return str(error) == "the engine is stopping"
    return False


def test_a_request_is_accepted_and_answered_best_first() -> None:
    with scheduler() as (made, told):
        heard = submit(made, {"steps": 4}, n=2)[1]
        assert [type(event) for event in heard.all()] == [Accepted, Found, Found, Done]
        assert [confidence.probability(candidate.confidence) for candidate in heard.candidates()] == [0.9, 0.89]
        assert heard.last().steps == 4  # type: ignore[union-attr]
        assert [status.state for status in told] == ["loading", "loading", "ready"]


def test_several_take_turns_step_by_step(tmp_path: Path) -> None:
    with scheduler() as (made, _):
        stop, journal = gate(tmp_path), tmp_path / "journal"
        first = submit(made, {"steps": 1, "gate": str(stop.path)})[1]
        wait_until(lambda: made.load_of()[0])
        others = [submit(made, {"steps": 3, "journal": str(journal), "name": name})[1] for name in "ab"]
        stop.let(1)
        assert [heard.reason() for heard in [first, *others]] == ["finished"] * 3
        assert journal.read_text().split() == ["a", "b"] * 3


def test_batch_delays_interactive_by_one_step_at_most(tmp_path: Path) -> None:
    with scheduler() as (made, _):
        stop, journal = gate(tmp_path), tmp_path / "journal"
        script: dict[str, object] = {"steps": 5, "gate": str(stop.path), "journal": str(journal), "name": "batch"}
        batch = submit(made, script, priority="batch")[1]
        wait_until(lambda: made.load_of()[0])
        typed = submit(made, {"steps": 3, "journal": str(journal), "name": "typed"})[1]
        stop.let(5)
        assert [typed.reason(), batch.reason()] == ["finished", "finished"]
        assert journal.read_text().split() == ["batch", "typed", "typed", "typed", *["batch"] * 4]


def test_a_cancelled_job_does_not_take_another_step(tmp_path: Path) -> None:
    with scheduler() as (made, _):
        stop, journal = gate(tmp_path), tmp_path / "journal"
        job, heard = submit(made, {"steps": 9, "gate": str(stop.path), "journal": str(journal), "name": "x"})
        wait_until(lambda: made.load_of()[0])
        made.cancel(job)
        stop.let(9)
        assert heard.reason() == "cancelled"
        assert heard.candidates() == []
        # None at all when the cancellation came just before the step.
        assert not journal.exists() or journal.read_text().split() == ["x"]


def test_a_waiting_job_is_cancelled_at_once_while_the_thread_is_busy(tmp_path: Path) -> None:
    with scheduler(limits=Limits(running=1)) as (made, _):
        stop = gate(tmp_path)
        submit(made, {"steps": 1, "gate": str(stop.path)})
        wait_until(lambda: made.load_of()[0])
        job, heard = submit(made, {})
        made.cancel(job)
        assert heard.reason() == "cancelled"
        stop.let(1)


def test_a_deadline_sends_the_best_so_far_as_unfinished(tmp_path: Path) -> None:
    clock = Clock()
    with scheduler(clock=clock) as (made, _):
        stop = gate(tmp_path)
        heard = submit(made, {"steps": 9, "gate": str(stop.path), "journal": str(tmp_path / "j"), "name": "x"}, ms=50)[1]
        stop.let(1)
        wait_until(lambda: (tmp_path / "j").exists())
        clock.now += 0.06
        stop.let(1)
        assert heard.reason() == "deadline"
        assert [candidate.finished for candidate in heard.candidates()] == [False]


def test_a_task_gets_the_time_left_after_waiting(tmp_path: Path) -> None:
    clock, door = Clock(), tmp_path / "door"
    model = toy_filler.ToyFiller("auto")

    def load(_: object) -> toy_filler.ToyFiller:
        wait_until(door.exists)
        return model

    with scheduler(load, clock=clock) as (made, _):
        heard = [submit(made, {"steps": 1}, ms=ms)[1] for ms in (500, 0)]
        clock.now += 0.2
        door.touch()
        assert [each.reason() for each in heard] == ["finished", "finished"]
    assert [task.planned_ms for task in model.tasks] == pytest.approx([300, 0])


def test_a_deadline_while_waiting_sends_no_candidate(tmp_path: Path) -> None:
    clock = Clock()
    with scheduler(clock=clock) as (made, _):
        stop = gate(tmp_path)
        submit(made, {"steps": 1, "gate": str(stop.path)})
        wait_until(lambda: made.load_of()[0])
        heard = submit(made, {}, ms=50)[1]
        clock.now += 1
        made.sweep()
        assert (heard.reason(), heard.candidates()) == ("deadline", [])
        stop.let(1)


def test_a_newer_request_replaces_running_and_waiting_ones(tmp_path: Path) -> None:
    with scheduler(limits=Limits(running=1)) as (made, _):
        stop = gate(tmp_path)
        script: dict[str, object] = {"steps": 9, "gate": str(stop.path)}
        running = submit(made, script, client="c", document="a.py")[1]
        wait_until(lambda: made.load_of()[0])
        waiting = submit(made, {}, client="c", document="a.py")[1]
        newest = submit(made, {}, client="c", document="a.py")[1]
        other = submit(made, {}, client="d", document="a.py")[1]
        assert waiting.reason() == "superseded"
        stop.let(1)
        assert [heard.reason() for heard in (running, newest, other)] == ["superseded", "finished", "finished"]


def test_a_full_queue_raises_busy(tmp_path: Path) -> None:
    with scheduler(limits=Limits(running=1, queued=1)) as (made, _):
        stop = gate(tmp_path)
        first = submit(made, {"steps": 1, "gate": str(stop.path)})[1]
        wait_until(lambda: made.load_of()[0])
        second = submit(made, {})[1]
        with pytest.raises(BusyError, match="the engine is busy: 1 requests are already waiting"):
            submit(made, {})
        stop.let(1)
        assert [first.reason(), second.reason()] == ["finished", "finished"]


def test_a_replaced_request_does_not_count_as_waiting(tmp_path: Path) -> None:
    with scheduler(limits=Limits(running=1, queued=1)) as (made, _):
        stop = gate(tmp_path)
        submit(made, {"steps": 1, "gate": str(stop.path)})
        wait_until(lambda: made.load_of()[0])
        submit(made, {}, document="a.py")
        newer = submit(made, {}, document="a.py")[1]
        stop.let(1)
        assert newer.reason() == "finished"


def test_drafts_are_sent_only_on_request_and_at_intervals() -> None:
    clock = Clock()
    with scheduler(clock=clock) as (made, _):
        quiet, told = submit(made, {"steps": 5})[1], submit(made, {"steps": 5}, drafts=True)[1]
        assert not [event for event in quiet.all() if isinstance(event, Draft)]
        # The clock stands still, so 30 ms never pass after the first.
        assert [event for event in told.all() if isinstance(event, Draft)] == [Draft(("draft 1",), 1)]


@pytest.mark.parametrize(
    ("script", "code", "sentence"),
    [
        ({"raise": "ValueError"}, "bad_request", "the prefix is longer than the model's window"),
        ({"raise": "RuntimeError", "at": 1}, "engine_failed", "the engine failed on this request (RuntimeError)"),
        ({"raise": "UserError", "at": 1}, "engine_failed", "the server requires an API key"),
        ({"raise": "OutOfMemoryError"}, "out_of_memory", "the engine ran out of memory on this request"),
        ({"raise": "MemoryError"}, "out_of_memory", "the engine ran out of memory on this request"),
    ],
)
def test_one_bad_request_does_not_end_the_engine(script: dict[str, object], code: str, sentence: str) -> None:
    with scheduler() as (made, _):
        problem = submit(made, script)[1].last()
        assert isinstance(problem, Problem)
        assert (problem.code, problem.message.partition(";")[0]) == (code, sentence)
        assert "secret" not in problem.message
        assert submit(made, {})[1].reason() == "finished"


def test_caches_are_dropped_when_memory_runs_out() -> None:
    model = toy_filler.load("toy", device="auto", threads=0, say=lambda _text, _share: None)
    with scheduler(lambda _: model) as (made, _):
        submit(made, {"raise": "MemoryError"})[1].all()
        submit(made, {})[1].all()
        assert model.trimmed == 1


def test_a_model_that_fails_to_load_fails_waiting_and_later_requests(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dg_lsp.engine")
    with scheduler(lambda say: toy_filler.load("fails", device="auto", threads=0, say=say)) as (made, told):
        problem = submit(made, {})[1].last()
        sentence = "the model could not be loaded: there is no checkpoint of that name"
        assert problem == Problem("not_loaded", sentence)
        assert told[-1] == Status("failed", sentence)
        with pytest.raises(UnavailableError, match=sentence):
            submit(made, {})


def test_a_model_too_large_for_memory_is_reported() -> None:
    with scheduler(lambda say: toy_filler.load("no-memory", device="auto", threads=0, say=say)) as (made, told):
        made.warm()
        wait_until(lambda: made.status().state == "failed")
        assert told[-1].message == "the model could not be loaded: there is not enough memory for it"


def test_an_unloaded_model_is_loaded_again_for_the_next_request() -> None:
    with scheduler() as (made, told):
        assert submit(made, {})[1].reason() == "finished"
        made.unload()
        wait_until(lambda: made.status().state == "unloaded")
        assert made.filler() is None
        assert submit(made, {})[1].reason() == "finished"
        states = [status.state for status in told]
        assert states == ["loading", "loading", "ready", "unloaded", "loading", "loading", "ready"]


def test_a_waiting_job_meets_its_deadline_while_the_model_loads(tmp_path: Path) -> None:
    clock, door = Clock(), tmp_path / "door"
    with scheduler(lambda say: toy_filler.load(f"gate:{door}", device="auto", threads=0, say=say), clock=clock) as (made, _):
        heard = submit(made, {}, ms=10)[1]
        wait_until(lambda: made.status().state == "loading")
        clock.now += 1
        made.sweep()
        assert heard.reason() == "deadline"
        door.touch()


def test_all_are_answered_when_the_engine_stops(tmp_path: Path) -> None:
    with scheduler(limits=Limits(running=1)) as (made, _):
        stop = gate(tmp_path)
        heard = [submit(made, {"steps": 9, "gate": str(stop.path)})[1] for _ in range(3)]
        wait_until(lambda: made.load_of()[0])
        closing = threading.Thread(target=made.close)
        closing.start()
        wait_until(lambda: refuses(made))
        stop.let(9)
        closing.join(30)
        assert [one.last() for one in heard] == [Problem("stopping", "the engine is stopping")] * 3
        assert refuses(made)


def test_a_thousand_cancelled_jobs_leave_nothing_behind(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with scheduler(limits=Limits(queued=2000)) as (made, _):
        stop = gate(tmp_path)
        submit(made, {"steps": 1, "gate": str(stop.path)})
        wait_until(lambda: made.load_of()[0])
        jobs = [submit(made, {"steps": 9, "journal": str(journal), "name": str(idx)}) for idx in range(1000)]
        for job, _ in jobs:
            made.cancel(job)
        stop.let(1)
        assert {heard.reason() for _, heard in jobs} == {"cancelled"}
        assert not journal.exists()
        wait_until(lambda: made.load_of() == (0, 0))


def test_time_and_steps_are_counted() -> None:
    with scheduler() as (made, _):
        for script in ({"steps": 4}, {"steps": 2}, {"raise": "MemoryError"}):
            submit(made, dict(script))[1].all()
        assert (made.counts["requests"], made.counts["done_finished"], made.counts["failed"]) == (3, 2, 1)
        assert made.counts["steps"] == 6


def test_budget_bounds_the_candidates() -> None:
    with scheduler() as (made, _):
        heard = Heard()
        made.submit(Ask(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),), budget=Budget(candidates=3))), heard)
        assert len(heard.candidates()) == 3
        heard = Heard()
        budget = Budget(candidates=2, spares=2)
        made.submit(Ask(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),), budget=budget)), heard)
        assert len(heard.candidates()) == 4


@contextmanager
def held(
    model: toy_filler.ToyFiller, folder: Path, limits: Limits | None = None
) -> Iterator[tuple[Scheduler, Callable[[], None]]]:
    """A scheduler whose thread is in a step, and what lets it go on: what is submitted meanwhile begins at one moment."""
    with scheduler(lambda _: model, limits=limits) as (made, _):
        stop = gate(folder, "held")
        submit(made, {"steps": 1, "gate": str(stop.path)})
        wait_until(lambda: made.load_of()[0])
        yield made, lambda: stop.let(1)


def test_jobs_step_in_one_pass_and_join_and_leave_between_steps(tmp_path: Path) -> None:
    model, journal = toy_filler.ToyFiller("auto"), tmp_path / "journal"
    with held(model, tmp_path, Limits(rows=7)) as (made, go_on):
        scripts = [
            {"joins": True, "name": name, "steps": steps, "journal": str(journal)} for name, steps in (("a", 2), ("b", 4))
        ]
        heard = [submit(made, dict(script))[1] for script in scripts]
        heard += [submit(made, {"joins": True, "name": "c", "steps": 3}, priority="batch")[1] for _ in range(2)]
        go_on()
        assert [one.reason() for one in heard] == ["finished"] * 4
    # Their first steps are each their own: before, there is no task to ask. A batch job's are never with the others'.
    assert model.passes == [(["a", "b"], 7), (["c", "c"], 7), (["c", "c"], 7)]
    assert journal.read_text().split() == ["a", "b", "a", "b", "b", "b"]


def test_without_joined_passes_each_job_finishes_before_the_next(tmp_path: Path) -> None:
    model, journal = toy_filler.ToyFiller("auto"), tmp_path / "journal"
    model.gains = False
    with held(model, tmp_path) as (made, go_on):
        scripts = [{"joins": True, "name": name, "steps": 3, "journal": str(journal)} for name in "ab"]
        heard = [submit(made, dict(script))[1] for script in scripts]
        go_on()
        assert [one.reason() for one in heard] == ["finished"] * 2
    assert model.passes == []
    assert journal.read_text().split() == ["a", "a", "a", "b", "b", "b"]


def test_a_cancelled_job_joins_no_further_pass(tmp_path: Path) -> None:
    model = toy_filler.ToyFiller("auto")
    with held(model, tmp_path) as (made, go_on):
        stop = gate(tmp_path)
        script: dict[str, object] = {"joins": True, "steps": 3, "gate": str(stop.path)}
        first, second, third = (submit(made, {**script, "name": name}) for name in "abc")
        go_on()
        stop.let(1)
        wait_until(lambda: model.passes)  # a, b and c have taken a step; the second waits at the gate
        made.cancel(second[0])
        stop.let(2)
        assert [heard.reason() for _, heard in (first, second, third)] == ["finished", "cancelled", "finished"]
    assert [names for names, _ in model.passes] == [["a", "b", "c"], ["a", "c"]]


def test_a_failed_shared_pass_fails_no_job_and_is_retried_smaller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dg_lsp.engine")
    model = toy_filler.ToyFiller("auto")
    model.pass_error = MemoryError()
    with held(model, tmp_path, Limits(rows=8)) as (made, go_on):
        heard = [submit(made, {"joins": True, "name": name, "steps": 3})[1] for name in "ab"]
        go_on()
        assert [one.reason() for one in heard] == ["finished"] * 2
    assert [most for _, most in model.passes[:3]] == [8, 4, 2]


def test_a_reloaded_model_starts_with_the_full_row_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dg_lsp.engine")
    model = toy_filler.ToyFiller("auto")
    model.pass_error = MemoryError()
    with held(model, tmp_path, Limits(rows=8)) as (made, go_on):
        heard = [submit(made, {"joins": True, "name": name, "steps": 3})[1] for name in "ab"]
        go_on()
        assert [one.reason() for one in heard] == ["finished"] * 2
        made.unload()
        wait_until(lambda: made.status().state == "unloaded")
        model.passes, model.pass_error = [], None
        stop = gate(tmp_path)
        heard = [submit(made, {"joins": True, "name": name, "steps": 3, "gate": str(stop.path)})[1] for name in "ab"]
        stop.let(3)
        assert [one.reason() for one in heard] == ["finished"] * 2
    assert {most for _, most in model.passes} == {8}


def test_without_room_in_memory_jobs_run_one_at_a_time(tmp_path: Path) -> None:
    model, journal = toy_filler.ToyFiller("auto"), tmp_path / "journal"
    model.has_memory = False
    with held(model, tmp_path) as (made, go_on):
        scripts = [{"steps": 2, "journal": str(journal), "name": name} for name in "ab"]
        heard = [submit(made, dict(script))[1] for script in scripts]
        go_on()
        assert [one.reason() for one in heard] == ["finished"] * 2
    assert journal.read_text().split() == ["a", "a", "b", "b"]


def test_an_unknown_free_memory_stops_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dg_lsp.engine")

    class Broken(toy_filler.ToyFiller):
        def has_room(self) -> bool:
            raise RuntimeError("an illegal memory access was encountered")

    with scheduler(lambda _: Broken("auto")) as (made, _):
        stop = gate(tmp_path)
        under_way = submit(made, {"steps": 3, "gate": str(stop.path)})[1]
        wait_until(lambda: made.load_of()[0])
        waiting = submit(made, {})[1]
        stop.let(3)
        assert [under_way.reason(), waiting.reason()] == ["finished"] * 2


def test_idle_preparation_does_not_count_as_use() -> None:
    model, clock = toy_filler.ToyFiller("auto"), Clock()
    model.to_foresee = 3
    with scheduler(lambda _: model, clock=clock) as (made, _):
        assert submit(made, {})[1].reason() == "finished"
        used = made.last_used()
        clock.now += 5
        model.units.release(3)
        wait_until(lambda: model.foreseen == 3)
        assert made.last_used() == used
        assert made.load_of() == (0, 0)
        made.unload()  # and nothing keeps the model
        wait_until(lambda: made.status().state == "unloaded")


def test_preparation_yields_to_a_request_after_one_unit() -> None:
    model = toy_filler.ToyFiller("auto")
    model.to_foresee = 9
    with scheduler(lambda _: model) as (made, _):
        assert submit(made, {})[1].reason() == "finished"
        model.units.release()
        wait_until(lambda: model.foreseen == 1)  # the thread is in the second unit, or about to be
        heard = submit(made, {"steps": 5})[1]
        model.units.release()
        assert heard.reason() == "finished"
        assert model.foreseen <= 2
        made.unload()
        model.units.release()
        wait_until(lambda: made.status().state == "unloaded")
        assert model.foreseen <= 3


def test_failed_preparation_is_dropped_silently(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dg_lsp.engine")

    class Failing(toy_filler.ToyFiller):
        def foresee(self) -> bool:
            self.foreseen += 1
            raise MemoryError

    model = Failing("auto")
    with scheduler(lambda _: model) as (made, _):
        for n_done in (1, 2):
            assert submit(made, {})[1].reason() == "finished"
            wait_until(lambda n_done=n_done: model.foreseen == n_done)  # type: ignore[misc]


def test_early_candidates_are_sent_only_on_request() -> None:
    with scheduler() as (made, _):
        script: dict[str, object] = {"steps": 5, "early": ["a", "a", "b"]}
        told, quiet = submit(made, script, early=True)[1], submit(made, script)[1]
        found = [event for event in told.all() if isinstance(event, Found)]
        assert [(one.candidate.texts[0], one.candidate.finished, one.early) for one in found] == [
            ("a", False, True),
            ("b", False, True),
            ("answer", True, False),
        ]
        assert [event.early for event in quiet.all() if isinstance(event, Found)] == [False]


def test_an_expected_request_is_prepared_once_the_model_is_loaded() -> None:
    model = toy_filler.ToyFiller("auto")
    model.to_foresee = 1
    with scheduler(lambda _: model) as (made, _):
        coming = request()
        made.warm()
        made.expect(coming)
        model.units.release()
        wait_until(lambda: model.foreseen == 1)
        assert model.expected == [coming]
        assert made.last_used() == 100.0


def test_an_interactive_request_replaces_the_expected_one(tmp_path: Path) -> None:
    model = toy_filler.ToyFiller("auto")
    model.to_foresee = 1
    with held(model, tmp_path) as (made, go_on):
        made.expect(request({"name": "announced"}))
        typed = submit(made, {"name": "typed"})
        go_on()
        assert typed[1].reason() == "finished"
        model.units.release()
        wait_until(lambda: model.foreseen == 1)
        assert model.expected[-1] == typed[0].ask.request


def test_interactive_requests_are_expected_again_and_batch_ones_are_not() -> None:
    model = toy_filler.ToyFiller("auto")
    with scheduler(lambda _: model) as (made, _):
        typed = submit(made, {"name": "typed"})
        assert [heard.reason() for heard in (typed[1], submit(made, {}, priority="batch")[1])] == ["finished"] * 2
        assert model.expected == [typed[0].ask.request]


@pytest.mark.parametrize("name", ["concurrency", "predict_together", "has_room", "expect", "foresee", "trim"])
def test_only_a_local_model_prepares_and_joins_requests(name: str) -> None:
    assert getattr(LocalFiller, name) is not getattr(Filler, name)
    assert getattr(RemoteFiller, name) is getattr(Filler, name)


def test_a_task_is_closed_however_its_job_ends(tmp_path: Path) -> None:
    model, clock = toy_filler.ToyFiller("auto"), Clock()
    with scheduler(lambda _: model, clock=clock) as (made, _):
        stop = gate(tmp_path)
        waiting: dict[str, object] = {"steps": 9, "gate": str(stop.path), "journal": str(tmp_path / "journal"), "name": "x"}
        assert submit(made, {})[1].reason() == "finished"
        assert isinstance(submit(made, {"raise": "RuntimeError"})[1].last(), Problem)
        cancelled, heard = submit(made, waiting)
        wait_until(lambda: len(model.tasks) == 3)
        late = submit(made, waiting, ms=50)[1]
        stop.let(1)
        wait_until(lambda: len(model.tasks) == 4)
        made.cancel(cancelled)
        clock.now += 1
        stop.let(9)
        assert [heard.reason(), late.reason()] == ["cancelled", "deadline"]
        wait_until(lambda: all(task.closed for task in model.tasks))
