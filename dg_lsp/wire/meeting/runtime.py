"""Which engine is meant, and where its files are: the private directory and the names in it."""

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
from dg_lsp.wire.settings import DEFAULTS

RUNTIME_DIR_VARIABLE = "DG_LSP_RUNTIME_DIR"
MAX_SOCKET_PATH = 100
"""Bytes; the smallest limit among the systems we know is 104, with its closing zero."""


class MeetingError(Exception):
    """The private directory can't be used; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Which:
    """What makes two engines different. `filler` names another loader than the usual one, as `module:function`."""

    model: str = DEFAULTS.model
    revision: str = ""
    dtype: str = "auto"
    device: str = DEFAULTS.device
    filler: str = ""

    @property
    def place_of_model(self) -> str:
        """Return the model, a folder by its full path: it is the same from whichever directory it was named."""
        return str(model_names.folder_of(self.model) or self.model)

    @property
    def name(self) -> str:
        """Return a short name that is the same for equal engines of one protocol major."""
        parts = [PROTOCOL_MAJOR, self.place_of_model, self.revision, self.dtype, self.device, self.filler]
        return f"engine-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one engine."""

    directory: Path
    name: str

    @property
    def lock(self) -> Path:
        """The file that the engine locks for its life."""
        return self.directory / f"{self.name}.lock"

    @property
    def starting(self) -> Path:
        """The file that a starter locks while it starts the engine."""
        return self.directory / f"{self.name}.starting"

    @property
    def state(self) -> Path:
        """The file where the engine tells its address."""
        return self.directory / f"{self.name}.json"

    @property
    def log(self) -> Path:
        """The engine's log."""
        return self.directory / f"{self.name}.log"


def runtime_dir() -> Path:
    """Return the private directory, made if need be; raise MeetingError when it can't be private."""
    named = os.environ.get(RUNTIME_DIR_VARIABLE)
    if named:
        return _private(model_names.expanded(named).absolute())
    import platformdirs  # only this function needs it, and front ends start fast

    with warnings.catch_warnings():
        # A session without such a directory is nothing to warn of: the one used instead is private all the same.
        warnings.simplefilter("ignore")
        try:
            usual = Path(platformdirs.user_runtime_dir("dg-lsp", appauthor=False))
        except OSError as error:
            raise MeetingError(
                f"there is no private directory to use: {error.strerror or error}; set {RUNTIME_DIR_VARIABLE}"
            ) from error
    return _private(usual)


def place(which: Which) -> Place:
    """Return the files of an engine; raise MeetingError when there is no private directory for them."""
    return Place(runtime_dir(), which.name)


def places() -> tuple[Place, ...]:
    """Return the files of all engines that have left a state or a log."""
    directory = runtime_dir()
    names = {path.stem for pattern in ("engine-*.json", "engine-*.log") for path in directory.glob(pattern)}
    return tuple(Place(directory, name) for name in sorted(names))


def socket_path(place: Place) -> Path:
    """Return where the engine's socket goes: beside its other files, or in a short directory where that path is too long."""
    path = place.directory / f"{place.name}.sock"
    if len(os.fsencode(path)) < MAX_SOCKET_PATH:
        return path
    short = hashlib.sha256(os.fsencode(place.directory)).hexdigest()[:12]
    return _private(Path(tempfile.gettempdir()) / f"dg-lsp-{os.getuid()}-{short}") / path.name


def unusable(path: Path, error: OSError) -> MeetingError:
    """Return the error that says that a file can't be used, and what to do about it."""
    return MeetingError(f"{path} can't be used: {error.strerror}; set {RUNTIME_DIR_VARIABLE} to another directory")


def _private(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise MeetingError(f"{directory} belongs to someone else; set {RUNTIME_DIR_VARIABLE} to a directory of your own")
        # Not mended by a chmod: the directory may be one that others have a right to.
        if found.st_mode & 0o077:
            raise MeetingError(
                f"{directory} is open to other users; make it private (chmod 700), or set {RUNTIME_DIR_VARIABLE}"
            )
    except OSError as error:
        raise unusable(directory, error) from error
    return directory
