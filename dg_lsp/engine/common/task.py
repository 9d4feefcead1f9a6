"""The interface between serving and a model: a filler starts tasks, and a task runs one step at a time.

The worker and the app know only these two base classes. A model overrides the abstract methods, and those of its optional
abilities. The defaults suit a model without them. Models that fill only one hole at a time fill several in sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from dg_lsp.core import confidence, scope
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, InfillRequest, Ranked
from dg_lsp.engine.common.calibration_store import Calibrations
from dg_lsp.engine.common.rank import Proposal

# How a model runs several requests: "independent", because another process or machine does the work, or "in turns".
Concurrency = Literal["independent", "in turns"]
OVER = object()  # what the work of a finished task returns
OnProgress = Callable[[str, float], None]  # reports progress: a message and a fraction


class UserError(Exception):
    """A request can't be served, a model not be loaded or an engine not run, for a reason that the user can fix.

    The message is a sentence for the user without any of their code. The worker sends it, and logs no traceback of it. The same
    request may succeed after `retry_s` seconds; 0.0 if that is unknown.
    """

    retry_s = 0.0


class Task(ABC):
    """One running request."""

    # Milliseconds spent in each stage: `prefill`, `draft`, `denoise`, `score`; empty if not measured.
    milliseconds: Mapping[str, float] = MappingProxyType({})

    @abstractmethod
    def step(self) -> bool:
        """Do one uninterruptible unit (a prefill, a denoising step, a scoring pass); return whether more remains.

        Raises UserError.
        """

    @abstractmethod
    def candidates(self) -> tuple[Candidate, ...]:
        """Return the best answers so far, best first; empty before the first denoising step."""

    @abstractmethod
    def drafts(self) -> tuple[str, ...]:
        """Return the current text of each hole in the best canvas."""

    def cache(self) -> Mapping[str, int]:
        """Return the number of prefix `tokens`, and how many were `reused` from the cache; empty if not measured."""
        return {}

    def finish_in(self, milliseconds: float) -> None:  # noqa: B027 -- optional: the queue ends a task at its deadline
        """Plan the work so that it ends within this time. Call this before the first step."""

    def evidence(self) -> tuple[Evidence, ...]:
        """Return the evidence for each candidate of a single hole, after the end; empty if the task has none."""
        return ()

    def close(self) -> None:  # noqa: B027 -- optional: most tasks hold nothing
        """Release what the task holds, whether it has finished or not. No step follows."""


class Filler(ABC):
    """A loaded model that fills holes."""

    calibrations: Calibrations | None = None
    """The calibrations that turn evidence into confidence; None if the model reports its own confidence."""
    concurrency: Concurrency = "independent"
    """How this model runs several requests. With "in turns", the queue finishes one after another."""
    is_on_gpu = False
    """Whether the model's weights are on a GPU, so that loading them again takes long."""

    @abstractmethod
    def start(self, request: InfillRequest) -> Task:
        """Return a new task for the request; raise ValueError with a sentence if it can't be served."""

    def about(self) -> Mapping[str, object]:
        """Return facts by name: `device`, `dtype`, `threads`, `why` they were chosen, `device_bytes`, `device_free_bytes`."""
        return {}

    def has_room(self) -> bool:
        """Return whether memory has room for another request beside the running ones."""
        return True

    def limit(self, threads: int) -> None:  # noqa: B027 -- optional: another process does the work
        """Use at most so many threads (0: the default) from the next step on. Safe on any thread."""

    def expect(self, request: InfillRequest) -> None:  # noqa: B027 -- optional: not every model can prepare
        """Note a request that will probably come next."""

    def foresee(self) -> float | None:
        """Do one short unit of preparation for the expected request; return the seconds until the next, None without one."""
        return None

    def trim(self) -> None:  # noqa: B027 -- optional: most models have no caches
        """Drop caches, and everything else that can be computed again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What an answer would be if it ended now.

    `texts` returns the current text of each hole as far as there are some, and `candidates` the unfinished candidates, best
    first. `proposals` are the texts that were proposed so far, if there is only one hole.
    """

    texts: Callable[[], tuple[str, ...]] = tuple
    candidates: Callable[[], tuple[Candidate, ...]] = tuple
    proposals: Sequence[Proposal] = ()


# The work on an answer. Each item ends one uninterruptible unit, and says what the answer would be now; None: as before.
# What it returns are the candidates, best first.
Answering = Generator[Progress | None, None, tuple[Candidate, ...]]


class HoleTask(Task):
    """A task whose work is that of a generator. Holes that the model does not fill together are filled in sequence.

    Its attributes are the request, what was answered so far, and what the queue may ask about at any time.
    """

    def __init__(self, request: InfillRequest, *, fills_together: bool) -> None:
        self.request = request
        self._fills_together = fills_together or len(request.holes) == 1
        self._answers: tuple[Candidate, ...] = ()
        self._parts: list[tuple[Candidate, ...]] = []  # the answers of each filled hole, when holes are filled in sequence
        self.progress = Progress()  # of the request that is being filled
        self._work = self._run()

    @abstractmethod
    def _fill(self, request: InfillRequest, n_left: int) -> Answering:
        """Return the work that fills all holes of a request together. `n_left` holes share the time."""

    def step(self) -> bool:
        item = next(self._work, OVER)
        if isinstance(item, Progress):
            self.progress = item
        return item is not OVER

    def candidates(self) -> tuple[Candidate, ...]:
        if self._answers:
            return self._answers
        so_far = self.progress.candidates()
        if self._fills_together:
            return so_far
        if self._parts and not so_far:
            so_far = (Candidate((), finished=False),)
        return tuple(
            replace(each, texts=self._padded(each.texts), confidence=Ranked(rank, doubted=True), confidences=(), lengths=())
            for rank, each in enumerate(so_far)
        )

    def drafts(self) -> tuple[str, ...]:
        return self._answers[0].texts if self._answers else self._padded(self.progress.texts())

    def close(self) -> None:
        self._work.close()

    def _padded(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Return a text for each hole: the filled ones, then `texts`, then empty texts."""
        n_holes = len(self.request.holes)
        return (*(part[0].texts[0] for part in self._parts), *texts, *[""] * n_holes)[:n_holes]

    def _run(self) -> Generator[Progress | None, None, None]:
        if self._fills_together:
            self._answers = yield from self._fill(self.request, 1)
            return
        while n_left := len(self.request.holes) - len(self._parts):
            filled = [part[0].texts[0] for part in self._parts]
            answers = yield from self._fill(next_hole(self.request, filled), n_left)
            if not answers:
                return
            self._parts.append(answers)
            self.progress = Progress()
        self._answers = wholes(self._parts)


def next_hole(request: InfillRequest, filled: Sequence[str]) -> InfillRequest:
    """Return the request for the first unfilled hole alone; the texts of the filled holes become part of its prefix.

    It need not bind the names that they mention.
    """
    index, hole = len(filled), request.holes[len(filled)]
    before = "".join(text + between for text, between in zip(filled, request.between, strict=False))
    return replace(
        request,
        prefix=request.prefix + before,
        suffix="".join([*request.between[index:], request.suffix]),
        holes=(replace(hole, needed=tuple(scope.missing(hole.needed, "\n".join(filled)))),),
        between=(),
        seed=request.seed + index,
    )


def wholes(parts: Sequence[Sequence[Candidate]]) -> tuple[Candidate, ...]:
    """Return candidates for all holes from those of the single holes, which are best first.

    The first has the best text of each hole, the second the second best, and so on. A hole with fewer texts repeats its best
    one. All were written after the best texts of the holes before them, so only the first one's product is a probability.
    """
    n_texts = max(len(part) for part in parts)
    rows = [[part[place if place < len(part) else 0] for part in parts] for place in range(n_texts)]
    return tuple(
        Candidate(
            tuple(one.texts[0] for one in row),
            confidence.joint(one.confidence for one in row),
            tuple(one.confidences[0] if one.confidences else () for one in row),
            row[0].row,
            sum(one.steps for one in row),
            lengths=tuple(one.lengths[0] for one in row) if all(one.lengths for one in row) else (),
            alone=tuple(one.confidence for one in row),
        )
        for row in rows
    )
