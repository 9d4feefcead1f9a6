"""The real queue with its worker around the toy model, and what is heard of a job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dg_lsp.core.values import Candidate
from dg_lsp.engine.common.task import Filler
from dg_lsp.engine.serve.queue import Job, Limits, Queue
from dg_lsp.engine.serve.worker import Worker
from dg_lsp.wire.messages import Ask, Done, Event, Problem, Status
from tests.engine import toy_filler
from tests.engine.engine_kit import gate, request, wait_until
from tests.patience import PATIENCE_S


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
        assert self.over.wait(PATIENCE_S)
        return self.events

    def last(self) -> Event:
        return self.all()[-1]

    def reason(self) -> str:
        last = self.last()
        assert isinstance(last, Done)
        return last.reason

    def code(self) -> str:
        last = self.last()
        assert isinstance(last, Problem)
        return last.code

    def message(self) -> str:
        last = self.last()
        assert isinstance(last, Problem)
        return last.message

    def candidates(self) -> list[Candidate]:
        return [event for event in self.all() if isinstance(event, Candidate)]


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Engine(Queue):
    """The real queue, with its worker's thread around the toy model."""

    def __init__(self, load: Callable[[Callable[[str, float], None]], Filler], limits: Limits | None, clock: Clock) -> None:
        super().__init__(limits, clock)
        self.statuses: list[Status] = []
        self.worker = Worker(self, load, self.statuses.append)


@contextmanager
def running_engine(
    load: Callable[[Callable[[str, float], None]], Filler] | None = None,
    *,
    model: str = "toy",
    limits: Limits | None = None,
    clock: Clock | None = None,
) -> Iterator[Engine]:
    usual = load or (lambda on_progress: toy_filler.load(model, device="auto", threads=0, on_progress=on_progress))
    engine = Engine(usual, limits, clock or Clock())
    engine.worker.start()
    try:
        yield engine
    finally:
        engine.worker.close()


def submit(to: Queue, script: dict[str, object], *, ms: int = 0, n: int = 1, **envelope: object) -> tuple[Job, Heard]:
    events = Heard()
    return to.submit(Ask(request(script, ms=ms, n=n), **envelope), events), events  # type: ignore[arg-type]


@contextmanager
def engine_in_step(
    model: toy_filler.ToyFiller, folder: Path, limits: Limits | None = None
) -> Iterator[tuple[Engine, Callable[[], None]]]:
    """An engine whose thread is in a step, and what lets it go on: what is submitted meanwhile begins at one moment."""
    with running_engine(lambda _: model, limits=limits) as engine:
        stop = gate(folder, "held")
        submit(engine, {"steps": 1, "gate": str(stop.path)})
        wait_until(lambda: engine.sizes()[0])
        yield engine, lambda: stop.let(1)
