"""Run generated programs in a sandbox, and report whether their tests pass.

Each program runs in its own Python process, without environment variables, in an empty folder that is removed
afterwards, with limits on time, memory and file size. A `Sandbox` adds the strongest isolation that the system
supports: the namespaces that a command creates around the process, and the layers that `cell` applies inside it.
`sandbox` returns it.

With all layers, these rules hold against machine code too. Nothing outside the folder can be written. Only Python and
the system's libraries can be read. There are no sockets, and no process outside can be seen, traced or signalled.

Without Landlock, the program can read what the user can read. Without namespaces and Landlock, only an audit hook
refuses processes, sockets and the library's ways to change files elsewhere. That prevents accidents, not attacks. A
program that walks the interpreter's frames can always report itself as passed, and nothing protects against a kernel
bug.
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
RETRY_FACTOR = 10
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
N_PROCESSES = 64
N_FILES = 64

Verdict = Literal["passed", "failed", "timed out"]

# The limit on processes does not apply to uid 0.
_AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
_APART = ("unshare", "-r", "-n", "-p", "-f", "--kill-child")

# Tried in this order. `-m` gives the process its own mounts, which the runner makes read-only.
_NAMESPACES: tuple[tuple[str, ...], ...] = (
    (*_AS_NOBODY, *_APART, "-m"),
    (*_APART, "-m"),
    (*_AS_NOBODY, *_APART),
    _APART,
    ("unshare", "-r", "-n"),
)

# The layers that `cell` applies besides the mounts, tried in this order.
_LAYERS: tuple[tuple[str, ...], ...] = (
    ("capabilities", "landlock", "seccomp"),
    ("capabilities", "landlock"),
    ("capabilities", "seccomp"),
    ("capabilities",),
)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The isolation of a program: the command that it runs under, and the layers that `cell` applies."""

    command: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """A description of the sandbox."""
        if "mounts" in self.layers:
            own = "a network, a process table and mounts of its own, read-only but for its folder"
        elif self.command:
            own = "a network and a process table of its own" if "-p" in self.command else "a network of its own"
        else:
            own = "no namespace of its own"
        own += ", as nobody" if self.command[:1] == ("setpriv",) else ""
        words = {"capabilities": "no capabilities", "landlock": "Landlock", "seccomp": "seccomp"}
        more = [text for layer, text in words.items() if layer in self.layers]
        if not self.command and not more:
            return f"{own}; sockets and processes are refused by an audit hook alone"
        return "; ".join([own, ", ".join(more)] if more else [own])


@lru_cache(maxsize=1)
def sandbox() -> Sandbox:
    """Return the strongest sandbox that this system supports."""
    for command in (*_NAMESPACES, ()):
        if command and shutil.which(command[0]) is None:
            continue
        for layers in _LAYERS if sys.platform == "linux" else ():
            tried = Sandbox(command, (*(("mounts",) if "-m" in command else ()), *layers))
            with contextlib.suppress(OSError):
                # An ordinary program must pass. It has long, so that a busy machine does not choose a weaker sandbox.
                if run("import random, math, socket", timeout_s=60.0, cpu_s=TIMEOUT_S, behind=tried) == "passed":
                    return tried
    return Sandbox()


def program(task: Task, text: str) -> str:
    """Return the task's program with the text in its hole, and its test."""
    return f"{task.prompt}{text}{task.suffix}\n{task.test}\ncheck({task.entry_point})\n"


def run(source: str, *, timeout_s: float = TIMEOUT_S, cpu_s: float | None = None, behind: Sandbox | None = None) -> Verdict:
    """Return the verdict on a program. One that exits early has failed, whatever its exit code.

    One that takes more than `cpu_s` seconds of CPU time, by default `timeout_s`, has failed too. `behind` is another sandbox
    than the strongest.
    """
    behind, secret = behind or sandbox(), secrets.token_hex(16)
    limits = {
        "RLIMIT_CPU": int(timeout_s if cpu_s is None else cpu_s) + 1,
        "RLIMIT_AS": MEMORY_BYTES,
        "RLIMIT_FSIZE": FILE_BYTES,
        "RLIMIT_NPROC": N_PROCESSES,
        "RLIMIT_NOFILE": N_FILES,
        "RLIMIT_CORE": 0,
    }
    order = json.dumps({"program": source, "limits": limits, "layers": behind.layers, "secret": secret})
    with tempfile.TemporaryDirectory(prefix="dg-lsp-eval-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)  # noqa: PTH101, S103  # the program may run as nobody, and only it knows the name
        process = subprocess.Popen(  # noqa: S603  # running the program is the purpose, and it is sandboxed
            [*behind.command, sys.executable, "-I", "-S", "-B", "-c", Path(cell.__file__).read_text(encoding="utf-8")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(order.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # its children too
            process.kill()
            process.communicate()
    return "passed" if out == f"{secret} passed".encode() else "failed"


def run_all(programs: Sequence[str], *, workers: int = 1, timeout_s: float = TIMEOUT_S) -> Iterator[Verdict]:
    """Yield each program's verdict.

    A program that timed out runs again alone, because load on the machine may have slowed it down. It then has
    RETRY_FACTOR times as long, but the same CPU time.
    """
    sandbox()  # computed and cached before several threads need it
    with ThreadPoolExecutor(max_workers=max(workers, 1)) as pool:
        first = list(pool.map(lambda source: run(source, timeout_s=timeout_s), programs))
    for source, verdict in zip(programs, first, strict=True):
        yield run(source, timeout_s=RETRY_FACTOR * timeout_s, cpu_s=timeout_s) if verdict == "timed out" else verdict
