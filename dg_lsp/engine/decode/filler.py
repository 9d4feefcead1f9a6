"""The local model's interface to serving: start tasks, step them together, prepare for the next request, report facts.

A task runs one request, on one canvas or on one canvas per hole in sequence. On each canvas, some ways propose texts for the
hole, one pass scores them all, and one scale ranks them:

    request -> Sheet -> FillInput -> Filling (the encoded prefix)
    each proposer that the profile lists for this kind of hole -> Proposal, ...
    all Proposals -> a causal pass over their tree (scoring.py) -> ranked (rank.py, core.calibration) -> Candidate, ...

A proposer is a generator. It adds to the filling's proposals, and yields after each uninterruptible unit of work.
Knows requests, candidates and the order of the stages. Knows nothing of how they work.
"""

from __future__ import annotations

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import codecs
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import torch

from dg_lsp.core import calibration
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.calibration_store import Calibrations, ModelId
from dg_lsp.engine.decode import scoring, sequence
from dg_lsp.engine.decode.canvas.steps import Steps
from dg_lsp.engine.decode.fill import Switches
from dg_lsp.engine.decode.filling import MAX_ROWS, Filling, Resources, Work
from dg_lsp.engine.decode.pace import Budget, Usage
from dg_lsp.engine.decode.propose import canvas, drafting, masked
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.model import loading, room
from dg_lsp.engine.model.loading import EMBEDDED, Loaded
from dg_lsp.engine.task import Concurrency, Filler, OnProgress, Task
from dg_lsp.wire import model_names

PROPOSERS: dict[str, tuple[Callable[[Filling], Work], str]] = {
    "copy": (drafting.copies_of, "draft"),
    "search": (canvas.search, "denoise"),
    "causal": (drafting.propose, "draft"),
    "canvas": (canvas.propose, "denoise"),
    "repair": (canvas.repair, "denoise"),
    "several_canvases": (canvas.several, "denoise"),
    "masked": (masked.propose, "denoise"),
}
"""Each proposer by its name in a profile, and the stage that its time counts for."""

OVER = object()  # what the work of a finished task returns


def load_local(
    name: str = EMBEDDED,
    *,
    device: str = "auto",
    threads: int = 0,
    revision: str = "",
    dtype: str = "",
    rows: int = MAX_ROWS,
    on_progress: OnProgress = lambda _text, _share: None,
) -> LocalFiller:
    """Load the local model `name` and return its filler; `engine.model.load_model` documents the errors.

    `engine.backends.load_filler` also loads models that run elsewhere.
    """
    loaded = loading.load_model(name, device=device, threads=threads, revision=revision, dtype=dtype, on_progress=on_progress)
    filler = LocalFiller(loaded, rows=rows)
    filler.calibrations.watch(ModelId(str(model_names.folder_of(name) or name), loaded.fingerprint))
    return filler


class LocalFiller(Filler):
    """A loaded model that fills requests.

    `joins` says whether rows of several requests step in one pass. The default is to do so except on a CPU, where a row
    takes the same time alone. `rows` is the maximum number of a request's rows in one pass; more rows take several passes.
    `clock` returns the seconds for planning deadlines.
    """

    calibrations: Calibrations

    def __init__(
        self,
        loaded: Loaded,
        switches: Switches | None = None,
        *,
        joins: bool | None = None,
        rows: int = MAX_ROWS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._joins = loaded.device != "cpu" if joins is None else joins
        self.switches = switches or Switches()
        self.resources = Resources.of(loaded, rows, clock)
        self.loaded, self.layout = loaded, self.resources.windows.layout
        self.calibrations, self.cache = self.resources.calibrations, self.resources.prefixes.cache

    def start(self, request: InfillRequest) -> InfillTask:
        """Return a new task for the request."""
        return InfillTask(request, self.resources, self.switches)

    def concurrency(self) -> Concurrency:
        """Return "joined" if rows of several requests step in one pass, otherwise "in turns"."""
        return "joined" if self._joins else "in turns"

    def predict_together(self, tasks: Sequence[Task], max_rows: int) -> Sequence[int]:
        """Run one pass of at most `max_rows` rows for the next step of the first task and of others that fit in it.

        Return the indexes of the tasks it served; none if the first task is alone, or if its next unit is not a denoising
        step.
        """
        waiting = [task.asking() if isinstance(task, InfillTask) else None for task in tasks]
        shared_indexes = self.resources.shared.fitting(waiting, max_rows)
        if len(shared_indexes) < 2:  # a task alone steps without this pass
            return ()
        self.resources.shared.predict([steps for index in shared_indexes if (steps := waiting[index]) is not None])
        return tuple(shared_indexes)

    def is_on_gpu(self) -> bool:
        """Return whether the model's weights are on a GPU."""
        return self.loaded.device != "cpu"

    def has_room(self) -> bool:
        """Return whether memory has room for another request of full size beside the running ones."""
        return self.resources.headroom.admits_request()

    def expect(self, request: InfillRequest) -> None:
        """Note the request that will probably come next; `foresee` encodes its prefix."""
        self.resources.ahead.expect(request)

    def foresee(self) -> bool:
        """Encode one chunk of the expected prefix; return whether more remains."""
        return self.resources.ahead.read()

    def about(self) -> dict[str, object]:
        """Return the facts of the model: device, dtype, revision, threads, the reasons for them, and memory."""
        loaded = self.loaded
        return {
            "device": loaded.device,
            "dtype": loaded.dtype,
            "revision": loaded.revision,
            "threads": loaded.threads,
            "why": dict(loaded.why),
            "device_bytes": loaded.passes.n_bytes() + self.cache.bytes,
            "device_free_bytes": room.free_bytes(loaded.device),
        }

    def pieces(self, text: str) -> tuple[str, ...]:
        """Return the texts of a text's tokens. A character split over several tokens belongs to the last of them."""
        vocabulary = self.loaded.vocabulary
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return tuple(decoder.decode(vocabulary.pieces[token]) for token in vocabulary.encode(text))

    def trim(self) -> None:
        """Drop the prefix cache and the buffers of steps."""
        self.cache.clear()
        if self.resources.stepper.fixed is not None:
            self.resources.stepper.fixed.clear()


class InfillTask(Task):
    """One running request on the model of `resources`. Holes that do not fit one canvas are filled in sequence."""

    def __init__(self, request: InfillRequest, resources: Resources, switches: Switches) -> None:
        self._request, self.resources, self._switches = request, resources, switches
        self._answers: tuple[Candidate, ...] = ()
        self._filling: Filling | None = None
        self._parts: list[tuple[Candidate, ...]] = []  # the answers of each filled hole, when holes are filled in sequence
        self._due_at = math.inf
        self._usage = Usage()
        self.milliseconds = self._usage.milliseconds
        self._work: Iterator[None] = self._run()

    def step(self) -> bool:
        """Do one unit of work; return whether more remains."""
        self._usage.began = time.perf_counter()
        try:
            with torch.inference_mode():
                return next(self._work, OVER) is not OVER
        finally:
            self._usage.switch(self._usage.stage)

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
        self._due_at = self.resources.pace.clock() + milliseconds / 1000

    def cache(self) -> dict[str, int]:
        """Return the number of prefix `tokens` of this task, and how many were `reused` from the cache."""
        return {"tokens": self._usage.prefix_tokens, "reused": self._usage.reused_tokens}

    def proposals(self) -> tuple[Proposal, ...]:
        """Return what was proposed for the last canvas, with the numbers that rank it."""
        return tuple(self._filling.proposals) if self._filling else ()

    def evidence(self) -> tuple[Evidence, ...]:
        """Return the evidence for each proposal of a single hole."""
        filling = self._filling if len(self._request.holes) == 1 else None
        return tuple(scoring.evidence(filling.fill, filling.proposals, 0)) if filling else ()

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
                self.resources.ahead.expect(request, accepted=self._answers[0].texts[0])
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
        """Fill one canvas, and return its ranked answers, best first."""
        pace, due_at = self.resources.pace, self._due_at
        n_more = len(self._request.holes) - len(self._parts) - len(request.holes)
        if n_more:  # share the time left with the holes that follow
            due_at = pace.clock() + (due_at - pace.clock()) / (n_more + 1)
        budget = Budget(pace, due_at)
        fill = self.resources.fill(request, self._switches, budget.left_ms())
        self._filling = filling = Filling(fill, self.resources, self._usage, budget)
        self._usage.switch("prefill")
        yield from filling.begin()
        for name in fill.profile.block if fill.is_block else fill.profile.line:
            propose, stage = PROPOSERS[name]
            self._usage.switch(stage)
            yield from propose(filling)
        self._usage.switch("score")
        if fill.n_holes > 1:
            return calibration.to_candidates(filling.joint, None)
        if not filling.proposals:
            return ()
        yield from filling.score()
        filling.read_on()
        return calibration.to_candidates(scoring.evidence(fill, filling.proposals, filling.n_steps), fill.calibration)
