"""One request on the local model as a task: its canvas, or one canvas after another for holes that are far apart.

Knows requests, canvases and candidates. Knows nothing of how a canvas is filled.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import torch

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine import sequence
from dg_lsp.engine.calibration import Evidence
from dg_lsp.engine.local.canvas import CanvasTask
from dg_lsp.engine.local.fill import Switches
from dg_lsp.engine.local.resources import Resources
from dg_lsp.engine.local.usage import Usage
from dg_lsp.engine.rank import RowResult
from dg_lsp.engine.task import Task


class InfillTask(Task):
    """One request under way; holes that do not fit one canvas are filled one after another."""

    def __init__(self, request: InfillRequest, resources: Resources, switches: Switches) -> None:
        self._request, self._resources, self._switches = request, resources, switches
        self._answers: tuple[Candidate, ...] = ()
        self._canvas: CanvasTask | None = None
        self._parts: list[Candidate] = []  # of the holes that are filled, where they are filled one after another
        self._is_hurried = False
        self._usage = Usage()
        self.milliseconds = self._usage.milliseconds
        self._work = self._run()

    def step(self) -> bool:
        """Do one unit of work; return whether more is to do."""
        with torch.inference_mode():
            return next(self._work, None) is not None

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the best answers so far, best first; unfinished ones when the task has not ended."""
        if self._answers or self._canvas is None:
            return self._answers
        return tuple(
            replace(candidate, texts=self._padded(candidate.texts), confidences=(), lengths=())
            for candidate in self._canvas.best_so_far()
        )

    def drafts(self) -> tuple[str, ...]:
        """Return one text for each hole as the best canvas reads now, or the answer when there is one."""
        if self._answers:
            return self._answers[0].texts
        return self._padded(self._canvas.read() if self._canvas else ())

    def _padded(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Return a text for each hole: those that are filled, those given, and nothing for the rest."""
        n_holes = len(self._request.holes)
        return (*(part.texts[0] for part in self._parts), *texts, *[""] * n_holes)[:n_holes]

    def asking(self) -> CanvasTask | None:
        """Return the canvas whose denoising step is what the next `step` does, or None when that is something else."""
        return self._canvas if self._canvas is not None and self._canvas.n_live else None

    def hurry(self) -> None:
        """Score drafts as soon as there are some."""
        self._is_hurried = len(self._request.holes) == 1

    def early(self) -> Candidate | None:
        """Return the best of what is scored so far."""
        return self._canvas.early if self._canvas else None

    def cache(self) -> dict[str, int]:
        """Return how many `tokens` the prefixes of this task had, and how many of them were `reused`."""
        return {"tokens": self._usage.prefix_tokens, "reused": self._usage.reused_tokens}

    def rows(self) -> tuple[RowResult, ...]:
        """Return what each row of the last canvas came to, with all that the ranking knows of it."""
        return tuple(self._canvas.results) if self._canvas else ()

    def evidence(self) -> tuple[Evidence, ...]:
        """Return what is known of each row of a single hole."""
        return tuple(self._canvas.evidence()) if self._canvas and len(self._request.holes) == 1 else ()

    def close(self) -> None:
        """Let go of what the task shares with others; no step may follow."""
        if self._canvas is not None:
            self._canvas.leave()

    def _run(self) -> Iterator[bool]:
        request, loaded = self._request, self._resources.loaded
        if len(request.holes) == 1 or sequence.fits_one_canvas(request, loaded.profile, loaded.vocabulary):
            self._answers = yield from self._fill(request)
            if self._answers:
                self._resources.ahead.expect_accepted(request, self._answers[0].texts[0])
            return
        while len(self._parts) < len(request.holes):
            filled = [part.texts[0] for part in self._parts]
            answers = yield from self._fill(sequence.next_hole(request, filled))
            if not answers:
                return
            self._parts.append(answers[0])
            self._canvas = None
        self._answers = (sequence.whole(self._parts),)

    def _fill(self, request: InfillRequest) -> Generator[bool, None, tuple[Candidate, ...]]:
        """Return the answers of one canvas."""
        fill = self._resources.fill(request, self._switches)
        self._canvas = CanvasTask(fill, self._resources, self._usage, is_hurried=self._is_hurried)
        yield from self._canvas.run()
        return self._canvas.answers
