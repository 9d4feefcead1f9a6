"""Completion in real shells: what they offer for an incomplete command line."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dg_lsp.wire import laptop
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


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
    ("dg-lsp infill --lang rus", "dg-lsp infill --lang rust "),
    ("dg-lsp engine start --dtype bf", "dg-lsp engine start --dtype bfloat16 "),
    ("dg-lsp bench --model em", "dg-lsp bench --model embedded "),
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
@pytest.mark.smoke
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


def offered(line: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Return what typer prints for fish, each value with its help text."""
    asking = {
        **environment(home),
        "_DG_LSP_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": line,
        "PYTHONPROFILEIMPORTTIME": "1",
    }
    return subprocess.run(["dg-lsp"], env=asking, capture_output=True, text=True, check=True, timeout=PATIENCE_S)


LOCAL_MODELS = " ".join(("auto", *(model.name for model in laptop.MODELS), "embedded"))


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("infill --model", LOCAL_MODELS),
        ("doctor --model", LOCAL_MODELS),
        ("setup --yes", LOCAL_MODELS),
        ("engine start --dtype", "auto float32 bfloat16 float16 int8 fp8 int4"),
        ("engine start --device", "auto cpu cuda mps"),
        ("infill --lang p", "python php"),
        ("calibrate --device c", "cpu cuda"),
    ],
)
def test_the_values_of_an_option_are_offered_without_torch(option: str, values: str, tmp_path: Path) -> None:
    completed = offered(f"dg-lsp {option}" + (" " if option.split()[-1].startswith("--") else ""), tmp_path)
    assert completed.stdout.split() == values.split()
    assert not re.search(r"\| +(torch|numpy|transformers)$", completed.stderr, re.MULTILINE)


def test_a_folder_is_offered_as_a_file_of_the_shell(tmp_path: Path) -> None:
    assert offered("dg-lsp infill --model ./", tmp_path).stdout.strip() == ""


@pytest.mark.parametrize("is_text", [True, False])
def test_completion_that_cannot_be_installed_is_explained(tmp_path: Path, is_text: bool) -> None:
    home = tmp_path / "home"
    if is_text:
        home.mkdir()
        (home / ".bashrc").write_bytes(b"\xff")
        reason = "the shell's own file is not UTF-8"
    else:
        home.write_text("")
        reason = f"{home}: file exists"
    completed = subprocess.run(
        [shell("bash"), "-c", "dg-lsp --install-completion; exit $?"],
        env={**environment(home), "XDG_STATE_HOME": str(tmp_path / "logs")},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert completed.returncode == 2
    assert completed.stderr == (
        f"dg-lsp: completion can't be installed: {reason}; to add the script by hand, print it with: dg-lsp --show-completion\n"
    )
