"""A model of a few lines whose requests say how it behaves: the process around it is the real one.

A request's prefix may hold a JSON object: `steps` to take, a `gate` (a file whose length is how many steps may be taken),
a `journal` (a file that gets the request's `name` after each step), an error to `raise` in the step of that number, or a
signal number to `die` by. The model's name may be `fails`, `breaks`, `panics`, `no-memory`, or `gate:PATH`, a
file to wait for while loading.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from dg_lsp.core.values import Calibrated, Candidate, InfillRequest
from dg_lsp.engine.common.task import Concurrency, Filler, Task, UserError

PAUSE_S = 0.002


def load(model: str, *, device: str, on_progress: Callable[[str, float], None], **options: Any) -> "ToyFiller":
    on_progress("reading weights", 0.5)
    if model == "fails":
        raise UserError("there is no checkpoint of that name")
    if model == "breaks":
        raise OSError("a file is broken")
    if model == "panics":
        raise panic()
    if model == "no-memory":
        raise MemoryError
    if model.startswith("gate:"):
        door = Path(model.removeprefix("gate:"))
        while not door.exists():
            door.parent.stat()  # fails once the test is over
            time.sleep(PAUSE_S)
    return ToyFiller(device, threads=options.get("threads", 0))


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


def panic() -> BaseException:
    """Return the error of a real panic of a library in Rust, which is no Exception."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    values = json.loads(tokenizer.to_str())
    values["truncation"] = {"max_length": 1, "stride": 5, "strategy": "LongestFirst", "direction": "Right"}
    try:
        Tokenizer.from_str(json.dumps(values)).encode("aa")
    except BaseException as error:
        return error
    raise AssertionError


class AcceleratorError(RuntimeError):
    """Named as torch names its own."""


class PausedError(UserError):
    """What a server that allows no requests leads to."""

    retry_s = 6.5


ERRORS: dict[str, Callable[[], BaseException]] = {
    "RuntimeError": lambda: RuntimeError("secret code in a message"),
    "OutOfMemoryError": OutOfMemoryError,
    "AcceleratorError": lambda: AcceleratorError("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA"),
    "a GPU without memory": lambda: AcceleratorError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
    "MemoryError": MemoryError,
    "no thread": lambda: RuntimeError("can't start new thread"),
    "panic": panic,
    "UserError": lambda: UserError("the server requires an API key"),
    "PausedError": lambda: PausedError("it gets no requests until 12:00:00"),
}


class ToyFiller(Filler):
    def __init__(self, device: str, turns: Concurrency = "independent", threads: int = 0) -> None:
        self.device, self.concurrency, self.threads = device, turns, threads
        self.is_on_gpu = device == "cuda"
        self.trimmed = 0
        self.tasks: list[ToyTask] = []
        self.has_memory = True
        self.to_foresee = self.foreseen = 0
        self.expected: list[InfillRequest] = []
        self.units = threading.Semaphore(0)  # each unit of foreseeing takes one

    def start(self, request: InfillRequest) -> "ToyTask":
        script = json.loads(request.prefix) if request.prefix.startswith("{") else {}
        if script.get("raise") == "ValueError":
            raise ValueError("the prefix is longer than the model's window")
        self.tasks.append(ToyTask(request, script))
        return self.tasks[-1]

    def about(self) -> Mapping[str, object]:
        device = "toy" if self.device == "auto" else self.device
        return {"device": device, "dtype": "int8", "threads": self.threads}

    def limit(self, threads: int) -> None:
        self.threads = threads

    def has_room(self) -> bool:
        return self.has_memory

    def expect(self, request: InfillRequest) -> None:
        self.expected.append(request)
        script = json.loads(request.prefix) if request.prefix.startswith("{") else {}
        if "expected" in script:
            Path(script["expected"]).touch()

    def foresee(self) -> float | None:
        if self.foreseen < self.to_foresee:
            self.units.acquire()
            self.foreseen += 1
        return 0.0 if self.foreseen < self.to_foresee else None

    def trim(self) -> None:
        self.trimmed += 1

    def pieces(self, text: str) -> tuple[str, ...]:
        return tuple(text)


class ToyTask(Task):
    def __init__(self, request: InfillRequest, script: dict[str, Any]) -> None:
        self.request = request
        self.script = script
        self.taken = 0
        self.closed = False
        self.planned_ms = 0.0

    def step(self) -> bool:
        gate = self.script.get("gate")
        while gate and Path(gate).stat().st_size <= self.taken:
            time.sleep(PAUSE_S)
        if "die" in self.script:
            os.kill(os.getpid(), self.script["die"])
        if "raise" in self.script and self.taken == self.script.get("at", 0):
            error = ERRORS[self.script["raise"]]()
            raise error
        time.sleep(self.script.get("pause_s", 0))
        self.taken += 1
        if "journal" in self.script:
            with Path(self.script["journal"]).open("a") as journal:
                journal.write(f"{self.script['name']}\n")
        return bool(self.taken < self.script.get("steps", 3))

    def finish_in(self, milliseconds: float) -> None:
        assert not self.taken
        self.planned_ms = milliseconds

    def close(self) -> None:
        self.closed = True

    def candidates(self) -> tuple[Candidate, ...]:
        if not self.taken:
            return ()
        text = self.script.get("text", "answer")
        texts = (text,) * len(self.request.holes)
        confidences = tuple((0.5,) * len(text) for _ in texts)
        n_more = self.request.budget.candidates + 5  # like a real model, it has more than were requested
        return tuple(Candidate(texts, Calibrated(0.9 - idx / 100), confidences, steps=self.taken) for idx in range(n_more))

    def drafts(self) -> tuple[str, ...]:
        return (f"draft {self.taken}",) * len(self.request.holes)

    def cache(self) -> Mapping[str, int]:
        return {"tokens": len(self.request.prefix), "reused": 1}
