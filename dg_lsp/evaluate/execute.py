"""Run generated programs and say whether their tests pass, in processes that can do little else.

Each program runs in a Python process of its own: without environment, in an empty folder that is removed afterwards,
with bounds on time, memory and file size, and with an audit hook that refuses processes, sockets, and the library's ways
to change files elsewhere. Where the system permits, the process also has a network, a process table and mounts of its own,
and nothing but its folder can be written there, which holds against code that gets around a hook; `wall` says what it is.
What is readable by the user stays readable, and a program that walks the interpreter's frames could call itself passed:
this keeps accidents in, not attackers.
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

# Runs in the child. Says what came of the program where the program can't say it: behind a word that it does not know.
_RUNNER = """
def shut(here):
    # Everything that is mounted becomes read-only, and a second mount of our folder is opened again.
    # mount_setattr has this number on every processor but Alpha, and no function in most C libraries.
    import ctypes, struct
    call = ctypes.CDLL(None, use_errno=True)
    call.syscall.restype = ctypes.c_long
    bind, recursive, current, set_attributes, read_only = 0x1000, 0x8000, -100, 442, 1
    def change(path, flags, add, drop):
        attributes = struct.pack("=4Q", add, drop, 0, 0)
        return call.syscall(
            ctypes.c_long(set_attributes), ctypes.c_long(current), path, ctypes.c_long(flags), attributes, ctypes.c_long(32)
        )
    if call.mount(here, here, None, ctypes.c_ulong(bind), None):
        return False
    return not (change(b"/", recursive, read_only, 0) or change(here, 0, 0, read_only))

def main():
    import json, os, sys, types
    told = json.loads(sys.stdin.buffer.read())
    word, out = told.pop("secret"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    def tell(verdict):
        os.write(out, (word + " " + verdict).encode())
    here = os.path.realpath(os.getcwd())
    if told["mounts"]:
        if not shut(os.fsencode(here)):
            os._exit(1)
        os.chdir(here)
        for name in [name for name in sys.modules if "ctypes" in name]:
            del sys.modules[name]
    try:
        import resource
    except ImportError:
        resource = None
    for name, bound in told["limits"].items() if resource else ():
        try:
            resource.setrlimit(getattr(resource, name), (bound, bound))
        except (AttributeError, ValueError, OSError):
            pass  # a system without this limit has the others
    here += os.sep
    refused = ("socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "pty.",
               "os.startfile", "ctypes.", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod", "os.chown",
               "os.link", "os.symlink", "os.setxattr", "os.removexattr", "os.utime", "os.chflags", "shutil.",
               "sqlite3.", "syslog.", "ftplib.", "http.", "smtplib.", "urllib.", "webbrowser.")
    # These write files by themselves, without a word to a hook.
    unaudited = ("_dbm", "_gdbm", "_sqlite3", "readline")
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    def is_own(path):
        return (os.path.realpath(os.fsdecode(path)) + os.sep).startswith(here)
    def audit(event, details):
        if event.startswith(refused):
            raise PermissionError("a program under test may not do this: " + event)
        if event == "import" and details[0] in unaudited:
            raise ImportError("a program under test may not have " + details[0])
        if event == "os.mkdir" and not (details[2] == -1 and is_own(details[0])):
            raise PermissionError("a program under test may not make folders outside of its own")
        if event == "open" and isinstance(details[0], (str, bytes)) and (details[2] or 0) & writes:
            if not is_own(details[0]):
                raise PermissionError("a program under test may not write outside of its folder")
    for module in (os, sys.modules["posix" if os.name == "posix" else "nt"]):
        for name in ("mkfifo", "mknod"):
            if hasattr(module, name):
                delattr(module, name)
    # The program is the main module, as it would be alone; ours, which is not, is out of its reach by name.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.addaudithook(audit)
    try:
        exec(compile(told["program"], "program.py", "exec"), module.__dict__)
        verdict = "passed"
    except BaseException:
        verdict = "failed"
    tell(verdict)
    os._exit(0)

main()
"""


@dataclass(frozen=True, slots=True)
class Wall:
    """What stands between a program and the machine: the command that it runs under, and that in words."""

    command: tuple[str, ...]
    words: str

    @property
    def mounts(self) -> bool:
        """Whether the process has mounts of its own, to be made read-only."""
        return "-m" in self.command


@lru_cache(maxsize=1)
def wall() -> Wall:
    """Return the strongest wall that this system permits."""
    for command in _WALLS:
        if shutil.which(command[0]) is None:
            continue
        tried = Wall(command, _words(command))
        told = _told("import random, math, socket", tried)
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
            return tried
    return Wall((), "no namespace of its own; sockets and processes are refused by an audit hook alone")


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
    return [sys.executable, "-I", "-S", "-B", "-c", _RUNNER]


def _words(command: tuple[str, ...]) -> str:
    own = "a network and a process table of its own" if "-p" in command else "a network of its own"
    if "-m" in command:
        own = "a network, a process table and mounts of its own, read-only but for its folder"
    return own + (", as nobody" if command[0] == "setpriv" else "")


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
    return json.dumps({"program": source, "limits": limits, "mounts": behind.mounts, "secret": secrets.token_hex(16)})


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything that it started, and take its exit code."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.communicate()
