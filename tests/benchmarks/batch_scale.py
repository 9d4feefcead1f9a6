"""Measure a large run's memory and rate, and whether a run that is killed goes on to the same patch.

    python tests/benchmarks/batch_scale.py --files 500 --holes 4 --kills 10

The engine answers at once, so that what is measured is the command itself: peak memory and rate for a tenth of the files
and for all of them, then kill -9 at random requests and a last run that resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.batch.test_batch_process import ROOT

STUB = 'def f{n}(value):\n    """Return the value\'s part {n}."""\n    raise NotImplementedError\n\n\n'
# Fills by name. The process is killed at request number N of a run; 0: never.
KILLED = """
import os, signal, sys
from dg_lsp.cli import main as cli
from tests.batch.engines import Filling, connecting

n = int(sys.argv.pop(1))
engine = Filling()

def write(request):
    if len(engine.requests) == n:
        os.kill(os.getpid(), signal.SIGKILL)
    return tuple(f"return {request.path!r}, {request.seed}, {idx}" for idx, _ in enumerate(request.holes))

engine._answers = (write,)
app = cli.app
cli.app = lambda **given: app(obj=connecting(engine), **given)
cli.main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--holes", type=int, default=4, help="in each file")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peaks = []
        for n_files in (options.files // 10, options.files):
            project = made(Path(folder) / str(n_files), n_files, options.holes)
            peak_mb, seconds, patch = run(project)
            peaks.append(peak_mb)
            rate = n_files * options.holes / seconds
            print(f"{n_files * options.holes} holes in {n_files} files: {peak_mb:.0f} MB, {seconds:.1f} s, {rate:.0f} holes/s")
        print(f"memory: {peaks[1] / peaks[0]:.2f} times that of a tenth")
        rng = random.Random(options.seed)
        journal, n_requests = str(Path(folder) / "journal"), options.files
        for _ in range(options.kills):
            # Each kill leaves fewer requests: a run that has no more of them ends by itself.
            run(project, at=rng.randint(1, max(2, n_requests // options.kills)), journal=journal)
        resumed_patch = run(project, journal=journal)[2]
        print(f"after {options.kills} kills: {'the same patch' if resumed_patch == patch else 'ANOTHER PATCH'}")
        if resumed_patch != patch:
            raise SystemExit(1)


def made(project: Path, n_files: int, n_holes: int) -> Path:
    """Return a repository with so many files and holes."""
    (project / ".git").mkdir(parents=True)
    for idx in range(n_files):
        path = project / f"d{idx % 20}" / f"f{idx}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(STUB.format(n=n) for n in range(n_holes)) + "# filler\n" * 100)
    return project


def run(project: Path, at: int = 0, journal: str = "") -> tuple[float, float, str]:
    """Return peak memory in MB, seconds, and a hash of the patch; with `at` the run is killed at that request."""
    command = [sys.executable, "-c", KILLED, str(at), "infill", ".", *(["--resume", journal] if journal else [])]
    began = time.perf_counter()
    with (project / ".patch").open("wb") as patch:
        process = subprocess.Popen(
            command, cwd=project, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=patch, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, -signal.SIGKILL), process.returncode
    unit = 1 if sys.platform == "darwin" else 1024
    return _megabytes(usage, unit), time.perf_counter() - began, hashlib.sha256((project / ".patch").read_bytes()).hexdigest()


def _megabytes(usage: resource.struct_rusage, unit: int) -> float:
    return usage.ru_maxrss * unit / 1e6


if __name__ == "__main__":
    main()
