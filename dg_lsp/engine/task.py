"""What serves a request needs of a model, and no more: work that is done a step at a time.

The server of requests (scheduler, app) knows only this; the model behind it, real or a test's, satisfies it by shape.
"""

from __future__ import annotations

from typing import Protocol

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
