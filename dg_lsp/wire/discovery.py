"""How the processes of one user find each other: a private directory with a lock, socket, state and log for each engine.

An engine holds its lock as long as it runs. The kernel releases the lock however the engine ends, so nothing is guessed
from process ids. A starter holds a second lock while it starts an engine, so that two starters at the same moment start
only one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dg_lsp import OUT_OF_MEMORY, __version__, is_out_of_memory
from dg_lsp.wire import model_names, programs, stream
from dg_lsp.wire.files import replace
from dg_lsp.wire.messages import PROTOCOL, Fields, WireError
from dg_lsp.wire.settings import DEFAULTS, EMBEDDED, Option
from dg_lsp.wire.visible import visible_line

ENGINE_COMMAND = (*programs.OURSELVES, "engine", "run")
"""Starts an engine in this environment."""

RUNTIME_DIR_VARIABLE = "DG_LSP_RUNTIME_DIR"
MAX_SOCKET_PATH = 100
"""In bytes. The smallest limit among the supported systems is 104, including the closing zero byte."""


class DiscoveryError(Exception):
    """The private directory can't be used. The message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class EngineId:
    """Identifies an engine. `filler` names another loader than the default, as `module:function`."""

    model: str = EMBEDDED
    dtype: str = DEFAULTS.dtype
    device: str = DEFAULTS.device
    filler: Annotated[str, Option("Another loader, as module:function.", is_hidden=True)] = ""

    @property
    def resolved_model(self) -> str:
        """The model's name; a folder by its full path, which is the same from every working directory."""
        return model_names.full(self.model)

    @property
    def name(self) -> str:
        """Return a short name, the same for equal engines of one protocol."""
        parts = [PROTOCOL, self.resolved_model, self.dtype, self.device, self.filler]
        return f"engine-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class EngineFiles:
    """The files of one engine: it holds `lock` while it runs, publishes its address in `state`, and writes to `log`.

    A starter holds `starting` while it starts the engine.
    """

    directory: Path
    name: str

    @property
    def lock(self) -> Path:
        return self.directory / f"{self.name}.lock"

    @property
    def starting(self) -> Path:
        return self.directory / f"{self.name}.starting"

    @property
    def state(self) -> Path:
        return self.directory / f"{self.name}.json"

    @property
    def log(self) -> Path:
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
    """Return the path of the engine's socket: next to its other files, or in a short directory if that path is too long.

    Raises DiscoveryError if both are too long.
    """
    path = files.directory / f"{files.name}.sock"
    if len(os.fsencode(path)) < MAX_SOCKET_PATH:
        return path
    short = hashlib.sha256(os.fsencode(files.directory)).hexdigest()[:12]
    other = Path(tempfile.gettempdir()) / f"dg-lsp-{os.getuid()}-{short}"
    if len(os.fsencode(other / path.name)) < MAX_SOCKET_PATH:
        return _private(other) / path.name
    raise DiscoveryError(
        f"the paths of {files.directory} and {other.parent} are too long for the engine's socket; "
        f"set {RUNTIME_DIR_VARIABLE} to a directory with a shorter one"
    )


def unusable(path: Path, error: OSError) -> DiscoveryError:
    """Return the error for a file that can't be used, with advice."""
    return DiscoveryError(f"{path} can't be used: {error.strerror or error}; set {RUNTIME_DIR_VARIABLE} to another directory")


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


# --- Locks that the kernel releases however their process ends


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock on a file by the operating system, held until `release` or the end of the process; use `hold` to get one."""

    path: Path
    handle: int

    def release(self) -> None:
        """Remove the file and release the lock. A process that waits on the removed file notices in `hold`, and retries."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self.handle)


def hold(path: Path) -> Lock | None:
    """Return the lock, or None if another process holds it; raise DiscoveryError if the file can't be created or locked."""
    try:
        while True:
            handle, is_ours = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), False
            try:
                if not _try_lock(handle):
                    return None
                with contextlib.suppress(FileNotFoundError):
                    is_ours = os.path.samestat(os.fstat(handle), path.stat())
                if is_ours:
                    return Lock(path, handle)
            finally:
                if not is_ours:
                    os.close(handle)
    except OSError as error:
        raise unusable(path, error) from error


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock. The check takes a free lock for a moment."""
    with contextlib.suppress(OSError), path.open("r+b") as file:
        return not _try_lock(file.fileno())
    return False


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


# --- The state file of a running engine: its process, address and token, read and written atomically

MAX_STATE_BYTES = 64 * 1024
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_ADDRESS = re.compile(r"/[^\0]+")
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class State:
    """What a running engine publishes about itself. `address` is its socket's path.

    `version` is its build (`current_build`).
    """

    pid: Annotated[int, Meta(ge=1, lt=2**31)]
    address: str
    token: str = field(repr=False)
    version: str
    engine_id: EngineId = field(default_factory=EngineId)


def is_token(text: str) -> bool:
    """Return whether a text can be a token: it is sent in a header, so it must be printable ASCII without spaces."""
    return _TOKEN.fullmatch(text) is not None


def read_state(files: EngineFiles) -> State | None:
    """Return the state that the engine last wrote, or None if it can't be read. The engine may have ended since.

    Raises DiscoveryError if the file is not a regular file of this user.
    """
    try:
        status = files.state.lstat()
        # The state of another user could direct our code to their process. An engine could not be found through it either.
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise DiscoveryError(f"{files.state} is not a regular file of this user; remove it")
        with open(files.state, "rb", opener=lambda path, flags: os.open(path, flags | _SAFELY)) as file:
            if not os.path.samestat(status, os.fstat(file.fileno())):
                return None  # replaced just now
            state = msgspec.json.decode(file.read(MAX_STATE_BYTES), type=State)
    except (OSError, msgspec.DecodeError):
        return None
    # An address or token that no engine writes would cause other errors later.
    return state if _ADDRESS.fullmatch(state.address) and is_token(state.token) else None


def write_state(files: EngineFiles, state: State) -> None:
    """Write the state atomically, readable only by this user.

    Raises DiscoveryError if it can't be written.
    """
    try:
        replace(files.state, msgspec.json.encode(state))
    except OSError as error:
        raise unusable(files.state, error) from error


def check_owner(address: str) -> None:
    """Raise DiscoveryError if a socket belongs to another user, whose process would then read the user's code.

    Raises OSError if there is no socket.
    """
    status = Path(address).lstat()
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        raise DiscoveryError(f"{address} belongs to another user; dg-lsp does not connect to it")


# --- The engine's process and its log

MAX_LOG_BYTES = 1024 * 1024
STARTING = "starting an engine for"
N_LINES_OF_START = 200


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine runs, apart from what identifies it (see `EngineId`). Times are in seconds; 0 means never."""

    threads: int = DEFAULTS.threads
    unload_after_s: float = DEFAULTS.unload_after
    exit_after_s: float = DEFAULTS.exit_after

    def chosen(self) -> dict[str, Any]:
        """Return the settings that are not left at their default. A running engine keeps its own for the others."""
        usual = asdict(EngineSettings())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


def start_engine(
    command: Sequence[str], files: EngineFiles, engine_id: EngineId, settings: EngineSettings
) -> subprocess.Popen[bytes]:
    """Return a new engine process, detached from this process and its terminal; raise DiscoveryError if it can't be started.

    `command` runs an engine; the settings are added to it as options. The process writes its output to the log.
    """
    socket_path(files)  # raises here, and not only in the engine
    # The options of the command are named like the fields, without their units.
    by_field = {name.removesuffix("_s").replace("_", "-"): str(value) for name, value in asdict(settings).items()}
    options = {**asdict(engine_id), "model": engine_id.resolved_model, **by_field}
    arguments = [f"--{name}={value}" for name, value in options.items() if value]
    with contextlib.suppress(OSError):
        if files.log.stat().st_size > MAX_LOG_BYTES:
            files.log.replace(files.log.with_suffix(".log.1"))
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(open(files.log, "ab", 0, opener=lambda path, flags: os.open(path, flags, 0o600)))
            # If the log can't be written, as on a full disk, nothing could later say why the engine ended.
            log.write(_line(f"{STARTING} {engine_id.model}"))
        except OSError as error:
            raise unusable(files.log, error) from error
        try:
            process = subprocess.Popen(  # noqa: S603 -- the command is the program's own
                [*command, "--detached", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=files.directory,
                env=programs.environment(**programs.keys(), **{RUNTIME_DIR_VARIABLE: str(files.directory)}),
                start_new_session=True,
            )
        except OSError as error:
            reason = OUT_OF_MEMORY if is_out_of_memory(error) or error.errno == errno.EAGAIN else error.strerror
            raise DiscoveryError(f"the engine can't be started: {reason}") from error
    # Without this wait, an engine that ends before its starter would stay in the process table as a zombie.
    with contextlib.suppress(RuntimeError):  # the system allows no other thread
        threading.Thread(target=_reap, args=(process, files), name="dg-lsp-reaper", daemon=True).start()
    return process


def _reap(process: subprocess.Popen[bytes], files: EngineFiles) -> None:
    """Wait for an engine's end. If a signal ended it, it had no time to say so."""
    if (code := process.wait()) < 0:
        hint = "; perhaps memory ran out" if -code == signal.SIGKILL else ""
        write_log(files, f"process {process.pid} was ended by signal {-code} ({signal.strsignal(-code)}){hint}")


def write_log(files: EngineFiles, sentence: str) -> None:
    """Add to an engine's log what happens to the engine from outside."""

    def opened(path: str, flags: int) -> int:
        return os.open(path, (flags | os.O_NOFOLLOW) & ~os.O_CREAT)

    with contextlib.suppress(OSError), open(files.log, "ab", 0, opener=opened) as log:
        log.write(_line(sentence))


def _line(sentence: str) -> bytes:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} {visible_line(sentence)}\n".encode("utf-8", "backslashreplace")


def last_words(files: EngineFiles) -> tuple[str, ...]:
    """Return the last lines that the engine wrote since it was last started, which say why it ended."""
    lines = log_tail(files, N_LINES_OF_START)
    starts = [number for number, line in enumerate(lines) if STARTING in line]
    return lines[starts[-1] + 1 if starts else 0 :][-5:]


def log_tail(files: EngineFiles, n_lines: int = 5) -> tuple[str, ...]:
    """Return the last lines of the engine's log, without blank ones."""
    try:
        with files.log.open("rb") as file:
            file.seek(max(0, files.log.stat().st_size - 64 * 1024))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line for line in lines if line.strip())[-n_lines:] if n_lines > 0 else ()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's process; an id that no system gives says nothing
        return True
    return True


# --- Queries of a running engine, which neither start it nor keep it alive


@dataclass(frozen=True, slots=True)
class EngineReport:
    """An engine's files, and its answer. `info` is None if it does not respond, `state` if no engine holds its lock."""

    files: EngineFiles
    state: State | None
    info: Fields | None


def inspect_engine(files: EngineFiles) -> EngineReport:
    """Return an engine's files, state and answer, without starting it or keeping it alive.

    Raises DiscoveryError if its socket or its state file belongs to another user.
    """
    state = read_state(files)
    if state is None:
        return EngineReport(files, None, None)
    try:
        return EngineReport(files, state, call(state, "info"))
    except (OSError, WireError):
        # The state of a killed engine may name a process id that another process has now.
        return EngineReport(files, state if is_held(files.lock) else None, None)


def call(state: State, name: str, fields: dict[str, Any] | None = None) -> Fields:
    """Return an engine's reply to a call of `wire.stream`; raise OSError, DiscoveryError or WireError if there is none."""
    check_owner(state.address)
    return stream.call(state.address, state.token, name, fields)


# --- The build of this installation: its version, and a hash of the files that an engine runs. Two installations of one version
# may differ, such as a release and a checkout. An engine writes its build into its state file, and a client compares that with
# its own.

PACKAGE = Path(__file__).resolve().parents[1]
PARTS = ("cli", "core", "engine", "models", "wire")
SUFFIXES = (".json", ".py", ".safetensors", ".scm")
EDGE_BYTES = 1 << 16  # of a larger file only the size, the start and the end are hashed

_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def current_build(package: Path = PACKAGE) -> str:
    """Return the build of the files that are installed now, such as `0.1.0+1a2b3c4d`.

    Reads the files at each call, which takes a few milliseconds: a new engine runs them, even if this process has imported
    others before. Returns only the version if they can't be read.
    """
    try:
        first = (package / "__init__.py").read_text("utf-8")
        digest = hashlib.blake2b(first.encode(), digest_size=4)
        paths = (path for part in PARTS for path in (package / part).rglob("*") if path.suffix in SUFFIXES)
        for path in sorted(path for path in paths if "__pycache__" not in path.parts):
            digest.update(f"\0{path.relative_to(package)}\0".encode())
            digest.update(_content(path))
    except (OSError, UnicodeDecodeError):
        return __version__
    match = _VERSION.search(first)
    return f"{match[1] if match else __version__}+{digest.hexdigest()}"


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * EDGE_BYTES:
            return file.read()
        start = file.read(EDGE_BYTES)
        file.seek(-EDGE_BYTES, os.SEEK_END)
        return b"%d %b %b" % (size, start, file.read())
