"""Install what the engine needs beside dg-lsp itself: torch and transformers, in the smallest build that fits this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import util

from dg_lsp.batch.doctor import ENGINE_NEEDS
from dg_lsp.batch.setup import SetupError
from dg_lsp.wire import extras

# Measured on Linux, x86_64; docs/measurements.md has the commands.
_CPU_SIZE = "about 250 MB to download and 1.2 GB on the disk"
_CUDA_SIZE = "about 5 GB on the disk"


def absent() -> list[str]:
    """Return the engine's packages that this environment lacks."""
    return [name for name in ENGINE_NEEDS if util.find_spec(name) is None]


def size() -> str:
    """Return how large the engine's packages are on this machine, as a part of a sentence; "" if unknown."""
    if extras.has_useless_cuda():
        return f"{_CPU_SIZE}, in torch's CPU build because no NVIDIA GPU was found"
    return _CUDA_SIZE if sys.platform == "linux" else ""


def install(show: Callable[[str], object]) -> None:
    """Install the engine's packages, and `show` each line of the installer; raise SetupError if that fails."""
    by_hand = f"install it with: {extras.install_command('engine')}"
    if extras.has_useless_cuda():
        by_hand += f"; or, with {_CUDA_SIZE}: {extras.install_command('engine', any_torch=True)}"
    needed = extras.requirements("engine")
    if not needed:
        raise SetupError(f"{', '.join(absent())} is not installed; {by_hand}")
    for command in extras.install_commands(*needed):
        last = ""
        try:
            with subprocess.Popen(  # noqa: S603  # pip or uv, with dg-lsp's own requirements
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            ) as process:
                for line in process.stdout or ():
                    last = line.strip() or last
                    show(line.rstrip())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise SetupError(f"{error.filename} can't be run: {reason}; {by_hand}") from error
        if process.returncode:
            raise SetupError(f"torch could not be installed: {last or f'exit status {process.returncode}'}; {by_hand}")
