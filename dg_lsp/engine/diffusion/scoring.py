"""Score texts: a causal pass reads each distinct text and the token or the suffix that follows it.

Knows canvas requests, log-probabilities and the ranking. Knows nothing of how the texts were written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.common.propose.file_model import FileModel
from dg_lsp.engine.common.rank import Describer, Proposal
from dg_lsp.engine.diffusion.canvas_request import CanvasRequest
from dg_lsp.engine.model.tree import Tree

LEAST_CHANCE = 1e-12
UNCLOSED_NATS = 8.0  # the suffix does not follow an answer if its log-probability there is lower than minus this


class Scorer:
    """Scores the texts of one hole after its encoded prefix, each text only once. `file` is mixed into the scores."""

    def __init__(self, canvas: CanvasRequest, tree: Tree, file: FileModel | None, pace: Pace) -> None:
        self._canvas, self._tree, self.file, self._pace = canvas, tree, file, pace
        self._scores: dict[str, _Scores] = {}
        self._describer = Describer(canvas.request, n_context=len(canvas.sheet.ids))

    def score(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the proposals with the log-probabilities of their tokens and of the text after them, and their features."""
        if not self._canvas.switches.scorer:
            return self._describer.described(proposals)
        self._read([text for text in dict.fromkeys(each.text for each in proposals) if text not in self._scores])
        scored = []
        for proposal in proposals:
            scores = self._scores[proposal.text]
            total = sum(scores.after)
            scored.append(
                replace(
                    proposal,
                    logps=scores.mixed_logps,
                    model_logps=scores.logps,
                    suffix_mean=total / max(len(scores.after), 1),
                    suffix_sum=total,
                )
            )
        return self._describer.described(scored)

    def learn(self, text: str, ids: Sequence[int], logps: Sequence[float], end: float) -> None:
        """Store the log-probabilities from drafting, if the text's tokens are the drafted ones."""
        if text not in self._scores and self._canvas.ids_of(text) == list(ids):
            self._scores[text] = self._scores_of(ids, logps, (end,))

    def _read(self, texts: Sequence[str]) -> None:
        """Learn the causal log-probabilities of texts, and of the end token or the held suffix after them."""
        if not texts:
            return
        sheet, coded = self._canvas.sheet, [self._canvas.ids_of(text) for text in texts]
        after = [sheet.end] if sheet.end is not None else list(sheet.tail)
        with self._pace.measuring("score", sum(len(ids) + len(after) for ids in coded)):
            rows = self._tree.log_probabilities([[*ids, *after] for ids in coded])
        for text, ids, row in zip(texts, coded, rows, strict=True):
            self._scores[text] = self._scores_of(ids, row[: len(ids)], row[len(ids) :])

    def _scores_of(self, ids: Sequence[int], logps: Sequence[float], after: Sequence[float]) -> _Scores:
        own = tuple(logps)
        return _Scores(own if self.file is None else tuple(mixed(self.file, ids, own)), own, tuple(after))


@dataclass(frozen=True, slots=True)
class _Scores:
    """Natural log-probabilities of a text.

    `mixed_logps` are those of its tokens under the model mixed with the file model, `logps` under the model alone, and `after`
    those of the tokens after it.
    """

    mixed_logps: tuple[float, ...]
    logps: tuple[float, ...]
    after: tuple[float, ...]


def mixed(file: FileModel, ids: Sequence[int], logps: Sequence[float]) -> list[float]:
    """Return the log-probabilities of `ids` under the mixture of the model and the file model."""
    mixed_logps = []
    for index, token in enumerate(ids):
        guess = file.guess(ids[:index])
        chance = (1 - guess.weight) * math.exp(logps[index]) + guess.weight * guess.shares.get(token, 0.0)
        mixed_logps.append(math.log(max(chance, LEAST_CHANCE)))
    return mixed_logps


def is_unclosed(canvas: CanvasRequest, proposal: Proposal) -> bool:
    """Return whether the causal model finds the suffix unlikely after a proposal; True if no suffix is held."""
    return not canvas.tail or -proposal.suffix_mean * len(canvas.tail) > UNCLOSED_NATS
