"""What is known of each row of a local model's canvas, as the numbers that rank it.

A candidate's causal log-probability, how its canvas settled, how far a copied draft agrees with both sides, and how many
rows agree. Knows numbers. Knows nothing of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dg_lsp.core.values import Candidate, RowKind
from dg_lsp.engine import calibration
from dg_lsp.engine.calibration import Calibration, Evidence, HolePosition

ORDER = Calibration(0.0, {"mean": 2.0, "after": 1.0})
"""What ranks the candidates of a checkpoint that was never calibrated; no probability comes of it."""


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
    return calibration.for_position(named, item.position)


def evidence(items: Sequence[RowResult], *, doubted: bool = False) -> list[Evidence]:
    """Return what is known of each row's text as a candidate without more than its text and its row."""
    known = []
    for item in items:
        named = features(item, items)
        candidate = Candidate((item.text,), row=item.row)
        known.append(Evidence(candidate, calibration.linear(named, ORDER), named, doubted))
    return known
