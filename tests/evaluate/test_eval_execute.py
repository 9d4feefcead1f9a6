"""Running generated programs: their verdicts and limits, in bubblewrap if it is there."""

from __future__ import annotations

import sys

import pytest

from benchmarks import sandbox
from dg_lsp.evaluate.tasks import Task
from tests.evaluate.scripted import PROGRAMS
from tests.patience import PATIENCE_S


def run(source: str) -> sandbox.Verdict:
    """Run a program with time to spare on a busy machine."""
    return sandbox.run(source, sandbox.protection() or (), timeout_s=PATIENCE_S)


@pytest.mark.parametrize("task", PROGRAMS, ids=lambda task: task.entry_point)
def test_the_expected_answer_passes_and_an_empty_one_fails(task: Task) -> None:
    assert run(sandbox.program(task, task.answer)) == "passed"
    assert run(sandbox.program(task, "")) == "failed"


@pytest.mark.parametrize(
    "source",
    [
        "def broken(:",
        "assert False",
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "print('passed'); raise ValueError",
        "import sys; sys.stdout.write('passed'); sys.stdout.flush(); import os; os.write(1, b'passed'); os._exit(0)",
        "open('big', 'w').write('x' * (2 << 20))",
        "import os; os.write(1, b'passed'); os.write(3, b'passed'); os._exit(0)",
    ],
)
def test_wrong_or_refused_programs_fail(source: str) -> None:
    assert run(source) == "failed"


def test_a_program_is_the_main_module_and_can_create_folders() -> None:
    source = "import os, sys\nos.mkdir('a')\nos.makedirs('a/b/c')\nopen('a/b/c/d', 'w').close()\nx = 1\n"
    assert run(source + "assert sys.modules['__main__'].x == 1") == "passed"


def test_a_program_sees_no_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "value")
    assert run("import os; assert 'SECRET' not in os.environ") == "passed"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds a process's memory")
def test_memory_is_bounded() -> None:
    assert run("kept = bytearray(3 << 30)") == "failed"


def test_a_program_that_runs_too_long_is_killed() -> None:
    assert sandbox.run("while True: pass", timeout_s=0.5) == "timed out"


def test_a_program_that_only_waits_too_long_gets_more_time_in_its_second_run() -> None:
    assert list(sandbox.run_all(["import time; time.sleep(1)"], timeout_s=0.5, unprotected=True)) == ["passed"]


def test_verdicts_come_in_order() -> None:
    verdicts = sandbox.run_all(["x = 1", "assert False", "x = 2"], workers=2, timeout_s=PATIENCE_S, unprotected=True)
    assert list(verdicts) == [
        "passed",
        "failed",
        "passed",
    ]
