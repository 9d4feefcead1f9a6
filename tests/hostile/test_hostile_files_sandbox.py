"""bubblewrap keeps programs under test apart from this machine, also programs of machine code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks import sandbox
from dg_lsp.evaluate.tasks import EvalError
from tests.engine.engine_kit import wait_until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(sandbox.protection() is None, reason="bubblewrap is missing or does not work here")


def run(source: str) -> sandbox.Verdict:
    """Run a program with time to spare on a busy machine."""
    return sandbox.run(source, sandbox.protection() or (), timeout_s=PATIENCE_S)


def unprotected(source: str) -> sandbox.Verdict:
    return sandbox.run(source, timeout_s=PATIENCE_S)


def test_a_program_can_write_only_in_its_own_folder(tmp_path: Path) -> None:
    assert run("with open('own', 'w') as file: file.write('x')\nassert open('own').read() == 'x'") == "passed"
    (tmp_path / "kept").write_text("kept")
    folders = (str(tmp_path), "/", "/dev", "/dev/shm", "/usr", sys.base_prefix, tempfile.gettempdir())
    for source in (
        *(f"open({folder + '/new'!r}, 'w')" for folder in folders),
        f"import os; os.remove({str(tmp_path / 'kept')!r})",
        f"import sqlite3; sqlite3.connect({str(tmp_path / 'new')!r}).execute('create table t (x)')",
        f"import os; os.mkdir('new', dir_fd=os.open({str(tmp_path)!r}, os.O_RDONLY))",
    ):
        assert run(source) == "failed", source
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_program_reads_nothing_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    for source in (
        f"open({str(tmp_path / 'key')!r})",
        "open('/etc/passwd')",
        f"open('/proc/{os.getpid()}/environ')",
        f"import os; os.kill({os.getpid()}, 0)",
    ):
        assert run(source) == "failed", source
        assert unprotected(source) == "passed", source


def test_no_capability_is_left_and_mounts_stay_read_only(tmp_path: Path) -> None:
    for source in (
        "import os; os.chroot('.')",
        "import ctypes; assert not ctypes.CDLL(None).mount(b'none', b'/', None, ctypes.c_ulong(32 | 4096), None)",
        "import ctypes; assert not ctypes.CDLL(None).umount(b'/usr')",
    ):
        assert run(source) == "failed", source
    # A user namespace of its own gives capabilities, but not over mounts that are not its own.
    source = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nlibc.unshare(0x10000000 | 0x20000)\n"
        "libc.mount(b'none', b'/', None, ctypes.c_ulong(32 | 4096), None)\nopen('/new', 'w')"
    )
    assert run(source) == "failed"


def test_a_program_reaches_no_server_of_this_machine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as private:
        private.bind(place := str(tmp_path / "s"))
        private.listen()
        with socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(name := f"\0dg-lsp-test-{os.getpid()}")
            abstract.listen()
            for source in (
                f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 9)",
                f"import socket; socket.socket(socket.AF_UNIX).connect({place!r})",
                f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})",
            ):
                assert run(source) == "failed", source
                assert unprotected(source) == "passed", source


def test_processes_of_a_program_end_with_it() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mark = f"dg-lsp-test-{os.path.basename(folder)}"  # noqa: PTH119
        source = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}])"
        assert run(source) == "passed"
        # The kernel ends them with their namespace, a moment after the program itself.
        wait_until(lambda: mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout)


def test_ordinary_programs_pass() -> None:
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
    assert run(source) == "passed"


def test_without_bubblewrap_nothing_runs_unless_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.protection.cache_clear()
    request.addfinalizer(sandbox.protection.cache_clear)
    mark = tmp_path / "ran"
    program = f"open({str(mark)!r}, 'w')"
    with pytest.raises(EvalError, match=r"needs bubblewrap .*; --unprotected runs the programs with your rights"):
        next(sandbox.run_all([program]))
    assert not mark.exists()
    assert list(sandbox.run_all([program], unprotected=True, timeout_s=PATIENCE_S)) == ["passed"]
    assert mark.exists()


def test_a_program_that_bubblewrap_can_not_start_does_not_run(tmp_path: Path) -> None:
    command = (*(sandbox.protection() or ()), "--ro-bind", "/no/such/folder", "/moat")
    assert sandbox.run("x = 1", command, timeout_s=PATIENCE_S) == "failed"
