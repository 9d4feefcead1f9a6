"""Which candidate is best, and how likely it is to be what stood there.

All rows of a request are ranked by one number: a logistic model over the candidate's causal log-probability, how its
canvas settled, how far a copied draft agrees with both sides, and how many rows agree. Its weights come with the
checkpoint (fitted by `dg-lsp train calibrate`). Knows numbers. Knows nothing of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dg_lsp.core.values import RowKind
from dg_lsp.engine.profile import Calibration

# Where a hole stands decides what an answer's signs are worth: a block, the rest of a line, a whole line, or a part of
# a line whose end is there already.
HolePosition = Literal["block", "end", "line", "inside"]


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row's answer with what is known of it. Log-probabilities are natural; `None` where it was not computed.

    `tokens` are the causal log-probabilities of the answer's tokens, `after` that of what follows it: the end token
    of an infill-trained checkpoint, or the mean over the suffix's head. `entropy` is the canvas's mean in nats.
    """

    text: str
    row: RowKind
    tokens: tuple[float, ...] = ()
    after: float = 0.0
    entropy: float | None = None
    left: int = 0
    right: int = 0
    position: HolePosition = "end"


def features(item: RowResult, others: Sequence[RowResult]) -> dict[str, float]:
    """Return the named numbers that the calibration weighs: each for all holes, and again for holes of its place."""
    same = [other for other in others if other is not item and other.text == item.text]
    family = [item, *same]
    n_tokens = max(len(item.tokens), 1)
    left = max((each.left for each in family if each.row == "copy"), default=0)
    right = max((each.right for each in family if each.row == "copy"), default=0)
    settled = [each.entropy for each in family if each.entropy is not None]
    rows = {each.row for each in family}
    named = {
        "sum": sum(item.tokens),
        "mean": sum(item.tokens) / n_tokens,
        "least": min(item.tokens, default=0.0),
        "after": item.after,
        "length": math.log1p(len(item.tokens)),
        "agree": math.log1p(len(same)),
        "copied": float("copy" in rows),
        "causal": float("causal" in rows),
        "noise": float("noise" in rows),
        "left": math.log1p(left),
        "right": math.log1p(min(right, 24)),
        "settled": -min(settled) if settled else 0.0,
        "blank": float(not item.text.strip()),
        "whole": float(right > 0) * math.log1p(left),
    }
    return named | {f"{item.position}: {name}": value for name, value in named.items()} | {item.position: 1.0}


def confidence(named: dict[str, float], calibration: Calibration) -> float:
    """Return the calibrated probability that the candidate is exact."""
    z = calibration.intercept + sum(weight * named.get(name, 0.0) for name, weight in calibration.weights.items())
    return 1.0 / (1.0 + math.exp(-max(-40.0, min(40.0, z))))


def best_first(items: Sequence[RowResult], calibration: Calibration) -> list[tuple[float, RowResult]]:
    """Return each distinct text once with its confidence, best first."""
    scored = [(confidence(features(item, items), calibration), index) for index, item in enumerate(items)]
    seen: set[str] = set()
    ranked: list[tuple[float, RowResult]] = []
    for chance, index in sorted(scored, key=lambda pair: (-pair[0], pair[1])):
        if items[index].text not in seen:
            seen.add(items[index].text)
            ranked.append((chance, items[index]))
    return ranked
