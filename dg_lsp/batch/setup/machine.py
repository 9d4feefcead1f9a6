"""Detect this machine's processor cores, memory and GPUs.

This module queries the operating system, and loads no library. Unknown facts are left out.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.engine.model.fit import Precision
from dg_lsp.engine.model.fit import machine as fit_machine
from dg_lsp.wire import laptop


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU and its memory in bytes. Only on NVIDIA's do weights in 8 or 4 bits run."""

    name: str
    memory: int
    is_nvidia: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores, bytes of memory, GPUs, and the quantised precisions that this installation can load.

    `is_shared`: the GPU uses the machine's memory, as on Apple machines.
    """

    cores: int
    memory: int
    gpus: tuple[Gpu, ...] = ()
    is_shared: bool = False
    installed: tuple[Precision, ...] = ("fp8", "int4")

    @property
    def largest_gpu(self) -> Gpu | None:
        """The GPU with the most memory, which limits one model."""
        return max(self.gpus, key=lambda gpu: gpu.memory, default=None)

    @property
    def gpu_memory(self) -> int:
        """The bytes of the largest GPU; 0 without one."""
        return self.largest_gpu.memory if self.largest_gpu else 0


def detect(drm: Path = Path("/sys/class/drm")) -> Machine:
    """Return the description of this machine."""
    memory = laptop.machine_memory()
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        # Apple's GPU may use about two thirds of the machine's memory.
        return Machine(fit_machine.n_cores(), memory, (Gpu("Apple GPU", memory * 2 // 3, is_nvidia=False),), is_shared=True)
    cards = (Gpu(card.name, card.total) for card in fit_machine.nvidia())
    return Machine(fit_machine.n_cores(), memory, (*cards, *amd(drm)), installed=fit_machine.installed())


def amd(drm: Path) -> tuple[Gpu, ...]:
    """Return the AMD GPUs that Linux reports."""
    gpus = []
    for card in sorted(drm.glob("card[0-9]*")):
        try:
            memory = int((card / "device" / "mem_info_vram_total").read_text("ascii"))
        except (OSError, ValueError):
            continue
        gpus.append(Gpu("AMD GPU", memory, is_nvidia=False))
    return tuple(gpus)
