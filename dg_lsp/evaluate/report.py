"""Show rows of results: as a table, as a JSON object, as a CSV that can be committed, as Markdown for a model card.

Knows rows and summaries. Knows nothing of how they were made.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from dg_lsp.evaluate import score
from dg_lsp.evaluate.methods import FULL
from dg_lsp.evaluate.score import Measure, Row, Summary

COLUMNS = ("task_id", "kind", "method", "exact", "similarity", "parses", "steps", "source", "text_sha256")
ALL = "all"


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return each method's rows, in the order in which methods first come."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.method, []).append(row)
    return found


def by_kind(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return each kind's rows, kinds in the order of their names; "" is called "other"."""
    return {kind or "other": [row for row in rows if row.kind == kind] for kind in sorted({row.kind for row in rows})}


def as_object(rows: Sequence[Row], facts: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Return all figures as an object for JSON.

    At the top stand the `facts` of the run and the figures of the whole engine, or of the only method where it was not
    asked; below `methods` those of each, all and by kind, what kinds of row were chosen, and by how much it is more often
    exact than each other method.
    """
    methods = by_method(rows)
    chief = FULL.name if FULL.name in methods else next(iter(methods), "")
    stated: dict[str, Any] = {}
    for name, own in methods.items():
        stated[name] = asdict(score.summary(own, seed)) | {
            "kinds": {kind: asdict(score.summary(part, seed)) for kind, part in by_kind(own).items()},
            "rows": _sources(own),
            "exact_match_gain": {
                other: asdict(gained)
                for other, theirs in methods.items()
                if other != name and (gained := score.gain(own, theirs, seed))
            },
        }
    top = {key: value for key, value in stated[chief].items() if key not in ("rows", "exact_match_gain")} if chief else {}
    return {**facts} | {"method": chief} | top | {"methods": stated}


def table(rows: Sequence[Row], seed: int = 0) -> Table:
    """Return the figures of each kind, method beside method, and of all kinds together."""
    methods, tested = by_method(rows), any(row.passed is not None for row in rows)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("kind")
    shown.add_column("method")
    names = ["n", *(["pass@1"] if tested else []), "exact match", "edit similarity", "parse rate", "ms p50", "p95", "steps"]
    for name in names:
        shown.add_column(name, justify="right", no_wrap=True)
    kinds = sorted({row.kind for row in rows})
    groups = [(kind or "other", [kind]) for kind in kinds] + ([(ALL, kinds)] if len(kinds) > 1 else [])
    for title, members in groups:
        for name, own in methods.items():
            if part := [row for row in own if row.kind in members]:
                shown.add_row(title, name, *_cells(score.summary(part, seed), tested=tested))
                title = ""
        shown.add_section()
    return shown


def remarks(rows: Sequence[Row], seed: int = 0) -> list[str]:
    """Return what the table leaves out: which kinds of row won, and how far the whole is ahead of the others."""
    methods = by_method(rows)
    said = []
    if own := methods.get(FULL.name):
        parts = [f"{name} {fact['chosen']} ({fact['exact']} exact)" for name, fact in _sources(own).items()]
        said.append("answers by where they started: " + ", ".join(parts))
        for other, theirs in methods.items():
            if other != FULL.name and (gained := score.gain(own, theirs, seed)):
                said.append(f"exact match of full less that of {other}, task by task: {_interval(gained, signed=True)}")
    return said


def as_csv(rows: Sequence[Row]) -> str:
    """Return one line for each row, sorted, of what the same model gives again: no times, and a hash for each text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: (row.task_id, row.method)):
        parses = "" if row.parses is None else int(row.parses)
        facts = (row.task_id, row.kind, row.method, int(row.exact), f"{row.similarity:.4f}", parses, row.steps, row.source)
        writer.writerow((*facts, fingerprint(row.text)))
    return out.getvalue()


def fingerprint(text: str) -> str:
    """Return a short hash of an answer."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def markdown(rows: Sequence[Row], seed: int = 0) -> str:
    """Return the methods as a Markdown table: exact match of each kind and of all, and what it takes."""
    methods = by_method(rows)
    kinds = sorted({row.kind for row in rows})
    heads = ["", *(kind or "other" for kind in kinds), *([ALL] if len(kinds) > 1 else [])]
    heads += ["edit similarity", "parse rate", "ms p50", "ms p95", "steps p50"]
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    for name, own in methods.items():
        facts = score.summary(own, seed)
        exact = [score.measure([row for row in own if row.kind == kind], lambda row: row.exact, seed) for kind in kinds]
        cells = [f"{each.value:.3f}" if each else "" for each in exact]
        cells += [_interval(facts.exact_match)] if len(kinds) > 1 else []
        cells += [_value(facts.edit_similarity), _value(facts.parse_rate)]
        lines.append(_line([name, *cells, f"{facts.ms_p50:.0f}", f"{facts.ms_p95:.0f}", f"{facts.steps_p50:g}"]))
    return "\n".join(lines) + "\n"


def _sources(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Return how many answers each kind of row gave, and how many of these are exact."""
    names = sorted({row.source for row in rows if row.source})
    of = {name: [row for row in rows if row.source == name] for name in names}
    return {name: {"chosen": len(own), "exact": sum(row.exact for row in own)} for name, own in of.items()}


def _cells(facts: Summary, *, tested: bool) -> list[str]:
    measures = [facts.exact_match, facts.edit_similarity, facts.parse_rate]
    measures = [facts.pass_at_1, *measures] if tested else measures
    return [
        str(facts.n),
        *(_interval(each) for each in measures),
        f"{facts.ms_p50:.0f}",
        f"{facts.ms_p95:.0f}",
        f"{facts.steps_p50:g}",
    ]


def _interval(measure: Measure | None, *, signed: bool = False) -> str:
    if measure is None:
        return "-"
    sign = "+" if signed else ""
    return f"{measure.value:{sign}.3f} [{measure.low:{sign}.2f}, {measure.high:{sign}.2f}]"


def _value(measure: Measure | None) -> str:
    return f"{measure.value:.3f}" if measure else "-"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
