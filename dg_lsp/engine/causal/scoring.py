"""Score texts: a causal pass reads each distinct text and what follows it.

Knows the middle, log-probabilities and the ranking. Knows nothing of how the texts were written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from dg_lsp.core import calibration
from dg_lsp.engine.causal.middle import Middle
from dg_lsp.engine.common import rank
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.common.rank import Describer, Proposal
from dg_lsp.engine.model.tree import ROOT, Tree

MOST_NEAR, NEAR = 3, 3.0  # candidates that are read on: so many, at most so many nats behind the best
FOLLOW_WEIGHT = 0.75  # of the log-probability of what follows an answer, compared with the answer's own


@dataclass(frozen=True, slots=True)
class Trees:
    """The trees of tokens after one sheet.

    `plain` is the model's. In `adapted` the suffix adapter has read the right side before; None without one. `left` follows
    the left side alone, if the prompt holds the suffix too.
    """

    plain: Tree
    adapted: Tree | None = None
    left: Tree | None = None

    @property
    def drafts(self) -> Tree:
        """The tree in which drafts are written."""
        return self.adapted or self.plain


class Scorer:
    """Scores the texts of one hole after its encoded sheet, each text only once.

    The model says how likely a text is after its sheet, and the suffix after both. With a suffix adapter, the adapted model
    also says how likely the text is between both sides.
    """

    def __init__(self, middle: Middle, trees: Trees, pace: Pace) -> None:
        self._middle, self._trees, self._pace = middle, trees, pace
        self._scores: dict[str, _Scores] = {}
        self._adapted: dict[str, float] = {}
        self._describer = Describer(middle.request, needed=middle.needed, n_context=len(middle.sheet.ids))

    def score(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the proposals with the log-probabilities of their tokens and of the suffix after them, and their features."""
        if not self._middle.switches.scorer:
            return self._describer.described(proposals)
        texts = list(dict.fromkeys(proposal.text for proposal in proposals))
        self._read([text for text in texts if text not in self._scores])
        self._read_adapted([text for text in texts if text not in self._adapted])
        scored = []
        for proposal in proposals:
            scores = self._scores[proposal.text]
            total = sum(scores.after)
            scored.append(
                replace(
                    proposal,
                    logps=scores.logps,
                    model_logps=scores.logps,
                    suffix_mean=total / max(len(scores.after), 1),
                    suffix_sum=total,
                    adapted_logp=self._adapted.get(proposal.text, 0.0),
                )
            )
        return self._describer.described(scored)

    def read_on(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the scored proposals with `suffix_margin`: how likely the suffix is after the left side and the likeliest.

        A small model that has read the suffix before it writes hardly uses it to choose between answers. Where the suffix
        comes after an answer, the model says better how well both fit.
        """
        orders: dict[str, float] = {}
        for proposal in proposals:
            order = calibration.linear({"joint": proposal.joint_logp, **proposal.incomplete}, rank.ORDER)
            orders[proposal.text] = max(order, orders.get(proposal.text, -math.inf))
        best = max(orders.values(), default=0.0)
        near = sorted((text for text in orders if orders[text] >= best - NEAR), key=lambda text: -orders[text])[:MOST_NEAR]
        if self._trees.left is None or not self._middle.switches.scorer or len(near) < 2:
            return list(proposals)
        # The last token may end inside a character.
        follow = self._middle.vocabulary.decode(self._middle.sheet.follow).rstrip("\ufffd")
        parts = [self._joined(text, follow) for text in near]
        with self._pace.measuring("score", sum(len(ids) + len(after) for ids, after in parts)):
            rows = self._trees.left.log_probabilities([[*ids, *after] for ids, after in parts], [len(ids) for ids, _ in parts])
        found = {text: FOLLOW_WEIGHT * sum(row) for text, row in zip(near, rows, strict=True)}
        most, least = max(found.values()), min(found.values())
        return [replace(proposal, suffix_margin=found.get(proposal.text, least) - most) for proposal in proposals]

    def learn(self, text: str, ids: Sequence[int], logps: Sequence[float], end: float | None) -> None:
        """Store the adapted model's log-probabilities from drafting, if the text's tokens are the drafted ones.

        The model itself scores each text with what follows it.
        """
        if self._trees.adapted is None or end is None or text in self._adapted:
            return
        if self._middle.ids_of(text) == list(ids):
            self._adapted[text] = sum(logps) + end

    def prepare(self, texts: Sequence[str]) -> None:
        """Let the pass that reads the right side read these texts too, if there is such a pass."""
        if self._trees.adapted is not None:
            self._trees.adapted.grow((ROOT, self._middle.ids_of(text)) for text in texts)

    def _read_adapted(self, texts: Sequence[str]) -> None:
        """Learn the adapted model's log-probabilities of texts and their end."""
        tree, end = self._trees.adapted, self._middle.sheet.end
        if tree is not None and texts and end is not None:
            rows = tree.log_probabilities([[*self._middle.ids_of(text), end] for text in texts])
            self._adapted |= {text: sum(row) for text, row in zip(texts, rows, strict=True)}

    def _read(self, texts: Sequence[str]) -> None:
        """Learn the model's log-probabilities of texts and of what follows them, by the likeliest way to read each."""
        if not texts:
            return
        readings = [(text, *reading) for text in texts for reading in self._readings(text)]
        with self._pace.measuring("score", sum(len(ids) + len(after) for _, ids, after in readings)):
            rows = self._trees.plain.log_probabilities([[*ids, *after] for _, ids, after in readings])
        best: dict[str, tuple[list[int], list[float]]] = {}
        for (text, ids, _), row in zip(readings, rows, strict=True):
            if text not in best or sum(row) > sum(best[text][1]):
                best[text] = ids, row
        self._scores |= {text: _Scores(tuple(row[: len(ids)]), tuple(row[len(ids) :])) for text, (ids, row) in best.items()}

    def _readings(self, text: str) -> list[tuple[list[int], list[int]]]:
        """Return the ways to read a text, each as its ids and those of what follows it: the end token, or the held suffix.

        A pretrained model knows code only as its tokenizer encodes it. So the text and the suffix are encoded together, and a
        token of both counts as the suffix's. Trained to fill in the middle, such a model may end an answer, or write on into
        the suffix's first line.
        """
        sheet = self._middle.sheet
        held = self._middle.vocabulary.decode(sheet.tail)
        if sheet.end is None or self._trees.adapted is not None:
            return [self._joined(text, held)]
        # Up to the first line end, or if it starts with one, up to the end of the first line with visible text.
        n_blank = len(held) - len(held.lstrip()) if held.startswith("\n") else 0
        line, line_end, _ = held[n_blank:].partition("\n")
        after = held[:n_blank] + line if n_blank else line + line_end
        return [(self._middle.ids_of(text), [sheet.end]), self._joined(text, after)]

    def _joined(self, text: str, after: str) -> tuple[list[int], list[int]]:
        """Return the ids of a text and of what follows it, encoded together."""
        vocabulary, own = self._middle.vocabulary, self._middle.typed + text
        ids, n_bytes = vocabulary.encode(own + after), len(own.encode())
        n_own = sum(length <= n_bytes for length in accumulate(len(vocabulary.pieces[token]) for token in ids))
        return ids[:n_own], ids[n_own:]


@dataclass(frozen=True, slots=True)
class _Scores:
    """Natural log-probabilities of a text: `logps` of its tokens, and `after` of the tokens after it."""

    logps: tuple[float, ...]
    after: tuple[float, ...]
