"""Running generated programs in a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dg_lsp.evaluate import execute
from dg_lsp.evaluate.tasks import Task
from tests.evaluate.scripted import PROGRAMS
from tests.patience import PATIENCE_S


def run(source: str) -> execute.Verdict:
    """Run a program with time to spare on a busy machine."""
    return execute.run(source, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("task", PROGRAMS, ids=lambda task: task.entry_point)
def test_the_expected_answer_passes_and_an_empty_one_fails(task: Task) -> None:
    assert run(execute.program(task, task.answer)) == "passed"
    assert run(execute.program(task, "")) == "failed"


@pytest.mark.parametrize(
    "source",
    [
        "def broken(:",
        "assert False",
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "print('passed'); raise ValueError",
        "import sys; sys.stdout.write('passed'); sys.stdout.flush(); import os; os.write(1, b'passed'); os._exit(0)",
        "import socket; socket.create_connection(('127.0.0.1', 1), 1)",
        "import urllib.request; urllib.request.urlopen('http://localhost:1')",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.fork()",
        "import os; os.system('true')",
        "import ctypes; ctypes.CDLL(None)",
        "open('big', 'w').write('x' * (2 << 20))",
        "import os; os.write(1, b'passed'); os.write(3, b'passed'); os._exit(0)",
    ],
)
def test_wrong_or_refused_programs_fail(source: str) -> None:
    assert run(source) == "failed"


def test_a_program_can_write_only_in_its_own_folder(tmp_path: Path) -> None:
    assert run("with open('own', 'w') as file: file.write('x')\nassert open('own').read() == 'x'") == "passed"
    (tmp_path / "kept").write_text("kept")
    for source in elsewhere(tmp_path):
        assert run(source) == "failed", source
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def elsewhere(folder: Path) -> tuple[str, ...]:
    """Programs that change something in another folder."""
    new, kept_file = str(folder / "new"), str(folder / "kept")
    return (
        f"open({new!r}, 'w')",
        f"import os; os.remove({kept_file!r})",
        f"import sqlite3; sqlite3.connect({new!r}).execute('create table t (x)')",
        f"import dbm.gnu; dbm.gnu.open({new!r}, 'c')",
        f"import dbm.ndbm; dbm.ndbm.open({new!r}, 'c')",
        f"import os; os.mkdir({new!r})",
        f"import os; os.mkdir('new', dir_fd=os.open({str(folder)!r}, os.O_RDONLY))",
        f"import os; os.mkfifo({new!r})",
        f"import os; os.mknod({new!r})",
    )


def test_a_program_is_the_main_module_and_can_create_folders() -> None:
    source = "import os, sys\nos.mkdir('a')\nos.makedirs('a/b/c')\nopen('a/b/c/d', 'w').close()\nx = 1\n"
    assert run(source + "assert sys.modules['__main__'].x == 1") == "passed"


@pytest.mark.skipif("mounts" not in execute.sandbox().layers, reason="this system gives no mounts of one's own")
def test_read_only_mounts_hold_when_code_bypasses_the_hook(tmp_path: Path) -> None:
    # The hook sees a name, not the folder that it is looked up in.
    source = (
        f"import os\nfolder = os.open({str(tmp_path)!r}, os.O_RDONLY)\nos.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=folder)"
    )
    assert run(source) == "failed"
    assert not list(tmp_path.iterdir())


def test_a_program_sees_no_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "value")
    assert run("import os; assert 'SECRET' not in os.environ") == "passed"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds a process's memory")
def test_memory_is_bounded() -> None:
    assert run("kept = bytearray(3 << 30)") == "failed"


def test_a_program_that_runs_too_long_is_killed() -> None:
    assert execute.run("while True: pass", timeout_s=0.5) == "timed out"


def test_a_program_that_timed_out_runs_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def busy(source: str, *, timeout_s: float, cpu_s: float | None = None) -> execute.Verdict:
        ran.append(source)
        return "timed out" if ran.count(source) == 1 and source == "slow" else "passed"

    monkeypatch.setattr(execute, "run", busy)
    assert list(execute.run_all(["a", "slow", "b"], workers=2)) == ["passed"] * 3
    assert sorted(ran[:3]) == ["a", "b", "slow"]
    assert ran[3:] == ["slow"]


def test_a_program_that_only_waits_too_long_gets_more_time_in_its_second_run() -> None:
    assert list(execute.run_all(["import time; time.sleep(2)"], timeout_s=1)) == ["passed"]


def test_verdicts_come_in_order() -> None:
    verdicts = execute.run_all(["x = 1", "assert False", "x = 2"], workers=2, timeout_s=PATIENCE_S)
    assert list(verdicts) == [
        "passed",
        "failed",
        "passed",
    ]


def test_the_sandbox_describes_itself() -> None:
    sandbox = execute.sandbox()
    assert ("read-only but for its folder" in sandbox.words) == ("mounts" in sandbox.layers)
    assert ("Landlock" in sandbox.words) == ("landlock" in sandbox.layers)
    assert execute.Sandbox().words == "no namespace of its own; sockets and processes are refused by an audit hook alone"


def test_without_namespaces_the_hook_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(execute, "sandbox", lambda: execute.Sandbox())
    assert run("x = 1") == "passed"
    assert run("import socket; socket.socket()") == "failed"
    assert run("import os; os.posix_spawn('/bin/true', ['true'], {})") == "failed"
    (tmp_path / "kept").write_text("kept")
    for source in elsewhere(tmp_path):
        assert run(source) == "failed", source
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
