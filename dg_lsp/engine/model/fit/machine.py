"""Describe this machine's devices and memory without torch, by asking only the operating system and the GPU driver."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from dg_lsp.engine.model.fit import Machine, Precision
from dg_lsp.wire import laptop, programs

CPUINFO, MEMINFO, CGROUP = Path("/proc/cpuinfo"), Path("/proc/meminfo"), Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")
INT8_FEATURES = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
LaptopPrecision = Literal["int8", "bfloat16", "float32"]
ASK_S = 10.0
QUERY = ("--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits")


_lost: list[str] = []  # why this process can't use its GPU any more


def lose_gpu(reason: str) -> None:
    """Note that the GPU failed. No later call in this process can use it: what failed stays in the driver's context."""
    _lost[:] = [reason]


def lost_gpu() -> str:
    """Return why this process can't use its GPU any more, or "" if it can."""
    return _lost[0] if _lost else ""


@dataclass(frozen=True, slots=True)
class Card:
    """An NVIDIA GPU: its name, and its memory and the free part of it in bytes."""

    name: str
    total: int
    free: int


def installed() -> tuple[Precision, ...]:
    """Return the quantised precisions that this installation can load."""
    return ("fp8", "int4") if util.find_spec("bitsandbytes") is not None else ("fp8",)


def of_device(device: str) -> Machine:
    """Return the description of a device; "auto" is the first GPU if there is one."""
    kind, _, index = device.partition(":")
    number = int(index) if index.isdecimal() else 0
    if kind in ("auto", "cuda") and (card := next(iter(nvidia()[number:]), None)):
        return Machine("cuda", card.free, card.name, installed=installed())
    on_mac = sys.platform == "darwin" and platform.machine() == "arm64"
    if kind == "mps" or (kind == "auto" and on_mac):
        return Machine("mps", free_bytes(), "this Mac", installed=installed())
    return Machine("cpu", free_bytes(), multiplies_bf16=multiplies_bf16(), installed=installed())


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """Return how many cores this process may use. Two that are threads of one count once, and on a Mac the slow ones do not."""
    if sys.platform == "darwin":
        number = ctypes.c_int(0)
        size = ctypes.byref(ctypes.c_size_t(ctypes.sizeof(number)))
        for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):
            if ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(number), size, None, 0) == 0:
                return number.value
        return n_cores()
    try:
        lists = [CPUS / f"cpu{cpu}/topology/thread_siblings_list" for cpu in os.sched_getaffinity(0)]
        return len({path.read_text(encoding="ascii") for path in lists})
    except (OSError, AttributeError):
        return n_cores()


def multiplies_bf16() -> bool:
    """Return whether the processor has bfloat16 instructions; False if the system does not report it."""
    return "avx512_bf16" in _features()


def laptop_precision() -> LaptopPrecision | None:
    """Return the precision in which this processor runs a laptop model; None if the system does not report it."""
    features = _features()
    if not features:
        return None
    if features & INT8_FEATURES:
        return "int8"
    return "bfloat16" if "avx512_bf16" in features else "float32"


def _features() -> frozenset[str]:
    """Return the names of the processor's instruction sets; none if the system does not report them."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    return next((frozenset(line.split()) for line in text.splitlines() if line.startswith("flags")), frozenset())


def nvidia() -> tuple[Card, ...]:
    """Return the NVIDIA GPUs that `nvidia-smi` lists; none if it is missing or fails."""
    try:
        command = [programs.find("nvidia-smi"), *QUERY]
        done = subprocess.run(  # noqa: S603 -- a fixed program
            command, env=programs.environment(), capture_output=True, text=True, timeout=ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ()
    cards = (line.rsplit(",", 2) for line in done.stdout.splitlines())
    return tuple(
        Card(name.strip(), int(total) << 20, int(free) << 20)
        for name, total, free in (card for card in cards if len(card) == 3)
        if total.strip().isdecimal() and free.strip().isdecimal()
    )


def usable_card() -> int:
    """Return the bytes of memory of the largest GPU that a laptop model can use here; 0 for none.

    A CPU build of torch uses no NVIDIA GPU. On an Apple machine, the GPU uses about two thirds of the memory.
    """
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return laptop.machine_memory() * 2 // 3
    try:
        if metadata.version("torch").endswith("+cpu"):
            return 0
    except metadata.PackageNotFoundError:
        pass  # setup installs the build that this machine needs
    return max((card.total for card in nvidia()), default=0)


def resident_bytes() -> int:
    """Return the bytes that the process uses now, or its peak if the system does not report the current use."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_bytes() -> int | None:
    """Return the bytes that the process can still allocate, within a container's limit; None if unknown."""
    sizes = [_system_bytes()]
    limit, current = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if limit is not None and current is not None:
        # A container's file cache counts as free.
        sizes.append(limit - current + (_number(CGROUP / "memory.stat", "inactive_file ") or 0))
    known = [n_bytes for n_bytes in sizes if n_bytes is not None]
    return max(0, min(known)) if known else None


def _system_bytes() -> int | None:
    if (available := _number(MEMINFO, "MemAvailable:")) is not None:
        return 1024 * available
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _number(path: Path, name: str = "") -> int | None:
    """Return the number in a file's first line that starts with the name; None if there is none, such as for "max"."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith(name)).removeprefix(name).split()[0])
    except (OSError, ValueError, IndexError, StopIteration):
        return None
