"""All that wants a GPU in one command that can be interrupted: python tests/benchmarks/on_gpu.py [FOLDER]

Correctness (the tests marked `gpu`), the stages and ratios of the full size with random weights, and fills of the embedded
model, each within its share of 11 minutes. `bench.json` has each step outside of fixed buffers, in
them, recorded as a CUDA graph, and with flags that are read late, and each kernel for the experts. `fills.log` says if steps
could not be recorded. What has ended well is not done again: its output stands in FOLDER (build/on-gpu). A part that fails or
runs out of time does not keep the others from running. Needs no network and no checkpoint. Ends with 1 if a part failed.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
HELD_OUT = "fixtures/eval/heldout.jsonl.gz"


@dataclass(frozen=True)
class Part:
    """One part: the file that its output goes to, its command, and the minutes that it may take."""

    name: str
    command: tuple[str, ...]
    minutes: float


def parts() -> list[Part]:
    """Return the parts in their order."""
    dg_lsp = (sys.executable, "-m", "dg_lsp")
    return [
        Part("tests.txt", (sys.executable, "-m", "pytest", "-m", "gpu", "tests/engine", "-q"), 3),
        Part("bench.json", (sys.executable, "tests/benchmarks/stages.py", "full", "cuda"), 6),
        Part("fills.json", (*dg_lsp, "eval", HELD_OUT, "--device", "cuda", "--limit", "40", "--json"), 2),
    ]


def main(folder: Path) -> int:
    if not torch.cuda.is_available():  # the tests would be skipped, and count as ended well
        print("torch finds no GPU; nothing was run")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    failed = [part.name for part in parts() if not has_ended_well(part, folder)]
    if (folder / "bench.json").exists():
        print((folder / "bench.json").read_text())
    print(f"failed: {', '.join(failed) or 'nothing'}")
    return bool(failed)


def has_ended_well(part: Part, folder: Path) -> bool:
    """Run a part unless it ended well before; return whether it did."""
    output = folder / part.name
    if output.exists():
        print(f"{part.name}: done before")
        return True
    unfinished, log = output.with_suffix(".unfinished"), output.with_suffix(".log")
    print(f"{part.name}: {' '.join(part.command)}", flush=True)
    with unfinished.open("w") as opened, log.open("w") as errors:
        try:
            done = subprocess.run(part.command, cwd=ROOT, stdout=opened, stderr=errors, timeout=part.minutes * 60, check=False)
        except subprocess.TimeoutExpired:
            print(f"{part.name}: not done within {part.minutes:g} minutes; see {unfinished} and {log}")
            return False
    if done.returncode:
        print(f"{part.name}: ended with {done.returncode}; see {unfinished} and {log}")
        return False
    unfinished.rename(output)
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "on-gpu"))
