"""Completion: what a shell is offered for an incomplete command line, and an installation of it that fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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
        ("engine run --device c", "cpu cuda"),
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
