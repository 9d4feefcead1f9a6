"""List the holes of a run that is not made: by kind, language and file. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dg_lsp.batch import select
from dg_lsp.batch.discover import Skipped
from dg_lsp.batch.plan import Plan, line_column
from dg_lsp.core import positions
from dg_lsp.core.values import Hole


def lines(plans: Sequence[Plan]) -> str:
    """Return the list that people read: the counts, then each hole with its place, kind and symbol."""
    holes = [(plan, hole) for plan in plans for hole in plan.holes]
    kinds = Counter[str](hole.kind for _, hole in holes)
    languages = Counter(plan.source.document.language or "unknown" for plan, _ in holes)
    head = [f"{len(holes)} hole{'' if len(holes) == 1 else 's'} in {len(plans)} file{'' if len(plans) == 1 else 's'}"]
    if holes:
        head += [f"kinds      {_counted(kinds)}", f"languages  {_counted(languages)}"]
    body = [f"{row['path']}:{row['line']}:{row['column']}: {row['kind']} {row['symbol']}".rstrip() for row in _rows(plans)]
    return "".join(f"{line}\n" for line in [*head, *body])


def build(plans: Sequence[Plan], skipped: Iterable[Skipped], left_out: Mapping[str, int]) -> dict[str, Any]:
    """Return the same as an object, for `--json`."""
    files = [{"path": skip.name, "status": "skipped", "reason": skip.reason} for skip in skipped]
    return {"holes": list(_rows(plans)), "files": files, "left_out": dict(left_out)}


def _rows(plans: Sequence[Plan]) -> Iterator[dict[str, Any]]:
    for plan in plans:
        text_lines = positions.lines(plan.source.document.text)
        for hole in plan.holes:
            line, column = line_column(text_lines, hole)
            place = {"path": plan.source.name, "line": line, "column": column}
            yield {**place, "kind": hole.kind, "language": plan.source.document.language, "symbol": _symbol(plan, hole)}


def _symbol(plan: Plan, hole: Hole) -> str:
    names = select.symbols_of(plan, hole)
    return max(names, key=lambda name: name.count("."), default="")


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counter.most_common())
