"""Format rows of results: as a table, a JSON object, a CSV to commit, or Markdown for a model card."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from dg_lsp.evaluate import score
from dg_lsp.evaluate.run import FULL
from dg_lsp.evaluate.score import Measure, ResultRow, Summary

COLUMNS = (
    "task_id",
    "kind",
    "method",
    "exact",
    "similarity",
    "parses",
    "passed",
    "probability",
    "steps",
    "source",
    "text_sha256",
)
ALL = "all"


def by_method(rows: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    """Return the rows of each method, with methods in order of first appearance."""
    rows_by_method: dict[str, list[ResultRow]] = {}
    for row in rows:
        rows_by_method.setdefault(row.method, []).append(row)
    return rows_by_method


def by_kind(rows: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    """Return the rows of each kind, with kinds in alphabetical order; the empty kind is called "other"."""
    return {kind or "other": [row for row in rows if row.kind == kind] for kind in sorted({row.kind for row in rows})}


def as_object(rows: Sequence[ResultRow], facts: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Return all figures as an object for JSON.

    The top level has the `facts` of the run and the figures of the full engine, or of the first method if the full
    engine was not measured. `methods` has the figures of each method: overall, by kind, which kinds of row were chosen,
    and how much more often it is exact than each other method.
    """
    methods = by_method(rows)
    chief = FULL.name if FULL.name in methods else next(iter(methods), "")
    report: dict[str, Any] = {}
    for name, own in methods.items():
        report[name] = asdict(score.summary(own, seed)) | {
            "kinds": {kind: asdict(score.summary(part, seed)) for kind, part in by_kind(own).items()},
            "rows": _sources(own),
            "exact_match_gain": {
                other: asdict(gained)
                for other, theirs in methods.items()
                if other != name and (gained := score.gain(own, theirs, seed))
            },
        }
    top = {key: value for key, value in report[chief].items() if key not in ("rows", "exact_match_gain")} if chief else {}
    return {**facts} | {"method": chief} | top | {"methods": report}


def table(rows: Sequence[ResultRow], seed: int = 0) -> Table:
    """Return a table of each kind's figures, method by method, and of all kinds together."""
    methods, tested = by_method(rows), any(row.passed is not None for row in rows)
    view = Table(box=None, pad_edge=False, header_style="bold")
    view.add_column("kind")
    view.add_column("method")
    names = ["n", *(["pass@1"] if tested else []), "exact match", "edit similarity", "parse rate", "ms p50", "p95", "steps"]
    for name in names:
        view.add_column(name, justify="right", no_wrap=True)
    kinds = sorted({row.kind for row in rows})
    groups = [(kind or "other", [kind]) for kind in kinds] + ([(ALL, kinds)] if len(kinds) > 1 else [])
    for title, members in groups:
        for name, own in methods.items():
            if part := [row for row in own if row.kind in members]:
                view.add_row(title, name, *_cells(score.summary(part, seed), tested=tested))
                title = ""
        view.add_section()
    return view


def remarks(rows: Sequence[ResultRow], seed: int = 0) -> list[str]:
    """Return the facts that the table omits: which kinds of row won, the full engine's lead over the others, keystrokes."""
    methods = by_method(rows)
    sentences = []
    if own := methods.get(FULL.name):
        parts = [f"{name} {fact['chosen']} ({fact['exact']} exact)" for name, fact in _sources(own).items()]
        sentences.append("chosen answers by starting point: " + ", ".join(parts))
        for other, theirs in methods.items():
            if other != FULL.name and (gained := score.gain(own, theirs, seed)):
                sentences.append(f"exact match of full minus {other}, task by task: {_interval(gained, signed=True)}")
    if own := methods.get(FULL.name) or next(iter(methods.values()), []):
        trades = score.summary(own, seed).keystrokes
        parts = [f"{each.saved:.1%} for {each.in_vain:.1%} read in vain from {each.threshold:g}" for each in trades]
        sentences.append("keystrokes saved, of all characters of the answers, by threshold: " + ", ".join(parts))
    return sentences


def as_csv(rows: Sequence[ResultRow]) -> str:
    """Return a CSV line for each row, sorted, with reproducible values only: no times, and a hash instead of each text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: (row.task_id, row.method)):
        parses, passed = ("" if each is None else int(each) for each in (row.parses, row.passed))
        probability = "" if row.probability is None else f"{row.probability:.3f}"
        scores = (int(row.exact), f"{row.similarity:.4f}", parses, passed, probability)
        writer.writerow((row.task_id, row.kind, row.method, *scores, row.steps, row.source, fingerprint(row.text)))
    return out.getvalue()


def fingerprint(text: str) -> str:
    """Return a short hash of an answer."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def markdown(rows: Sequence[ResultRow], seed: int = 0) -> str:
    """Return the methods as a Markdown table: exact match by kind and overall, similarity, parse rate, time and steps.

    If programs were run, pass@1 by kind and overall follow exact match; its cell is empty for a kind without programs.
    """
    methods = by_method(rows)
    kinds = sorted({row.kind for row in rows})
    groups = [*(kind or "other" for kind in kinds), *([ALL] if len(kinds) > 1 else [])]
    is_tested = any(row.passed is not None for row in rows)
    heads = ["", *groups, *([f"pass@1, {group}" for group in groups] if is_tested else [])]
    heads += ["edit similarity", "parse rate", "ms p50", "ms p95", "steps p50"]
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    for name, own in methods.items():
        facts = score.summary(own, seed)
        cells = _by_kind(own, kinds, lambda row: row.exact, facts.exact_match, seed)
        cells += _by_kind(own, kinds, lambda row: row.passed, facts.pass_at_1, seed) if is_tested else []
        cells += [_value(facts.edit_similarity), _value(facts.parse_rate)]
        lines.append(_line([name, *cells, f"{facts.ms_p50:.0f}", f"{facts.ms_p95:.0f}", f"{facts.steps_p50:g}"]))
    return "\n".join(lines) + "\n"


def _by_kind(
    rows: Sequence[ResultRow],
    kinds: Sequence[str],
    value: Callable[[ResultRow], float | None],
    overall: Measure | None,
    seed: int,
) -> list[str]:
    """Return the cells of one measure: its mean for each kind, and if there are several kinds, the overall interval."""
    means = [score.measure([row for row in rows if row.kind == kind], value, seed) for kind in kinds]
    return [f"{mean.value:.3f}" if mean else "" for mean in means] + ([_interval(overall)] if len(kinds) > 1 else [])


def _sources(rows: Sequence[ResultRow]) -> dict[str, dict[str, int]]:
    """Return how many answers came from each kind of row, and how many of these are exact."""
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
