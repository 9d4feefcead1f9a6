"""How much memory this process uses, and how much there still is for it. Imports no torch: knows the system alone."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def resident_bytes() -> int:
    """Return how much memory the process uses now, or used at most where the system does not tell the former."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_bytes() -> int | None:
    """Return how much memory the process can still get, within a container's limit; None where nobody can tell."""
    sizes = [bytes_ for bytes_ in (_of_the_system(), _of_the_group()) if bytes_ is not None]
    return max(0, min(sizes)) if sizes else None


def _of_the_system() -> int | None:
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    except (OSError, ValueError, IndexError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _of_the_group() -> int | None:
    """Return what a container's limit leaves, its file cache not counted as used; None without a limit."""
    limit = _number(CGROUP / "memory.max")
    used = _number(CGROUP / "memory.current")
    if limit is None or used is None:
        return None
    return limit - used + _file_cache(CGROUP / "memory.stat")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # there is no such group, or its limit is called "max"
        return None


def _file_cache(path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("inactive_file ")).split()[1])
    except (OSError, ValueError, StopIteration):
        return 0
