"""Run one request on the local model as a task, on one canvas or on one canvas per hole in sequence.

Knows requests, canvases and candidates. Knows nothing of how a canvas is filled.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import torch

from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.decode import pipeline, sequence
from dg_lsp.engine.decode.canvas.steps import Steps
from dg_lsp.engine.decode.fill import Switches
from dg_lsp.engine.decode.filling import Filling
from dg_lsp.engine.decode.pace import Budget, Due, Usage
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.decode.resources import Resources
from dg_lsp.engine.task import Task

OVER = object()  # what the work of a finished task returns


class InfillTask(Task):
    """One running request on the model of `resources`. Holes that do not fit one canvas are filled in sequence."""

    def __init__(self, request: InfillRequest, resources: Resources, switches: Switches) -> None:
        self._request, self.resources, self._switches = request, resources, switches
        self._answers: tuple[Candidate, ...] = ()
        self._filling: Filling | None = None
        self._parts: list[tuple[Candidate, ...]] = []  # the answers of each filled hole, when holes are filled in sequence
        self._due: Due | None = None
        self._usage = Usage()
        self.milliseconds = self._usage.milliseconds
        self._work: Iterator[None] = self._run()

    def step(self) -> bool:
        """Do one unit of work; return whether more remains."""
        with torch.inference_mode(), self._usage.running():
            return next(self._work, OVER) is not OVER

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the best answers so far, best first; they are unfinished before the task's end."""
        if self._answers or self._filling is None:
            return self._answers
        return tuple(
            replace(candidate, texts=self._padded(candidate.texts), confidences=(), lengths=())
            for candidate in self._filling.best_so_far()
        )

    def drafts(self) -> tuple[str, ...]:
        """Return the current text of each hole in the best canvas, or the final answer."""
        if self._answers:
            return self._answers[0].texts
        return self._padded(self._filling.texts() if self._filling else ())

    def _padded(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Return a text for each hole: the filled ones, then `texts`, then empty texts."""
        n_holes = len(self._request.holes)
        return (*(part[0].texts[0] for part in self._parts), *texts, *[""] * n_holes)[:n_holes]

    def asking(self) -> Steps | None:
        """Return the steps of the canvas if the next `step` is one of them; otherwise None."""
        steps = self._filling.steps if self._filling is not None else None
        return steps if steps is not None and steps.n_live else None

    def finish_in(self, milliseconds: float) -> None:
        """Plan the work so that it ends within this time."""
        self._due = self.resources.pace.due_in(milliseconds)

    def cache(self) -> dict[str, int]:
        """Return the number of prefix `tokens` of this task, and how many were `reused` from the cache."""
        return {"tokens": self._usage.prefix_tokens, "reused": self._usage.reused_tokens}

    def proposals(self) -> tuple[Proposal, ...]:
        """Return what was proposed for the last canvas, with the numbers that rank it."""
        return tuple(self._filling.proposals) if self._filling else ()

    def evidence(self) -> tuple[Evidence, ...]:
        """Return the evidence for each proposal of a single hole."""
        return tuple(self._filling.evidence()) if self._filling and len(self._request.holes) == 1 else ()

    def close(self) -> None:
        """Release what the task shares with others, and its own memory. No step may follow."""
        self._work = iter(())  # it refers to this task
        self._release()

    def _release(self) -> None:
        """Free what the filling holds at once, and not when Python next looks for references in a circle."""
        if self._filling is not None:
            self._filling.leave()
            self._filling.live = None

    def _run(self) -> Iterator[None]:
        request, loaded = self._request, self.resources.loaded
        if len(request.holes) == 1 or sequence.fits_one_canvas(request, loaded.profile, loaded.vocabulary):
            self._answers = yield from self._fill(request)
            if self._answers:
                self.resources.ahead.expect_accepted(request, self._answers[0].texts[0])
            return
        while len(self._parts) < len(request.holes):
            filled = [part[0].texts[0] for part in self._parts]
            answers = yield from self._fill(sequence.next_hole(request, filled))
            if not answers:
                return
            self._parts.append(answers)
            self._release()
            self._filling = None
        self._answers = sequence.wholes(self._parts)

    def _fill(self, request: InfillRequest) -> Generator[None, None, tuple[Candidate, ...]]:
        """Fill one canvas, and return its answers."""
        fill, due = self.resources.fill(request, self._switches), self._due
        n_more = len(self._request.holes) - len(self._parts) - len(request.holes)
        if due is not None and n_more:  # share the time left with the holes that follow
            due = self.resources.pace.due_in(due.left_ms() / (n_more + 1))
        self._filling = Filling(fill, self.resources, self._usage, Budget(due))
        return (yield from pipeline.run(self._filling))
