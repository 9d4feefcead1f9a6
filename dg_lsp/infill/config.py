"""Turn the user's configuration into the client's options, and keep private files from remote models.

`wire.config` reads the configuration; the engine uses it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.infill.client import ConnectOptions
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.wire import model_names
from dg_lsp.wire.config import NO_PASSWORD, Config, ConfigError, check_model, load_config, private_names, read, workspace_of
from dg_lsp.wire.discovery import ENGINE_COMMAND
from dg_lsp.wire.model_names import is_remote
from dg_lsp.wire.privacy import LOCAL_ONLY, LocalOnlyError, shown, stays_local

__all__ = [
    "Config",
    "ConfigError",
    "Guarded",
    "Privacy",
    "check_model",
    "connect_options",
    "is_remote",
    "load_config",
    "privacy",
    "private_names",
    "read",
    "workspace_of",
]


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


def connect_options(
    config: Config, *, model: str = "", interactive: bool = True, command: tuple[str, ...] = ENGINE_COMMAND
) -> ConnectOptions:
    """Return the options to connect to the configured engine; `model` replaces the configured model.

    Raises EngineError for a model URL with a password, because other processes could read it.
    """
    settings = config.settings
    model_name = config.model(model)
    if model_names.has_password(model_name):
        raise EngineError(f"the model's URL {NO_PASSWORD}")
    return ConnectOptions(
        # The engine has its own current folder, so make a relative path absolute here.
        model=str(model_names.folder_of(model_name) or model_name),
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        unload_after_s=float(settings.unload_after),
        exit_after_s=float(settings.exit_after),
        rows=settings.rows,
        interactive=interactive,
        command=command,
    )


def privacy(paths: Iterable[Path]) -> Privacy:
    """Return the private patterns of the user and of all workspaces of these files."""
    roots = dict.fromkeys(workspace_of(path.resolve()) for path in paths)
    patterns = [pattern for root in roots for pattern in read(root)[0].settings.local_only]
    return Privacy(tuple(dict.fromkeys(patterns)))
