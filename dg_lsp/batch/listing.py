"""List the holes of a dry run by kind, language and file, and estimate its cost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dg_lsp.batch import select
from dg_lsp.batch.discover import Skipped
from dg_lsp.batch.plan import FilePlan, line_column
from dg_lsp.batch.rounds import ContextOf, RunOptions, request_for
from dg_lsp.core import positions
from dg_lsp.core.values import Hole
from dg_lsp.core.wording import counted
from dg_lsp.wire.visible import one_line

VERSION = 1
"""The version of the object of `--dry-run --json`; incremented by incompatible changes."""
CHARS_PER_TOKEN = 4
BLOCK_TOKENS, LINE_TOKENS = 64, 16  # of an answer for a block, and for one line


@dataclass(frozen=True, slots=True)
class Cost:
    """The estimated cost of a run: requests, and the tokens that the model reads and writes."""

    requests: int
    tokens_read: int
    tokens_written: int

    def __str__(self) -> str:
        tokens = f"{_thousands(self.tokens_read)} tokens read and {_thousands(self.tokens_written)} written"
        return f"{counted(self.requests, 'request')}, about {tokens}"


def cost(plans: Sequence[FilePlan], options: RunOptions, context_of: ContextOf) -> Cost:
    """Return the cost of the first round: each request is read once, and each candidate is written once."""
    n_requests = n_chars = n_written = 0
    for plan in plans:
        context = context_of(plan, {})
        for group in plan.groups:
            request = request_for(plan, context, group, options)
            texts = [
                request.prefix,
                request.suffix,
                *request.between,
                *(each.text for each in request.related if not each.for_copying),
            ]
            n_requests, n_chars = n_requests + 1, n_chars + sum(map(len, texts))
            n_written += options.n_candidates * sum(BLOCK_TOKENS if hole.block else LINE_TOKENS for hole in group)
    return Cost(n_requests, n_chars // CHARS_PER_TOKEN, n_written)


def _thousands(n: int) -> str:
    return f"{n / 1000:.1f} k" if n >= 1000 else str(n)


def lines(plans: Sequence[FilePlan], price: Cost) -> str:
    """Return the list for the terminal: the counts and the cost, then each hole with its place, kind and symbol."""
    holes = [(plan, hole) for plan in plans for hole in plan.holes]
    kinds = Counter[str](hole.kind for _, hole in holes)
    languages = Counter(plan.source.document.language or "unknown" for plan, _ in holes)
    head = [f"{counted(len(holes), 'hole')} in {counted(len(plans), 'file')}"]
    if holes:
        head += [f"kinds      {_by_frequency(kinds)}", f"languages  {_by_frequency(languages)}", f"cost       {price}"]
    body = [f"{row['path']}:{row['line']}:{row['column']}: {row['kind']} {row['symbol']}".rstrip() for row in _rows(plans)]
    # A file's name may contain a line break, and each hole has one line.
    return "".join(f"{one_line(line)}\n" for line in [*head, *body])


def build(plans: Sequence[FilePlan], skipped: Iterable[Skipped], left_out: Mapping[str, int], price: Cost) -> dict[str, Any]:
    """Return the same as an object, for `--json`."""
    files = [{"path": skip.name, "status": "skipped", "reason": skip.reason} for skip in skipped]
    return {"version": VERSION, "holes": list(_rows(plans)), "files": files, "left_out": dict(left_out), "cost": asdict(price)}


def _rows(plans: Sequence[FilePlan]) -> Iterator[dict[str, Any]]:
    for plan in plans:
        text_lines = positions.lines(plan.source.document.text)
        for hole in plan.holes:
            line, column = line_column(text_lines, hole)
            place = {"path": plan.source.name, "line": line, "column": column}
            yield {**place, "kind": hole.kind, "language": plan.source.document.language, "symbol": _symbol(plan, hole)}


def _symbol(plan: FilePlan, hole: Hole) -> str:
    names = select.symbols_of(plan, hole)
    return max(names, key=lambda name: name.count("."), default="")


def _by_frequency(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counter.most_common())
