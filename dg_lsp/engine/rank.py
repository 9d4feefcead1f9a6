"""Compute the features that rank the rows of a local model.

They are a candidate's causal log-probability, its canvas's entropy, how far a copied draft agrees with both sides, and how
many rows agree. Knows numbers. Knows nothing of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dg_lsp.core.values import Candidate, RowKind
from dg_lsp.engine import calibration
from dg_lsp.engine.calibration import Calibration, Evidence, HolePosition

NEAR_LINES = 3
MOST_RIGHT = 24  # characters
MOST_MARGIN = 10.0  # nats
BY_POSITION = frozenset(
    {"joint", "sum", "mean", "after", "copied", "causal", "noise", "left", "right", "length", "settled"}
    | {"margin", "share", "new names", "own joint", "own mean", "own share", "own margin"}
)
"""The features whose weight depends on the hole's position. With all of them, too few answers determine each weight."""
ORDER = Calibration(0.0, {"joint": 1.0})
"""The ranking of candidates for a checkpoint without a calibration. It gives an order, not a probability.

It is the joint log-probability of the answer and the text after it. Only a sum compares answers of different lengths.
"""


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row's answer and the numbers known about it. Log-probabilities are natural.

    `tokens` are the causal log-probabilities of the answer's tokens, mixed with those of the file's repetitions if the
    profile says so; `own` are those of the model alone. `after` is that of the end token (infill-trained
    checkpoints) or the mean over the suffix's head; `after_sum` is the same as a sum. `entropy` is the canvas's mean in
    nats, None if not computed. `left` and `right` are those of a copy (`drafts.Copy`). `repeats` and `known` are shares of
    the answer's lines (`repeated_lines`). `names` are the features of `names_in_text`. `context` is the number of tokens
    that the model read.
    """

    text: str
    row: RowKind
    tokens: tuple[float, ...] = ()
    own: tuple[float, ...] = ()
    after: float = 0.0
    after_sum: float = 0.0
    entropy: float | None = None
    left: int = 0
    right: int = 0
    position: HolePosition = "end"
    repeats: float = 0.0
    known: float = 0.0
    names: Mapping[str, float] = field(default_factory=dict)
    context: int = 0

    @property
    def joint(self) -> float:
        """The log-probability of the answer and the text after it."""
        return sum(self.tokens) + self.after_sum

    @property
    def own_joint(self) -> float:
        """The same under the model alone."""
        return sum(self.own) + self.after_sum


def features(item: RowResult, others: Sequence[RowResult]) -> dict[str, float]:
    """Return the features of a row for a calibration, by name, also under names with the hole's position."""
    same = [other for other in others if other is not item and other.text == item.text]
    family = [item, *same]
    n_tokens = max(len(item.tokens), 1)
    left_chars = max((each.left for each in family if each.row == "copy"), default=0)
    right_chars = max((each.right for each in family if each.row == "copy"), default=0)
    settled = [each.entropy for each in family if each.entropy is not None]
    rows = {each.row for each in family}
    values = {
        "sum": sum(item.tokens),
        "mean": sum(item.tokens) / n_tokens,
        "least": min(item.tokens, default=0.0),
        "after": item.after,
        "joint": item.joint,
        "length": math.log1p(len(item.tokens)),
        "agree": math.log1p(len(same)),
        "copied": float("copy" in rows),
        "causal": float("causal" in rows),
        "noise": float("noise" in rows),
        "left": math.log1p(left_chars),
        "right": _right(right_chars),
        "settled": -min(settled) if settled else 0.0,
        "blank": float(not item.text.strip()),
        "whole": float(right_chars > 0) * math.log1p(left_chars),
        "repeats": item.repeats,
        "known": item.known,
        "context": math.log1p(item.context),
        **item.names,
        "own joint": item.own_joint,
        "own mean": sum(item.own) / n_tokens,
        "own least": min(item.own, default=0.0),
        "own gain": item.joint - item.own_joint,
        **_compared(item, others),
    }
    return calibration.for_position(values, item.position, BY_POSITION)


def _compared(item: RowResult, others: Sequence[RowResult]) -> dict[str, float]:
    """Return the features that compare a row with all rows of its hole, itself included."""
    share, margin = _among(item.joint, {other.text: other.joint for other in others}, item.text)
    own_share, own_margin = _among(item.own_joint, {other.text: other.own_joint for other in others}, item.text)
    values = {
        "share": share,
        "margin": margin,
        "own share": own_share,
        "own margin": own_margin,
        "texts": math.log(len({item.text, *(other.text for other in others)})),
    }
    if item.row == "copy":
        copies = [item, *others]
        values["behind left"] = math.log1p(max(copy.left for copy in copies)) - math.log1p(item.left)
        values["behind right"] = _right(max(copy.right for copy in copies)) - _right(item.right)
    return values


def _among(joint: float, joint_by_text: Mapping[str, float], text: str) -> tuple[float, float]:
    """Return the log of a text's share of the joint probability of all texts, and its margin in nats over the next text."""
    rest = [value for other, value in joint_by_text.items() if other != text]
    most = max([joint, *rest])
    total = most + math.log(sum(math.exp(value - most) for value in (joint, *rest)))
    margin = max(-MOST_MARGIN, min(MOST_MARGIN, joint - max(rest))) if rest else MOST_MARGIN
    return joint - total, margin


def _right(chars: int) -> float:
    return math.log1p(min(chars, MOST_RIGHT))


def repeated_lines(prefix: str, text: str, suffix: str) -> tuple[float, float]:
    """Return the share of an answer's lines that repeat a line near the hole, and the share that repeat any line around it.

    The first and last lines are compared together with the text left and right of the hole. Blank lines do not count.
    """
    above, _, head = prefix.rpartition("\n")
    tail, _, below = suffix.partition("\n")
    lines = [line.strip() for line in f"{head}{text}{tail}".split("\n")]
    before = [line for each in above.split("\n") if (line := each.strip())]
    after = [line for each in below.split("\n") if (line := each.strip())]
    near, around = {*before[-NEAR_LINES:], *after[:NEAR_LINES]}, {*before, *after}
    lines_with_text = [line for line in lines if line]
    n = max(len(lines_with_text), 1)
    return sum(line in near for line in lines_with_text) / n, sum(line in around for line in lines_with_text) / n


def evidence(items: Sequence[RowResult], *, doubted: bool = False) -> list[Evidence]:
    """Return the evidence for each row; its candidate has only a text and a row kind."""
    items_with_evidence = []
    for item in items:
        values = features(item, items)
        candidate = Candidate((item.text,), row=item.row)
        items_with_evidence.append(Evidence(candidate, calibration.linear(values, ORDER), values, doubted))
    return items_with_evidence
