"""State how sure a backend is of a candidate, on one scale for all backends, and decide which candidates count as sure.

A probability is stated only where it was measured (`dg-lsp calibrate`). Other backends state a rank: the order of their
candidates. This module is pure. It knows neither the backends nor what a front end does with the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from dg_lsp.core.values import Calibrated, Confidence, Ranked


@dataclass(frozen=True, slots=True)
class Threshold:
    """The lowest confidence that counts as sure.

    A measured probability passes from `probability` up. A ranked candidate passes if it is among the first `n_best` and
    not doubted. With `n_best` 0, only a measured probability passes.
    """

    probability: float
    n_best: int = 0


def is_sure(confidence: Confidence, threshold: Threshold) -> bool:
    """Return whether a candidate passes the threshold."""
    match confidence:
        case Calibrated(probability):
            return probability >= threshold.probability
        case Ranked(position, doubted):
            return position < threshold.n_best and not doubted


def probability(confidence: Confidence) -> float | None:
    """Return the measured probability, or None for a ranked candidate."""
    return confidence.probability if isinstance(confidence, Calibrated) else None


def order(confidence: Confidence) -> tuple[float, ...]:
    """Return a sort key that grows with confidence. A measured probability sorts above any rank."""
    match confidence:
        case Calibrated(probability):
            return (1.0, probability)
        case Ranked(position, doubted):
            return (0.0, float(not doubted), -float(position))


def joint(parts: Iterable[Confidence]) -> Confidence:
    """Return the confidence that all parts are right: a probability only if every part has one, else the worst rank."""
    parts = tuple(parts)
    if all(isinstance(part, Calibrated) for part in parts):
        return Calibrated(prod(part.probability for part in parts if isinstance(part, Calibrated)))
    ranked = [part for part in parts if isinstance(part, Ranked)]
    return Ranked(max(part.position for part in ranked), any(part.doubted for part in ranked))


def without(excluded: Sequence[Confidence], confidence: Confidence) -> Confidence:
    """Return the confidence in a candidate when those with the excluded confidences are known to be wrong."""
    match confidence:
        case Calibrated(right):
            others = 1 - sum(one.probability for one in excluded if isinstance(one, Calibrated))
            return Calibrated(right / max(others, right)) if right else confidence
        case Ranked(position, doubted):
            n_before = sum(isinstance(one, Ranked) and one.position < position for one in excluded)
            return Ranked(position - n_before, doubted)


def words(confidence: Confidence) -> str:
    """Return the confidence for a title or a message: `4 %`, `doubted`, or `not calibrated`."""
    match confidence:
        case Calibrated(probability):
            return f"{100 * probability:.0f} %" if probability >= 0.01 or probability == 0 else "under 1 %"
        case Ranked(_, doubted):
            return "doubted" if doubted else "not calibrated"
