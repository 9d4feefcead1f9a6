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


def test_the_package_in_lsp_mode(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    script = str(HERE / "dg-lsp-tests.el")
    process = emacs(environment, tmp_path, "-l", script, "-f", "ert-run-tests-batch-and-exit")
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-8000:]
    assert "0 unexpected" in process.stderr


def test_a_fill_asks_for_confirmation_and_reports_its_confidence(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    more = {"DG_LSP_TESTS": str(HERE), "DG_LSP_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    script = str(HERE / "dg-lsp-asking-tests.el")
    run = ("--eval", '(ert-run-tests-batch-and-exit "^asking-")')
    process = emacs({**environment, **more}, tmp_path, "-l", script, *run)
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-8000:]
    assert "0 unexpected" in process.stderr


def test_code_actions_in_eglot(environment: Mapping[str, str], tmp_path: Path) -> None:
    script = str(HERE / "eglot-tests.el")
    process = emacs(environment, tmp_path, "-l", script, "-f", "ert-run-tests-batch-and-exit")
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-8000:]


def test_the_package_compiles_without_a_warning(environment: Mapping[str, str], tmp_path: Path) -> None:
    shutil.copy(PACKAGE, tmp_path)
    warn = "(setq byte-compile-error-on-warn t)"
    process = emacs(environment, tmp_path, "--eval", warn, "-f", "batch-byte-compile", str(tmp_path / PACKAGE.name))
    assert process.returncode == 0, process.stdout + process.stderr


def test_checkdoc_reports_nothing(environment: Mapping[str, str], tmp_path: Path) -> None:
    check_expression = "(progn (require 'checkdoc) (checkdoc-file (car command-line-args-left)))"
    process = emacs(environment, tmp_path, "--eval", check_expression, str(PACKAGE))
    assert "dg-lsp.el:" not in process.stderr, process.stderr
