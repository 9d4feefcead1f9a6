"""From what the user has configured to an engine that keeps to it: the client's options, and which files stay at home.

Knows workspaces and the engine's client. How the configuration is read is `wire.config`'s, which the engine shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.infill.client import ConnectOptions
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.wire import model_names
from dg_lsp.wire.config import NO_PASSWORD, Config, ConfigError, load, read, workspace_of
from dg_lsp.wire.model_names import is_remote
from dg_lsp.wire.privacy import LOCAL_ONLY, LocalOnlyError, shown, stays_local

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
        try:
            return shown(request, self.patterns)
        except LocalOnlyError as error:
            raise EngineError(str(error)) from error


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
    return f"{name} {LOCAL_ONLY}"


def connect_options(config: Config, *, command: tuple[str, ...], model: str = "", interactive: bool = True) -> ConnectOptions:
    """Return how to join the engine that is configured, or the one with another `model`, and the command to start it.

    Raises EngineError for a model that can't be told to another process.
    """
    settings = config.settings
    model_name = model or settings.model
    if model_names.has_password(model_name):
        raise EngineError(f"the model's URL {NO_PASSWORD}")
    return ConnectOptions(
        # The engine has a current folder of its own, from which a relative path would lead elsewhere.
        model=str(model_names.folder_of(model_name) or model_name),
        device=settings.device,
        threads=settings.threads,
        unload_after_s=float(settings.unload_after),
        exit_after_s=float(settings.exit_after),
        rows=settings.rows,
        interactive=interactive,
        command=command,
    )


def privacy(paths: Iterable[Path]) -> Privacy:
    """Return what the user and the workspaces of these files together keep here."""
    roots = dict.fromkeys(workspace_of(path.resolve()) for path in paths)
    patterns = [pattern for root in roots for pattern in read(root)[0].settings.local_only]
    return Privacy(tuple(dict.fromkeys(patterns)))
