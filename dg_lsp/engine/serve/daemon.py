"""The engine process: one per configuration and user. Clients find it by its state file, and it exits when it is unused.

It listens before it loads the model, so that clients can watch the loading.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import io
import logging
import logging.handlers
import os
import secrets
import signal
import socket
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Literal

from dg_lsp.engine.common.task import Filler, OnProgress, UserError
from dg_lsp.engine.serve.clients import Clients
from dg_lsp.engine.serve.service import BUILD, Service, call_soon
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import DiscoveryError, EngineFiles, EngineId, EngineSettings, State
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.messages import EngineState
from dg_lsp.wire.visible import LogFormatter

log = logging.getLogger("dg_lsp.engine")

TOKEN_VARIABLE = "DG_LSP_ENGINE_TOKEN"  # noqa: S105 -- the name of a variable
MIN_TOKEN_CHARS = 16
MAKE_TOKEN = "`python3 -c 'import secrets; print(secrets.token_hex(32))'`"  # noqa: S105 -- a command
LOCK_PATIENCE_S = 30.0
BACKLOG = 32
"""So many new connections may wait until the engine accepts them."""
FAILED_LINGER_S = 2.0
LOOK_EVERY_S = 5.0
"""How often an engine looks whether its state file is still there."""
USUAL_FILLER = "dg_lsp.engine.backends:load_filler"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of an engine process. `port` adds a loopback port for clients without Unix sockets; -1: none, 0: any."""

    engine_id: EngineId = field(default_factory=EngineId)
    settings: EngineSettings = field(default_factory=EngineSettings)
    port: int = -1
    detached: bool = False


def next_action(
    settings: EngineSettings,
    now: float,
    *,
    state: EngineState,
    n_leases: int,
    n_jobs: int,
    last_lease: float,
    last_used: float,
    stop_when_idle: bool = False,
    is_on_gpu: bool = False,
) -> tuple[Literal["wait", "unload", "exit"], float | None]:
    """Return the action, and for `wait` the seconds until the next check (None: check when something changes).

    Times are in seconds of one clock.
    """
    if n_jobs or state == "loading":
        return "wait", None
    waits: list[float] = []
    if not n_leases:
        if stop_when_idle:
            return "exit", None
        idle_since = max(last_lease, last_used)
        # An engine that failed to load is useless, but the client that started it needs time to read the reason.
        linger_s = FAILED_LINGER_S if state == "failed" else settings.exit_after_s
        if linger_s and now >= idle_since + linger_s:
            return "exit", None
        waits += [idle_since + linger_s - now] if linger_s else []
    # While an editor is open, the model stays on its GPU: loading a large model again after a pause takes too long.
    if settings.unload_after_s and state == "ready" and not (is_on_gpu and n_leases):
        if now >= last_used + settings.unload_after_s:
            return "unload", None
        waits.append(last_used + settings.unload_after_s - now)
    return "wait", min(waits, default=None)


def run(options: RunOptions) -> None:
    """Serve requests until a shutdown request or until unused; raise UserError when the engine can't run."""
    if options.detached:
        _forget_starters_signals()
    try:
        files = discovery.engine_files(options.engine_id)
        write_to(files, detached=options.detached)
        lock = _take_lock(files, options)
        try:
            _run(files, options)
        finally:
            lock.release()
    except DiscoveryError as error:
        raise UserError(str(error)) from error


def _forget_starters_signals() -> None:
    """Handle no signal as the process that started this one: under nohup or in the background, a shell ignores some."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python itself ignores these
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class _Stop:
    """Handles the signals that stop the process, also before it serves: clients see the process earlier."""

    def __init__(self) -> None:
        self._on_stop: Callable[[str], None] | None = None
        self._number = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup, SIGHUP stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                signal.signal(number, self.handle)

    def lead_to(self, on_stop: Callable[[str], None]) -> None:
        self._on_stop = on_stop
        if self._number:
            self.handle(self._number, None)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        self._number = number
        if self._on_stop is not None:
            self._on_stop(f"the engine received {signal.Signals(number).name}")


def _run(files: EngineFiles, options: RunOptions) -> None:
    stop = _Stop()
    address = ""
    listeners: list[socket.socket] = []
    try:
        address, listeners = _listen(files, options)
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(32)
        if not discovery.is_token(token):
            raise UserError(f"{TOKEN_VARIABLE} must consist of ASCII letters, digits and punctuation, without spaces")
        if len(token) < MIN_TOKEN_CHARS:
            raise UserError(f"{TOKEN_VARIABLE} must have at least {MIN_TOKEN_CHARS} characters; create one with {MAKE_TOKEN}")
        # A process that ends by itself removes its state. Writing our own says what is wrong with a state that can't be read.
        with contextlib.suppress(DiscoveryError):
            if (before := discovery.read_state(files)) is not None:
                # Its starter may have said why, or says so just now.
                why = "unless a line near this says why, it was killed, perhaps because memory ran out"
                log.warning("process %d ended without a word of its own; %s", before.pid, why)
        state = State(os.getpid(), address, token, BUILD, options.engine_id)
        discovery.write_state(files, state)
        log.info("process %d serves %s", os.getpid(), options.engine_id.model)
        asyncio.run(_serve(options, files, state, listeners, stop))
    except UserError:
        raise
    except Exception:
        log.exception("the engine fails")
        raise
    finally:
        _remove(files, address)
        for listener in listeners:
            listener.close()
        log.info("process %d exits", os.getpid())


def load(engine_id: EngineId, settings: EngineSettings, on_progress: OnProgress) -> Filler:
    """Load the model. Only a local one imports torch."""
    module, _, function = (engine_id.filler or USUAL_FILLER).partition(":")
    on_progress("starting", 0.0)
    try:
        make = getattr(importlib.import_module(module), function)
        filler: Filler = make(
            engine_id.model,
            device=engine_id.device,
            threads=settings.threads,
            dtype="" if engine_id.dtype == "auto" else engine_id.dtype,
            on_progress=on_progress,
        )
    except ModuleNotFoundError as error:
        name = error.name or module
        remedy = f"install the engine's parts with: {install_command('engine')}"
        raise UserError(f"{name} is not installed; {remedy}") from error
    return filler


async def _serve(options: RunOptions, files: EngineFiles, state: State, listeners: list[socket.socket], stop: _Stop) -> None:
    """Serve requests until the engine stops, then end all streams and the model's thread."""
    own, *ports = listeners
    url = f"http://127.0.0.1:{ports[0].getsockname()[1]}" if ports else ""

    def load_now(on_progress: OnProgress) -> Filler:
        return load(options.engine_id, service.settings, on_progress)

    on_stop = partial(_remove, files, state.address)
    service = Service(load_now, options.engine_id, options.settings, url=url, on_stop=on_stop)
    service.start()
    stop.lead_to(partial(call_soon, asyncio.get_running_loop(), service.stop))
    clients = Clients(service, state.token)
    await clients.start(own, BACKLOG)
    async with _port(service, state.token, ports, stop) if ports else contextlib.nullcontext():
        try:
            await _watch(service, partial(_restore, files, state))
        finally:
            await asyncio.to_thread(service.worker.close)
            await clients.close()


@contextlib.asynccontextmanager
async def _port(service: Service, token: str, ports: list[socket.socket], stop: _Stop) -> AsyncIterator[None]:
    """Serve other clients on a port."""
    # Imported here, because few engines have a port.
    import uvicorn

    from dg_lsp.engine.serve import endpoints

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Leave the signals that uvicorn takes to the engine."""
            stop.handle(sig, frame)

    config = uvicorn.Config(
        endpoints.build(service, token),
        http=endpoints.PortConnection,
        backlog=BACKLOG,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=24 * 3600,  # `PortConnection` closes those that send nothing, and earlier
        timeout_graceful_shutdown=3,
    )
    server = Server(config)
    serving = asyncio.ensure_future(server.serve(ports))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def _watch(service: Service, on_look: Callable[[], None]) -> None:
    """Unload the model and stop the service when they are unused; return when it stops. `on_look` is called now and then."""
    while not service.stopping.is_set():
        on_look()
        queue, state = service.queue, service.queue.status.state
        action, wait_s = next_action(
            service.settings,
            time.monotonic(),
            state=state,
            n_leases=len(service.leases),
            n_jobs=sum(queue.sizes()),
            last_lease=service.last_lease,
            last_used=queue.last_used(),
            stop_when_idle=service.stop_when_idle,
            is_on_gpu=service.worker.is_on_gpu(),
        )
        if action == "exit":
            unused = "the engine is not in use" if state != "failed" else "the model could not be loaded"
            service.stop(f"{unused}, and it was asked to end then" if service.stop_when_idle else unused)
            return
        if action == "unload":
            queue.order("unload")
            wait_s = None
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(service.changed.wait(), LOOK_EVERY_S if wait_s is None else min(wait_s, LOOK_EVERY_S))
        service.changed.clear()


def _take_lock(files: EngineFiles, options: RunOptions) -> discovery.Lock:
    give_up = time.monotonic() + (LOCK_PATIENCE_S if options.detached else 0.0)
    while (lock := discovery.hold(files.lock)) is None:
        state = discovery.read_state(files)
        # The lock's owner may be exiting, because our client could not reach it. An owner that listens is not exiting.
        if time.monotonic() >= give_up or (state is not None and _listens(state.address)):
            who = f" (process {state.pid})" if state else ""
            raise UserError(f"an engine for {options.engine_id.model} is already running{who}")
        time.sleep(0.05)
    return lock


def _listens(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1)
        return caller.connect_ex(address) == 0


def _listen(files: EngineFiles, options: RunOptions) -> tuple[str, list[socket.socket]]:
    """Return the address for the state file and the listening sockets; raise UserError or DiscoveryError."""
    path = discovery.socket_path(files)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        # We hold the lock, so the process that left this socket has ended.
        path.unlink(missing_ok=True)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise discovery.unusable(path, error) from error
    finally:
        os.umask(before)
    address, listeners = str(path), [listener]
    if options.port >= 0:
        # asyncio disables Nagle's algorithm, which costs 40 ms per answer, only if the socket names its protocol.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", options.port))
        except OSError as error:
            for other in [listener, *listeners]:
                other.close()
            _remove(files, address)
            raise UserError(f"port {options.port} of this machine can't be used: {error.strerror}") from error
        listeners.append(listener)
    for listener in listeners:
        listener.listen(BACKLOG)
    return address, listeners


def _restore(files: EngineFiles, state: State) -> None:
    """Write the state file again if something removed or damaged it, such as a cleanup: no client would find the engine."""
    with contextlib.suppress(DiscoveryError):
        if discovery.read_state(files) is None:
            discovery.write_state(files, state)


def _remove(files: EngineFiles, address: str) -> None:
    # A file that can't be removed is not ours, or its folder no longer exists.
    for path in (files.state, *([Path(address)] if address else [])):
        with contextlib.suppress(OSError):
            path.unlink()


# --- The log: private, without the user's code, limited in size


class Discreet(LogFormatter):
    """A formatter that logs an error's type and frames only, because its message may contain the user's code."""

    def formatException(  # noqa: N802 -- logging defines the name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        frames = traceback.extract_tb(ei[2])
        places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        return "\n".join([*places, f"  {ei[0].__name__ if ei[0] else 'no error'}"])


# At most this many lines with the same start are written per minute. The next line says how many were omitted.
MAX_ALIKE = 20
ALIKE_S = 60.0
ALIKE_CHARS = 40


class Seldom(logging.Filter):
    """A filter that passes the first MAX_ALIKE similar records of each minute and counts the rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._since: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.name, record.levelno, str(record.msg)[:ALIKE_CHARS])
        now = self._clock()
        start, n_alike = self._since.get(key, (now, 0))
        if now - start >= ALIKE_S:
            if n_alike > MAX_ALIKE:
                record.msg = f"{record.msg} ({n_alike - MAX_ALIKE} similar lines were omitted)"
            start, n_alike = now, 0
        self._since[key] = (start, n_alike + 1)
        while len(self._since) > 1_000:
            del self._since[next(iter(self._since))]
        return n_alike < MAX_ALIKE


class Rolling(logging.handlers.RotatingFileHandler):
    """A private log file, rotated when it is full. With `takes_output`, standard output and error go there too."""

    def __init__(self, path: Path, *, takes_output: bool) -> None:
        self._takes_output = takes_output
        super().__init__(path, maxBytes=discovery.MAX_LOG_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace")

    def doRollover(self) -> None:  # noqa: N802 -- logging defines the name
        """Start a new file, and redirect standard output and error to it if `takes_output` is set."""
        super().doRollover()
        if self._takes_output and self.stream is not None:
            # Otherwise the interpreter's own messages would still go to the old file.
            for number in (1, 2):
                os.dup2(self.stream.fileno(), number)

    def _open(self) -> io.TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        return open(handle, "a", encoding=self.encoding, errors=self.errors)  # noqa: PTH123 -- it opens a descriptor, not a path


def write_to(files: EngineFiles, *, detached: bool) -> None:
    """Log to the engine's log file, and to standard error unless `detached`. Raises DiscoveryError."""
    try:
        handlers: list[logging.Handler] = [Rolling(files.log, takes_output=detached)]
    except OSError as error:
        raise discovery.unusable(files.log, error) from error
    if not detached:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(Discreet("%(asctime)s %(levelname)s %(message)s"))
        handler.addFilter(Seldom())
    logging.basicConfig(level=logging.INFO, handlers=handlers)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its information repeats our own lines
    faulthandler.enable()
    # These end the process, and write first where it was.
    for number in (signal.SIGQUIT, signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2):
        faulthandler.register(number, chain=True)
