"""Lay holes out as a model with fill-in-the-middle tokens reads them in a request, with the answer and its end to predict.

The files are cut as `dg-lsp eval` cuts tasks, and each hole is laid out by the engine's own layout. So the adapter learns where
the product's holes begin and end. All positions of a row are adapted, because the adapter becomes a part of the weights.

Shapes: R rows, C positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch

from dg_lsp.engine.decode.layout import Fim
from dg_lsp.engine.model.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.evaluate import make
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.train.canvas.holes import TRIES, Sources
from dg_lsp.train.canvas.states import Batch

KINDS = {"rest-of-line": 0.25, "whole-line": 0.3, "block": 0.15, "body": 0.1, "span": 0.2}
PREFIX_TOKENS, SUFFIX_TOKENS = 192, 64
MOST = 96  # tokens of an answer
ROWS = 4  # of a batch
PATH_SHARE = 0.85  # of the holes, whose file's path is read
PATH_PARTS = 3


@dataclass(frozen=True, slots=True)
class Middle:
    """The tokens before an answer, and the answer's with its end."""

    ids: tuple[int, ...]
    body: tuple[int, ...]


class Middles:
    """Draws batches from sources for a vocabulary; raise ValueError if it has no fill-in-the-middle tokens."""

    def __init__(self, sources: Sources, vocabulary: Vocabulary) -> None:
        self._sources, self._vocabulary = sources, vocabulary
        self._layout = Fim(Profile("fim", prefix_tokens=PREFIX_TOKENS, suffix_tokens=SUFFIX_TOKENS), vocabulary)

    def drawn(self, random: Random, count: int, *, aside: bool = False) -> list[Batch]:
        """Return batches of `count` holes, with rows of similar lengths in each; raise EvalError if the files have too few."""
        found: list[Middle] = []
        for _ in range(TRIES * count):
            if len(found) == count:
                break
            if task := self._task(random, aside=aside):
                found += self._middle(task)
        if len(found) < count:
            raise EvalError("too few holes can be cut from these files; give more of them with --sources")
        found.sort(key=lambda one: len(one.ids) + len(one.body))
        return [laid_out(found[start : start + ROWS]) for start in range(0, count, ROWS)]

    def places(self, batch: Batch) -> list[int]:
        """Return the place in its answer of each token with a loss; -1 for an end."""
        places: list[int] = []
        for before, token in zip([self._layout.end, *batch.targets.tolist()], batch.targets.tolist(), strict=False):
            places.append(0 if before == self._layout.end else places[-1] + 1)
            if token == self._layout.end:
                places[-1] = -1
        return places

    def _task(self, random: Random, *, aside: bool) -> Task | None:
        """Return a task from a random file, or None if the drawn file has none of the drawn kind."""
        path, text = self._sources.file(random, aside=aside)
        source = make.read(str(Path(*path.parts[-PATH_PARTS:])), text) if text else None
        (kind,) = random.choices(list(KINDS), list(KINDS.values()))
        spans = make.spans(source, kind, random) if source else []
        if source is None or not spans:
            return None
        task = make.cut(source, random.choice(spans), kind)
        return task if random.random() < PATH_SHARE else replace(task, path="")

    def _middle(self, task: Task) -> list[Middle]:
        """Return the task's hole, or nothing if its answer is long."""
        sheet = self._layout.lay_out(task.request())
        assert sheet.end is not None
        body = (*self._vocabulary.encode(sheet.heal.decode() + task.answer), sheet.end)
        return [Middle(sheet.kv, body)] if len(body) <= MOST else []


def laid_out(middles: Sequence[Middle]) -> Batch:
    """Return holes as a batch, whose positions see those before them in their row. There are no keys and values before it."""
    width = max(len(one.ids) + len(one.body) - 1 for one in middles)
    ids = torch.zeros(len(middles), width, dtype=torch.long)
    rows: list[int] = []
    for row, one in enumerate(middles):
        tokens = [*one.ids, *one.body[:-1]]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        first = row * width + len(one.ids) - 1
        rows += range(first, first + len(one.body))
    targets = torch.tensor([token for one in middles for token in one.body])
    mask = torch.ones(width, width, dtype=torch.bool).tril().expand(len(middles), 1, -1, -1)
    positions = torch.arange(width).expand(len(middles), -1)
    owners = torch.zeros(len(middles), dtype=torch.long)
    return Batch(ids, positions, mask, owners, torch.tensor(rows), targets)
