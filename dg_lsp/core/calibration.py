"""Turn a backend's evidence about its candidates into confidence, in the same way for all backends.

A backend gives named numbers for each candidate. With a calibration fitted for the model, they become a probability.
Without one, they only rank the candidates. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from dg_lsp.core.values import Calibrated, Candidate, Confidence, InfillRequest, Ranked

# The weight of each feature depends on the hole's position: a block, the end of a line, a whole line, or the inside of a
# line that continues after the hole.
HolePosition = Literal["block", "end", "line", "inside"]
POSITIONS: tuple[HolePosition, ...] = get_args(HolePosition)
LARGEST = 1e6  # of a sum that only ranks: the log-probability of a long block may be hundreds of nats


@dataclass(frozen=True, slots=True)
class Calibration:
    """A logistic model of the probability that a candidate equals the original text, fitted by `dg-lsp calibrate`.

    `weights` are by feature name. A feature without a weight has no effect. Unless it `reorders`, candidates are ranked as
    without a calibration, and it only says how likely each is right.
    """

    intercept: float
    weights: Mapping[str, float] = field(default_factory=dict)
    reorders: bool = True

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.intercept, *self.weights.values()))):
            raise ValueError("a weight is not a finite number")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A candidate without a confidence, and what its backend knows of it.

    `order` ranks candidates without a calibration; larger is better. `features` come from `for_position`. `doubted` is that
    of `core.values.Ranked`.
    """

    candidate: Candidate
    order: float
    features: Mapping[str, float]
    doubted: bool = False


def position(request: InfillRequest) -> HolePosition:
    """Return the position of the request's hole in its line or block."""
    if request.extent == "block":
        return "block"
    if not request.place.ends_line:
        return "inside"
    return "line" if request.place.starts_line else "end"


def for_position(
    features: Mapping[str, float], where: HolePosition, by_position: Collection[str] | None = None
) -> dict[str, float]:
    """Return the features for a calibration: each under its own name, and again under a name with this position.

    Only the names in `by_position` are repeated, if it is given.
    """
    repeated = {name: value for name, value in features.items() if by_position is None or name in by_position}
    return {**features, **{f"{where}: {name}": value for name, value in repeated.items()}, where: 1.0}


def linear(features: Mapping[str, float], calibration: Calibration) -> float:
    """Return the weighted sum of the features within `LARGEST`; its lower end if the sum is not a number."""
    z = calibration.intercept + sum(weight * features.get(name, 0.0) for name, weight in calibration.weights.items())
    return -LARGEST if math.isnan(z) else max(-LARGEST, min(LARGEST, z))


def probability(features: Mapping[str, float], calibration: Calibration) -> float:
    """Return the probability that the candidate with these features is right."""
    return 1.0 / (1.0 + math.exp(max(-40.0, min(40.0, -linear(features, calibration)))))


def to_candidates(evidence: Sequence[Evidence], calibration: Calibration | None) -> tuple[Candidate, ...]:
    """Return each distinct candidate once, with its confidence, best first; ties keep their order."""
    chances = [probability(item.features, calibration) if calibration else 0.0 for item in evidence]
    strengths = chances if calibration and calibration.reorders else [item.order for item in evidence]
    distinct: dict[tuple[str, ...], int] = {}
    # Without a calibration, doubted candidates rank last. A calibrated probability overrides the doubt.
    for index in sorted(range(len(evidence)), key=lambda at: (calibration is None and evidence[at].doubted, -strengths[at])):
        distinct.setdefault(evidence[index].candidate.texts, index)
    ranked = []
    for rank, index in enumerate(distinct.values()):
        item = evidence[index]
        confidence: Confidence = Calibrated(chances[index]) if calibration else Ranked(rank, item.doubted)
        ranked.append(replace(item.candidate, confidence=confidence))
    return tuple(ranked)
