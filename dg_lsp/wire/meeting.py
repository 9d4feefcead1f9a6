"""Where the processes of one user find each other: a private directory with a lock, a socket, a state and a log per engine.

The engine holds its lock for life, so the kernel releases it however the engine ends, and nobody guesses from process ids.
A starter holds another lock while it starts one, so two starters at the same moment start one engine.
Knows nothing of what is said over the socket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dg_lsp.wire import config
from dg_lsp.wire.fields import WireError, parse
from dg_lsp.wire.messages import PROTOCOL_MAJOR, PROTOCOL_MAX, PROTOCOL_MIN

EMBEDDED = config.EMBEDDED
RUNTIME_DIR_VARIABLE = "DG_LSP_RUNTIME_DIR"
MAX_SOCKET_PATH = 100
"""Bytes; the smallest limit among the systems we know is 104, with its closing zero."""
MAX_LOG_BYTES = 1024 * 1024

_ADDRESS = re.compile(r"/[^\0]+|127\.0\.0\.1:[0-9]{1,5}")
_TOKEN = re.compile(r"[!-~]+")


class MeetingError(Exception):
    """The private directory can't be used; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Which:
    """What makes two engines different. `filler` names another loader than the usual one, as `module:function`."""

    model: str = EMBEDDED
    revision: str = ""
    dtype: str = "auto"
    device: str = "auto"
    filler: str = ""

    @property
    def place_of_model(self) -> str:
        """Return the model, a folder by its full path: it is the same from whichever directory it was named."""
        return str(config.folder_of(self.model) or self.model)

    @property
    def name(self) -> str:
        """Return a short name that is the same for equal engines of one protocol major."""
        parts = [PROTOCOL_MAJOR, self.place_of_model, self.revision, self.dtype, self.device, self.filler]
        return f"engine-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine is run, other than what makes it different from the others. Seconds; 0 means never.

    `rows` bounds the canvases of one pass of the model, be they of one request or of several.
    """

    threads: int = 0
    unload_after_s: float = 900.0
    exit_after_s: float = 600.0
    rows: int = 32


@dataclass(frozen=True, slots=True)
class State:
    """What a running engine tells about itself. `address` is a socket's path, or `127.0.0.1:port`."""

    pid: int
    address: str
    token: str = field(repr=False)
    version: str
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    which: Which = field(default_factory=Which)


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
        return _private(config.expanded(named).absolute())
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


def is_token(text: str) -> bool:
    """Return whether a text can be a token: it travels in a header, and is a word there."""
    return _TOKEN.fullmatch(text) is not None


def read_state(place: Place) -> State | None:
    """Return what the engine last told; None when there is no readable state. The engine may be gone all the same."""
    try:
        fields = parse(place.state.read_bytes())
        which = fields.inner("which")
        protocol = fields.inner("protocol")
        address, token = fields.text("address"), fields.text("token")
        # What no engine writes would be an error of its own in whatever is done with it.
        if not _ADDRESS.fullmatch(address) or not is_token(token):
            return None
        return State(
            pid=fields.integer("pid", low=1, high=2**31 - 1),
            address=address,
            token=token,
            version=fields.text("version"),
            protocol_min=protocol.integer("min"),
            protocol_max=protocol.integer("max"),
            which=Which(**{name: which.text(name) for name in asdict(Which())}),
        )
    except (OSError, WireError):
        return None


def write_state(place: Place, state: State) -> None:
    """Write the state so that a reader sees the old one or the new one, whole, and no other user sees any.

    Raises MeetingError when it can't be written.
    """
    data = {
        "pid": state.pid,
        "address": state.address,
        "token": state.token,
        "version": state.version,
        "protocol": {"min": state.protocol_min, "max": state.protocol_max},
        "which": asdict(state.which),
    }
    try:
        handle, name = tempfile.mkstemp(dir=place.directory, prefix=f".{place.name}-")  # made 0600
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                json.dump(data, file)
            Path(name).replace(place.state)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unusable(place.state, error) from error


def check_owner(address: str) -> None:
    """Raise MeetingError when a socket is not ours: whoever listens there would read the user's code."""
    if not address.startswith("/"):
        return
    found = Path(address).lstat()
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        raise MeetingError(f"{address} belongs to someone else; dg-lsp does not talk to it")


class Lock:
    """An operating system's lock on a file, held until `release` or the end of the process."""

    def __init__(self, path: Path, handle: int) -> None:
        """Take over a handle that is locked already; `hold` makes these."""
        self.path = path
        self._handle = handle

    def release(self) -> None:
        """Remove the file and let go. Whoever waited on the removed file finds out in `hold`, and tries the new one."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._handle)


def hold(path: Path) -> Lock | None:
    """Return the lock, or None when another process has it; raise MeetingError when the file can't be made or locked."""
    try:
        while (handle := _locked(path)) is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return Lock(path, handle)
            os.close(handle)
    except OSError as error:
        raise unusable(path, error) from error
    return None


def is_held(path: Path) -> bool:
    """Return whether a process has the lock. Asking takes it for a moment where it is free."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _try_lock(handle)
    except OSError:
        return False
    finally:
        os.close(handle)


def start_engine(
    place: Place, which: Which, settings: Settings, more: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Return a new engine process, detached from this one and its terminal, its output in the log; raise MeetingError."""
    options = {
        "model": which.place_of_model,
        "revision": which.revision,
        "dtype": which.dtype,
        "device": which.device,
        "filler": which.filler,
        "threads": str(settings.threads),
        "unload-after": str(settings.unload_after_s),
        "exit-after": str(settings.exit_after_s),
        "rows": str(settings.rows),
        **(more or {}),
    }
    arguments = [f"--{name}={value}" for name, value in options.items() if value]
    command = [sys.executable, "-m", "dg_lsp.engine.commands", "run", "--detached", *arguments]
    _roll(place.log)
    try:
        handle = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise unusable(place.log, error) from error
    try:
        # A log that takes nothing, as where the disk is full, could not say later why the engine ended.
        said = f"{time.strftime('%Y-%m-%d %H:%M:%S')} an engine for {which.model} is started\n"
        os.write(handle, said.encode("utf-8", "backslashreplace"))
    except OSError as error:
        os.close(handle)
        raise unusable(place.log, error) from error
    try:
        process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            cwd=place.directory,
            env={**os.environ, RUNTIME_DIR_VARIABLE: str(place.directory)},
            start_new_session=True,
        )
    except OSError as error:
        raise MeetingError(f"the engine could not be started: {error.strerror}") from error
    finally:
        os.close(handle)
    # An engine that ends before its starter would stay in the process table until somebody asks for its exit status.
    threading.Thread(target=process.wait, name="dg-lsp-reaper", daemon=True).start()
    return process


def unusable(path: Path, error: OSError) -> MeetingError:
    """Return the error that says that a file can't be used, and what to do about it."""
    return MeetingError(f"{path} can't be used: {error.strerror}; set {RUNTIME_DIR_VARIABLE} to another directory")


def log_tail(place: Place, n_lines: int = 5) -> tuple[str, ...]:
    """Return the last lines of the engine's log that are not blank."""
    try:
        with place.log.open("rb") as file:
            file.seek(max(0, place.log.stat().st_size - 64 * 1024))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line for line in lines if line.strip())[-n_lines:] if n_lines > 0 else ()


def alive(pid: int) -> bool:
    """Return whether a process of this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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


def _locked(path: Path) -> int | None:
    """Return a handle of the file, made if need be, with the lock on it; None when another process has the lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if _try_lock(handle):
            return handle
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def _roll(log: Path) -> None:
    with contextlib.suppress(OSError):
        if log.stat().st_size > MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
