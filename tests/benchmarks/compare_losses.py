"""Compare what right answers cost two recipes, hole by hole: python tests/benchmarks/compare_losses.py OLD… --new NEW…

Each file is what `answer_loss.py --csv` wrote for one training run, with one model in it and the same holes in all. Several
runs of a recipe differ by their seed. Prints, for each kind of hole and each measure, the mean of each run, and the
difference of the recipes' means with a 95 % bootstrap interval over holes. A difference is marked as better or worse only if
the interval is clear of zero and each new run is on that side of each old one.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

N_DRAWS = 4_000
# What is added up over the holes, and what that is divided by; "" stands for the number of holes.
MEASURES = {
    "nats a character": (("nats",), "chars"),
    "the same, mixed with the file": (("mixed_nats",), "chars"),
    "nats an end": (("end_nats",), "n_ends"),
    "nats a hole, mixed, with end": (("mixed_nats", "end_nats"), ""),
}
Values = npt.NDArray[np.float64]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="+", type=Path)
    parser.add_argument("--new", nargs="+", type=Path, required=True)
    arguments = parser.parse_args()
    runs = [read(path) for path in (*arguments.old, *arguments.new)]
    if any(run.keys() != runs[0].keys() for run in runs):
        print("the runs were not measured on the same holes")
        return 2
    keys = sorted(runs[0])
    print(f"{'':38}{'  '.join(path.stem for path in (*arguments.old, *arguments.new))}")
    for kind in ("all", *sorted({kind for kind, _, _ in keys})):
        chosen = [key for key in keys if kind in ("all", key[0])]
        for measure, (parts, count) in MEASURES.items():
            values = np.array([[sum(float(run[key][part]) for part in parts) for key in chosen] for run in runs])
            counts = np.array([[float(run[key][count]) if count else 1.0 for key in chosen] for run in runs])
            print(f"{kind:12} {measure:30} {report(values, counts, len(arguments.old))}")
        print(f"{kind:12} {len(chosen)} holes")
    return 0


def read(path: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return the costs of each hole, by its kind, file and name."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    if len({row["model"] for row in rows}) != 1:
        raise SystemExit(f"{path} has several models; write one file for each")
    return {(row["kind"], row["file"], row["task_id"]): row for row in rows}


def report(values: Values, counts: Values, n_old: int) -> str:
    """Return the means of the runs [R] and the difference of the recipes, from values and counts of each hole [R, N]."""
    means = values.sum(1) / counts.sum(1)
    # Every run has the same holes, so one draw of holes serves all of them.
    draws = np.random.default_rng(0).multinomial(values.shape[1], np.full(values.shape[1], 1 / values.shape[1]), N_DRAWS)
    drawn = (draws @ values.T) / (draws @ counts.T)
    differences = drawn[:, n_old:].mean(1) - drawn[:, :n_old].mean(1)
    low, high = np.quantile(differences, (0.025, 0.975))
    old, new = means[:n_old], means[n_old:]
    mark = "  better" if high < 0 and max(new) < min(old) else "  worse" if low > 0 and min(new) > max(old) else ""
    return f"{shown(means)}  {new.mean() - old.mean():+.4f} [{low:+.4f}, {high:+.4f}]{mark}"


def shown(means: Sequence[float] | Values) -> str:
    """Return the means as text."""
    return "  ".join(f"{mean:.4f}" for mean in means)


if __name__ == "__main__":
    sys.exit(main())
