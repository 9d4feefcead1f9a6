"""The interface that the pipeline needs of an engine."""

from __future__ import annotations

from typing import Protocol

from dg_lsp.core.values import Candidate, InfillRequest


class EngineError(Exception):
    """An engine could not answer; the message is a sentence for the user."""


class Engine(Protocol):
    """Returns candidates for requests."""

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return candidates, best first; stop within one denoising step when the caller is cancelled.

        Raises EngineError when the engine can't answer.
        """
