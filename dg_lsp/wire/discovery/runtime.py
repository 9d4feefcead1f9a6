"""What identifies an engine, and where its files are: the private directory and the names in it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.wire import model_names
from dg_lsp.wire.messages import PROTOCOL_MAJOR
from dg_lsp.wire.settings import DEFAULTS, EMBEDDED

RUNTIME_DIR_VARIABLE = "DG_LSP_RUNTIME_DIR"
MAX_SOCKET_PATH = 100
"""In bytes. The smallest limit among the supported systems is 104, including the closing zero byte."""


class DiscoveryError(Exception):
    """The private directory can't be used. The message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class EngineId:
    """Identifies an engine. `filler` names another loader than the default, as `module:function`."""

    model: str = EMBEDDED
    revision: str = ""
    dtype: str = DEFAULTS.dtype
    device: str = DEFAULTS.device
    filler: str = ""

    @property
    def resolved_model(self) -> str:
        """Return the model's name; a folder by its full path, which is the same from every working directory."""
        return str(model_names.folder_of(self.model) or self.model)

    @property
    def name(self) -> str:
        """Return a short name, the same for equal engines of one protocol major."""
        parts = [PROTOCOL_MAJOR, self.resolved_model, self.revision, self.dtype, self.device, self.filler]
        return f"engine-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class EngineFiles:
    """The files of one engine."""

    directory: Path
    name: str

    @property
    def lock(self) -> Path:
        """The file that the engine locks while it runs."""
        return self.directory / f"{self.name}.lock"

    @property
    def starting(self) -> Path:
        """The file that a starter locks while it starts the engine."""
        return self.directory / f"{self.name}.starting"

    @property
    def state(self) -> Path:
        """The file in which the engine publishes its address."""
        return self.directory / f"{self.name}.json"

    @property
    def log(self) -> Path:
        """The engine's log."""
        return self.directory / f"{self.name}.log"


def runtime_dir() -> Path:
    """Return the private directory, created if missing; raise DiscoveryError if it can't be made private."""
    directory_variable = os.environ.get(RUNTIME_DIR_VARIABLE)
    if directory_variable:
        return _private(model_names.expanded(directory_variable).absolute())
    import platformdirs  # imported here because only this function needs it, and front ends must start fast

    with warnings.catch_warnings():
        # The warning about a missing runtime directory does not matter: the fallback is private too.
        warnings.simplefilter("ignore")
        try:
            usual = Path(platformdirs.user_runtime_dir("dg-lsp", appauthor=False))
        except OSError as error:
            raise DiscoveryError(
                f"no private directory is available: {error.strerror or error}; set {RUNTIME_DIR_VARIABLE} to one"
            ) from error
    return _private(usual)


def engine_files(engine_id: EngineId) -> EngineFiles:
    """Return the files of an engine; raise DiscoveryError if there is no private directory."""
    return EngineFiles(runtime_dir(), engine_id.name)


def all_engine_files() -> tuple[EngineFiles, ...]:
    """Return the files of all engines that left a state or a log."""
    directory = runtime_dir()
    names = {path.stem for pattern in ("engine-*.json", "engine-*.log") for path in directory.glob(pattern)}
    return tuple(EngineFiles(directory, name) for name in sorted(names))


def socket_path(files: EngineFiles) -> Path:
    """Return the path of the engine's socket: next to its other files, or in a short directory if that path is too long."""
    path = files.directory / f"{files.name}.sock"
    if len(os.fsencode(path)) < MAX_SOCKET_PATH:
        return path
    short = hashlib.sha256(os.fsencode(files.directory)).hexdigest()[:12]
    return _private(Path(tempfile.gettempdir()) / f"dg-lsp-{os.getuid()}-{short}") / path.name


def unusable(path: Path, error: OSError) -> DiscoveryError:
    """Return the error for a file that can't be used, with advice."""
    return DiscoveryError(f"{path} can't be used: {error.strerror}; set {RUNTIME_DIR_VARIABLE} to another directory")


def _private(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise DiscoveryError(f"{directory} belongs to another user; set {RUNTIME_DIR_VARIABLE} to a directory of your own")
        # Not fixed by a chmod: other users may need access to the directory.
        if status.st_mode & 0o077:
            raise DiscoveryError(
                f"{directory} is open to other users; make it private (chmod 700), or set {RUNTIME_DIR_VARIABLE}"
            )
    except OSError as error:
        raise unusable(directory, error) from error
    return directory
