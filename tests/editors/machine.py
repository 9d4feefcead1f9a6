"""Find the editors' programs, and prepare the environment and the engine that all editor tests share."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from dg_lsp.wire import laptop

ROOT = Path(__file__).parents[2]
# The folders of the programs that `make test-editors` installs, and of the pictures that tests take.
EDITORS = Path(os.environ.get("DG_LSP_EDITORS", ROOT / "build" / "editors"))
PICTURES = ROOT / "build" / "editor-pictures"


def program(name: str) -> Path:
    """Return the path of an editor: the one installed for these tests, or else the machine's own."""
    if (installed_program := EDITORS / "bin" / name).exists():
        return installed_program
    program_path = shutil.which(name)
    if program_path is None:
        pytest.fail(f"{name} is not there; make test-editors installs it")
    return Path(program_path)


def file_name(name: str) -> str:
    """Return a file name made from a test's name."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-")


def environment(home: Path) -> dict[str, str]:
    """Return an environment in which all files of dg-lsp and of the editors are below this folder."""
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "TMPDIR") if name in os.environ}
    variables = {
        **inherited,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{inherited['PATH']}",
        "DG_LSP_RUNTIME_DIR": str(home / "run"),
        "XDG_RUNTIME_DIR": str(home),
        # No editor offers to pull a model in between.
        laptop.NO_PULL_VARIABLE: "1",
        # A test sets a model in an editor, which the user's own configuration must allow.
        "DG_LSP_ALLOW": tempfile.gettempdir(),
    }
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        variables[f"XDG_{name}_HOME"] = str(home / name.lower())
    return variables


def path_without(name: str) -> str:
    """Return the PATH of this process without the folders that have this program."""
    return os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if not (Path(part) / name).exists())


def engine(environment: Mapping[str, str], *arguments: str) -> str:
    """Run `dg-lsp engine` and return its output."""
    process = subprocess.run(
        [sys.executable, "-m", "dg_lsp", "engine", *arguments],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def engine_pid(environment: Mapping[str, str]) -> int:
    """Return the process of the engine that runs."""
    return int(json.loads(engine(environment, "status", "--json"))["pid"])
