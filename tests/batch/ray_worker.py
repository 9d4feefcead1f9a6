"""A model for workers on a cluster. Its name is a folder, in which it records who answers and finds what to wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from dg_lsp.core.values import Calibrated, Candidate, InfillRequest
from dg_lsp.engine.common.task import Filler, Task


def load(model: str) -> Filler:
    return _Filler(Path(model))


class _Filler(Filler):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, request: InfillRequest) -> Task:
        if "refused" in request.path:
            raise ValueError("the file is refused")
        if "broken" in request.path:
            raise RuntimeError("secret code")
        return _Task(self.folder, request)

    def about(self) -> Mapping[str, object]:
        return {}

    def close(self) -> None:
        pass


class _Task(Task):
    def __init__(self, folder: Path, request: InfillRequest) -> None:
        self.folder, self.request, self.n = folder, request, 0

    def step(self) -> bool:
        self.n += 1
        (self.folder / f"{os.getpid()}.pid").touch()
        # The first worker stays in its first request until it is killed or the test lets it continue.
        if (self.folder / "hold").exists():
            time.sleep(0.01)
            return True
        # Like a model on another machine, this takes no CPU.
        time.sleep(float((self.folder / "step_s").read_text()) if (self.folder / "step_s").exists() else 0.001)
        return self.n < 4

    def candidates(self) -> tuple[Candidate, ...]:
        text = f"return {self.request.seed % 1000}"
        return (Candidate((text,) * len(self.request.holes), Calibrated(0.9), steps=self.n),)

    def drafts(self) -> tuple[str, ...]:
        return ("",) * len(self.request.holes)
