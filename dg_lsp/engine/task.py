"""What serving needs of a model: work that is done a step at a time.

The server of requests (scheduler, app) knows only these two base classes. A model overrides the abstract methods, and of the
rest what it can do; the defaults are those of a model that can do nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.calibration import Evidence
from dg_lsp.engine.calibration_store import Calibrations

# What several requests under way at once are to a model: "independent", as something else does the work; "joined" in one
# pass; or "in turns", as each takes the same time beside others as alone.
Concurrency = Literal["independent", "joined", "in turns"]
Say = Callable[[str, float], None]  # hears what is being loaded, and what share of it is


class UserError(Exception):
    """A request can't be served for a reason that the user can do something about.

    The message is a sentence for them and holds no code; what serves requests passes it on as it is.
    """


class Task(ABC):
    """One request under way."""

    # How long the task spent in each stage: `prefill`, `draft`, `denoise`, `score`; empty where it does not tell.
    milliseconds: Mapping[str, float] = MappingProxyType({})

    @abstractmethod
    def step(self) -> bool:
        """Do one unit that is never interrupted (a prefill, a denoising step, a scoring pass); return whether more is to do.

        Raises UserError when what is needed can't be had.
        """

    @abstractmethod
    def candidates(self) -> tuple[Candidate, ...]:
        """Return the best answers so far, best first; empty before the first denoising step."""

    @abstractmethod
    def drafts(self) -> tuple[str, ...]:
        """Return one text for each hole as the best canvas reads now."""

    def cache(self) -> Mapping[str, int]:
        """Return how many `tokens` the prefix has, and how many of them were `reused`; empty where it does not tell."""
        return {}

    def hurry(self) -> None:  # noqa: B027 -- a task that can't score early does not
        """Score drafts as soon as there are some; to be called before the first step."""

    def early(self) -> Candidate | None:
        """Return the best of what is scored before the end, None when nothing is."""
        return None

    def evidence(self) -> tuple[Evidence, ...]:
        """Return what is known of each candidate for a single hole, after the end; empty where the task does not tell."""
        return ()

    def close(self) -> None:  # noqa: B027 -- most tasks hold nothing that outlives them
        """Let go of what the task shares with others, whether it has ended or not; no step follows."""


class Filler(ABC):
    """A model that is ready to fill."""

    @property
    def calibrations(self) -> Calibrations | None:
        """What turns evidence into confidence; None where the model states its own."""
        return None

    @abstractmethod
    def start(self, request: InfillRequest) -> Task:
        """Return the request as a task, not yet begun; raise ValueError, with a sentence, when it can't be served."""

    def about(self) -> Mapping[str, object]:
        """Return facts by name: `device`, `dtype`, `threads` and `why` they are so; `device_bytes`, `device_free_bytes`."""
        return {}

    def pieces(self, text: str) -> tuple[str, ...]:
        """Return a text's tokens as text; empty where the model does not tell."""
        return ()

    def concurrency(self) -> Concurrency:
        """Return what several requests at once are to this model; where they take turns, ending one after another is best."""
        return "independent"

    def predict_together(self, tasks: Sequence[Task], max_rows: int) -> Sequence[int]:
        """Do what the next `step` of the first task takes longest for, and that of others which fit beside it.

        `max_rows` bounds the rows of the pass. Return which tasks it was done for, the first among them: their `step` has
        to follow. None at all when the first task's next step is not of that kind, or stands alone.
        """
        return ()

    def has_room(self) -> bool:
        """Return whether memory admits one more request beside those under way."""
        return True

    def expect(self, request: InfillRequest) -> None:  # noqa: B027 -- a model that can't read ahead does not
        """Take a request as the one that will probably come next."""

    def foresee(self) -> bool:
        """Do one short unit of what the expected request will need; return whether more is to do."""
        return False

    def trim(self) -> None:  # noqa: B027 -- most models keep nothing
        """Forget caches, and whatever else could be computed again."""
