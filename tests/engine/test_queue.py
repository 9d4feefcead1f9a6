"""Whose turn it is, and what becomes of jobs that are cancelled, late, newer, too many or broken."""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from dg_lsp.core import confidence
from dg_lsp.core.values import Budget, Candidate, Hole, InfillRequest, Span
from dg_lsp.engine.common.task import OnProgress
from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.serve.queue import Job, Limits, Queue, RefusalError, choose, is_crowded
from dg_lsp.wire.messages import Ask, Done, Draft, Priority, Problem, Status
from tests.engine import toy_filler
from tests.engine.engine_kit import gate, wait_until
from tests.engine.queue_kit import Clock, Heard, running_engine, submit
from tests.engine.toy_filler import AcceleratorError, ToyFiller, ToyTask
from tests.patience import PATIENCE_S


def ask(client: str = "c", document: str = "", priority: Priority = "interactive") -> Ask:
    return Ask(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),)), client, document, priority)


def job(
    order: int, priority: Priority = "interactive", *, is_begun: bool = False, last_turn: int = -1, document: str = ""
) -> Job:
    new_job = Job(ask(document=document, priority=priority), lambda _: None, order, last_turn=last_turn)
    new_job.started_at, new_job.steps = (0.0, 1) if is_begun else (None, 0)
    return new_job


NEW, RUNNING = job(1), functools.partial(job, is_begun=True)


@pytest.mark.parametrize(
    ("jobs", "limits", "order"),
    [
        pytest.param([], Limits(), None, id="nothing to do"),
        pytest.param([RUNNING(0, "batch", last_turn=4), NEW], Limits(), 1, id="interactive before an earlier batch job"),
        pytest.param([RUNNING(0, last_turn=0), RUNNING(2, last_turn=1), NEW], Limits(), 1, id="new before running again"),
        pytest.param([RUNNING(0, last_turn=7), RUNNING(1, last_turn=6)], Limits(), 1, id="equal jobs take turns"),
        pytest.param([job(3), job(2)], Limits(), 2, id="the oldest of new ones"),
        pytest.param([RUNNING(0, last_turn=9), NEW], Limits(running=1), 0, id="never more than the limit"),
        pytest.param([RUNNING(0, "batch", last_turn=9), NEW], Limits(running=1), 1, id="batch jobs take no place"),
    ],
)
def test_whose_turn_it_is(jobs: list[Job], limits: Limits, order: int | None) -> None:
    next_job = choose(jobs, limits)
    assert (next_job.order if next_job else None) == order


def turns(lengths: Sequence[int], short_steps: int, *, most: int = 1000) -> list[int]:
    """Return whose turn it was, one after the other, of interactive jobs with so many steps that arrive at once."""
    jobs, order_of_turns = [job(order) for order in range(len(lengths))], list[int]()
    while jobs and len(order_of_turns) < most:
        next_job = choose(jobs, Limits(running=len(lengths)), turn=len(order_of_turns), short_steps=short_steps)
        assert next_job is not None
        next_job.started_at, next_job.last_turn, next_job.steps = 0.0, len(order_of_turns), next_job.steps + 1
        order_of_turns.append(next_job.order)
        if next_job.steps == lengths[next_job.order]:
            jobs.remove(next_job)
    return order_of_turns


def test_short_jobs_finish_in_order_if_joining_is_no_faster() -> None:
    assert turns([3, 2, 3], 4) == [0, 0, 0, 1, 1, 2, 2, 2]
    assert turns([3, 2, 3], 1) == [0, 1, 2, 0, 1, 2, 0, 2]


def test_a_long_job_gets_every_fourth_turn_beside_short_ones() -> None:
    assert turns([6, 4, 4], 4) == [0, 0, 0, 0, 1, 1, 1, 0, 1, 2, 2, 0, 2, 2]


def test_short_jobs_get_three_of_four_turns_beside_any_number_of_long_ones() -> None:
    order_of_turns = turns([99] * 7 + [20], 4, most=60)
    first = order_of_turns.index(7)
    assert order_of_turns[first : first + 6].count(7) == 4
    # All others had their first steps by then, and are long.
    assert set(order_of_turns[:first]) == set(range(7))


def test_a_long_job_gets_every_fourth_turn_while_keystrokes_replace_short_ones() -> None:
    long, long_turns = job(0, is_begun=True, last_turn=0), list[bool]()
    long.steps = 40
    for turn in range(1, 13):
        next_job = choose([long, job(turn)], Limits(), turn=turn, short_steps=32)
        assert next_job is not None
        next_job.last_turn = turn
        long_turns.append(next_job is long)
    assert long_turns == [False, False, False, True] * 3


def test_batch_jobs_fill_at_most_half_of_the_queue() -> None:
    jobs = [job(order, "batch") for order in range(2)]
    assert is_crowded(jobs, ask(priority="batch"), Limits(queued=4))
    assert not is_crowded(jobs, ask(), Limits(queued=4))
    assert is_crowded(jobs * 2, ask(), Limits(queued=4))


def test_no_job_starts_beside_others_without_memory() -> None:
    working, batch = job(0, is_begun=True, last_turn=9), job(0, "batch", is_begun=True, last_turn=9)
    assert choose([working, job(1)], Limits(), lambda: False) is working
    assert choose([batch, job(1)], Limits(), lambda: False) is batch
    assert choose([job(1)], Limits(), lambda: False) is not None


def refuses(queue: Queue) -> bool:
    try:
        submit(queue, {})
    except RefusalError as error:
        return str(error) == "the engine is stopping"
    return False


def test_a_request_is_accepted_and_answered_best_first() -> None:
    with running_engine() as engine:
        events = submit(engine, {"steps": 4}, n=2)[1]
        assert [type(event) for event in events.all()] == [Candidate, Candidate, Done]
        assert [confidence.probability(candidate.confidence) for candidate in events.candidates()] == [0.9, 0.89]
        assert events.last().steps == 4  # type: ignore[union-attr]
        assert [status.state for status in engine.statuses] == ["loading", "loading", "ready"]


def test_batch_delays_interactive_by_one_step_at_most(tmp_path: Path) -> None:
    with running_engine() as engine:
        stop, journal = gate(tmp_path), tmp_path / "journal"
        script: dict[str, object] = {"steps": 5, "gate": str(stop.path), "journal": str(journal), "name": "batch"}
        batch = submit(engine, script, priority="batch")[1]
        wait_until(lambda: engine.sizes()[0])
        keystroke = submit(engine, {"steps": 3, "journal": str(journal), "name": "typed"})[1]
        stop.let(5)
        assert [keystroke.reason(), batch.reason()] == ["finished", "finished"]
        assert journal.read_text().split() == ["batch", "typed", "typed", "typed", *["batch"] * 4]


def test_a_cancelled_job_does_not_take_another_step(tmp_path: Path) -> None:
    with running_engine() as engine:
        stop, journal = gate(tmp_path), tmp_path / "journal"
        job, events = submit(engine, {"steps": 9, "gate": str(stop.path), "journal": str(journal), "name": "x"})
        wait_until(lambda: engine.sizes()[0])
        engine.cancel(job)
        stop.let(9)
        assert events.reason() == "cancelled"
        assert events.candidates() == []
        # None at all when the cancellation came just before the step.
        assert not journal.exists() or journal.read_text().split() == ["x"]


def test_a_waiting_job_is_cancelled_at_once_while_the_thread_is_busy(tmp_path: Path) -> None:
    with running_engine(limits=Limits(running=1)) as engine:
        stop = gate(tmp_path)
        submit(engine, {"steps": 1, "gate": str(stop.path)})
        wait_until(lambda: engine.sizes()[0])
        job, events = submit(engine, {})
        engine.cancel(job)
        assert events.reason() == "cancelled"
        stop.let(1)


def test_a_deadline_sends_the_best_so_far_as_unfinished(tmp_path: Path) -> None:
    clock = Clock()
    with running_engine(clock=clock) as engine:
        stop = gate(tmp_path)
        events = submit(engine, {"steps": 9, "gate": str(stop.path), "journal": str(tmp_path / "j"), "name": "x"}, ms=50)[1]
        stop.let(1)
        wait_until(lambda: (tmp_path / "j").exists())
        clock.now += 0.06
        stop.let(1)
        assert events.reason() == "deadline"
        assert [candidate.finished for candidate in events.candidates()] == [False]


def test_a_task_gets_the_time_left_after_waiting(tmp_path: Path) -> None:
    clock, door = Clock(), tmp_path / "door"
    model = toy_filler.ToyFiller("auto")

    def load(_: object) -> toy_filler.ToyFiller:
        wait_until(door.exists)
        return model

    with running_engine(load, clock=clock) as engine:
        events_of_jobs = [submit(engine, {"steps": 1}, ms=ms)[1] for ms in (500, 0)]
        clock.now += 0.2
        door.touch()
        assert [each.reason() for each in events_of_jobs] == ["finished", "finished"]
    assert [task.planned_ms for task in model.tasks] == pytest.approx([300, 0])


def test_a_deadline_while_waiting_sends_no_candidate(tmp_path: Path) -> None:
    clock = Clock()
    with running_engine(clock=clock) as engine:
        stop = gate(tmp_path)
        submit(engine, {"steps": 1, "gate": str(stop.path)})
        wait_until(lambda: engine.sizes()[0])
        events = submit(engine, {}, ms=50)[1]
        clock.now += 1
        engine.sweep()
        assert (events.reason(), events.candidates()) == ("deadline", [])
        stop.let(1)


def test_a_newer_request_replaces_running_and_waiting_ones(tmp_path: Path) -> None:
    with running_engine(limits=Limits(running=1)) as engine:
        stop = gate(tmp_path)
        script: dict[str, object] = {"steps": 9, "gate": str(stop.path)}
        running = submit(engine, script, client="c", document="a.py")[1]
        wait_until(lambda: engine.sizes()[0])
        waiting = submit(engine, {}, client="c", document="a.py")[1]
        newest = submit(engine, {}, client="c", document="a.py")[1]
        other = submit(engine, {}, client="d", document="a.py")[1]
        assert waiting.reason() == "superseded"
        stop.let(1)
        assert [events.reason() for events in (running, newest, other)] == ["superseded", "finished", "finished"]


def test_a_replaced_request_does_not_count_as_waiting(tmp_path: Path) -> None:
    with running_engine(limits=Limits(running=1, queued=1)) as engine:
        stop = gate(tmp_path)
        submit(engine, {"steps": 1, "gate": str(stop.path)})
        wait_until(lambda: engine.sizes()[0])
        submit(engine, {}, document="a.py")
        newer = submit(engine, {}, document="a.py")[1]
        stop.let(1)
        assert newer.reason() == "finished"


def test_drafts_are_sent_only_on_request_and_at_intervals() -> None:
    clock = Clock()
    with running_engine(clock=clock) as engine:
        quiet, with_drafts = submit(engine, {"steps": 5})[1], submit(engine, {"steps": 5}, drafts=True)[1]
        assert not [event for event in quiet.all() if isinstance(event, Draft)]
        # The clock stands still, so 30 ms never pass after the first.
        assert [event for event in with_drafts.all() if isinstance(event, Draft)] == [Draft(("draft 1",), 1)]


@pytest.mark.parametrize(
    ("script", "code", "sentence"),
    [
        ({"raise": "ValueError"}, "bad_request", "the prefix is longer than the model's window"),
        ({"raise": "RuntimeError", "at": 1}, "engine_failed", "the engine failed on this request (RuntimeError)"),
        ({"raise": "UserError", "at": 1}, "engine_failed", "the server requires an API key"),
        ({"raise": "OutOfMemoryError"}, "out_of_memory", "the engine ran out of memory on this request"),
        ({"raise": "MemoryError"}, "out_of_memory", "the engine ran out of memory on this request"),
        ({"raise": "no thread"}, "out_of_memory", "the engine ran out of memory on this request"),
        ({"raise": "panic"}, "engine_failed", "the engine failed on this request (PanicException)"),
    ],
)
def test_one_bad_request_does_not_end_the_engine(script: dict[str, object], code: str, sentence: str) -> None:
    with running_engine() as engine:
        events = submit(engine, script)[1]
        assert (events.code(), events.message().partition(";")[0]) == (code, sentence)
        assert "secret" not in events.message()
        assert submit(engine, {})[1].reason() == "finished"


class Devices(list[str]):
    """Loads a model on a GPU, or on the processor once this process lost its GPU; the devices on which it loaded one."""

    model: type[ToyFiller] = ToyFiller

    def load(self, _on_progress: OnProgress) -> ToyFiller:
        self.append("cpu" if machine.lost_gpu() else "cuda")
        return self.model(self[-1])


@pytest.fixture
def devices() -> Iterator[Devices]:
    yield Devices()
    machine.lose_gpu("")


def fails(*_: object) -> None:
    """Fail as every call of a driver does after its first error."""
    raise AcceleratorError("CUDA error: unspecified launch failure")


def test_a_lost_gpu_ends_the_requests_and_the_next_one_runs_on_the_processor(devices: Devices, tmp_path: Path) -> None:
    with running_engine(devices.load) as engine:
        stop = gate(tmp_path)
        other = submit(engine, {"steps": 9, "gate": str(stop.path)})[1]
        failing = submit(engine, {"raise": "AcceleratorError", "at": 1})[1]
        stop.let(9)
        problem = failing.last()
        assert problem == Problem("engine_failed", "the GPU failed on this request; the model is loaded again on the processor")
        assert isinstance(other.last(), Problem | Done)
        assert submit(engine, {})[1].reason() == "finished"
    assert devices == ["cuda", "cpu"]
    assert machine.lost_gpu() == "CUDA error: unspecified launch failure"


def test_a_gpu_that_is_lost_between_requests_does_not_end_the_engine(devices: Devices) -> None:
    class Lost(ToyFiller):
        def foresee(self) -> None:
            if self.is_on_gpu:
                fails()

    devices.model = Lost
    with running_engine(devices.load) as engine:
        assert submit(engine, {})[1].reason() == "finished"
        wait_until(lambda: devices == ["cuda", "cpu"])
        assert submit(engine, {})[1].reason() == "finished"


def test_a_lost_gpu_s_memory_is_left_alone(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", fails)
    with running_engine(devices.load) as engine:
        assert isinstance(submit(engine, {"raise": "AcceleratorError"})[1].last(), Problem)
        assert submit(engine, {"raise": "MemoryError"})[1].code() == "out_of_memory"
        assert submit(engine, {})[1].reason() == "finished"


def test_a_gpu_without_memory_is_not_lost(devices: Devices) -> None:
    with running_engine(devices.load) as engine:
        assert submit(engine, {"raise": "a GPU without memory"})[1].code() == "out_of_memory"
        assert submit(engine, {})[1].reason() == "finished"
    assert (machine.lost_gpu(), devices) == ("", ["cuda"])


@pytest.mark.parametrize(("error", "loaded"), [("OutOfMemoryError", ["cuda"]), ("AcceleratorError", ["cuda", "cpu"])])
def test_an_error_while_a_request_is_closed_does_not_end_the_engine(
    devices: Devices, error: str, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_engine(devices.load) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(ToyTask, "close", fails)
            assert submit(engine, {})[1].reason() == "finished"
            assert isinstance(submit(engine, {"raise": error})[1].last(), Problem)
        assert submit(engine, {})[1].reason() == "finished"
    assert devices == loaded


def test_caches_are_dropped_when_memory_runs_out() -> None:
    model = toy_filler.load("toy", device="auto", threads=0, on_progress=lambda _text, _share: None)
    with running_engine(lambda _: model) as engine:
        submit(engine, {"raise": "MemoryError"})[1].all()
        submit(engine, {})[1].all()
        assert model.trimmed == 1


@pytest.mark.parametrize(
    ("model", "reason", "is_logged"),
    [
        ("fails", "there is no checkpoint of that name", False),
        ("no-memory", "there is too little memory for it; close other programs", False),
        ("panics", f"{toy_filler.panic()}; the engine's log says where", True),
        ("breaks", "a file is broken; the engine's log says where", True),
    ],
)
def test_a_model_that_fails_to_load_fails_waiting_and_later_requests(
    model: str, reason: str, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dg_lsp.engine")
    with running_engine(model=model) as engine:
        sentence = f"the model could not be loaded: {reason}"
        assert submit(engine, {})[1].last() == Problem("not_loaded", sentence)
        assert engine.statuses[-1] == Status("failed", sentence)
        with pytest.raises(RefusalError, match=re.escape(sentence)):
            submit(engine, {})
    assert f"model failed: {sentence}" in caplog.messages
    # An error that is not expected has its frames in the log.
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["could not load the model"] * is_logged


def test_an_unloaded_model_is_loaded_again_for_the_next_request() -> None:
    with running_engine() as engine:
        assert submit(engine, {})[1].reason() == "finished"
        engine.order("unload")
        wait_until(lambda: engine.status.state == "unloaded")
        assert engine.worker.filler is None
        assert submit(engine, {})[1].reason() == "finished"
        states = [status.state for status in engine.statuses]
        assert states == ["loading", "loading", "ready", "unloaded", "loading", "loading", "ready"]


def test_the_time_after_a_failed_load_counts_from_the_failure() -> None:
    clock = Clock()

    def load(_: object) -> toy_filler.ToyFiller:
        clock.now += 60
        raise ValueError("there is no checkpoint of that name")

    with running_engine(load, clock=clock) as engine:
        engine.order("load")
        wait_until(lambda: engine.status.state == "failed")
        assert engine.last_used() == clock.now


def test_a_waiting_job_meets_its_deadline_while_the_model_loads(tmp_path: Path) -> None:
    clock, door = Clock(), tmp_path / "door"
    with running_engine(model=f"gate:{door}", clock=clock) as engine:
        events = submit(engine, {}, ms=10)[1]
        wait_until(lambda: engine.status.state == "loading")
        clock.now += 1
        engine.sweep()
        assert events.reason() == "deadline"
        door.touch()


def test_all_are_answered_when_the_engine_stops(tmp_path: Path) -> None:
    with running_engine(limits=Limits(running=1)) as engine:
        stop = gate(tmp_path)
        events_of_jobs = [submit(engine, {"steps": 9, "gate": str(stop.path)})[1] for _ in range(3)]
        wait_until(lambda: engine.sizes()[0])
        closing = threading.Thread(target=engine.worker.close)
        closing.start()
        wait_until(lambda: refuses(engine))
        stop.let(9)
        closing.join(PATIENCE_S)
        assert [one.last() for one in events_of_jobs] == [Problem("stopping", "the engine is stopping")] * 3
        assert refuses(engine)


def test_budget_bounds_the_candidates() -> None:
    with running_engine() as engine:
        heard = Heard()
        engine.submit(Ask(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),), budget=Budget(candidates=3))), heard)
        assert len(heard.candidates()) == 3
        heard = Heard()
        budget = Budget(candidates=2, spares=2)
        engine.submit(Ask(InfillRequest("", "", (Hole(Span(0, 0), "cursor"),), budget=budget)), heard)
        assert len(heard.candidates()) == 4
