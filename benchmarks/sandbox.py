"""Run generated programs in bubblewrap, and report whether their tests pass.

Each program runs in its own Python process, without environment variables, in an empty folder that is removed
afterwards, with limits on time, memory and file size. bubblewrap gives it namespaces without a network, without
capabilities, and with a file system of Python, the system's libraries and its own folder, of which it can write only the
last. Unprotected, it has the rights of the user, and only the limits.

A program that walks the interpreter's frames can always report itself as passed, and nothing protects against a kernel bug.
"""

from __future__ import annotations

import contextlib
import inspect
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
from functools import lru_cache, partial
from typing import Literal

from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.wire import programs

TIMEOUT_S = 3.0
RETRY_FACTOR = 10
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
N_PROCESSES = 64
N_FILES = 64

Verdict = Literal["passed", "failed", "timed out"]

# The limit on processes does not apply to uid 0.
_AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
# What Python and its library read, besides their own folder.
_READABLE = (
    "/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types",
    sys.base_prefix, sys.base_exec_prefix,
)  # fmt: skip
NEEDS_BUBBLEWRAP = (
    "--execute runs code that a model wrote, so it needs bubblewrap (Linux; `apt install bubblewrap`), which is not there or "
    "does not work; --unprotected runs the programs with your rights"
)


def cell() -> None:
    """Run the program from standard input, in a new Python that gets this function's text with `-c`.

    It imports only the standard library, and only inside: an imported module stays within the program's reach. A secret word
    precedes the verdict, so that no output passes for one by accident. A program that inspects the frames of this process
    can still read the word: the verdict is no protection.
    """
    import json
    import os
    import resource
    import sys
    import types

    order = json.loads(sys.stdin.buffer.read())
    word, out = order.pop("secret"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for name, bound in order["limits"].items():
        try:
            resource.setrlimit(getattr(resource, name), (bound, bound))
        except (AttributeError, ValueError, OSError):
            continue  # this system lacks the limit but may have the others
    # The program becomes the main module, as if it ran alone; this function is no longer reachable by name.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(order["program"], "program.py", "exec"), module.__dict__)
        verdict = "passed"
    except BaseException:  # any exception means that the program failed
        verdict = "failed"
    os.write(out, f"{word} {verdict}".encode())
    os._exit(0)


@lru_cache(maxsize=1)
def protection() -> tuple[str, ...] | None:
    """Return the command that protects this machine from a program, without its folder; None if the system has none."""
    bwrap = shutil.which("bwrap", path=programs.search_path())
    if bwrap is None:
        return None
    command = (
        bwrap, "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--die-with-parent",
        "--new-session", "--dev", "/dev", "--remount-ro", "/dev",
        *(part for path in dict.fromkeys(_READABLE) for part in ("--ro-bind-try", path, path)),
    )  # fmt: skip
    for tried in ((*_AS_NOBODY, *command), command) if os.geteuid() == 0 and shutil.which(_AS_NOBODY[0]) else (command,):
        with contextlib.suppress(OSError):
            # An ordinary program must pass. It has long, so that a busy machine is not taken for one without protection.
            if run("import random, math, socket", tried, timeout_s=60.0, cpu_s=TIMEOUT_S) == "passed":
                return tried
    return None


def program(task: Task, text: str) -> str:
    """Return the task's program with the text in its hole, and its test."""
    return f"{task.prompt}{text}{task.suffix}\n{task.test}\ncheck({task.entry_point})\n"


def run(
    source: str, protected_by: tuple[str, ...] = (), *, timeout_s: float = TIMEOUT_S, cpu_s: float | None = None
) -> Verdict:
    """Return the verdict on a program. One that exits early has failed, whatever its exit code.

    `protected_by` is the command of `protection`; without it, the program has the user's rights. A program that takes more than
    `cpu_s` seconds of CPU time, by default `timeout_s`, has failed too.
    """
    limits = {
        "RLIMIT_CPU": int(timeout_s if cpu_s is None else cpu_s) + 1,
        "RLIMIT_AS": MEMORY_BYTES,
        "RLIMIT_FSIZE": FILE_BYTES,
        "RLIMIT_NPROC": N_PROCESSES,
        "RLIMIT_NOFILE": N_FILES,
        "RLIMIT_CORE": 0,
    }
    secret = secrets.token_hex(16)
    order = json.dumps({"program": source, "limits": limits, "secret": secret})
    code = f"from __future__ import annotations\n{inspect.getsource(cell)}\ncell()\n"
    python = (os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", code)
    with tempfile.TemporaryDirectory(prefix="dg-lsp-eval-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)  # noqa: PTH101  # the program may run as nobody, and only it knows the name
        own = ("--bind", folder, folder, "--chdir", folder, "--remount-ro", "/", "--") if protected_by else ()
        process = subprocess.Popen(  # running the program is the purpose
            [*protected_by, *own, *python],
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


def run_all(
    programs: Sequence[str], *, workers: int = 1, timeout_s: float = TIMEOUT_S, unprotected: bool = False
) -> Iterator[Verdict]:
    """Yield each program's verdict; raise EvalError before any runs if it could not be protected and must be.

    A program that timed out runs again alone, because load on the machine may have slowed it down. It then has
    RETRY_FACTOR times as long, but the same CPU time.
    """
    protected_by = protection()
    if protected_by is None and not unprotected:
        raise EvalError(NEEDS_BUBBLEWRAP)
    run_one = partial(run, protected_by=protected_by or ())
    with ThreadPoolExecutor(max_workers=max(workers, 1)) as pool:
        first = list(pool.map(partial(run_one, timeout_s=timeout_s), programs))
    for source, verdict in zip(programs, first, strict=True):
        yield run_one(source, timeout_s=RETRY_FACTOR * timeout_s, cpu_s=timeout_s) if verdict == "timed out" else verdict
