"""Turn texts into ranked candidates: a causal pass scores each distinct text, and the calibration ranks them.

Knows fills, log-probabilities and the ranking. Knows nothing of how the texts were written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from dg_lsp.core import calibration, scope
from dg_lsp.core.calibration import Calibration, Evidence
from dg_lsp.core.values import Candidate
from dg_lsp.engine.decode import rank
from dg_lsp.engine.decode.fill import FileModel, FillInput
from dg_lsp.engine.decode.pace import Pace
from dg_lsp.engine.decode.rank import NamesInText, Proposal
from dg_lsp.engine.model.tree import ROOT, Tree

MIDDLING = -1.5  # nats: the assumed log-probability of an unscored token
UNSCORED_ORDER = Calibration(0.0, {"mean": 1.0})  # by the sum, the shortest text would rank best
LEAST_CHANCE = 1e-12
MOST_NEAR, NEAR = 3, 3.0  # candidates that are read on: so many, at most so many nats behind the best
FOLLOW_WEIGHT = 0.75  # of the log-probability of what follows an answer, compared with the answer's own
UNCLOSED_NATS = 8.0  # the suffix does not follow an answer if its log-probability there is lower than minus this


class Scorer:
    """Scores the texts of one hole after its encoded prefix, each text only once.

    The causal model says how likely a text is after the left side, and the right side after both. With the tree `right`, the
    canvas adapter also says how likely the text is between both sides. The tree `plain` is that of the left side alone, if the
    prefix holds more. Without a tree, texts keep the log-probabilities with which they were written.
    """

    def __init__(
        self,
        fill: FillInput,
        tree: Tree | None,
        file: FileModel | None,
        pace: Pace,
        right: Tree | None = None,
        plain: Tree | None = None,
    ) -> None:
        self._fill, self._tree, self.file, self._pace, self._right, self._plain = fill, tree, file, pace, right, plain
        self._scores: dict[str, _Scores] = {}
        self._between: dict[str, float] = {}
        self._names = NamesInText(fill.request)

    def score(self, results: Sequence[Proposal]) -> list[Proposal]:
        """Return the results with the log-probabilities of their tokens and of the text after them, and their position."""
        fill, texts = self._fill, list(dict.fromkeys(result.text for result in results))
        is_read = fill.switches.scorer and self._tree is not None
        if is_read:
            self._read([text for text in texts if text not in self._scores])
            new, end = [text for text in texts if text not in self._between], fill.sheet.end
            if self._right is not None and new and end is not None:
                rows = self._right.log_probabilities([[*self._coded(text), end] for text in new])
                self._between |= {text: sum(row) for text, row in zip(new, rows, strict=True)}
        instruction = fill.request.holes[0].instruction if fill.n_holes == 1 else ""
        unsaid = rank.unsaid(instruction, [result.text for result in results], fill.request.language)
        scored = list[Proposal]()
        for result, n_unsaid in zip(results, unsaid, strict=True):
            text, scores = result.text, self._scores.get(result.text)
            if is_read and scores is not None:
                total, between = sum(scores.after), self._between.get(text, 0.0)
                after = total / max(len(scores.after), 1)
                result = replace(result, tokens=scores.tokens, own=scores.own, after=after, after_sum=total, between=between)
            repeats, known_share = rank.repeated_lines(fill.request.prefix, text, fill.request.suffix)
            scored.append(
                replace(
                    result,
                    position=fill.position,
                    repeats=repeats,
                    known=known_share,
                    names=self._names.features(text),
                    context=len(fill.sheet.kv or fill.sheet.left),
                    missing=len(scope.missing(fill.needed, text)),
                    unsaid=n_unsaid,
                )
            )
        return scored

    def read_on(self, results: Sequence[Proposal]) -> list[Proposal]:
        """Return the scored results with `onward`: how likely the suffix is after the left side and each of the likeliest.

        A small model that has read the suffix before it writes hardly uses it to choose between answers. Where the suffix
        comes after an answer, the model says better how well both fit.
        """
        orders: dict[str, float] = {}
        for result in results:
            order = calibration.linear({"joint": result.joint, **result.incomplete}, rank.ORDER)
            orders[result.text] = max(order, orders.get(result.text, -math.inf))
        best = max(orders.values(), default=0.0)
        near = sorted((text for text in orders if orders[text] >= best - NEAR), key=lambda text: -orders[text])[:MOST_NEAR]
        if self._plain is None or not self._fill.switches.scorer or len(near) < 2:
            return list(results)
        # The last token may end inside a character.
        follow = self._fill.vocabulary.decode(self._fill.sheet.follow).rstrip("\ufffd")
        parts = [self._joined(text, follow) for text in near]
        with self._pace.measuring("score", sum(len(ids) + len(after) for ids, after in parts)):
            rows = self._plain.log_probabilities([[*ids, *after] for ids, after in parts], [len(ids) for ids, _ in parts])
        found = {text: FOLLOW_WEIGHT * sum(row) for text, row in zip(near, rows, strict=True)}
        most, least = max(found.values()), min(found.values())
        return [replace(result, onward=found.get(result.text, least) - most) for result in results]

    def learn(self, text: str, ids: Sequence[int], logps: Sequence[float], end: float) -> None:
        """Store the log-probabilities from drafting, if the text's tokens are the drafted ones."""
        known = self._scores if self._right is None else self._between
        if text in known or self._coded(text) != list(ids):
            return
        if self._right is None:
            self._scores[text] = self._scores_of(ids, logps, (end,))
        else:
            self._between[text] = sum(logps) + end

    def prepare(self, texts: Sequence[str]) -> None:
        """Let the pass that reads the right side read these texts too, if there is such a pass."""
        if self._right is not None:
            self._right.grow((ROOT, self._coded(text)) for text in texts)

    def _coded(self, text: str) -> list[int]:
        """Return the ids of a text, with those of the typed characters that it continues."""
        return self._fill.vocabulary.encode(self._fill.heal_text + text)

    def _read(self, texts: Sequence[str]) -> None:
        """Learn the causal log-probabilities of texts and of what follows them, by the likeliest way to read each."""
        if not texts or self._tree is None:
            return
        readings = [(text, *reading) for text in texts for reading in self._readings(text)]
        with self._pace.measuring("score", sum(len(ids) + len(after) for _, ids, after in readings)):
            rows = self._tree.log_probabilities([[*ids, *after] for _, ids, after in readings])
        best: dict[str, tuple[list[int], list[float]]] = {}
        for (text, ids, _), row in zip(readings, rows, strict=True):
            if text not in best or sum(row) > sum(best[text][1]):
                best[text] = ids, row
        self._scores |= {text: self._scores_of(ids, row[: len(ids)], row[len(ids) :]) for text, (ids, row) in best.items()}

    def _readings(self, text: str) -> list[tuple[list[int], list[int]]]:
        """Return the ways to read a text, each as its ids and those of what follows it: the end token, or the held suffix.

        A pretrained model knows code only as its tokenizer encodes it. So the text and the suffix are encoded together, and a
        token of both counts as the suffix's. Trained to fill in the middle, such a model may end an answer, or write on into
        the suffix's first line.
        """
        sheet, vocabulary = self._fill.sheet, self._fill.vocabulary
        alone, end = self._coded(text), None if self._right is not None else sheet.end
        if not sheet.heals_by_parts:
            return [(alone, [end] if end is not None else list(sheet.tail))]
        held = vocabulary.decode(sheet.tail)
        if end is None:
            return [self._joined(text, held)]
        # Up to the first line end, or if it starts with one, up to the end of the first line with visible text.
        n_blank = len(held) - len(held.lstrip()) if held.startswith("\n") else 0
        line, line_end, _ = held[n_blank:].partition("\n")
        return [(alone, [end]), self._joined(text, held[:n_blank] + line if n_blank else line + line_end)]

    def _joined(self, text: str, after: str) -> tuple[list[int], list[int]]:
        """Return the ids of a text and of what follows it, encoded together."""
        vocabulary, own = self._fill.vocabulary, self._fill.heal_text + text
        ids, n_bytes = vocabulary.encode(own + after), len(own.encode())
        n_own = sum(length <= n_bytes for length in accumulate(len(vocabulary.pieces[token]) for token in ids))
        return ids[:n_own], ids[n_own:]

    def _scores_of(self, ids: Sequence[int], logps: Sequence[float], after: Sequence[float]) -> _Scores:
        own = tuple(logps)
        return _Scores(own if self.file is None else tuple(mixed(self.file, ids, own)), own, tuple(after))


@dataclass(frozen=True, slots=True)
class _Scores:
    """Natural log-probabilities of a text.

    `tokens` are those of its tokens under the model mixed with the file model, `own` under the model alone, and `after` those
    of the tokens after it.
    """

    tokens: tuple[float, ...]
    own: tuple[float, ...]
    after: tuple[float, ...]


def mixed(file: FileModel, ids: Sequence[int], logps: Sequence[float]) -> list[float]:
    """Return the log-probabilities of `ids` under the mixture of the model and the file model."""
    mixed_logps = []
    for index, token in enumerate(ids):
        guess = file.guess(ids[:index])
        chance = (1 - guess.weight) * math.exp(logps[index]) + guess.weight * guess.shares.get(token, 0.0)
        mixed_logps.append(math.log(max(chance, LEAST_CHANCE)))
    return mixed_logps


def evidence(fill: FillInput, results: Sequence[Proposal], steps: int) -> list[Evidence]:
    """Return the evidence for scored results, in the same order. `steps` is the canvas's number of steps."""
    # A token that a model of masks wrote has a log-probability, but those that it deleted and the text after it have none.
    items, n_typed = rank.evidence(results, rank.ORDER if fill.sheet.kv else UNSCORED_ORDER), len(fill.heal_text)
    for index, (item, result) in enumerate(zip(items, results, strict=True)):
        # Each token's number of characters in the answer, without already typed characters; empty if unknown.
        lengths: tuple[tuple[int, ...], ...] = ()
        whole = fill.vocabulary.lengths(fill.vocabulary.encode(fill.heal_text + result.text))
        if len(whole) == len(result.tokens) and sum(whole) == n_typed + len(result.text):
            ends = [max(end - n_typed, 0) for end in accumulate(whole)]
            lengths = (tuple(end - start for start, end in pairwise((0, *ends))),)
        chances = tuple(min(1.0, math.exp(logp)) for logp in result.tokens)
        candidate = replace(item.candidate, confidences=(chances,), steps=steps, lengths=lengths)
        items[index] = replace(item, candidate=candidate)
    return items


def is_unclosed(fill: FillInput, result: Proposal) -> bool:
    """Return whether the causal model finds the suffix unlikely after a result; True if no suffix is held."""
    return not fill.tail or -result.after * len(fill.tail) > UNCLOSED_NATS


def unscored_candidates(fill: FillInput, results: Sequence[Proposal]) -> tuple[Candidate, ...]:
    """Return unscored results as unfinished candidates, ranked with an assumed log-probability for each token.

    Their confidence is not calibrated, because a calibration is fitted on scored candidates.
    """
    guessed = []
    for result in results:
        tokens = (MIDDLING,) * (len(result.text) // 4 + 1)
        guessed.append(replace(result, tokens=tokens, own=tokens, position=fill.position))
    weights = fill.calibration or UNSCORED_ORDER
    items = [replace(item, order=calibration.linear(item.features, weights)) for item in rank.evidence(guessed, doubted=True)]
    return tuple(replace(candidate, finished=False) for candidate in calibration.to_candidates(items, None))
