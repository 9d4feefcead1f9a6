"""In which order jobs use the model, and what the worker prepares while it has nothing to do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dg_lsp.engine.common.task import Concurrency
from dg_lsp.wire.messages import Problem
from tests.engine import toy_filler
from tests.engine.engine_kit import gate, request, wait_until
from tests.engine.queue_kit import Clock, engine_in_step, running_engine, submit


@pytest.mark.parametrize(("concurrency", "order"), [("in turns", "aaabbb"), ("independent", "ababab")])
def test_jobs_take_turns_unless_they_are_independent(tmp_path: Path, concurrency: Concurrency, order: str) -> None:
    model, journal = toy_filler.ToyFiller("auto", concurrency), tmp_path / "journal"
    with engine_in_step(model, tmp_path) as (engine, go_on):
        scripts = [{"name": name, "steps": 3, "journal": str(journal)} for name in "ab"]
        events_of_jobs = [submit(engine, dict(script))[1] for script in scripts]
        go_on()
        assert [one.reason() for one in events_of_jobs] == ["finished"] * 2
    assert journal.read_text().split() == list(order)


def test_without_room_in_memory_jobs_run_one_at_a_time(tmp_path: Path) -> None:
    model, journal = toy_filler.ToyFiller("auto"), tmp_path / "journal"
    model.has_memory = False
    with engine_in_step(model, tmp_path) as (engine, go_on):
        scripts = [{"steps": 2, "journal": str(journal), "name": name} for name in "ab"]
        events_of_jobs = [submit(engine, dict(script))[1] for script in scripts]
        go_on()
        assert [one.reason() for one in events_of_jobs] == ["finished"] * 2
    assert journal.read_text().split() == ["a", "a", "b", "b"]


def test_an_unknown_free_memory_stops_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dg_lsp.engine")

    class Broken(toy_filler.ToyFiller):
        def has_room(self) -> bool:
            raise RuntimeError("an illegal memory access was encountered")

    with running_engine(lambda _: Broken("auto")) as engine:
        stop = gate(tmp_path)
        under_way = submit(engine, {"steps": 3, "gate": str(stop.path)})[1]
        wait_until(lambda: engine.sizes()[0])
        waiting = submit(engine, {})[1]
        stop.let(3)
        assert [under_way.reason(), waiting.reason()] == ["finished"] * 2


def test_idle_preparation_does_not_count_as_use() -> None:
    model, clock = toy_filler.ToyFiller("auto"), Clock()
    model.to_foresee = 3
    with running_engine(lambda _: model, clock=clock) as engine:
        assert submit(engine, {})[1].reason() == "finished"
        last_used = engine.last_used()
        clock.now += 5
        model.units.release(3)
        wait_until(lambda: model.foreseen == 3)
        assert engine.last_used() == last_used
        assert engine.sizes() == (0, 0)
        engine.order("unload")  # and nothing keeps the model
        wait_until(lambda: engine.status.state == "unloaded")


def test_preparation_yields_to_a_request_after_one_unit() -> None:
    model = toy_filler.ToyFiller("auto")
    model.to_foresee = 9
    with running_engine(lambda _: model) as engine:
        assert submit(engine, {})[1].reason() == "finished"
        model.units.release()
        wait_until(lambda: model.foreseen == 1)  # the thread is in the second unit, or about to be
        events = submit(engine, {"steps": 5})[1]
        model.units.release()
        assert events.reason() == "finished"
        assert model.foreseen <= 2
        engine.order("unload")
        model.units.release()
        wait_until(lambda: engine.status.state == "unloaded")
        assert model.foreseen <= 3


def test_preparation_goes_on_after_the_time_that_the_model_asks_for() -> None:
    class Waiting(toy_filler.ToyFiller):
        def foresee(self) -> float | None:
            self.foreseen += 1
            return 0.01 if self.foreseen < 3 else None

    model, clock = Waiting("auto"), Clock()
    with running_engine(lambda _: model, clock=clock) as engine:
        assert submit(engine, {})[1].reason() == "finished"

        def is_done() -> bool:
            clock.now += 0.01
            return model.foreseen == 3

        wait_until(is_done)


def test_failed_preparation_is_dropped_silently(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "dg_lsp.engine")

    class Failing(toy_filler.ToyFiller):
        def foresee(self) -> None:
            self.foreseen += 1
            raise MemoryError

    model = Failing("auto")
    with running_engine(lambda _: model) as engine:
        for n_done in (1, 2):
            assert submit(engine, {})[1].reason() == "finished"
            wait_until(lambda n_done=n_done: model.foreseen == n_done)  # type: ignore[misc]


def test_an_expected_request_is_prepared_once_the_model_is_loaded() -> None:
    model = toy_filler.ToyFiller("auto")
    model.to_foresee = 1
    with running_engine(lambda _: model) as engine:
        coming = request()
        engine.order("load")
        engine.expect(coming)
        model.units.release()
        wait_until(lambda: model.foreseen == 1)
        assert model.expected == [coming]
        assert engine.last_used() == 100.0


def test_an_interactive_request_replaces_the_expected_one(tmp_path: Path) -> None:
    model = toy_filler.ToyFiller("auto")
    model.to_foresee = 1
    with engine_in_step(model, tmp_path) as (engine, go_on):
        engine.expect(request({"name": "announced"}))
        keystroke = submit(engine, {"name": "typed"})
        go_on()
        assert keystroke[1].reason() == "finished"
        model.units.release()
        wait_until(lambda: model.foreseen == 1)
        assert model.expected[-1] == keystroke[0].ask.request


def test_interactive_requests_are_expected_again_and_batch_ones_are_not() -> None:
    model = toy_filler.ToyFiller("auto")
    with running_engine(lambda _: model) as engine:
        keystroke = submit(engine, {"name": "typed"})
        assert [events.reason() for events in (keystroke[1], submit(engine, {}, priority="batch")[1])] == ["finished"] * 2
        assert model.expected == [keystroke[0].ask.request]


def test_a_task_is_closed_however_its_job_ends(tmp_path: Path) -> None:
    model, clock = toy_filler.ToyFiller("auto"), Clock()
    with running_engine(lambda _: model, clock=clock) as engine:
        stop = gate(tmp_path)
        waiting: dict[str, object] = {"steps": 9, "gate": str(stop.path), "journal": str(tmp_path / "journal"), "name": "x"}
        assert submit(engine, {})[1].reason() == "finished"
        assert isinstance(submit(engine, {"raise": "RuntimeError"})[1].last(), Problem)
        cancelled_job, events = submit(engine, waiting)
        wait_until(lambda: len(model.tasks) == 3)
        late = submit(engine, waiting, ms=50)[1]
        stop.let(1)
        wait_until(lambda: len(model.tasks) == 4)
        engine.cancel(cancelled_job)
        clock.now += 1
        stop.let(9)
        assert [events.reason(), late.reason()] == ["cancelled", "deadline"]
        wait_until(lambda: all(task.closed for task in model.tasks))
