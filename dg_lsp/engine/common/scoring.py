"""Score texts: a causal pass reads each distinct text and what follows it.

Knows laid out requests, trees and log-probabilities. Knows nothing of how the texts were written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dg_lsp.engine.common.inputs import RequestInputs
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.common.rank import Describer, Proposal
from dg_lsp.engine.model.tree import Tree

# A way to read a text: its ids, and those of what follows it.
Reading = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class Scores:
    """Natural log-probabilities of a text: those of its tokens that rank it and under the model alone, and of what follows."""

    logps: tuple[float, ...]
    model_logps: tuple[float, ...]
    after: tuple[float, ...]


class Scorer:
    """Scores the texts of one hole after its encoded prefix, each text only once."""

    def __init__(self, inputs: RequestInputs, tree: Tree, pace: Pace) -> None:
        self._inputs, self._tree, self._pace = inputs, tree, pace
        self._scores: dict[str, Scores] = {}
        self.describer = Describer(inputs.request, needed=inputs.needed, n_context=len(inputs.prompt.ids))

    @abstractmethod
    def readings(self, text: str) -> list[Reading]:
        """Return the ways to read a text, of which the likeliest counts."""

    def mixed(self, ids: Sequence[int], logps: tuple[float, ...]) -> tuple[float, ...]:
        """Return the log-probabilities of a text's tokens that rank it: those of the model, unless a room mixes others in."""
        return logps

    def score(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the proposals with the log-probabilities of their tokens and of the text after them, and their features."""
        self._read([text for text in dict.fromkeys(each.text for each in proposals) if text not in self._scores])
        scored = []
        for proposal in proposals:
            scores = self._scores[proposal.text]
            total = sum(scores.after)
            mean = total / max(len(scores.after), 1)
            logps, model_logps = scores.logps, scores.model_logps
            scored.append(replace(proposal, logps=logps, model_logps=model_logps, suffix_mean=mean, suffix_sum=total))
        return self.describer.described(scored)

    def _read(self, texts: Sequence[str]) -> None:
        """Learn the log-probabilities of texts and of what follows them."""
        self._likeliest([(text, *reading) for text in texts for reading in self.readings(text)])

    def _likeliest(self, readings: Sequence[tuple[str, list[int], list[int]]]) -> None:
        """Learn the log-probabilities of texts and of what follows them, by the likeliest of the ways to read each."""
        began, n_nodes = self._pace.clock(), self._tree.n_nodes
        rows = self._tree.log_probabilities([[*ids, *after] for _, ids, after in readings])
        if (n_read := self._tree.n_nodes - n_nodes) > 0:
            self._pace.note("score", n_read, 1000 * (self._pace.clock() - began))
        best: dict[str, tuple[list[int], list[float]]] = {}
        for (text, ids, _), row in zip(readings, rows, strict=True):
            if text not in best or sum(row) > sum(best[text][1]):
                best[text] = ids, row
        for text, (ids, row) in best.items():
            self._keep(text, ids, row[: len(ids)], row[len(ids) :])

    def _keep(self, text: str, ids: Sequence[int], logps: Sequence[float], after: Sequence[float]) -> None:
        self._scores[text] = Scores(self.mixed(ids, tuple(logps)), tuple(logps), tuple(after))
