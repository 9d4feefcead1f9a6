"""Score answers: exact match and edit similarity.

An answer is exact if it equals the expected answer. Trailing white space, of each line and of the whole, is ignored;
leading white space counts. Edit similarity is 1 - Levenshtein distance / length of the longer text, on the same trimmed
texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dg_lsp.core.values import n_common


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean and its 95 % interval."""

    value: float
    low: float
    high: float


def trimmed(text: str) -> str:
    """Return the text as it is compared: without trailing white space, of each line and of the whole."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()


def is_exact(text: str, answer: str) -> bool:
    """Return whether the text equals the expected answer."""
    return trimmed(text) == trimmed(answer)


def similarity(text: str, answer: str) -> float:
    """Return the edit similarity of the two texts, from 0 to 1; two empty texts have 1."""
    one, other = trimmed(text), trimmed(answer)
    longer = max(len(one), len(other))
    return 1 - _distance(one, other) / longer if longer else 1.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile at `share` per cent, interpolated between neighbours; 0 if there are no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


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
