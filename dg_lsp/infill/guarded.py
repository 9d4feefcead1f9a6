"""Keep private files from remote models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.wire.config import private_names, read, workspace_of
from dg_lsp.wire.privacy import LOCAL_ONLY, LocalOnlyError, shown, stays_local


@dataclass(frozen=True, slots=True)
class Privacy:
    """The patterns of files that are never sent to a remote model, as in `.gitignore`, relative to a workspace."""

    patterns: tuple[str, ...] = ()

    def keeps(self, name: str) -> bool:
        """Return whether the file with this path relative to its workspace stays on this machine."""
        return stays_local(name, self.patterns)

    def keeps_file(self, path: Path) -> bool:
        """Return whether a file stays on this machine."""
        return any(map(self.keeps, private_names(path.resolve())))

    def shown(self, request: InfillRequest) -> InfillRequest:
        """Return the request without private files; raise EngineError when its own file is private."""
        try:
            return shown(request, self.patterns)
        except LocalOnlyError as error:
            raise EngineError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Guarded:
    """An engine with a remote model, which never receives files that must stay on this machine."""

    inner: Engine
    privacy: Privacy

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return the engine's candidates; raise EngineError for a private file, and remove private related files."""
        return await self.inner.fill(self.privacy.shown(request))


def refusal(name: str) -> str:
    """Return a sentence that says why a file gets no fills from a remote model."""
    return f"{name} {LOCAL_ONLY}"


def privacy_of(paths: Iterable[Path]) -> Privacy:
    """Return the private patterns of the user and of all workspaces of these files."""
    roots = dict.fromkeys(workspace_of(path.resolve()) for path in paths)
    patterns = [pattern for root in roots for pattern in read(root)[0].settings.local_only]
    return Privacy(tuple(dict.fromkeys(patterns)))
