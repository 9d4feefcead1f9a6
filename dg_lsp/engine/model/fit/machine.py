"""Describe this machine's devices for a model without torch, by asking only the operating system and the GPU driver."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

from dg_lsp.engine.model.fit import memory
from dg_lsp.engine.model.fit.choice import Machine
from dg_lsp.engine.model.fit.needs import Precision

CPUINFO = Path("/proc/cpuinfo")
ASK_S = 10.0
QUERY = ("--query-gpu=name,memory.free", "--format=csv,noheader,nounits")


def installed() -> tuple[Precision, ...]:
    """Return the quantised precisions that this installation can load."""
    return ("fp8", "int4") if util.find_spec("bitsandbytes") is not None else ("fp8",)


def of_device(device: str) -> Machine:
    """Return the description of a device; "auto" is the first GPU if there is one."""
    kind, _, index = device.partition(":")
    if kind in ("auto", "cuda") and (gpu := _gpu(int(index) if index.isdecimal() else 0)):
        name, free = gpu
        return Machine("cuda", free, name, installed=installed())
    on_mac = sys.platform == "darwin" and platform.machine() == "arm64"
    if kind == "mps" or (kind == "auto" and on_mac):
        return Machine("mps", memory.free_bytes(), "this Mac", installed=installed())
    return Machine("cpu", memory.free_bytes(), multiplies_bf16=multiplies_bf16(), installed=installed())


def multiplies_bf16() -> bool:
    """Return whether the processor has bfloat16 instructions; False if the system does not report it."""
    try:
        return "avx512_bf16" in CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _gpu(index: int) -> tuple[str, int] | None:
    """Return the name and the free bytes of an NVIDIA GPU from `nvidia-smi`, or None."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        lines = subprocess.run(  # noqa: S603 -- the full path of a fixed program
            [program, *QUERY], capture_output=True, text=True, timeout=ASK_S, check=True
        ).stdout.splitlines()
        name, _, free = lines[index].rpartition(",")
        return name.strip(), int(free) * 1024**2
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
