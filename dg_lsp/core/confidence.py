"""How sure a backend is of a candidate, on one scale for all backends, and the one rule that decides by it.

A probability is stated only where it was measured (`dg-lsp calibrate`). Every other backend says no more than the order of
its candidates. Pure. Knows nothing of backends and of what a front end does with the decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A measured probability: of candidates that state .3, about 30 % are right."""

    probability: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"not a probability: {self.probability}")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A position among the candidates, 0 for the best, where no probability is known.

    A candidate is `doubted` when something contradicts it: a deadline or the token limit cut it short, or the model reads
    the text around it differently.
    """

    position: int = 0
    doubted: bool = False

    def __post_init__(self) -> None:
        if self.position < 0:
            raise ValueError(f"not a position: {self.position}")


Confidence = Calibrated | Ranked


@dataclass(frozen=True, slots=True)
class Threshold:
    """What counts as sure: at least this probability, or one of the `n_best` ranked candidates that nothing contradicts.

    With `n_best` 0 only a measured probability counts.
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
    """Return the measured probability, None where there is none."""
    return confidence.probability if isinstance(confidence, Calibrated) else None


def order(confidence: Confidence) -> tuple[float, ...]:
    """Return a sort key that is larger for more confidence; a measured probability sorts above any rank."""
    match confidence:
        case Calibrated(probability):
            return (1.0, probability)
        case Ranked(position, doubted):
            return (0.0, float(not doubted), -float(position))


def joint(parts: Iterable[Confidence]) -> Confidence:
    """Return the confidence that all parts are right; without a probability for each there is none for all."""
    parts = tuple(parts)
    if all(isinstance(part, Calibrated) for part in parts):
        return Calibrated(prod(part.probability for part in parts if isinstance(part, Calibrated)))
    ranked = [part for part in parts if isinstance(part, Ranked)]
    return Ranked(max(part.position for part in ranked), any(part.doubted for part in ranked))


def words(confidence: Confidence) -> str:
    """Return the confidence for a title or a message: `4 %`, or `not calibrated`."""
    match confidence:
        case Calibrated(probability):
            return f"{100 * probability:.0f} %" if probability >= 0.01 or probability == 0 else "under 1 %"
        case Ranked():
            return "not calibrated"
