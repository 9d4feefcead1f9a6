"""From what a backend knows of its candidates to their confidence, by one way for all backends.

A backend gives numbers by name for each candidate. Where a calibration was fitted for the model, they become a probability;
without one they only say the order. Pure. Knows nothing of backends, files and tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from dg_lsp.core.confidence import Calibrated, Confidence, Ranked
from dg_lsp.core.values import Candidate, InfillRequest

# Where a hole stands decides what an answer's signs are worth: a block, the rest of a line, a whole line, or a part of
# a line whose end is there already.
HolePosition = Literal["block", "end", "line", "inside"]
POSITIONS: tuple[HolePosition, ...] = get_args(HolePosition)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A logistic model of "this candidate is what stood there", fitted by `dg-lsp calibrate`.

    `weights` name features; a feature without a weight counts nothing.
    """

    intercept: float
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A candidate whose confidence is still to be stated, and what its backend knows of it.

    `order` is larger for a better candidate; it counts where there is no calibration. `features` are those of
    `for_position`. `doubted` is that of `core.confidence.Ranked`.
    """

    candidate: Candidate
    order: float
    features: Mapping[str, float]
    doubted: bool = False


def position(request: InfillRequest) -> HolePosition:
    """Return where the hole of a request stands."""
    if any(hole.block for hole in request.holes):
        return "block"
    if request.suffix.partition("\n")[0].strip():
        return "inside"
    return "end" if request.prefix.rpartition("\n")[2].strip() else "line"


def for_position(named: Mapping[str, float], where: HolePosition) -> dict[str, float]:
    """Return the numbers that a calibration weighs: each for all holes, and again for holes of this position."""
    return {**named, **{f"{where}: {name}": value for name, value in named.items()}, where: 1.0}


def linear(features: Mapping[str, float], calibration: Calibration) -> float:
    """Return the weighted sum of the features, from -40 to 40; -40 where it is no number."""
    z = calibration.intercept + sum(weight * features.get(name, 0.0) for name, weight in calibration.weights.items())
    return -40.0 if math.isnan(z) else max(-40.0, min(40.0, z))


def probability(features: Mapping[str, float], calibration: Calibration) -> float:
    """Return the probability that the candidate with these features is right."""
    return 1.0 / (1.0 + math.exp(-linear(features, calibration)))


def stated(evidence: Sequence[Evidence], calibration: Calibration | None) -> tuple[Candidate, ...]:
    """Return each distinct candidate once with its confidence, best first."""
    return tuple(item.candidate for item in best_first(evidence, calibration))


def best_first(evidence: Sequence[Evidence], calibration: Calibration | None) -> tuple[Evidence, ...]:
    """Return the evidence with confidences stated, each distinct text once, best first; equals stay in their order."""
    strengths = [probability(item.features, calibration) if calibration else item.order for item in evidence]
    distinct: dict[tuple[str, ...], int] = {}
    # What is doubted ranks last, but a measured probability knows better.
    for index in sorted(range(len(evidence)), key=lambda at: (calibration is None and evidence[at].doubted, -strengths[at])):
        distinct.setdefault(evidence[index].candidate.texts, index)
    ranked = []
    for rank, index in enumerate(distinct.values()):
        item = evidence[index]
        confidence: Confidence = Calibrated(strengths[index]) if calibration else Ranked(rank, item.doubted)
        ranked.append(replace(item, candidate=replace(item.candidate, confidence=confidence)))
    return tuple(ranked)
