"""Compare one worker with two on a local Ray cluster, and check that the patch stays the same, also if a worker is killed.

    python tests/benchmarks/batch_ray.py SOURCE --bodies 60 --rounds 2

SOURCE is a folder with Python code; functions with a docstring are chosen by seed and emptied in a copy. Runs with one and
with two workers alternate, because other load changes while they run. Each worker has one thread. The time of a run with
one hole, which is mostly that of starting Ray and loading the model, is subtracted from the others. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.batch_bodies import emptied
from tests.engine.engine_kit import wait_until

POLL_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--bodies", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / options.source.name
        shutil.copytree(options.source, root, symlinks=True)
        n_bodies = len(emptied(root, options.bodies, options.seed, ["test*", "docs", "conftest.py"]))
        patches = [("without Ray", filled(root)[1])]
        starts_s = {n: filled(root, "--ray", "local", "--ray-workers", str(n), "--max-holes", "1")[0] for n in (1, 2)}
        for n_workers in (1, 2) * options.rounds:
            seconds, patch = filled(root, "--ray", "local", "--ray-workers", str(n_workers))
            patches.append((f"{n_workers} workers", patch))
            rate = 60 * n_bodies / (seconds - starts_s[n_workers])
            print(
                f"{n_workers} workers: {seconds:.0f} s, of which {starts_s[n_workers]:.0f} to start; {rate:.0f} holes a minute"
            )
        killer = Killer()
        patches.append(("2 workers, 1 killed", filled(root, "--ray", "local", "--ray-workers", "2", during=killer.run)[1]))
        print(f"killed {len(killer.killed)} of the workers {sorted(killer.workers)}")
        for name, patch in patches:
            print(f"{name}: patch {hashlib.sha256(patch).hexdigest()[:12]}, {patch.count(b'--- ')} files")
        if len({patch for _, patch in patches}) > 1 or len(killer.killed) != 1:
            raise SystemExit(1)


def filled(root: Path, *arguments: str, during: Callable[[], None] | None = None) -> tuple[float, bytes]:
    """Return how many seconds a run takes, and its patch; `during` runs beside it."""
    command = [sys.executable, "-m", "dg_lsp", "infill", ".", "--all", *arguments]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if during:
        threading.Thread(target=during, daemon=True).start()
    patch = process.communicate()[0]
    assert process.returncode in (0, 1), process.returncode
    return time.monotonic() - began, patch


class Killer:
    """Kills one of two workers once it has used some seconds of CPU, that is while it works."""

    def __init__(self, cpu_s: float = 12.0) -> None:
        self.cpu_s = cpu_s
        self.workers: set[int] = set()
        self.killed: list[int] = []

    def run(self) -> None:
        wait_until(lambda: len(self._working()) >= 2, patience_s=600)
        victim = min(self._working())
        os.kill(victim, signal.SIGKILL)
        self.killed.append(victim)

    def _working(self) -> list[int]:
        """Return the workers that have used enough CPU."""
        time.sleep(POLL_S)
        ticks = os.sysconf("SC_CLK_TCK")
        working = []
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or b"ray::MapWorker" not in (entry / "cmdline").read_bytes():
                    continue
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            self.workers.add(int(entry.name))
            if (int(fields[11]) + int(fields[12])) / ticks > self.cpu_s:
                working.append(int(entry.name))
        return working


if __name__ == "__main__":
    main()
