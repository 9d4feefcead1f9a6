"""The interface that the pipeline needs of an engine, its errors, and an engine that keeps private files from remote models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.wire import config, discovery
from dg_lsp.wire.config import LocalOnlyError


class EngineError(Exception):
    """An engine could not answer; the message is a sentence for the user."""


class EngineBusyError(EngineError):
    """The engine's queue is full, or its server wants a pause of `retry_s` seconds; asking again later may help."""

    def __init__(self, message: str, retry_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class LinkLostError(Exception):
    """The engine has ended or no longer responds; `crashed` is False when it announced its end."""

    def __init__(self, message: str, *, crashed: bool = True) -> None:
        super().__init__(message)
        self.crashed = crashed


class SilentError(Exception):
    """The engine's process runs but does not respond."""

    def __init__(self, state: discovery.State) -> None:
        super().__init__(f"the engine does not respond (process {state.pid})")
        self.state = state


class Engine(Protocol):
    """Returns candidates for requests."""

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return candidates, best first; stop within one denoising step when the caller is cancelled.

        Raises EngineError when the engine can't answer.
        """


@dataclass(frozen=True, slots=True)
class Guarded:
    """An engine with a remote model, which never receives files that must stay on this machine.

    `patterns` name these files, as in `.gitignore`, relative to a workspace.
    """

    inner: Engine
    patterns: tuple[str, ...]

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return the engine's candidates; raise EngineError for a private file, and remove private related files."""
        return await self.inner.fill(shown(request, self.patterns))


def shown(request: InfillRequest, patterns: tuple[str, ...]) -> InfillRequest:
    """Return the request without private files; raise EngineError when its own file is private."""
    try:
        return config.shown(request, patterns)
    except LocalOnlyError as error:
        raise EngineError(str(error)) from error
