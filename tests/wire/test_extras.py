"""The command for optional packages, for each way in which dg-lsp may have been installed."""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib import metadata, util
from pathlib import Path

import pytest

from dg_lsp.wire import extras
from dg_lsp.wire.extras import CPU_INDEX, CPU_TORCH, install_command, requirements

PIP = f"{sys.executable} -m pip install "
CPU = f"{PIP}--retries 1 --extra-index-url {CPU_INDEX} {CPU_TORCH} && "


@pytest.mark.parametrize(
    ("platform", "has_gpu", "has_pip", "has_uv", "extra", "start"),
    [
        ("linux", True, True, True, "engine", PIP),
        ("linux", False, True, True, "engine", CPU + PIP),
        ("linux", False, True, True, "ray", PIP),
        ("darwin", False, True, True, "engine", PIP),
        ("linux", True, False, True, "ray", f"uv pip install --python {sys.executable} "),
        ("linux", False, False, True, "engine", f"uv pip install --python {sys.executable} --torch-backend cpu "),
        ("linux", True, False, False, "quant", f"{sys.executable} -m ensurepip && {PIP}"),
    ],
)
def test_the_command_is_that_of_the_environment(
    platform: str, has_gpu: bool, has_pip: bool, has_uv: bool, extra: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(extras, "GPU_FILES", (sys.executable,) if has_gpu else ())
    monkeypatch.setattr(util, "find_spec", lambda _name: has_pip or None)
    monkeypatch.setattr(shutil, "which", lambda name, path: f"/bin/{name}" if has_uv else None)
    command = install_command(extra)
    assert command.startswith(start)
    assert (CPU_INDEX in command) == start.startswith(CPU)
    assert ("torch" in command) == (extra == "engine") or extra == "quant"
    assert CPU_TORCH not in install_command(extra, any_torch=True)


def test_without_an_installed_package_the_command_names_no_package_of_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    monkeypatch.setattr(extras, "GPU_FILES", ())
    assert install_command("quant").endswith(f"{PIP}'/path/to/dg-lsp[quant]'")


def test_what_an_extra_requires_is_read_from_the_installed_package() -> None:
    assert {"torch", "transformers"} <= {re.split("[<>]", name)[0] for name in requirements("engine")}
    assert requirements("no-such-extra") == []


def test_the_extension_looks_for_the_same_gpus_and_index() -> None:
    source = (Path(__file__).parents[2] / "editors" / "vscode" / "src" / "torch.ts").read_text("utf-8")
    assert json.dumps(CPU_INDEX) in source
    pinned = (Path(__file__).parents[2] / "editors" / "vscode" / "server" / "requirements-cpu.txt").read_text("utf-8")
    assert f"\n{CPU_TORCH} \\\n" in pinned
    assert f"const GPU_FILES = {json.dumps(list(extras.GPU_FILES))};" in source
