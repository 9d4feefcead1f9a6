"""Run generated programs and say whether their tests pass, in processes that can do little else.

Each program runs in a Python process of its own: without environment, in an empty folder that is removed afterwards, with
bounds on time, memory and file size. What else it is kept from is a `Wall`, the strongest that the system permits: the
namespaces that a command makes around the process, and the doors that `cell` shuts from within; `wall` says which.

What holds where all of it does, against machine code too: nothing outside the folder can be written, nothing but Python and
the system's libraries can be read, there are no sockets, and no process outside can be seen, traced or signalled.
Without Landlock what the user may read stays readable. Without namespaces and Landlock, an audit hook alone refuses
processes, sockets and the library's ways to change files elsewhere, which keeps accidents in, not attackers. Nothing keeps a
program from calling itself passed that walks the interpreter's frames, and nothing holds against a fault of the kernel.
Knows programs as text. Knows nothing of models or scores.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from dg_lsp.evaluate import cell
from dg_lsp.evaluate.tasks import Task

TIMEOUT_S = 3.0
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
N_PROCESSES = 64
N_FILES = 64

Verdict = Literal["passed", "failed", "timed out"]

# Whose uid is 0 is bound by no limit on processes.
_AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
_APART = ("unshare", "-r", "-n", "-p", "-f", "--kill-child")

# Tried in this order. `-m` gives the process mounts, which its runner makes read-only.
_WALLS: tuple[tuple[str, ...], ...] = (
    (*_AS_NOBODY, *_APART, "-m"),
    (*_APART, "-m"),
    (*_AS_NOBODY, *_APART),
    _APART,
    ("unshare", "-r", "-n"),
)

# What `cell` shuts besides the mounts, tried in this order.
_DOORS: tuple[tuple[str, ...], ...] = (
    ("capabilities", "landlock", "seccomp"),
    ("capabilities", "landlock"),
    ("capabilities", "seccomp"),
    ("capabilities",),
)


@dataclass(frozen=True, slots=True)
class Wall:
    """What stands between a program and the machine: the command that it runs under, and the doors that `cell` shuts."""

    command: tuple[str, ...] = ()
    doors: tuple[str, ...] = ()

    @property
    def mounts(self) -> bool:
        """Whether the process has mounts of its own, which are read-only."""
        return "mounts" in self.doors

    @property
    def words(self) -> str:
        """The wall in words."""
        if self.mounts:
            own = "a network, a process table and mounts of its own, read-only but for its folder"
        elif self.command:
            own = "a network and a process table of its own" if "-p" in self.command else "a network of its own"
        else:
            own = "no namespace of its own"
        own += ", as nobody" if self.command[:1] == ("setpriv",) else ""
        more = [
            *(["no capabilities"] if "capabilities" in self.doors else []),
            *(["Landlock"] if "landlock" in self.doors else []),
            *(["seccomp"] if "seccomp" in self.doors else []),
        ]
        if not self.command and not more:
            return f"{own}; sockets and processes are refused by an audit hook alone"
        return "; ".join([own, ", ".join(more)] if more else [own])


@lru_cache(maxsize=1)
def wall() -> Wall:
    """Return the strongest wall that this system permits."""
    for command in (*_WALLS, ()):
        if command and shutil.which(command[0]) is None:
            continue
        for doors in _DOORS if sys.platform == "linux" else ():
            tried = Wall(command, (*(("mounts",) if "-m" in command else ()), *doors))
            if _stands(tried):
                return tried
    return Wall()


def _stands(tried: Wall) -> bool:
    """Return whether an ordinary program passes behind this wall."""
    told = _told("import random, math, socket", tried)
    try:
        with tempfile.TemporaryDirectory(prefix="dg-lsp-eval-") as folder:
            os.chmod(folder, 0o777)  # noqa: PTH101, S103  # the program may run as nobody, and only it knows the name
            found = subprocess.run(  # noqa: S603  # our own runner
                [*tried.command, *_python()],
                input=told.encode(),
                capture_output=True,
                cwd=folder,
                env={},
                timeout=10,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"passed" in found.stdout


def program(task: Task, text: str) -> str:
    """Return the program that tests the text in the task's place."""
    return f"{task.prompt}{text}{task.suffix}\n{task.test}\ncheck({task.entry_point})\n"


def run(source: str, *, timeout_s: float = TIMEOUT_S) -> Verdict:
    """Return what becomes of a program; one that ends early, whatever its exit code, has failed."""
    told = json.loads(_told(source, wall(), timeout_s))
    with tempfile.TemporaryDirectory(prefix="dg-lsp-eval-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)  # noqa: PTH101, S103  # the program may run as nobody, and only it knows the name
        process = subprocess.Popen(  # noqa: S603  # running it is what was asked for, behind the wall
            [*wall().command, *_python()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(json.dumps(told).encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            _end(process)
    return "passed" if out == f"{told['secret']} passed".encode() else "failed"


def run_all(programs: Sequence[str], *, workers: int = 1, timeout_s: float = TIMEOUT_S) -> Iterator[Verdict]:
    """Yield each program's verdict; what timed out is run again alone, since a busy machine makes slow what is not."""
    wall()  # found once, before many threads ask
    with ThreadPoolExecutor(max_workers=max(workers, 1)) as pool:
        first = list(pool.map(lambda source: run(source, timeout_s=timeout_s), programs))
    for source, verdict in zip(programs, first, strict=True):
        yield run(source, timeout_s=timeout_s) if verdict == "timed out" else verdict


def _python() -> list[str]:
    return [sys.executable, "-I", "-S", "-B", "-c", _cell()]


@lru_cache(maxsize=1)
def _cell() -> str:
    """Return the text of what runs in the child."""
    return Path(cell.__file__).read_text(encoding="utf-8")


def _told(source: str, behind: Wall, timeout_s: float = TIMEOUT_S) -> str:
    seconds = int(timeout_s) + 1
    limits = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": MEMORY_BYTES,
        "RLIMIT_FSIZE": FILE_BYTES,
        "RLIMIT_NPROC": N_PROCESSES,
        "RLIMIT_NOFILE": N_FILES,
        "RLIMIT_CORE": 0,
    }
    return json.dumps({"program": source, "limits": limits, "doors": behind.doors, "secret": secrets.token_hex(16)})


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything that it started, and take its exit code."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.communicate()
