"""The sandbox around programs under test holds without its audit hook, so against machine code too."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dg_lsp.evaluate import cell, execute
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")

# No hook is set in this process: only what the kernel refuses fails.
SETUP = """
import ctypes, os, sys
made = {"__name__": "cell"}
exec(sys.stdin.read(), made)
assert made["apply"](os.path.realpath(os.getcwd()), LAYERS)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
"""
REMOUNT = """
import struct
for path, flags in ((b"/", 0x8000), (PATH.encode(), 0)):
    writable = struct.pack("=4Q", 0, 1, 0, 0)
    libc.syscall(ctypes.c_long(442), ctypes.c_long(-100), path, ctypes.c_long(flags), writable, ctypes.c_long(32))
    libc.mount(b"none", path, None, ctypes.c_ulong(32 | 4096), None)
"""


def attack(source: str, layers: tuple[str, ...] | None = None) -> tuple[int, str]:
    """Return the exit code and the last word of code that runs in the sandbox, without the audit hook."""
    sandbox = execute.sandbox()
    layers_used = list(sandbox.layers if layers is None else layers)
    run = subprocess.run(
        [*sandbox.command, sys.executable, "-I", "-S", "-B", "-c", SETUP.replace("LAYERS", repr(layers_used)) + source],
        input=Path(cell.__file__).read_text(),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        env={},
        timeout=PATIENCE_S,
        check=False,
    )
    return run.returncode, (run.stderr or run.stdout).strip().rpartition("\n")[2]


needs_mounts = pytest.mark.skipif("mounts" not in execute.sandbox().layers, reason="this system gives no mounts of one's own")
needs_capabilities = pytest.mark.skipif(
    "capabilities" not in execute.sandbox().layers, reason="capabilities can't be dropped here"
)
needs_landlock = pytest.mark.skipif("landlock" not in execute.sandbox().layers, reason="this kernel has no Landlock")
needs_seccomp = pytest.mark.skipif("seccomp" not in execute.sandbox().layers, reason="this kernel has no seccomp")


@needs_mounts
@needs_capabilities
@pytest.mark.parametrize("without", ["none", "landlock and seccomp"])
def test_read_only_mounts_stay_read_only(tmp_path: Path, without: str) -> None:
    layers = ("mounts", "capabilities") if without != "none" else None
    code, output = attack(REMOUNT.replace("PATH", repr(str(tmp_path))) + f"open({str(tmp_path / 'new')!r}, 'w')", layers)
    assert code
    assert output.startswith(("OSError: [Errno 30] Read-only file system", "PermissionError"))
    assert not list(tmp_path.iterdir())


@needs_mounts
def test_with_the_capability_the_mounts_would_be_writable_again(tmp_path: Path) -> None:
    # So the test above is about what it says: this is the escape that was found.
    code, output = attack(REMOUNT.replace("PATH", repr(str(tmp_path))) + f"open({str(tmp_path / 'new')!r}, 'w')", ("mounts",))
    assert (code, output) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@needs_capabilities
def test_no_capability_is_left_and_none_comes_back() -> None:
    names = ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")
    status_script = f"print([line.split()[1] for line in open('/proc/self/status') if line.startswith({names})])"
    layers = tuple(layer for layer in execute.sandbox().layers if layer in ("mounts", "capabilities"))
    assert attack(status_script, layers) == (0, str(["0" * 16] * 4 + ["1"]))
    again = f"os.execv(sys.executable, [sys.executable, '-S', '-c', {status_script!r}])"
    code, output = attack(again, layers)
    assert code == 0
    assert "'0000000000000000', '0000000000000000', '0000000000000000'" in output
    assert attack("os.chroot('.')", layers)[1].startswith("PermissionError")


@needs_landlock
def test_landlock_alone_keeps_files_and_processes_apart(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    for source in (
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({str(tmp_path / 'key')!r})",
        f"os.listdir({str(tmp_path)!r})",
        f"os.unlink({str(tmp_path / 'key')!r})",
        f"os.truncate({str(tmp_path / 'key')!r}, 0)",
        f"open('/proc/{os.getpid()}/environ')",
        "os.kill(os.getppid(), 0)" if not execute.sandbox().command else "open('/proc/1/environ')",
    ):
        code, output = attack(source, ("landlock",))
        assert code, source
        assert output.startswith("PermissionError"), source
    assert (tmp_path / "key").read_text() == "secret"


def test_a_program_reaches_no_server_of_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        connect = f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 9)"
        assert execute.run(connect, timeout_s=PATIENCE_S) == "failed"
        with pytest.raises(BlockingIOError):
            listener.accept()
        # Without the audit hook too, where the system has one of the two layers.
        if execute.sandbox().command or "seccomp" in execute.sandbox().layers:
            assert attack(connect)[0]
            with pytest.raises(BlockingIOError):
                listener.accept()
        # Outside of the sandbox, the same program is let in.
        subprocess.run([sys.executable, "-c", connect], check=True)
        listener.accept()[0].close()


@needs_seccomp
def test_seccomp_refuses_sockets_of_the_machine(tmp_path: Path) -> None:
    # A network of its own does not keep a process from a socket in a folder, such as that of a container engine.
    with socket.socket(socket.AF_UNIX) as listener:
        place = str(tmp_path / "s")
        listener.bind(place)
        listener.listen()
        connect = f"import socket\nsocket.socket(socket.AF_UNIX).connect({place!r})"
        code, output = attack(connect, ("seccomp",))
        assert code
        assert output.startswith("PermissionError")
        assert attack(connect, ())[0] == 0
    for call in ("libc.unshare(0x10000000)", "libc.ptrace(0, 0, 0, 0)", "libc.syscall(ctypes.c_long(425), 1, None)"):
        assert attack(f"assert {call} == -1 and ctypes.get_errno() == 1", ("seccomp",)) == (0, "")


def test_nothing_runs_when_a_sandbox_layer_cannot_be_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "sandbox", lambda: execute.Sandbox((), ("landlock", "moat")))
    assert execute.run("x = 1", timeout_s=PATIENCE_S) == "failed"


def test_ordinary_programs_pass_in_the_sandbox() -> None:
    source = "\n".join(
        (
            "import random, math, json, re, itertools, functools, collections, datetime, decimal, hashlib, tempfile, zoneinfo",
            "import threading, time, asyncio, unicodedata, statistics, heapq, bisect, string, typing, dataclasses, csv",
            "with open('own', 'w') as file: file.write('x')",
            "assert open('own').read() == 'x'",
            "found = []",
            "thread = threading.Thread(target=lambda: found.append(1)); thread.start(); thread.join()",
            "assert found == [1]",
            "assert hashlib.sha256(b'').hexdigest().startswith('e3b0')",
        )
    )
    assert execute.run(source, timeout_s=PATIENCE_S) == "passed"
