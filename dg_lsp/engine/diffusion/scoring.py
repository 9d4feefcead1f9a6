"""Score texts with the token or the suffix that follows them, beside what the file repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dg_lsp.engine.common import scoring
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.common.propose.file_model import FileModel
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.common.scoring import Reading
from dg_lsp.engine.diffusion.canvas_request import CanvasRequest
from dg_lsp.engine.model.tree import Tree

LEAST_CHANCE = 1e-12
UNCLOSED_NATS = 8.0  # the suffix does not follow an answer if its log-probability there is lower than minus this


class Scorer(scoring.Scorer):
    """Scores the texts of one canvas's hole. The repetitions of `file` are mixed into the scores."""

    def __init__(self, canvas: CanvasRequest, tree: Tree, file: FileModel | None, pace: Pace) -> None:
        super().__init__(canvas, tree, pace)
        self.file = file

    def readings(self, text: str) -> list[Reading]:
        """Return a text's ids with the end token, or without one, with the held suffix."""
        prompt = self._inputs.prompt
        return [(self._inputs.ids_of(text), [prompt.end] if prompt.end is not None else list(prompt.tail))]

    def mixed(self, ids: Sequence[int], logps: tuple[float, ...]) -> tuple[float, ...]:
        """Return the log-probabilities of a text's tokens with the file's repetitions mixed in."""
        return logps if self.file is None else tuple(mixed(self.file, ids, logps))


def mixed(file: FileModel, ids: Sequence[int], logps: Sequence[float]) -> list[float]:
    """Return the log-probabilities of `ids` under the mixture of the model and the file model."""
    mixed_logps = []
    for index, token in enumerate(ids):
        guess = file.guess(ids[:index])
        chance = (1 - guess.weight) * math.exp(logps[index]) + guess.weight * guess.shares.get(token, 0.0)
        mixed_logps.append(math.log(max(chance, LEAST_CHANCE)))
    return mixed_logps


def is_unclosed(canvas: CanvasRequest, proposal: Proposal) -> bool:
    """Return whether the causal model finds the suffix improbable after a proposal; True if no suffix is held."""
    return not canvas.tail or -proposal.suffix_mean * len(canvas.tail) > UNCLOSED_NATS
