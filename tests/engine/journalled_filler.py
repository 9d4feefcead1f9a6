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
from dg_lsp.engine.backends import local
from dg_lsp.engine.common.loading import EMBEDDED
from dg_lsp.engine.common.local import LocalTask
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.serve.jobs import Job, Queue

VARIABLE = "DG_LSP_TEST_JOURNAL"


def load(name: str, *, device: str, threads: int, on_progress: Callable[[str, float], None]) -> DiffusionFiller:
    file = open(os.environ[VARIABLE], "a", buffering=1, encoding="utf-8")  # noqa: PTH123, SIM115 -- for the process's life
    cancel = Queue.cancel

    def heard(queue: Queue, job: Job) -> None:
        cancel(queue, job)
        file.write(f"{job.ask.request.seed} cancel {time.monotonic_ns()}\n")

    Queue.cancel = heard  # type: ignore[assignment, method-assign]

    class Journalled(DiffusionFiller):
        def start(self, request: InfillRequest) -> JournalledTask:
            return JournalledTask(request, self, file)

    return Journalled(local.load_model(EMBEDDED, device=device, threads=threads, on_progress=on_progress))


class JournalledTask(LocalTask):
    def __init__(self, request: InfillRequest, filler: DiffusionFiller, file: TextIO) -> None:
        super().__init__(request, filler)
        self.name, self.file = request.seed, file

    def step(self) -> bool:
        self.file.write(f"{self.name} step {time.monotonic_ns()}\n")
        return super().step()
