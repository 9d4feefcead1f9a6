"""Compare the answers of two models, or of two methods, hole by hole.

    python benchmarks/evaluate.py TASKS --model OLD --csv old/heldout.csv     (the same for each evaluation and for NEW)
    python benchmarks/compare_models.py old new
    python benchmarks/compare_models.py old new --method copy full

OLD and NEW are folders of files that `evaluate.py --csv` wrote, with the same names in both. Prints the share of exact
answers for each evaluation and each kind of hole, and the difference with a 95 % bootstrap interval over holes; the last line
is over the holes of all evaluations. A cell whose interval lies below zero is marked: a released model may have none.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import scores
from benchmarks.scores import ResultRow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--method", nargs=2, default=("full", "full"), metavar=("OLD", "NEW"), help="which answers to compare")
    arguments = parser.parse_args()
    folders = (arguments.old, arguments.new)
    names = sorted(set.intersection(*({path.name for path in folder.glob("*.csv")} for folder in folders)))
    n_worse, every = 0, (list[ResultRow](), list[ResultRow]())
    for name in names:
        old, new = (rows(folder / name, method) for folder, method in zip(folders, arguments.method, strict=True))
        if {row.task_id for row in old} != {row.task_id for row in new}:
            print(f"{name}: the two models did not answer the same holes")
            return 2
        for kind in sorted({row.kind for row in old}):
            n_worse += report(f"{name}, {kind}", *([row for row in side if row.kind == kind] for side in (old, new)))
        report(f"{name}, all", old, new)
        every[0].extend(old)
        every[1].extend(new)
    if not names:
        print(f"{arguments.old} and {arguments.new} have no .csv file of the same name; make them with evaluate.py --csv")
        return 2
    report("all evaluations", *every)
    print(f"cells that are significantly worse: {n_worse}")
    return 0


def rows(path: Path, method: str) -> list[ResultRow]:
    """Return a method's answers, each a cluster of its own."""
    with path.open(encoding="utf-8", newline="") as lines:
        own = [row for row in csv.DictReader(lines) if row["method"] == method]
    names = [f"{path.name} {row['kind']} {row['task_id']}" for row in own]
    return [
        ResultRow(*[name] * 2, row["kind"], method, "", row["exact"] == "1", 0.0) for name, row in zip(names, own, strict=True)
    ]


def report(name: str, old: Sequence[ResultRow], new: Sequence[ResultRow]) -> bool:
    """Print one line, and return whether the new answers are significantly worse."""
    gained = scores.gain(new, old)
    assert gained is not None
    before, after = (sum(row.exact for row in side) / len(side) for side in (old, new))
    mark = "  worse" if gained.high < 0 else "  better" if gained.low > 0 else ""
    difference = f"{gained.value:+.3f} [{gained.low:+.3f}, {gained.high:+.3f}]"
    print(f"{name:32} {len(old):4} holes  {before:.3f} -> {after:.3f}  {difference}{mark}")
    return gained.high < 0


if __name__ == "__main__":
    sys.exit(main())
