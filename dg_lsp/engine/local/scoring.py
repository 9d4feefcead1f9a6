"""From texts to candidates: one causal pass scores each distinct text, and the calibration ranks them.

Knows fills, log-probabilities and the ranking. Knows nothing of how a text was made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch

from dg_lsp.core.values import Candidate
from dg_lsp.engine import calibration, rank
from dg_lsp.engine.calibration import Evidence
from dg_lsp.engine.file_model import FileModel
from dg_lsp.engine.local.fill import Fill
from dg_lsp.engine.passes import KV, crop, widen
from dg_lsp.engine.rank import RowResult

MIDDLING = -1.5  # nats: the log-probability of a token that nobody has scored yet
LEAST_CHANCE = 1e-12


class Scorer:
    """Scores the texts of one hole behind its encoded prefix; each text costs a pass only once."""

    def __init__(self, fill: Fill, kv: KV, file: FileModel | None) -> None:
        self._fill, self._kv, self._file = fill, kv, file
        self._known: dict[str, tuple[tuple[float, ...], float]] = {}

    def score(self, results: Sequence[RowResult]) -> list[RowResult]:
        """Return the results with the log-probabilities of their tokens and of what comes after, and their place."""
        if self._fill.switches.scorer:
            new = [text for text in dict.fromkeys(result.text for result in results) if text not in self._known]
            if new:
                self._known |= dict(zip(new, self._log_probabilities(new), strict=True))
            known = self._known
            results = [replace(result, tokens=known[result.text][0], after=known[result.text][1]) for result in results]
        return [replace(result, position=self._fill.position) for result in results]

    def _log_probabilities(self, texts: Sequence[str]) -> list[tuple[tuple[float, ...], float]]:
        """Return, for each text, the causal log-probability of its tokens, and that of what comes after it."""
        fill, sheet = self._fill, self._fill.sheet
        after = [sheet.end] if sheet.end is not None else list(sheet.tail)
        coded = [fill.vocabulary.encode(fill.heal_text + text) for text in texts]
        rows = [[sheet.kv[-1], *ids, *after] for ids in coded]
        width = max(map(len, rows))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=fill.loaded.device)
        before = crop(self._kv, len(sheet.kv) - 1)
        hidden, _ = fill.passes.encode(padded, widen(before, len(rows)))
        logps = fill.passes.logits(hidden[:, :-1]).log_softmax(-1).gather(-1, padded[:, 1:, None])[..., 0].tolist()
        scores = []
        for ids, row in zip(coded, logps, strict=True):
            behind = row[len(ids) : len(ids) + len(after)]
            own = row[: len(ids)] if self._file is None else _mixed(self._file, ids, row)
            scores.append((tuple(own), sum(behind) / len(behind) if behind else 0.0))
        return scores


def _mixed(file: FileModel, ids: Sequence[int], logps: Sequence[float]) -> list[float]:
    """Return the log-probabilities of `ids` under the model and the file together."""
    mixed = []
    for index, token in enumerate(ids):
        guess = file.guess(ids[:index])
        chance = (1 - guess.weight) * math.exp(logps[index]) + guess.weight * guess.shares.get(token, 0.0)
        mixed.append(math.log(max(chance, LEAST_CHANCE)))
    return mixed


def candidates(fill: Fill, results: Sequence[RowResult], steps: int) -> tuple[Candidate, ...]:
    """Return scored results as candidates, each distinct text once, best first; `steps` says how many the canvas took."""
    return calibration.stated(evidence(fill, results, steps), fill.calibration)


def evidence(fill: Fill, results: Sequence[RowResult], steps: int) -> list[Evidence]:
    """Return scored results as candidates with what is known of them, in the same order."""
    return [
        replace(
            known,
            candidate=Candidate(
                (result.text,),
                confidences=(tuple(min(1.0, math.exp(logp)) for logp in result.tokens),),
                row=result.row,
                steps=steps,
                lengths=_lengths(fill, result),
            ),
        )
        for known, result in zip(rank.evidence(results), results, strict=True)
    ]


def unscored_candidates(fill: Fill, results: Sequence[RowResult]) -> tuple[Candidate, ...]:
    """Return results that have had no pass as unfinished candidates, ranked as if each token were middling likely.

    A calibration says nothing of them: it was fitted on candidates whose tokens were scored.
    """
    guessed = [replace(result, tokens=(MIDDLING,) * (len(result.text) // 4 + 1), position=fill.position) for result in results]
    weights = fill.calibration or rank.ORDER
    known = [replace(item, order=calibration.linear(item.features, weights)) for item in rank.evidence(guessed, doubted=True)]
    return tuple(replace(candidate, finished=False) for candidate in calibration.stated(known, None))


def _lengths(fill: Fill, result: RowResult) -> tuple[tuple[int, ...], ...]:
    """Return how many characters of the answer each token is, the first ones without what the user had typed of them."""
    heal = fill.heal_text
    lengths = fill.vocabulary.lengths(fill.vocabulary.encode(heal + result.text))
    if len(lengths) != len(result.tokens) or sum(lengths) != len(heal) + len(result.text):
        return ()
    ends = [max(end - len(heal), 0) for end in accumulate(lengths)]
    return (tuple(end - start for start, end in pairwise((0, *ends))),)
