"""Measure the memory that this process uses and the memory still available. Imports no torch; knows only the system."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


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
    sizes = [bytes_ for bytes_ in (_system_bytes(), _container_bytes()) if bytes_ is not None]
    return max(0, min(sizes)) if sizes else None


def _system_bytes() -> int | None:
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    except (OSError, ValueError, IndexError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _container_bytes() -> int | None:
    """Return the bytes left below a container's limit, counting its file cache as free; None without a limit."""
    limit = _number(CGROUP / "memory.max")
    current = _number(CGROUP / "memory.current")
    if limit is None or current is None:
        return None
    return limit - current + _file_cache(CGROUP / "memory.stat")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # there is no such file, or the limit is "max"
        return None


def _file_cache(path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("inactive_file ")).split()[1])
    except (OSError, ValueError, StopIteration):
        return 0
