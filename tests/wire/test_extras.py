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

REAL_FILES = list(extras.GPU_FILES)


@pytest.fixture(autouse=True)
def _with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "GPU_FILES", (sys.executable,))


def test_without_an_installed_package_the_command_names_no_package_of_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_command("quant") == f"{sys.executable} -m pip install '/path/to/dg-lsp[quant]'"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(extras, "GPU_FILES", ("/no/such/file",))
    assert CPU_TORCH in install_command("engine")


def test_an_environment_without_pip_is_changed_by_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _name: None)
    monkeypatch.setattr(shutil, "which", lambda name, path: f"/bin/{name}")
    assert install_command("ray").startswith(f"uv pip install --python {sys.executable} ")


def test_without_an_nvidia_gpu_linux_gets_torchs_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(extras, "GPU_FILES", ("/no/such/file",))
    torch, rest = install_command("engine").split(" && ")
    assert torch.endswith(f" -m pip install --retries 1 --extra-index-url {CPU_INDEX} {CPU_TORCH}")
    assert CPU_TORCH not in install_command("engine", any_torch=True)
    assert rest.startswith(f"{sys.executable} -m pip install ")
    assert "torch>=" in rest
    assert "torch" not in install_command("ray")
    with monkeypatch.context() as patch:
        patch.setattr(util, "find_spec", lambda _name: None)
        patch.setattr(shutil, "which", lambda name, path: f"/bin/{name}")
        assert " --torch-backend cpu " in install_command("engine")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert CPU_INDEX not in install_command("engine")


def test_what_an_extra_requires_is_read_from_the_installed_package() -> None:
    assert {"torch", "transformers"} <= {re.split("[<>]", name)[0] for name in requirements("engine")}
    assert requirements("no-such-extra") == []


def test_the_extension_looks_for_the_same_gpus_and_index() -> None:
    source = (Path(__file__).parents[2] / "editors" / "vscode" / "src" / "torch.ts").read_text("utf-8")
    assert json.dumps(CPU_INDEX) in source
    pinned = (Path(__file__).parents[2] / "editors" / "vscode" / "server" / "requirements-cpu.txt").read_text("utf-8")
    assert f"\n{CPU_TORCH} \\\n" in pinned
    assert f"const GPU_FILES = {json.dumps(REAL_FILES)};" in source


def test_an_environment_with_neither_pip_nor_uv_gets_pip_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _name: None)
    monkeypatch.setattr(shutil, "which", lambda _name, path: None)
    assert install_command("quant").startswith(f"{sys.executable} -m ensurepip && {sys.executable} -m pip install ")
