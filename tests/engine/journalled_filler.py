"""The embedded model, each of whose steps is written down: the process around it and the model are the real ones.

`DG_LSP_TEST_JOURNAL` names the file. A line is a request's seed, and when a step began and ended, in nanoseconds of the
clock that all processes share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TextIO

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.filler import InfillTask, LocalFiller
from dg_lsp.engine.model import EMBEDDED
from dg_lsp.engine.model import load as load_model

VARIABLE = "DG_LSP_TEST_JOURNAL"


def load(model: str, *, device: str, threads: int, say: Callable[[str, float], None]) -> LocalFiller:
    file = open(os.environ[VARIABLE], "a", buffering=1, encoding="utf-8")  # noqa: PTH123, SIM115 -- for the process's life

    class Journalled(LocalFiller):
        def start(self, request: InfillRequest) -> InfillTask:
            return JournalledTask(self, request, file)

    return Journalled(load_model(EMBEDDED, device=device, threads=threads, say=say))


class JournalledTask(InfillTask):
    def __init__(self, filler: LocalFiller, request: InfillRequest, file: TextIO) -> None:
        super().__init__(filler, request)
        self.name, self.file = request.seed, file

    def step(self) -> bool:
        began = time.monotonic_ns()
        more = super().step()
        self.file.write(f"{self.name} {began} {time.monotonic_ns()}\n")
        return more
