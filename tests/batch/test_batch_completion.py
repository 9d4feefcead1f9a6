"""Completion in real shells: what they offer for an incomplete command line."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S


def shell(name: str) -> str:
    if (program := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed")
    return program


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "TERM": "dumb", "LANG": "C.UTF-8"}


def script(name: str, home: Path) -> Path:
    """Write the script that a shell sources, as `--show-completion` prints it in that shell, and return its path."""
    asking = {**environment(home), "_DG_LSP_COMPLETE": f"source_{name}"}
    completed = subprocess.run(["dg-lsp"], env=asking, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    path = home / f"completion.{name}"
    path.write_text(completed.stdout)
    return path


def typed(command: list[str], setup: str, keys: str, expected: str, home: Path) -> str:
    """Press keys in a shell on a terminal, and return its output as soon as it contains the expected text."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(command[0], command, environment(home))
    output = ""
    try:
        for step, until in ((f"{setup}; echo rea''dy\n", "ready\r"), (keys, expected)):
            os.write(terminal, step.encode())
            end, output = time.monotonic() + PATIENCE_S, ""
            while until not in output:
                assert time.monotonic() < end, f"waited for {until!r} and saw {output!r}"
                if select.select([terminal], [], [], 1.0)[0]:
                    output += os.read(terminal, 65536).decode(errors="replace")
        return output
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


CASES = [
    ("dg-lsp calib", "dg-lsp calibrate "),
    ("dg-lsp engine sta", "dg-lsp engine sta"),
    ("dg-lsp infill --allow-s", "dg-lsp infill --allow-shrink "),
    ("dg-lsp setup --no-t", "dg-lsp setup --no-try "),
]


@pytest.mark.parametrize(("line", "whole"), CASES)
@pytest.mark.slow
def test_bash_completes(line: str, whole: str, tmp_path: Path) -> None:
    sourced = f"source {script('bash', tmp_path)}; PS1="
    if whole == line:
        output_text = typed([shell("bash"), "--norc", "--noprofile", "-i"], sourced, f"{line}\t\t", "status", tmp_path)
        assert "start" in output_text
    else:
        typed([shell("bash"), "--norc", "--noprofile", "-i"], sourced, f"{line}\t", whole, tmp_path)


@pytest.mark.parametrize(("line", "whole"), CASES)
def test_zsh_completes(line: str, whole: str, tmp_path: Path) -> None:
    sourced = f"autoload -U compinit; compinit -u; source {script('zsh', tmp_path)}; PS1="
    # zsh also lists the choices. The output ends with the completed line, written character by character.
    expected = "status" if whole == line else whole.strip().rpartition(line)[2]
    typed([shell("zsh"), "-f", "-i"], sourced, f"{line}\t", expected, tmp_path)


@pytest.mark.parametrize(("line", "whole"), CASES)
def test_fish_completes(line: str, whole: str, tmp_path: Path) -> None:
    completed = subprocess.run(
        [shell("fish"), "--no-config", "-c", f"source {script('fish', tmp_path)}; complete -C '{line}'"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    words = [each.split("\t")[0] for each in completed.stdout.splitlines()]
    if whole == line:
        assert {"start", "status"} <= set(words), completed.stderr
    else:
        assert whole.split()[-1] in words, (completed.stdout, completed.stderr)


def test_files_are_completed_where_paths_are_expected(tmp_path: Path) -> None:
    (tmp_path / "some-file.py").write_text("")
    sourced = f"cd {tmp_path}; source {script('bash', tmp_path)}; PS1="
    typed([shell("bash"), "--norc", "--noprofile", "-i"], sourced, "dg-lsp infill some-\t", "some-file.py", tmp_path)
