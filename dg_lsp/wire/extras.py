"""The command that installs optional packages of dg-lsp into the environment of this process."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata, util

from dg_lsp.wire import programs

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, as pytorch.org names it. On Linux other indexes have torch with CUDA only."""
CPU_TORCH = "torch==2.13.0+cpu"
"""Pinned to a CPU build, because an index without one would otherwise give CUDA."""
# Made by NVIDIA's driver; the last one is what Windows shares with WSL.
GPU_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


def has_useless_cuda() -> bool:
    """Return whether the package index's torch would bring CUDA, several gigabytes that this machine does not use."""
    return sys.platform == "linux" and not any(map(os.path.exists, GPU_FILES))


def install_command(extra: str, *, any_torch: bool = False) -> str:
    """Return the shell command that installs what an extra of dg-lsp requires, such as `engine`.

    `any_torch` takes the package index's build of torch, even if that is several gigabytes of CUDA without a use.
    """
    return in_shell(install_commands(*requirements(extra), any_torch=any_torch))


def in_shell(commands: Sequence[Sequence[str]]) -> str:
    """Return commands as one line for a shell."""
    return " && ".join(map(shlex.join, commands))


def install_commands(*requirements: str, any_torch: bool = False) -> list[list[str]]:
    """Return the commands that install packages into the environment of this process, with torch's CPU build where it fits."""
    is_torch = any(each.startswith("torch") or each.endswith(("[engine]", "[quant]")) for each in requirements)
    is_cpu = is_torch and not any_torch and has_useless_cuda()
    has_pip = util.find_spec("pip") is not None
    if not has_pip and shutil.which("uv", path=programs.search_path()):  # an environment that uv made
        return [
            ["uv", "pip", "install", "--python", sys.executable, *(["--torch-backend", "cpu"] if is_cpu else []), *requirements]
        ]
    python = [sys.executable, "-m"]
    first = [] if has_pip else [[*python, "ensurepip"]]
    # By itself, so that pip asks PyTorch's index, which may be out of reach, for one package only.
    torch = [[*python, "pip", "install", "--retries", "1", "--extra-index-url", CPU_INDEX, CPU_TORCH]] if is_cpu else []
    return [*first, *torch, [*python, "pip", "install", *requirements]]


def requirements(extra: str) -> list[str]:
    """Return what an extra of dg-lsp requires, such as `torch>=2.9`; dg-lsp's own place if it is not an installed package."""
    try:
        declared = metadata.requires("dg-lsp") or []
    except metadata.PackageNotFoundError:
        return [f"/path/to/dg-lsp[{extra}]"]  # a package of this name in an index would not be ours
    parts = [line.replace('"', "'").partition(";") for line in declared]
    return [name.strip() for name, _, marker in parts if marker.replace(" ", "") == f"extra=='{extra}'"]
