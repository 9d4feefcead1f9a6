"""From what the user has configured to an engine that keeps to it: the client's options, and which files stay at home.

Knows workspaces and the engine's client. How the configuration is read is `wire.config`'s, which the engine shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.infill.client import Breaker, ConnectOptions
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.wire import config as shared
from dg_lsp.wire.config import Config, ConfigError, is_remote, load, read, stays_local, workspace_of

__all__ = [
    "Config",
    "ConfigError",
    "Guarded",
    "Privacy",
    "connect_options",
    "is_remote",
    "load",
    "privacy",
    "read",
    "workspace_of",
]


@dataclass(frozen=True, slots=True)
class Privacy:
    """Which files no remote model may see: patterns as in `.gitignore`, for paths below a workspace."""

    patterns: tuple[str, ...] = ()

    def keeps(self, name: str) -> bool:
        """Return whether a file, named by its path below its workspace, stays here."""
        return stays_local(name, self.patterns)

    def keeps_file(self, path: Path) -> bool:
        """Return whether a file stays here."""
        path = path.resolve()
        return self.keeps(path.relative_to(workspace_of(path)).as_posix())

    def shown(self, request: InfillRequest) -> InfillRequest:
        """Return what of a request a remote model may see; raise EngineError when that is nothing."""
        if self.keeps(request.path):
            raise EngineError(refusal(request.path))
        related = tuple(snippet for snippet in request.related if not self.keeps(snippet.path))
        return replace(request, related=related)


@dataclass(frozen=True, slots=True)
class Guarded:
    """An engine with a remote model that is shown nothing that should stay here."""

    inner: Engine
    privacy: Privacy

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return what the engine does; raise EngineError for a file that stays here, and leave such files out as context."""
        return await self.inner.fill(self.privacy.shown(request))


def refusal(name: str) -> str:
    """Return why a file gets no fills from a remote model, as a sentence."""
    return f"{name} is for local models only (privacy.local_only), and the chosen model is remote"


def connect_options(config: Config, *, command: tuple[str, ...], model: str = "", interactive: bool = True) -> ConnectOptions:
    """Return how to join the engine that is configured, or the one with another `model`, and the command to start it."""
    chosen = model or config.model
    return ConnectOptions(
        # The engine has a current folder of its own, from which a relative path would lead elsewhere.
        model=str(shared.folder_of(chosen) or chosen),
        device=config.device,
        threads=config.threads,
        unload_after_s=config.unload_after_s,
        exit_after_s=config.exit_after_s,
        rows=config.rows,
        interactive=interactive,
        command=command,
        breaker=Breaker(window_s=config.restart_window_s, most=config.restart_limit, pauses_s=config.restart_pauses_s),
    )


def privacy(paths: Iterable[Path]) -> Privacy:
    """Return what the user and the workspaces of these files together keep here."""
    roots = dict.fromkeys(workspace_of(path.resolve()) for path in paths)
    kept = [pattern for root in roots for pattern in read(root)[0].local_only]
    return Privacy(tuple(dict.fromkeys(kept)))
