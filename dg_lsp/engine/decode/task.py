"""Run one request on the local model as a task, on one canvas or on one canvas per hole in sequence.

Knows requests, canvases and candidates. Knows nothing of how a canvas is filled.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import torch

from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.decode import sequence
from dg_lsp.engine.decode.fill import Switches
from dg_lsp.engine.decode.pace import Due, Usage
from dg_lsp.engine.decode.propose.canvas import CanvasTask
from dg_lsp.engine.decode.rank import RowResult
from dg_lsp.engine.decode.resources import Resources
from dg_lsp.engine.task import Task


class InfillTask(Task):
    """One running request on the model of `resources`. Holes that do not fit one canvas are filled in sequence."""

    def __init__(self, request: InfillRequest, resources: Resources, switches: Switches) -> None:
        self._request, self.resources, self._switches = request, resources, switches
        self._answers: tuple[Candidate, ...] = ()
        self._canvas: CanvasTask | None = None
        self._parts: list[Candidate] = []  # the answers of the filled holes, when holes are filled in sequence
        self._is_hurried = False
        self._due: Due | None = None
        self._usage = Usage()
        self.milliseconds = self._usage.milliseconds
        self._work = self._run()

    def step(self) -> bool:
        """Do one unit of work; return whether more remains."""
        with torch.inference_mode():
            return next(self._work, None) is not None

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the best answers so far, best first; they are unfinished before the task's end."""
        if self._answers or self._canvas is None:
            return self._answers
        return tuple(
            replace(candidate, texts=self._padded(candidate.texts), confidences=(), lengths=())
            for candidate in self._canvas.best_so_far()
        )

    def drafts(self) -> tuple[str, ...]:
        """Return the current text of each hole in the best canvas, or the final answer."""
        if self._answers:
            return self._answers[0].texts
        return self._padded(self._canvas.read() if self._canvas else ())

    def _padded(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Return a text for each hole: the filled ones, then `texts`, then empty texts."""
        n_holes = len(self._request.holes)
        return (*(part.texts[0] for part in self._parts), *texts, *[""] * n_holes)[:n_holes]

    def asking(self) -> CanvasTask | None:
        """Return the canvas if the next `step` is one of its denoising steps; otherwise None."""
        return self._canvas if self._canvas is not None and self._canvas.n_live else None

    def hurry(self) -> None:
        """Score drafts as soon as there are some. Only a request with a single hole does so."""
        self._is_hurried = len(self._request.holes) == 1

    def finish_in(self, milliseconds: float) -> None:
        """Plan the work so that it ends within this time."""
        self._due = self.resources.pace.due_in(milliseconds)

    def early(self) -> Candidate | None:
        """Return the best candidate scored so far, or None."""
        return self._canvas.early if self._canvas else None

    def cache(self) -> dict[str, int]:
        """Return the number of prefix `tokens` of this task, and how many were `reused` from the cache."""
        return {"tokens": self._usage.prefix_tokens, "reused": self._usage.reused_tokens}

    def rows(self) -> tuple[RowResult, ...]:
        """Return the results of the last canvas's rows, with the numbers that rank them."""
        return tuple(self._canvas.results) if self._canvas else ()

    def evidence(self) -> tuple[Evidence, ...]:
        """Return the evidence for each row of a single hole."""
        return tuple(self._canvas.evidence()) if self._canvas and len(self._request.holes) == 1 else ()

    def close(self) -> None:
        """Release what the task shares with others. No step may follow."""
        if self._canvas is not None:
            self._canvas.leave()

    def _run(self) -> Iterator[bool]:
        request, loaded = self._request, self.resources.loaded
        if len(request.holes) == 1 or sequence.fits_one_canvas(request, loaded.profile, loaded.vocabulary):
            self._answers = yield from self._fill(request)
            if self._answers:
                self.resources.ahead.expect_accepted(request, self._answers[0].texts[0])
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
        """Fill one canvas, and return its answers."""
        fill, due = self.resources.fill(request, self._switches), self._due
        n_more = len(self._request.holes) - len(self._parts) - len(request.holes)
        if due is not None and n_more:  # share the time left with the holes that follow
            due = self.resources.pace.due_in(due.left_ms() / (n_more + 1))
        self._canvas = CanvasTask(fill, self.resources, self._usage, is_hurried=self._is_hurried, due=due)
        yield from self._canvas.run()
        return self._canvas.answers
