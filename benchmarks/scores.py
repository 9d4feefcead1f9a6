"""Figures of many answers: exact match, edit similarity, parse rate, passed tests, keystrokes, and their intervals.

Keystrokes saved are the share of characters that accepting each right answer would have saved. An answer is right as far
as it goes if the expected answer begins with it. They are the gain of a threshold, and the characters of wrong answers,
which a user reads in vain, are its cost.

An answer parses if the file has no more syntax errors with it than with the expected answer. A blank answer does not
count as parsing if something was expected, though tolerant grammars would accept it.

Intervals are 95 % percentile intervals of a bootstrap over clusters, because tasks cut from one problem or one file
tend to be right or wrong together. The figures are shown as a JSON object, a CSV to commit, or Markdown. This module is pure.
"""

from __future__ import annotations

import csv
import hashlib
import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dg_lsp.core import languages, syntax
from dg_lsp.core.values import Document, n_common
from dg_lsp.evaluate.answers import Measure, percentile, trimmed

RESAMPLES = 1000

# The thresholds at which keystrokes are reported.
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True, slots=True)
class Keys:
    """Characters at one hole: those that stood there, those that accepting the answer saves, and those read in vain."""

    expected: int = 0
    saved: int = 0
    in_vain: int = 0


@dataclass(frozen=True, slots=True)
class Trade:
    """What a threshold brings and costs: the share of holes with an answer, and shares of all characters that stood there.

    `saved` is the share that accepting the right answers saves, and `in_vain` the characters of wrong answers per
    character that stood there.
    """

    threshold: float
    shown: float
    saved: float
    in_vain: float


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One answer and its scores, with a field for each column. `parses` and `passed` are None if unknown."""

    task_id: str
    cluster: str
    kind: str
    method: str
    text: str
    exact: bool
    similarity: float
    parses: bool | None = None
    passed: bool | None = None
    ms: float = 0.0
    steps: int = 0
    keys: Keys = Keys()
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """One method's figures over some tasks. A measure is None if no task has it."""

    n: int
    pass_at_1: Measure | None
    exact_match: Measure | None
    edit_similarity: Measure | None
    parse_rate: Measure | None
    ms_p50: float
    ms_p95: float
    steps_p50: float
    keystrokes: tuple[Trade, ...] = ()


def keys(text: str, answer: str) -> Keys:
    """Return the characters that a text saves or costs where the answer stood; a right text may end before the answer does."""
    shown, expected = text.strip(), answer.strip()
    is_right = expected.startswith(shown)
    return Keys(len(expected), len(shown) if is_right else 0, 0 if is_right else len(shown))


def trade(answers: Sequence[tuple[Keys, float | None]], threshold: float) -> Trade:
    """Return what showing the answers with at least this probability brings and costs; one without any counts as 0."""
    n_expected = max(sum(each.expected for each, _ in answers), 1)
    shown = [each for each, probability in answers if (probability or 0.0) >= threshold and each.saved + each.in_vain]
    saved, in_vain = (sum(getattr(each, name) for each in shown) / n_expected for name in ("saved", "in_vain"))
    return Trade(threshold, round(len(shown) / max(len(answers), 1), 4), round(saved, 4), round(in_vain, 4))


def parses(prompt: str, text: str, suffix: str, answer: str, language: str) -> bool | None:
    """Return whether the file has no more syntax errors with the text than with the answer; None if there is no grammar."""
    if languages.get(language) is None:
        return None
    if text == answer or not text.strip():
        return text == answer or not answer.strip()
    filled, whole = (syntax.of(Document("", language, prompt + middle + suffix)) for middle in (text, answer))
    return filled is not None and whole is not None and not syntax.adds_errors(filled, whole)


def summary(rows: Sequence[ResultRow], seed: int = 0) -> Summary:
    """Return the figures of one method's rows; the same seed gives the same intervals."""
    steps = [row.steps for row in rows]
    return Summary(
        len(rows),
        measure(rows, lambda row: row.passed, seed),
        measure(rows, lambda row: row.exact, seed),
        measure(rows, lambda row: row.similarity, seed),
        measure(rows, lambda row: row.parses, seed),
        round(percentile([row.ms for row in rows], 50), 1),
        round(percentile([row.ms for row in rows], 95), 1),
        percentile(steps, 50),
        tuple(trade([(row.keys, row.probability) for row in rows], threshold) for threshold in THRESHOLDS),
    )


def measure(rows: Sequence[ResultRow], value: Callable[[ResultRow], float | None], seed: int = 0) -> Measure | None:
    """Return the mean of `value` over the rows, with its interval; None if `value` is None for all of them."""
    return _bootstrap([(row.cluster, float(score)) for row in rows if (score := value(row)) is not None], seed)


def gain(rows: Sequence[ResultRow], base: Sequence[ResultRow], seed: int = 0) -> Measure | None:
    """Return how much more often the rows are exact than a baseline's for the same tasks; None if they share no task.

    The comparison is task by task, so the interval is narrower than those of the two methods alone.
    """
    before = {row.task_id: row.exact for row in base}
    pairs = [(row.cluster, float(row.exact) - before[row.task_id]) for row in rows if row.task_id in before]
    return _bootstrap(pairs, seed)


def _bootstrap(values: Sequence[tuple[str, float]], seed: int) -> Measure | None:
    if not values:
        return None
    sums: dict[str, tuple[float, int]] = {}
    for cluster, value in values:
        total, n = sums.get(cluster, (0.0, 0))
        sums[cluster] = (total + value, n + 1)
    clusters = list(sums.values())
    draw = random.Random(seed)
    means = []
    for _ in range(RESAMPLES):
        resample = draw.choices(clusters, k=len(clusters))
        means.append(sum(total for total, _ in resample) / sum(n for _, n in resample))
    mean = sum(total for total, _ in clusters) / len(values)
    return Measure(*(round(number, 4) for number in (mean, percentile(means, 2.5), percentile(means, 97.5))))


# --- The figures as a table, an object, a CSV and Markdown

COLUMNS = ("task_id", "kind", "method", "exact", "similarity", "parses", "passed", "probability", "steps", "text_sha256")
ALL = "all"
FULL = "full"  # the method with which the others are compared: the model, as an editor asks it


def by_method(rows: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    """Return the rows of each method, with methods in order of first appearance."""
    rows_by_method: dict[str, list[ResultRow]] = {}
    for row in rows:
        rows_by_method.setdefault(row.method, []).append(row)
    return rows_by_method


def as_object(rows: Sequence[ResultRow], facts: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Return all figures as an object for JSON.

    The top level has the `facts` of the run and the figures of the model, or of the first method if no model was measured.
    `methods` has the figures of each method: overall, by kind, and how much more often it is exact than each other method.
    """
    methods = by_method(rows)
    report: dict[str, Any] = {}
    for name, own in methods.items():
        by_kind = {kind: [row for row in own if row.kind == kind] for kind in sorted({row.kind for row in own})}
        gains = {other: gain(own, theirs, seed) for other, theirs in methods.items() if other != name}
        report[name] = asdict(summary(own, seed)) | {
            "kinds": {kind or "other": asdict(summary(part, seed)) for kind, part in by_kind.items()},
            "exact_match_gain": {other: asdict(gained) for other, gained in gains.items() if gained},
        }
    chief = FULL if FULL in methods else next(iter(methods), "")
    top = {key: value for key, value in report[chief].items() if key != "exact_match_gain"} if chief else {}
    return {**facts, "method": chief, **top, "methods": report}


def remarks(rows: Sequence[ResultRow], seed: int = 0) -> list[str]:
    """Return the facts that the table omits: the model's lead over the others, and keystrokes by threshold."""
    methods = by_method(rows)
    own = methods.get(FULL) or next(iter(methods.values()), [])
    sentences = [
        f"exact match of {own[0].method} minus {other}, task by task: {interval(gained, signed=True)}"
        for other, theirs in methods.items()
        if own and other != own[0].method and (gained := gain(own, theirs, seed))
    ]
    trades = summary(own, seed).keystrokes
    parts = [f"{each.saved:.1%} for {each.in_vain:.1%} read in vain from {each.threshold:g}" for each in trades]
    return [*sentences, "keystrokes saved, of all characters of the answers, by threshold: " + ", ".join(parts)]


def is_csv(head: bytes) -> bool:
    """Return whether a file that begins so is one of `as_csv`."""
    return head.startswith(",".join(COLUMNS).encode() + b"\n")


def as_csv(rows: Sequence[ResultRow]) -> str:
    """Return a CSV line for each row, sorted, with reproducible values only: no times, and a hash instead of each text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: (row.task_id, row.method)):
        parses, passed = ("" if each is None else int(each) for each in (row.parses, row.passed))
        probability = "" if row.probability is None else f"{row.probability:.3f}"
        scores = (int(row.exact), f"{row.similarity:.4f}", parses, passed, probability)
        writer.writerow((row.task_id, row.kind, row.method, *scores, row.steps, fingerprint(row.text)))
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
        facts = summary(own, seed)
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
    means = [measure([row for row in rows if row.kind == kind], value, seed) for kind in kinds]
    return [f"{mean.value:.3f}" if mean else "" for mean in means] + ([interval(overall)] if len(kinds) > 1 else [])


def interval(measure: Measure | None, *, signed: bool = False) -> str:
    if measure is None:
        return "-"
    sign = "+" if signed else ""
    return f"{measure.value:{sign}.3f} [{measure.low:{sign}.2f}, {measure.high:{sign}.2f}]"


def _value(measure: Measure | None) -> str:
    return f"{measure.value:.3f}" if measure else "-"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def similarity(text: str, answer: str) -> float:
    """Return the edit similarity of the two texts, from 0 to 1 (1 - Levenshtein distance / longer); two empty texts have 1."""
    one, other = trimmed(text), trimmed(answer)
    longer = max(len(one), len(other))
    return 1 - _distance(one, other) / longer if longer else 1.0


def _distance(one: str, other: str) -> int:
    """Return the Levenshtein distance. The common start and end are skipped, which makes similar texts fast to compare."""
    n_before = n_common(one, other)
    one, other = one[n_before:], other[n_before:]
    n_after = n_common(one[::-1], other[::-1])
    one, other = one[: len(one) - n_after], other[: len(other) - n_after]
    if len(one) < len(other):
        one, other = other, one
    above = list(range(len(other) + 1))
    for row, left in enumerate(one, 1):
        current = [row]
        for column, right in enumerate(other, 1):
            current.append(min(above[column] + 1, current[-1] + 1, above[column - 1] + (left != right)))
        above = current
    return above[-1]
