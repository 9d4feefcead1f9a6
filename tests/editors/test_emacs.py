"""The package in a real Emacs: its own tests, and that it compiles without a warning."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.editors.machine import EDITORS, ROOT, program

HERE = Path(__file__).parent
PACKAGE = ROOT / "editors" / "emacs" / "dg-lsp.el"
LIBRARIES = EDITORS / "emacs" / "usr" / "share" / "emacs" / "site-lisp" / "elpa-src"


def emacs(environment: Mapping[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Emacs without a screen, with the packages that were installed for these tests."""
    if not LIBRARIES.exists():
        pytest.fail("lsp-mode is not there; make test-editors installs it")
    paths = [option for each in sorted(LIBRARIES.iterdir()) for option in ("-L", str(each))]
    return subprocess.run(
        [str(program("emacs")), "-Q", "--batch", *paths, "-L", str(PACKAGE.parent), *arguments],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("script", "run"),
    [
        ("dg-lsp-tests.el", ("-f", "ert-run-tests-batch-and-exit")),
        ("dg-lsp-asking-tests.el", ("--eval", '(ert-run-tests-batch-and-exit "^asking-")')),
        ("eglot-tests.el", ("-f", "ert-run-tests-batch-and-exit")),
    ],
)
def test_the_tests_in_emacs_pass(environment: Mapping[str, str], tmp_path: Path, script: str, run: tuple[str, ...]) -> None:
    """The package in lsp-mode; what a fill asks and reports, with an engine that is told what to answer; eglot's actions."""
    (tmp_path / ".git").mkdir()
    more = {"DG_LSP_TESTS": str(HERE), "DG_LSP_PYTHON": sys.executable}
    if script == "dg-lsp-asking-tests.el":
        more["PYTHONPATH"] = str(ROOT)
    process = emacs({**environment, **more}, tmp_path, "-l", str(HERE / script), *run)
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-8000:]
    assert "0 unexpected" in process.stderr


def test_the_package_compiles_without_a_warning(environment: Mapping[str, str], tmp_path: Path) -> None:
    shutil.copy(PACKAGE, tmp_path)
    warn = "(setq byte-compile-error-on-warn t)"
    process = emacs(environment, tmp_path, "--eval", warn, "-f", "batch-byte-compile", str(tmp_path / PACKAGE.name))
    assert process.returncode == 0, process.stdout + process.stderr


def test_checkdoc_reports_nothing(environment: Mapping[str, str], tmp_path: Path) -> None:
    check_expression = "(progn (require 'checkdoc) (checkdoc-file (car command-line-args-left)))"
    process = emacs(environment, tmp_path, "--eval", check_expression, str(PACKAGE))
    assert "dg-lsp.el:" not in process.stderr, process.stderr
