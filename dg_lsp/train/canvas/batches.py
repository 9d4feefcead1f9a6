"""Lay holes out as batches: as canvases that are packed into rows of one length, or as middles.

A canvas is the held tokens after the gap, the last token before it, and the answer. Each token of the answer sees the held ones
and those before it, and predicts the next one or the end. The held tokens see each other, and are a fixed distance after the
gap's start, because its length is not known.

A middle is what a model with fill-in-the-middle tokens reads in a request, with the answer and its end to predict. The files
are cut as `dg-lsp eval` cuts tasks, and each hole is laid out by the engine's own layout. So the adapter learns where the
product's holes begin and end. All positions of a row are adapted, because the adapter becomes a part of the weights.

Shapes: W windows, L tokens of a window, R rows of C positions, N positions with a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from dg_lsp.engine.causal.layout import FillInTheMiddle
from dg_lsp.engine.causal.passes import CausalLlama
from dg_lsp.engine.causal.profile import Profile
from dg_lsp.engine.model.prefix_cache import KV
from dg_lsp.engine.model.tree import RIGHT_GAP
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.evaluate import make
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.train.canvas.holes import TRIES, Hole, Sources, Window
from dg_lsp.train.canvas.weights import TrainedPasses

ROW = 96  # positions of a row, which several canvases share
CUT_SHARE = 0.25  # of the canvases, which hold only the first of their tokens, as at the end of a file


@dataclass(frozen=True, slots=True)
class Canvas:
    """One canvas: its window, its hole, the token that ends the answer, and the held tokens."""

    window: int
    hole: Hole
    end: int
    held: tuple[int, ...]

    @property
    def body(self) -> tuple[int, ...]:
        """The tokens to predict."""
        return (*self.hole.answer, self.end)

    def __len__(self) -> int:
        return len(self.held) + len(self.body)


class Batch(NamedTuple):
    """Canvases as tensors. `rows` [N] are the flat places of the positions that predict `targets` [N]."""

    ids: Tensor  # [R, C]
    positions: Tensor  # [R, C]
    mask: Tensor  # [R, 1, C, L + C]
    owners: Tensor  # [R], the window of each row
    rows: Tensor
    targets: Tensor

    def losses(self, passes: TrainedPasses, kv: KV, *, adapted: bool = True) -> tuple[Tensor, Tensor]:
        """Return what `TrainedPasses.losses` does, given the windows' keys and values."""
        past = [(keys[self.owners], values[self.owners]) for keys, values in kv]
        hidden = passes.canvas(self.ids, past, self.positions, self.mask, adapted=adapted)
        return passes.losses(hidden.flatten(0, 1)[self.rows], self.targets)


def encoded(passes: CausalLlama, windows: Sequence[Window]) -> tuple[Tensor, KV]:
    """Return the causal pass's hidden states [W, L, H] of windows, and their keys and values; shorter ones are padded."""
    length = max(len(window.ids) for window in windows)
    return passes.encode(torch.tensor([[*window.ids] + [0] * (length - len(window.ids)) for window in windows]))


def laid_out(canvases: Sequence[Canvas], n_windows: int, length: int, n_rows: int) -> Batch:
    """Return a batch with `n_rows` rows for each window of `length` tokens; canvases that do not fit are left out."""
    shape = (n_windows * n_rows, ROW)
    ids, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    mask = torch.zeros(*shape, length + ROW, dtype=torch.bool)
    mask[:, :, length:] = torch.eye(ROW, dtype=torch.bool)  # a position that no canvas uses sees itself
    rows, targets = list[int](), list[int]()
    room = [ROW] * shape[0]
    for canvas in canvases:
        size = len(canvas)
        fits = [row for row in range(canvas.window * n_rows, (canvas.window + 1) * n_rows) if room[row] >= size]
        if not fits:
            continue
        row = min(fits, key=lambda one: room[one])
        start, before, n_held = ROW - room[row], canvas.hole.first - 1, len(canvas.held)
        place, right = slice(start, start + size), before + 1 + RIGHT_GAP
        ids[row, place] = torch.tensor([*canvas.held, canvas.hole.before, *canvas.hole.answer])
        positions[row, place] = torch.tensor([*range(right, right + n_held), *range(before, before + size - n_held)])
        mask[row, place, :before] = True
        seen = torch.ones(size, size, dtype=torch.bool)
        seen[:, n_held:] = seen[:, n_held:].tril(-n_held)
        mask[row, place, length + start : length + start + size] = seen
        rows += range(row * ROW + start + n_held, row * ROW + start + size)
        targets += canvas.body
        room[row] -= size
    owners = torch.arange(n_windows).repeat_interleave(n_rows)
    return Batch(ids, positions, mask[:, None], owners, torch.tensor(rows), torch.tensor(targets))


def drawn(passes: TrainedPasses, random: Random, windows: Sequence[Window], n_rows: int, end: int) -> tuple[Batch, KV]:
    """Return a batch of canvases for the windows' holes, and the windows' keys and values. `end` ends an answer."""
    _, kv = encoded(passes, windows)
    canvases = []
    for index, window in enumerate(windows):
        for hole in window.holes:
            held = hole.after
            if held and random.random() < CUT_SHARE:
                held = held[: random.randrange(len(held))]
            canvases.append(Canvas(index, hole, end, held))
    return laid_out(canvases, len(windows), kv[0][0].shape[2], n_rows), kv


# --- Middles


KINDS = {"rest-of-line": 0.25, "whole-line": 0.3, "block": 0.15, "body": 0.1, "span": 0.2}
PREFIX_TOKENS, SUFFIX_TOKENS = 192, 64
MOST = 96  # tokens of a middle
ROWS = 4  # of a batch of middles
PATH_SHARE = 0.85  # of the holes, whose file's path is read
PATH_PARTS = 3


# The tokens before an answer, and the answer's with its end.
Middle = tuple[tuple[int, ...], tuple[int, ...]]


class Middles:
    """Draws batches from sources for a vocabulary; raise ValueError if it has no fill-in-the-middle tokens."""

    def __init__(self, sources: Sources, vocabulary: Vocabulary) -> None:
        self._sources, self._vocabulary = sources, vocabulary
        self._layout = FillInTheMiddle(Profile("fim", prefix_tokens=PREFIX_TOKENS, suffix_tokens=SUFFIX_TOKENS), vocabulary)

    def drawn(self, random: Random, count: int, *, aside: bool = False) -> list[Batch]:
        """Return batches of `count` holes, with rows of similar lengths in each; raise EvalError if the files have too few."""
        found: list[Middle] = []
        for _ in range(TRIES * count):
            if len(found) == count:
                break
            if task := self._task(random, aside=aside):
                sheet = self._layout.lay_out(task.request())
                assert sheet.end is not None
                body = (*self._vocabulary.encode(sheet.heal.decode() + task.answer), sheet.end)
                found += [(sheet.ids, body)] if len(body) <= MOST else []
        if len(found) < count:
            raise EvalError("too few holes can be cut from these files; give more of them with --sources")
        found.sort(key=lambda one: len(one[0]) + len(one[1]))
        return [_side_by_side(found[start : start + ROWS]) for start in range(0, count, ROWS)]

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


def _side_by_side(middles: Sequence[Middle]) -> Batch:
    """Return holes as a batch, whose positions see those before them in their row. There are no keys and values before it."""
    width = max(len(ids) + len(body) - 1 for ids, body in middles)
    inputs = torch.zeros(len(middles), width, dtype=torch.long)
    rows: list[int] = []
    for row, (ids, body) in enumerate(middles):
        tokens = [*ids, *body[:-1]]
        inputs[row, : len(tokens)] = torch.tensor(tokens)
        first = row * width + len(ids) - 1
        rows += range(first, first + len(body))
    targets = torch.tensor([token for _, body in middles for token in body])
    mask = torch.ones(width, width, dtype=torch.bool).tril().expand(len(middles), 1, -1, -1)
    positions = torch.arange(width).expand(len(middles), -1)
    owners = torch.zeros(len(middles), dtype=torch.long)
    return Batch(inputs, positions, mask, owners, torch.tensor(rows), targets)
