"""All that wants a GPU in one command that can be interrupted: python tests/benchmarks/on_gpu.py [FOLDER]

Correctness (the tests marked `gpu`), the stages and ratios of the full size with random weights, and a training run of the
embedded model's shape, each within its share of 25 minutes. What has ended well is not done again: its output stands in
FOLDER (build/on-gpu). Needs no network and no checkpoint. Ends with 1 when a part failed or ran out of time.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Part:
    """One part: the file that its output goes to, its command, and the minutes that it may take."""

    name: str
    command: tuple[str, ...]
    minutes: float


def parts(folder: Path) -> list[Part]:
    """Return the parts in their order."""
    dg_lsp, run = (sys.executable, "-m", "dg_lsp"), str(folder / "run")
    return [
        Part("tests.txt", (sys.executable, "-m", "pytest", "-m", "gpu", "tests/engine", "-q"), 3),
        Part("bench.json", (*dg_lsp, "bench", "--size", "full", "--device", "cuda", "--json"), 6),
        Part("corpus.txt", (*dg_lsp, "train", "corpus", "--run", run), 2),
        Part("tokenizer.txt", (*dg_lsp, "train", "tokenizer", "--run", run, "--vocabulary", "4096"), 1),
        Part("pack.txt", (*dg_lsp, "train", "pack", "--run", run, "--processes", "8"), 5),
        Part(
            "train.txt",
            (
                *(*dg_lsp, "train", "run", "--run", run, "--device", "cuda", "--batch", "32"),
                *("--causal-tokens", "4", "--mixed-tokens", "4", "--cool-tokens", "1"),
            ),
            8,
        ),
    ]


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts(folder):
        output = folder / part.name
        if output.exists():
            print(f"{part.name}: done before")
            continue
        unfinished = output.with_suffix(".unfinished")
        print(f"{part.name}: {' '.join(part.command)}", flush=True)
        with unfinished.open("w") as opened:
            try:
                done = subprocess.run(part.command, cwd=ROOT, stdout=opened, timeout=part.minutes * 60, check=False)
            except subprocess.TimeoutExpired:
                print(f"{part.name}: not done within {part.minutes:g} minutes; what it printed is in {unfinished}")
                return 1
        if done.returncode:
            print(f"{part.name}: ended with {done.returncode}; what it printed is in {unfinished}")
            return 1
        unfinished.rename(output)
    print((folder / "bench.json").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "on-gpu"))
