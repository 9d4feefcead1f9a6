"""Score the answers of a replay, and show them as tables with intervals over commits.

White space does not count where an answer is compared: repositories format their code in many ways. `indented` says whether
an exact answer has the white space too, but for the ends of its lines. Right as far as it goes means that what the commit has
begins with the answer. Characters are counted with each run of white space as one.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from dg_lsp.evaluate.answers import percentile, trimmed

Row = Mapping[str, Any]
N_DRAWS = 1_000
STATED = 0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.01


def scored(texts: Sequence[str], truth: str) -> dict[str, Any]:
    """Return the scores of the answers to one request, best first: those of the first, and whether any is exact."""
    text = texts[0] if texts else ""
    given, expected = _solid(text), _solid(truth)
    is_exact, is_begun = bool(given) and given == expected, bool(given) and expected.startswith(given)
    return {
        "shown": bool(given),
        "exact": is_exact,
        "begun": is_begun,
        "first_line": bool(given) and _first(text) == _first(truth),
        "any_exact": any(_solid(each) == expected for each in texts),
        "indented": is_exact and trimmed(text.strip()) == trimmed(truth.strip()),
        "n_truth": _length(truth),
        "saved": _length(truth[: _reach(truth, len(given))]) if is_begun else 0,
        "in_vain": 0 if is_begun else _length(text),
        "n_lines": len([line for line in text.split("\n") if line.strip()]),
        "texts": list(texts),
    }


def _solid(text: str) -> str:
    return "".join(text.split())


def _first(text: str) -> str:
    return _solid(next((line for line in text.split("\n") if line.strip()), ""))


def _length(text: str) -> int:
    return len(re.sub(r"\s+", " ", text).strip())


def _reach(text: str, n_solid: int) -> int:
    """Return the offset after so many characters that are no white space."""
    for at, char in enumerate(text):
        if not n_solid:
            return at
        n_solid -= not char.isspace()
    return len(text)


# --- Tables

Column = tuple[str, Callable[[Row], float], Callable[[Row], float]]
"""A title, and the values whose sums are divided."""


def _one(_row: Row) -> float:
    return 1.0


def _flag(name: str) -> Callable[[Row], float]:
    return lambda row: float(bool(row.get(name)))


def _number(name: str) -> Callable[[Row], float]:
    return lambda row: float(row.get(name) or 0)


COLUMNS: tuple[Column, ...] = (
    ("shown", _flag("shown"), _one),
    ("exact of shown", _flag("exact"), _flag("shown")),
    ("exact of all", _flag("exact"), _one),
    ("right so far, of shown", _flag("begun"), _flag("shown")),
    ("first line, of shown", _flag("first_line"), _flag("shown")),
    ("saved", _number("saved"), _number("n_truth")),
    ("in vain", _number("in_vain"), _number("n_truth")),
)
ON_REQUEST: tuple[Column, ...] = (
    ("answered", _flag("shown"), _one),
    ("exact", _flag("exact"), _one),
    ("right so far", _flag("begun"), _one),
    ("first line", _flag("first_line"), _one),
    ("exact in all", _flag("any_exact"), _one),
    ("saved", _number("saved"), _number("n_truth")),
)


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header of a result file and its rows. Raises SystemExit if it is none."""
    try:
        header, *rows = (json.loads(line) for line in path.read_text("utf-8").splitlines())
        return header["run"], rows
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"{path} is no result file of replay.py run ({error!r})") from None


def show(paths: Sequence[Path]) -> int:
    """Print the tables of result files."""
    for path in paths:
        header, rows = read(path)
        print(f"\n{path}: {header}, {len(rows)} positions in {len({row['commit'] for row in rows})} commits\n")
        columns = ON_REQUEST if header["mode"] == "request" else COLUMNS
        print(f"| | n | {' | '.join(title for title, *_ in columns)} | ms p50 | p95 | processor ms p50 |")
        print("| --- |" + " ---: |" * (len(columns) + 4))
        for name, own in _groups(rows):
            cells = [_cell(own, column, with_interval=name == "all") for column in columns]
            times = [percentile([row["ms"] for row in own], share) for share in (50, 95)]
            spent = percentile([row["cpu_ms"] for row in own if "cpu_ms" in row], 50)
            print(f"| {name} | {len(own)} | {' | '.join(cells)} | {times[0]:.0f} | {times[1]:.0f} | {spent:.0f} |")
        _remarks(rows)
    return 0


def _remarks(rows: Sequence[Row]) -> None:
    shown = [row for row in rows if row["shown"]]
    at_once = [row["ms"] for row in shown if row["late_ms"] is None]
    late = [row["late_ms"] for row in shown if row["late_ms"] is not None]
    print(f"\nshown at once: {len(at_once)}, ms p50 {percentile(at_once, 50):.0f}, p95 {percentile(at_once, 95):.0f}", end="; ")
    print(f"late, after a refresh: {len(late)}, ms p50 {percentile(late, 50):.0f}")
    print("exact with other white space:", sum(row["exact"] and not row["indented"] for row in shown))
    several = Counter(row["n_lines"] for row in shown if row["kind"] == "several-lines")
    print("answers for several lines by their lines:", dict(sorted(several.items())))
    for kind in sorted({row["kind"] for row in rows}):
        reasons = Counter(row["reason"] or "no answer" for row in rows if row["kind"] == kind and not row["shown"])
        print(f"{kind} not shown:", ", ".join(f"{reason} {n}" for reason, n in reasons.most_common()) or "none")
    cells = []
    for low, high in pairwise(STATED):
        own = [row for row in rows if row.get("probability") is not None and low <= row["probability"] < high]
        cells.append(f"{low:g} to {min(high, 1):g}: {sum(row['exact'] for row in own)} of {len(own)}")
    print("exact by the stated probability:", "; ".join(cells))
    print(f"load p50 {percentile([row['load'] for row in rows if 'load' in row], 50):.1f}")


def compare(old: Path, new: Path) -> int:
    """Print the differences of two result files over the positions that both have, paired, with intervals over commits."""
    (header, old_rows), (_, new_rows) = read(old), read(new)
    before, after = ({row["id"]: row for row in rows} for rows in (old_rows, new_rows))
    ids = sorted(before.keys() & after.keys())
    if not ids:
        raise SystemExit(f"{old} and {new} have no position in common")
    print(f"{len(ids)} positions in both\n")
    columns = ON_REQUEST if header["mode"] == "request" else COLUMNS
    print(f"| | n | {' | '.join(title for title, *_ in columns)} | ms p50 |")
    print("| --- |" + " ---: |" * (len(columns) + 2))
    for name, own in _groups([before[each] for each in ids]):
        pairs = [(row, after[row["id"]]) for row in own]
        cells = [_difference(pairs, column) for column in columns]
        ms = [percentile([pair[side]["ms"] for pair in pairs], 50) for side in (0, 1)]
        print(f"| {name} | {len(pairs)} | {' | '.join(cells)} | {ms[0]:.0f} -> {ms[1]:.0f} |")
    better = [each for each in ids if after[each]["exact"] and not before[each]["exact"]]
    worse = [each for each in ids if before[each]["exact"] and not after[each]["exact"]]
    print(f"\nexact only in {new}: {' '.join(better) or '-'}\nexact only in {old}: {' '.join(worse) or '-'}")
    return 0


def _groups(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    by_name = defaultdict[str, list[Row]](list)
    for key in ("kind", "language", "is_test"):
        for row in sorted(rows, key=lambda row: str(row[key])):
            name = ("tests" if row[key] else "not tests") if key == "is_test" else str(row[key])
            by_name[name.replace("typescriptreact", "typescript")].append(row)
    by_name["all"] = list(rows)
    return list(by_name.items())


def _share(rows: Sequence[Row], column: Column) -> float | None:
    _, above, below = column
    total = sum(map(below, rows))
    return sum(map(above, rows)) / total if total else None


def _cell(rows: Sequence[Row], column: Column, *, with_interval: bool) -> str:
    value = _share(rows, column)
    if value is None:
        return "-"
    if not with_interval:
        return f"{value:.2f}"
    low, high = _interval(rows, lambda rows: _share(rows, column))
    return f"**{value:.2f}** [{low:.2f}, {high:.2f}]"


def _difference(pairs: Sequence[tuple[Row, Row]], column: Column) -> str:
    def difference(pairs: Sequence[tuple[Row, Row]]) -> float | None:
        values = [_share([pair[side] for pair in pairs], column) for side in (0, 1)]
        return None if values[0] is None or values[1] is None else values[1] - values[0]

    value = difference(pairs)
    if value is None:
        return "-"
    low, high = _interval(pairs, difference)
    mark = " **worse**" if high < 0 else " **better**" if low > 0 else ""
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]{mark}"


def _interval(items: Sequence[Any], value: Callable[[Sequence[Any]], float | None]) -> tuple[float, float]:
    """Return the 95 % interval of a value, by drawing commits."""
    by_commit = defaultdict[str, list[Any]](list)
    for item in items:
        by_commit[(item[0] if isinstance(item, tuple) else item)["commit"]].append(item)
    clusters, draw, values = list(by_commit.values()), random.Random(0), []
    for _ in range(N_DRAWS):
        drawn = value([item for cluster in draw.choices(clusters, k=len(clusters)) for item in cluster])
        if drawn is not None:
            values.append(drawn)
    return percentile(values, 2.5), percentile(values, 97.5)
