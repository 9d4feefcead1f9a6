"""Compute the features that rank the rows of a local model.

They are a candidate's causal log-probability, its canvas's entropy, how far a copied draft agrees with both sides, and how
many rows agree. Knows numbers. Knows nothing of tensors.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from dg_lsp.core import calibration, languages, scope
from dg_lsp.core.calibration import Calibration, Evidence, HolePosition
from dg_lsp.core.place import Place
from dg_lsp.core.values import Candidate, InfillRequest, RowKind

NEAR_LINES = 3
MOST_RIGHT = 24  # characters
MOST_MARGIN = 10.0  # nats
BY_POSITION = frozenset(
    {"joint", "sum", "mean", "after", "copied", "causal", "noise", "left", "right", "length", "settled"}
    | {"margin", "share", "new names", "own joint", "own mean", "own share", "own margin"}
)
"""The features whose weight depends on the hole's position. With all of them, too few answers determine each weight."""
MOST_MISSING = 3
ORDER = Calibration(0.0, {"joint": 1.0, "incomplete": -8.0, "missing": -4.0})
"""The ranking of candidates for a checkpoint without a calibration. It gives an order, not a probability.

It is the joint log-probability of the answer and the text after it. Only a sum compares answers of different lengths. An answer
that leaves names unbound which the code after it needs ranks as if it were less likely, and so does one that lacks words of the
instruction.
"""
COMMON = frozenset(re.findall(r"\w+", "all and any are each for from has have into its not one that the then this when with"))
"""Words of instructions that say nothing about code, even where they are keywords; shorter ones say nothing either."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One row's answer and the numbers known about it, which are the ranking's features. Log-probabilities are natural.

    `logps` are the causal log-probabilities of the answer's tokens, mixed with those of the file's repetitions if the profile
    says so; `model_logps` are those of the model alone. `after` are those of what follows the answer: the end token, or else
    the suffix's first tokens. `suffix_margin` is how likely the suffix is after the answer, read from left to right, compared
    with the best of the other candidates; 0 at most. `entropy` is the canvas's mean in nats, None if not computed. `left` and
    `right` are those of a copy (`copies.Copy`). A first draft is `ahead` of the start of any branch by so many nats, and it
    `is_sure` if nothing is likely to be better.

    `of_text` are the features that follow from the text alone (`Describer`); none are known before.
    """

    text: str
    row: RowKind
    logps: tuple[float, ...] = ()
    model_logps: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    suffix_margin: float = 0.0
    entropy: float | None = None
    left: int = 0
    right: int = 0
    ahead: float = 0.0
    is_sure: bool = False
    position: HolePosition = "end"
    of_text: Mapping[str, float] = field(default_factory=dict)

    @property
    def after_mean(self) -> float:
        """The mean log-probability of the tokens after the answer; 0 if none is known."""
        return sum(self.after) / max(len(self.after), 1)

    @property
    def joint_logp(self) -> float:
        """The log-probability of the answer and the suffix after it, with what reading on said."""
        return sum(self.logps) + sum(self.after) + self.suffix_margin

    @property
    def model_joint_logp(self) -> float:
        """The same under the model alone."""
        return sum(self.model_logps) + sum(self.after) + self.suffix_margin


def features(item: Proposal, others: Sequence[Proposal]) -> dict[str, float]:
    """Return the features of a row for a calibration, by name, also under names with the hole's position."""
    same = [other for other in others if other is not item and other.text == item.text]
    family = [item, *same]
    n_tokens = max(len(item.logps), 1)
    left_chars = max((each.left for each in family if each.row == "copy"), default=0)
    right_chars = max((each.right for each in family if each.row == "copy"), default=0)
    settled = [each.entropy for each in family if each.entropy is not None]
    rows = {each.row for each in family}
    values = {
        "sum": sum(item.logps),
        "mean": sum(item.logps) / n_tokens,
        "least": min(item.logps, default=0.0),
        "after": item.after_mean,
        "joint": item.joint_logp,
        "chance": math.exp(min(item.joint_logp, 0.0)),
        "length": math.log1p(len(item.logps)),
        "agree": math.log1p(len(same)),
        "copied": float("copy" in rows),
        "causal": float("causal" in rows),
        "noise": float("noise" in rows),
        "left": math.log1p(left_chars),
        "right": _right(right_chars),
        "settled": -min(settled) if settled else 0.0,
        "whole": float(right_chars > 0) * math.log1p(left_chars),
        "onward": item.suffix_margin,
        **item.of_text,
        "own joint": item.model_joint_logp,
        "own mean": sum(item.model_logps) / n_tokens,
        "own least": min(item.model_logps, default=0.0),
        "own gain": item.joint_logp - item.model_joint_logp,
        "texts": math.log(len({item.text, *(other.text for other in others)})),
    }
    values["share"], values["margin"] = _among(item.joint_logp, {each.text: each.joint_logp for each in others}, item.text)
    own_logps = {each.text: each.model_joint_logp for each in others}
    values["own share"], values["own margin"] = _among(item.model_joint_logp, own_logps, item.text)
    if item.row == "copy":
        copies = [item, *others]
        values["behind left"] = math.log1p(max(copy.left for copy in copies)) - math.log1p(item.left)
        values["behind right"] = _right(max(copy.right for copy in copies)) - _right(item.right)
    return calibration.for_position(values, item.position, BY_POSITION)


def _among(joint: float, joint_by_text: Mapping[str, float], text: str) -> tuple[float, float]:
    """Return the log of a text's share of the joint probability of all texts, and its margin in nats over the next text."""
    rest = [value for other, value in joint_by_text.items() if other != text]
    most = max([joint, *rest])
    total = most + math.log(sum(math.exp(value - most) for value in (joint, *rest)))
    margin = max(-MOST_MARGIN, min(MOST_MARGIN, joint - max(rest))) if rest else MOST_MARGIN
    return joint - total, margin


def _right(chars: int) -> float:
    return math.log1p(min(chars, MOST_RIGHT))


def unsaid(instruction: str, texts: Sequence[str], language: str) -> list[int]:
    """Return how many words of an instruction each answer lacks, of those that at least one answer has as a name in its code.

    So `raise ValueError` asks for both words if there is such an answer, and most words of a sentence ask for nothing.
    """
    wanted = {word for word in _NAME.findall(instruction) if len(word) > 2} - COMMON
    comment = "|".join(map(re.escape, languages.row(language).line_comments)) or r"\Z"
    # Of a string, what it takes from code counts, as an f-string does.
    inserted = [_STRING.sub(lambda string: f" {' '.join(_INSERTED.findall(string[0]))} ", text) for text in texts]
    codes = [re.sub(rf"(?:^|\s)(?:{comment}).*", "", text) for text in inserted]
    words = [wanted.intersection(_NAME.findall(code)) for code in codes]
    said = set[str]().union(*words)
    return [len(said - each) for each in words]


def repeated_lines(place: Place, text: str) -> tuple[float, float]:
    """Return the share of an answer's lines that repeat a line near its place, and the share that repeat any line around it.

    The first and last lines are compared together with the text left and right of the hole. Blank lines do not count.
    """
    lines = [line.strip() for line in f"{place.head}{text}{place.tail}".split("\n")]
    before = [line for each in place.above.split("\n") if (line := each.strip())]
    after = [line for each in place.below.split("\n") if (line := each.strip())]
    near, around = {*before[-NEAR_LINES:], *after[:NEAR_LINES]}, {*before, *after}
    lines_with_text = [line for line in lines if line]
    n = max(len(lines_with_text), 1)
    return sum(line in near for line in lines_with_text) / n, sum(line in around for line in lines_with_text) / n


def evidence(items: Sequence[Proposal], order: Calibration = ORDER, *, doubted: bool = False) -> list[Evidence]:
    """Return the evidence for each row; its candidate has only a text and a row kind. Without a calibration, `order` ranks."""
    values = [features(item, items) for item in items]
    candidates = [Candidate((item.text,), row=item.row) for item in items]
    pairs = zip(candidates, values, strict=True)
    return [Evidence(candidate, calibration.linear(own, order), own, doubted) for candidate, own in pairs]


MOST_CHARS = 12_000  # on each side of a hole
MOST_OPEN = 3  # brackets
RARE = 50  # names; so that a rare name of a short text does not count as frequent
_NAME = re.compile(r"[^\W\d]\w*")
_STRING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_INSERTED = re.compile(r"\{([^{}]*)\}")
_BRACKETS = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)


class NamesInText:
    """The names in the text around a request's only hole, and the features of an answer that follow from them."""

    def __init__(self, request: InfillRequest) -> None:
        self._is_block = request.extent == "block"
        before, after = request.prefix[-MOST_CHARS:], request.suffix[:MOST_CHARS]
        self._left, self._right = request.place.head, request.place.tail
        # The parts of a name next to the hole are no names. Together with the answer they become one.
        self._head = "".join(takewhile(_is_word, reversed(before)))[::-1]
        self._tail = "".join(takewhile(_is_word, after))
        around = f"{before[: len(before) - len(self._head)]}\n{after[len(self._tail) :]}"
        self._counts = Counter(_NAME.findall(around))
        language = languages.get(request.language)
        self._known = self._counts.keys() | (languages.words(language) if language else frozenset())

    def features(self, text: str) -> dict[str, float]:
        """Return the features of an answer by name; shares are from 0 to 1, and numbers of things are logarithms."""
        joined = self._head + text + self._tail
        names = _NAME.findall(_STRING.sub("''", joined))
        n_new = sum(name not in self._known for name in names)
        # Brackets that stay open in the answer's lines, or in its line, and whether a quote does.
        parts = (text,) if self._is_block else (self._left, text, self._right)
        n_open = sum(_BRACKETS.get(char, 0) for part in parts for char in _STRING.sub("", part))
        line = f"{self._left}{text}{self._right}"
        values = {
            "new names": math.log1p(n_new),
            "new share": n_new / max(len(names), 1),
            "no names": float(not names),
            "frequency": math.log((self._counts[names[0]] + 1) / (self._counts.total() + RARE)) if names else 0.0,
            "chars": math.log1p(len(text)),
            "colon": float(text.rstrip().endswith(":")),
            "comma": float(text.rstrip().endswith(",")),
            "open": float(min(abs(n_open), MOST_OPEN)),
            "quotes": float(line.count('"') % 2 + line.count("'") % 2 > 0),
        }
        if self._head and text:  # it may continue the name before the cursor
            name = _NAME.match(joined)
            is_known, continues = name is not None and name[0] in self._known, _is_word(text[0])
            values["known name"], values["continues"] = float(is_known), float(continues)
            values["unknown name"] = float(name is not None and not is_known and continues)
        if self._tail and text and _is_word(text[-1]):
            values["joins right"] = 1.0
        return values


class Describer:
    """Adds to proposals the features that follow from their texts.

    `repeats` and `known` are shares of the answer's lines (`repeated_lines`), and `context` is the number of tokens that the
    model read. An answer is `incomplete` if it leaves one of the `needed` names unbound. `missing` counts these names, and the
    words of the instruction that the answer lacks and another one has. The others are those of `NamesInText`.
    """

    def __init__(self, request: InfillRequest, n_context: int) -> None:
        self._request, self._n_context = request, n_context
        self._position, self._names = calibration.position(request), NamesInText(request)

    def described(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the proposals for the only hole with their position and the features of their texts."""
        request = self._request
        hole = request.holes[0]
        n_unsaid = unsaid(hole.instruction, [proposal.text for proposal in proposals], request.language)
        described = list[Proposal]()
        for proposal, n in zip(proposals, n_unsaid, strict=True):
            repeats, known = repeated_lines(request.place, proposal.text)
            n_missing = len(scope.missing(hole.needed, proposal.text))
            of_text = {
                "repeats": repeats,
                "known": known,
                "context": math.log1p(self._n_context),
                "incomplete": float(n_missing > 0),
                "missing": float(min(n_missing + n, MOST_MISSING)),
                **self._names.features(proposal.text),
            }
            described.append(replace(proposal, position=self._position, of_text=of_text))
        return described


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
