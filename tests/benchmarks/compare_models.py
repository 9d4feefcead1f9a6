"""Compare the answers of two models, or of two methods, hole by hole.

    python tests/benchmarks/evaluate.py TASKS --model OLD --csv old/heldout.csv     (the same for each evaluation and for NEW)
    python tests/benchmarks/compare_models.py old new
    python tests/benchmarks/compare_models.py old new --method copy full

OLD and NEW are folders of files that `evaluate.py --csv` wrote, with the same names in both. Prints the share of exact
answers for each evaluation and each kind of hole, and the difference with a 95 % bootstrap interval over holes. The last
line is the mean over the evaluations, each with the same weight. A cell whose interval lies below zero is marked: a
released model may have none.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

N_DRAWS = 4_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--method", nargs=2, default=("full", "full"), metavar=("OLD", "NEW"), help="which answers to compare")
    arguments = parser.parse_args()
    names = sorted({path.name for path in arguments.old.glob("*.csv")} & {path.name for path in arguments.new.glob("*.csv")})
    if not names:
        print(f"{arguments.old} and {arguments.new} have no .csv file of the same name; make them with evaluate.py --csv")
        return 2
    n_worse, evaluations = 0, []
    for name in names:
        old, new = (
            exact(folder / name, method)
            for folder, method in zip((arguments.old, arguments.new), arguments.method, strict=True)
        )
        if old.keys() != new.keys():
            print(f"{name}: the two models did not answer the same holes")
            return 2
        pairs = [(old[key], new[key]) for key in sorted(old)]
        by_kind = defaultdict(list)
        for key in sorted(old):
            by_kind[key[0]].append((old[key], new[key]))
        for kind, cell in sorted(by_kind.items()):
            n_worse += report(f"{name}, {kind}", [cell])
        report(f"{name}, all", [pairs])
        evaluations.append(pairs)
    report("mean of the evaluations", evaluations)
    print(f"cells that are significantly worse: {n_worse}")
    return 0


def exact(path: Path, method: str) -> Mapping[tuple[str, str], int]:
    """Return whether each hole's answer is exact, by kind and name."""
    with path.open(encoding="utf-8", newline="") as lines:
        return {(row["kind"], row["task_id"]): int(row["exact"]) for row in csv.DictReader(lines) if row["method"] == method}


def report(name: str, groups: Sequence[Sequence[tuple[int, int]]]) -> bool:
    """Print one line, and return whether the new answers are significantly worse. Each group has the same weight."""
    rng, draws = random.Random(0), []
    for _ in range(N_DRAWS):
        samples = [rng.choices(group, k=len(group)) for group in groups]
        draws.append(sum(sum(new - old for old, new in group) / len(group) for group in samples) / len(groups))
    draws.sort()
    low, high = draws[round(N_DRAWS * 0.025)], draws[round(N_DRAWS * 0.975) - 1]
    shares = [sum(sum(pair[side] for pair in group) / len(group) for group in groups) / len(groups) for side in (0, 1)]
    n = sum(map(len, groups))
    mark = "  worse" if high < 0 else "  better" if low > 0 else ""
    difference = f"{shares[1] - shares[0]:+.3f} [{low:+.3f}, {high:+.3f}]"
    print(f"{name:32} {n:4} holes  {shares[0]:.3f} -> {shares[1]:.3f}  {difference}{mark}")
    return high < 0


if __name__ == "__main__":
    sys.exit(main())
