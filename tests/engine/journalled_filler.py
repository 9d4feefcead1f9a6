"""The embedded model, each of whose steps is written down: the process around it and the model are the real ones.

`DG_LSP_TEST_JOURNAL` names the file. A line is a request's seed, `step` or `cancel`, and when a step of it began or the engine
heard that it is wanted no more, in nanoseconds of the clock that all processes share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TextIO

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.decode.fill import Switches
from dg_lsp.engine.decode.filler import InfillTask, LocalFiller
from dg_lsp.engine.decode.filling import Resources
from dg_lsp.engine.model import loading
from dg_lsp.engine.model.loading import EMBEDDED
from dg_lsp.engine.serve.jobs import Job, Queue

VARIABLE = "DG_LSP_TEST_JOURNAL"


def load(name: str, *, device: str, threads: int, on_progress: Callable[[str, float], None]) -> LocalFiller:
    file = open(os.environ[VARIABLE], "a", buffering=1, encoding="utf-8")  # noqa: PTH123, SIM115 -- for the process's life
    cancel = Queue.cancel

    def heard(queue: Queue, job: Job) -> None:
        cancel(queue, job)
        file.write(f"{job.ask.request.seed} cancel {time.monotonic_ns()}\n")

    Queue.cancel = heard  # type: ignore[assignment, method-assign]

    class Journalled(LocalFiller):
        def start(self, request: InfillRequest) -> InfillTask:
            return JournalledTask(request, self.resources, self.switches, file)

    return Journalled(loading.load_model(EMBEDDED, device=device, threads=threads, on_progress=on_progress))


class JournalledTask(InfillTask):
    def __init__(self, request: InfillRequest, resources: Resources, switches: Switches, file: TextIO) -> None:
        super().__init__(request, resources, switches)
        self.name, self.file = request.seed, file

    def step(self) -> bool:
        self.file.write(f"{self.name} step {time.monotonic_ns()}\n")
        return super().step()
