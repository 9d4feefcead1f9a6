"""Detect this machine's processor cores, memory and GPUs.

This module queries the operating system and the GPU's command-line tool, and loads no library. Unknown facts are left out.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 10.0
MIB = 1 << 20
_QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU and its memory in bytes."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores, bytes of memory, and GPUs. `is_shared`: the GPU uses the machine's memory, as on Apple machines."""

    cores: int
    memory: int
    gpus: tuple[Gpu, ...] = ()
    is_shared: bool = False

    @property
    def gpu_memory(self) -> int:
        """The bytes of the largest GPU, which limit one model."""
        return max((gpu.memory for gpu in self.gpus), default=0)


def detect(drm: Path = Path("/sys/class/drm")) -> Machine:
    """Return the description of this machine."""
    memory = _memory()
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        # Apple's GPU may use about two thirds of the machine's memory.
        return Machine(_cores(), memory, (Gpu("Apple GPU", memory * 2 // 3),), is_shared=True)
    return Machine(_cores(), memory, (*_nvidia(), *amd(drm)))


def amd(drm: Path) -> tuple[Gpu, ...]:
    """Return the AMD GPUs that Linux reports."""
    gpus = []
    for card in sorted(drm.glob("card[0-9]*")):
        try:
            memory = int((card / "device" / "mem_info_vram_total").read_text("ascii"))
        except (OSError, ValueError):
            continue
        gpus.append(Gpu("AMD GPU", memory))
    return tuple(gpus)


def parse_nvidia(lines: Iterable[str]) -> tuple[Gpu, ...]:
    """Return the GPUs in nvidia-smi's lines of the form `NAME, MIB`; other lines are ignored."""
    gpus = []
    for line in lines:
        name, _, size = line.rpartition(",")
        if name.strip() and size.strip().isdecimal():
            gpus.append(Gpu(name.strip(), int(size) * MIB))
    return tuple(gpus)


def _nvidia() -> tuple[Gpu, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        done = subprocess.run([tool, *_QUERY], capture_output=True, text=True, timeout=PATIENCE_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ()
    return parse_nvidia(done.stdout.splitlines()) if done.returncode == 0 else ()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
