"""The engine's process and its log: start it detached, read the end of the log, check whether a process exists."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.wire.discovery.runtime import RUNTIME_DIR_VARIABLE, DiscoveryError, EngineFiles, EngineId, unusable
from dg_lsp.wire.settings import DEFAULTS
from dg_lsp.wire.visible import visible_line

MAX_LOG_BYTES = 1024 * 1024
STARTING = "starting an engine for"
N_LINES_OF_START = 200


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine runs, apart from what identifies it (see `EngineId`). Times are in seconds; 0 means never.

    `rows` limits the canvases in one pass of the model, whether they belong to one request or to several.
    """

    threads: int = DEFAULTS.threads
    unload_after_s: float = DEFAULTS.unload_after
    exit_after_s: float = DEFAULTS.exit_after
    rows: int = DEFAULTS.rows


def start_engine(
    command: Sequence[str],
    files: EngineFiles,
    engine_id: EngineId,
    settings: EngineSettings,
    more: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Return a new engine process, detached from this process and its terminal; raise DiscoveryError if it can't be started.

    `command` runs an engine; the settings and `more` are added to it as options. The process writes its output to the
    log.
    """
    options = {
        "model": engine_id.resolved_model,
        "revision": engine_id.revision,
        "dtype": engine_id.dtype,
        "device": engine_id.device,
        "filler": engine_id.filler,
        "threads": str(settings.threads),
        "unload-after": str(settings.unload_after_s),
        "exit-after": str(settings.exit_after_s),
        "rows": str(settings.rows),
        **(more or {}),
    }
    arguments = [f"--{name}={value}" for name, value in options.items() if value]
    _roll(files.log)
    try:
        handle = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise unusable(files.log, error) from error
    try:
        # If the log can't be written, as on a full disk, nothing could later say why the engine ended.
        log_line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {STARTING} {visible_line(engine_id.model)}\n"
        os.write(handle, log_line.encode("utf-8", "backslashreplace"))
    except OSError as error:
        os.close(handle)
        raise unusable(files.log, error) from error
    try:
        process = subprocess.Popen(  # noqa: S603 -- the command is the program's own
            [*command, "--detached", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            cwd=files.directory,
            env={**os.environ, RUNTIME_DIR_VARIABLE: str(files.directory)},
            start_new_session=True,
        )
    except OSError as error:
        raise DiscoveryError(f"the engine can't be started: {error.strerror}") from error
    finally:
        os.close(handle)
    # Without this wait, an engine that ends before its starter would stay in the process table as a zombie.
    threading.Thread(target=process.wait, name="dg-lsp-reaper", daemon=True).start()
    return process


def last_words(files: EngineFiles, n_lines: int = 5) -> tuple[str, ...]:
    """Return the last lines that the engine wrote since it was last started, which say why it ended."""
    lines = log_tail(files, N_LINES_OF_START)
    starts = [number for number, line in enumerate(lines) if STARTING in line]
    return lines[starts[-1] + 1 if starts else 0 :][-n_lines:]


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
    """Return whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _roll(log: Path) -> None:
    with contextlib.suppress(OSError):
        if log.stat().st_size > MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
