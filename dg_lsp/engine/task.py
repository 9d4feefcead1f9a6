"""What serves a request needs of a model, and no more: work that is done a step at a time.

The server of requests (scheduler, app) knows only this; the model behind it, real or a test's, satisfies it by shape.
`Task` and `Filler` are needed; the rest is used where a model has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from dg_lsp.core.values import Candidate, InfillRequest


class UserError(Exception):
    """A request can't be served for a reason that the user can do something about.

    The message is a sentence for them and holds no code; what serves requests passes it on as it is.
    """


class Task(Protocol):
    """One request under way."""

    def step(self) -> bool:
        """Do one unit that is never interrupted (a prefill, a denoising step, a scoring pass); return whether more is to do.

        Raises UserError when what is needed can't be had.
        """

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the best answers so far, best first; empty before the first denoising step."""

    def drafts(self) -> tuple[str, ...]:
        """Return one text for each hole as the best canvas reads now."""


class Filler(Protocol):
    """A model that is ready to fill."""

    def start(self, request: InfillRequest) -> Task:
        """Return the request as a task, not yet begun; raise ValueError, with a sentence, when it can't be served."""


@runtime_checkable
class Timed(Protocol):
    """A task that tells how long it spent in each stage: `prefill`, `draft`, `denoise`, `score`."""

    milliseconds: Mapping[str, float]


@runtime_checkable
class Cached(Protocol):
    """A task that tells how much of its prefix was not computed again."""

    def cache(self) -> Mapping[str, int]:
        """Return `tokens` of the prefix, and how many of them were `reused`."""


@runtime_checkable
class Eager(Protocol):
    """A task that can score what it has before it has all."""

    def hurry(self) -> None:
        """Score drafts as soon as there are some; to be called before the first step."""

    def early(self) -> Candidate | None:
        """Return the best of what is scored so far, None when nothing is."""


@runtime_checkable
class Trimmed(Protocol):
    """A model that can let go of what it could compute again."""

    def trim(self) -> None:
        """Forget caches."""


@runtime_checkable
class Joining(Protocol):
    """A model that can do the passes of several tasks as one."""

    def joins(self) -> bool:
        """Return whether they are faster so on this machine; where not, one task after the other is the best order."""

    def predict_together(self, tasks: Sequence[Task], most: int) -> Sequence[int]:
        """Do what the next `step` of the first task takes longest for, and that of others which fit beside it.

        `most` bounds the rows of the pass. Return which tasks it was done for, the first among them: their `step` has
        to follow. None at all when the first task's next step is not of that kind, or stands alone.
        """


@runtime_checkable
class Roomy(Protocol):
    """A model that knows how much memory a request takes."""

    def has_room(self) -> bool:
        """Return whether one more request can be begun beside those under way."""


@runtime_checkable
class Foreseeing(Protocol):
    """A model that can do ahead of time what a next request will probably need."""

    def expect(self, request: InfillRequest) -> None:
        """Take a request as the one that will probably come next, again or with its answer accepted."""

    def foresee(self) -> bool:
        """Do one short unit of it; return whether more is to do."""
