"""Score texts with what follows them: after all that the model read, and after the left side alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from dg_lsp.core import calibration
from dg_lsp.core.place import first_line
from dg_lsp.engine.causal.middle import Middle
from dg_lsp.engine.common import rank, scoring
from dg_lsp.engine.common.generation import MIDDLING
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.common.scoring import Reading
from dg_lsp.engine.model.tree import Tree

MOST_NEAR, NEAR = 3, 3.0  # candidates that are read on: so many, at most so many nats behind the best
FOLLOW_WEIGHT = 0.75  # of the log-probability of what follows an answer, compared with the answer's own


class Scorer(scoring.Scorer):
    """Scores the texts of one hole in the `tree` of drafts, and in that after the left side alone if the prompt holds more."""

    def __init__(self, middle: Middle, tree: Tree, left: Tree | None, pace: Pace) -> None:
        super().__init__(middle, tree, pace)
        self._middle, self._left = middle, left
        self._copied = set[str]()

    def score(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the proposals with the log-probabilities of their tokens and of the suffix after them, and their features."""
        self._copied |= {each.text for each in proposals if each.row == "copy"}
        return super().score(proposals)

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
        if self._left is None or len(near) < 2:
            return list(proposals)
        # The last token may end inside a character.
        follow = self._middle.vocabulary.decode(self._middle.prompt.follow).rstrip("\ufffd")
        parts = [self._joined(text, follow) for text in near]
        typed = self._middle.prompt.typed
        with self._pace.measuring("score", len(typed) + sum(len(ids) + len(after) for ids, after in parts)):
            rows = self._left.log_probabilities(
                [[*typed, *ids, *after] for ids, after in parts], [len(typed) + len(ids) for ids, _ in parts]
            )
        found = {text: FOLLOW_WEIGHT * sum(row) for text, row in zip(near, rows, strict=True)}
        most, least = max(found.values()), min(found.values())
        return [replace(proposal, suffix_margin=found.get(proposal.text, least) - most) for proposal in proposals]

    def _read(self, texts: Sequence[str]) -> None:
        """Learn the log-probabilities of texts and of what follows them, as far as they matter.

        A reading that can't be the likeliest of its text is left out. If only the likeliest answer is wanted, so is a text
        that is behind it in any case, unless it is a copy that a calibration may prefer: it counts as if its unknown tokens
        were middling.
        """
        readings = [(text, *reading) for text in texts for reading in self.readings(text)]
        bounds = [self._tree.bound([*ids, *after]) for _, ids, after in readings]
        least = dict.fromkeys(texts, -math.inf)
        for (text, _, _), bound in zip(readings, bounds, strict=True):
            least[text] = max(least[text], bound.logp if bound.is_exact else -math.inf)
        if self._middle.wants_likeliest:
            behind = max(least.values(), default=0.0) - NEAR
            weights = self._middle.calibration
            kept = self._copied if weights is not None and weights.reorders else set()
            least = {text: logp if text in kept else max(logp, behind) for text, logp in least.items()}
        chosen = list[tuple[str, list[int], list[int]]]()
        for reading, bound in sorted(zip(readings, bounds, strict=True), key=lambda pair: pair[1].logp):
            text, ids, _ = reading
            if bound.is_exact or bound.logp > least[text]:
                chosen.append(reading)
            guess = bound.logp + MIDDLING * bound.n_unknown
            self._keep(text, ids, [guess / max(len(ids), 1)] * len(ids), [])
        if chosen:
            self._likeliest(chosen)

    def readings(self, text: str) -> list[Reading]:
        """Return the ways to read a text, each as its ids and those of what follows it: the end token, or the held suffix.

        A pretrained model knows code only as its tokenizer encodes it. So the text and the suffix are encoded together, and a
        token of both counts as the suffix's. Trained to fill in the middle, such a model may end an answer, or write on into
        the suffix's first line.
        """
        prompt = self._middle.prompt
        held = self._middle.vocabulary.decode(prompt.tail)
        if prompt.end is None:
            return [self._joined(text, held)]
        # Up to the first line end, or if it starts with one, up to the end of the first line with visible text.
        n_blank = len(held) - len(held.lstrip()) if held.startswith("\n") else 0
        line = held[:n_blank] + first_line(held[n_blank:])
        after = line if n_blank else held[: len(line) + 1]
        return [(self._middle.ids_of(text), [prompt.end]), self._joined(text, after)]

    def _joined(self, text: str, after: str) -> Reading:
        """Return the ids of a text and of what follows it, encoded together."""
        vocabulary, own = self._middle.vocabulary, self._middle.typed + text
        ids, n_bytes = vocabulary.encode(own + after), len(own.encode())
        n_own = sum(length <= n_bytes for length in accumulate(len(vocabulary.pieces[token]) for token in ids))
        return ids[:n_own], ids[n_own:]
