"""Lay holes out as canvases, and pack them into rows of one length.

A canvas is the held tokens after the gap, the last token before it, and the answer. Each token of the answer sees the held ones
and those before it, and predicts the next one or the end. The held tokens see each other, and are a fixed distance after the
gap's start, because its length is not known.

Shapes: W windows, L tokens of a window, R rows of C positions, N positions with a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from dg_lsp.engine.model.family import KV
from dg_lsp.engine.model.llama import LlamaPasses
from dg_lsp.engine.model.tree import RIGHT_GAP
from dg_lsp.train.canvas.holes import Hole, Window
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


def encoded(passes: LlamaPasses, windows: Sequence[Window]) -> tuple[Tensor, KV]:
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
    canvases = [
        Canvas(index, hole, end, _some(random, hole.after)) for index, window in enumerate(windows) for hole in window.holes
    ]
    return laid_out(canvases, len(windows), kv[0][0].shape[2], n_rows), kv


def _some(random: Random, held: tuple[int, ...]) -> tuple[int, ...]:
    """Return held tokens, and in some of the calls only the first of them."""
    return held[: random.randrange(len(held)) if held and random.random() < CUT_SHARE else len(held)]
