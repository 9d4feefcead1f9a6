"""Say what happened: one report object for programs, a few lines for people.

Pure. The texts go to whoever prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dg_lsp.batch.discover import Skipped
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.plan import Plan, line_column
from dg_lsp.batch.run import HoleResult
from dg_lsp.core import positions
from dg_lsp.core.values import Hole

Status = Literal["filled", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class Row:
    """One hole of the report."""

    path: str
    line: int
    column: int
    kind: str
    status: Status
    text: str
    score: float
    steps: int
    ms: float
    reason: str


def rows(result: FileResult, by_hole: Mapping[Hole, HoleResult]) -> list[Row]:
    """Return a row for each hole of the file, in the order of the text."""
    source = result.plan.source
    lines = positions.lines(source.document.text)
    rows_of_file = []
    for hole in result.plan.holes:
        fill, ms = result.fills.get(hole), round(by_hole[hole].ms, 1)
        place = line_column(lines, hole)
        if fill:
            rows_of_file.append(
                Row(source.name, *place, hole.kind, "filled", fill.edit.text, round(fill.score, 4), fill.steps, ms, "")
            )
        else:
            rows_of_file.append(Row(source.name, *place, hole.kind, "failed", "", 0.0, 0, ms, result.reasons[hole]))
    return rows_of_file


def note(plan: Plan) -> str:
    """Return what to say of the file before it is filled, "" where there is nothing."""
    if plan.syntax is None or not plan.n_errors:
        return ""
    first = plan.syntax.errors[0].start
    line, _ = positions.to_position(positions.lines(plan.source.document.text), first, "utf-32")
    return f"does not parse (line {line + 1}); its holes are filled all the same"


def build(rows: Sequence[Row], skipped: Iterable[Skipped], notes: Mapping[str, str], **facts: Any) -> dict[str, Any]:
    """Return the report as `--json` prints it; `facts` join the summary."""
    files = [{"path": skip.name, "status": "skipped", "reason": skip.reason} for skip in skipped]
    files += [{"path": name, "status": "noted", "reason": reason} for name, reason in notes.items()]
    return {"holes": [asdict(row) for row in rows], "files": files, "summary": {**counts(rows), **facts}}


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return how many holes there are, and how many of each status."""
    by_status = {status: sum(row.status == status for row in rows) for status in ("filled", "skipped", "failed")}
    return {"files": len({row.path for row in rows}), "holes": len(rows), **by_status}


def failures(rows: Sequence[Row]) -> list[str]:
    """Return one line for each hole that was not filled."""
    return [f"{row.path}:{row.line}:{row.column}: not filled: {row.reason}" for row in rows if row.status != "filled"]


def summary(rows: Sequence[Row], seconds: float, *, written: bool) -> str:
    """Return the last line that people read."""
    total = counts(rows)
    if not total["holes"]:
        return "no holes found"
    done = f"{'wrote' if written else 'filled'} {total['filled']} of {_number(total['holes'], 'hole')}"
    return f"{done} in {_number(total['files'], 'file')}, {seconds:.1f} s"


def exit_code(rows: Sequence[Row]) -> int:
    """Return 0 when every hole is filled, or there is none, and 1 otherwise."""
    return int(any(row.status != "filled" for row in rows))


def _number(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"
