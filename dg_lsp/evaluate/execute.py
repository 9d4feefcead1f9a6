"""Run generated programs and say whether their tests pass, in processes that can do little else.

Each program runs in a Python process of its own: without environment, in an empty folder that is removed afterwards,
with bounds on time, memory and file size, and with an audit hook that refuses processes, sockets and files written
elsewhere. Where the system permits, the process also has a network and a process table of its own, which hold against
code that gets around a hook. What is readable by the user stays readable: this keeps accidents in, not attackers.
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
from typing import Literal

from dg_lsp.evaluate.tasks import Task

TIMEOUT_S = 3.0
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
N_PROCESSES = 64
N_FILES = 64

Verdict = Literal["passed", "failed", "timed out"]

# Tried in this order. Whose uid is 0 is bound by no limit on processes, hence the first.
_WALLS: tuple[tuple[str, ...], ...] = (
    ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-r", "-n", "-p", "-f", "--kill-child"),
    ("unshare", "-r", "-n", "-p", "-f", "--kill-child"),
    ("unshare", "-r", "-n"),
)

# Runs in the child. Says what came of the program where the program can't say it: behind a word that it does not know.
_RUNNER = """
import json, os, sys
told = json.loads(sys.stdin.buffer.read())
report = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
try:
    import resource
except ImportError:
    resource = None
for name, bound in told["limits"].items() if resource else ():
    try:
        resource.setrlimit(getattr(resource, name), (bound, bound))
    except (AttributeError, ValueError, OSError):
        pass  # a system without this limit has the others
here = os.path.realpath(os.getcwd()) + os.sep
refused = ("socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "pty.",
           "os.startfile", "ctypes.", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.link",
           "os.symlink", "os.setxattr", "os.removexattr", "shutil.", "ftplib.", "http.", "smtplib.", "urllib.", "webbrowser.")
writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
def audit(event, details):
    if event.startswith(refused):
        raise PermissionError("a program under test may not do this: " + event)
    if event == "open" and isinstance(details[0], (str, bytes)) and (details[2] or 0) & writes:
        if not os.path.realpath(os.fsdecode(details[0])).startswith(here):
            raise PermissionError("a program under test may not write outside of its folder")
sys.addaudithook(audit)
try:
    exec(compile(told["program"], "program.py", "exec"), {"__name__": "__main__"})
    word = "passed"
except BaseException as error:
    word = "failed"
os.write(report, (told["secret"] + " " + word).encode())
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Wall:
    """What stands between a program and the machine: the command that it runs under, and that in words."""

    command: tuple[str, ...]
    words: str


@lru_cache(maxsize=1)
def wall() -> Wall:
    """Return the strongest wall that this system permits."""
    for command in _WALLS:
        if shutil.which(command[0]) is None:
            continue
        told = _told("import random, math, socket")
        try:
            with tempfile.TemporaryDirectory(prefix="dg-lsp-eval-") as folder:
                os.chmod(folder, 0o777)  # noqa: PTH101, S103  # the program may run as nobody, and only it knows the name
                found = subprocess.run(  # noqa: S603  # our own runner
                    [*command, *_python()],
                    input=told.encode(),
                    capture_output=True,
                    cwd=folder,
                    env={},
                    timeout=10,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if b"passed" in found.stdout:
            own = "a network and a process table of its own" if "-p" in command else "a network of its own"
            return Wall(command, own + (", as nobody" if command[0] == "setpriv" else ""))
    return Wall((), "no namespace of its own; sockets and processes are refused by an audit hook alone")


def program(task: Task, text: str) -> str:
    """Return the program that tests the text in the task's place."""
    return f"{task.prompt}{text}{task.suffix}\n{task.test}\ncheck({task.entry_point})\n"


def run(source: str, *, timeout_s: float = TIMEOUT_S) -> Verdict:
    """Return what becomes of a program; one that ends early, whatever its exit code, has failed."""
    told = json.loads(_told(source, timeout_s))
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
    return [sys.executable, "-I", "-S", "-B", "-c", _RUNNER]


def _told(source: str, timeout_s: float = TIMEOUT_S) -> str:
    seconds = int(timeout_s) + 1
    limits = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": MEMORY_BYTES,
        "RLIMIT_FSIZE": FILE_BYTES,
        "RLIMIT_NPROC": N_PROCESSES,
        "RLIMIT_NOFILE": N_FILES,
        "RLIMIT_CORE": 0,
    }
    return json.dumps({"program": source, "limits": limits, "secret": secrets.token_hex(16)})


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything that it started, and take its exit code."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.communicate()
