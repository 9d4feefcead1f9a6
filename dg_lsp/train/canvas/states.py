"""Lay holes out as canvases, in the states in which a canvas is filled, and pack them into rows of one length.

A canvas is the held tokens after the gap, the last token before it, and the gap.

In order, the gap is the answer. Each token of it sees the held ones and those before it, and predicts the next one or the end.
The held tokens see each other, and are a fixed distance after the gap's start, because its length is not known.

Else, all positions see each other. A position of the gap is open, open with a hint, or a token. Its loss is that of the true
token, which is the delete token after the answer's end. The states:

* masks: all is open;
* some: some tokens are right, the rest is open;
* guesses: some tokens are right, the rest has hints: what the causal pass would write at each place after the true text;
* draft: the hints are the causal model's own continuation;
* own: the canvas's first pass from masks wrote the tokens that it was sure of, and hints for the rest.

Shapes: W windows, L tokens of a window, R rows of C positions, N positions with a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dg_lsp.engine.model.family import KV
from dg_lsp.engine.model.llama import LlamaPasses
from dg_lsp.engine.model.tree import RIGHT_GAP
from dg_lsp.train.canvas.holes import HELD, Hole, Window
from dg_lsp.train.canvas.weights import Losses, TrainedPasses

State = Literal["masks", "some", "guesses", "draft", "own"]
MASKED_HELD = 16  # held tokens of a canvas that is not written in order
GAPS = (8, 16, 24, 32)
ROW = 96  # positions of a row, which several canvases share
DRAFT_TOKENS = 16
AFTER_END = 0.1  # the weight of a loss after the first delete token
NO_HINT = -1


@dataclass(frozen=True, slots=True)
class Mix:
    """How often a batch is written in order, and how often each of the other batches has the states `draft` and `own`.

    The rest are shares of the canvases in the remaining batches.
    """

    order: float = 1.0
    draft: float = 0.3
    own: float = 0.15
    masks: float = 0.4
    some: float = 0.25
    guesses: float = 0.35

    @property
    def held(self) -> int:
        """The most held tokens of the canvases that are measured."""
        return HELD if self.order else MASKED_HELD


@dataclass(slots=True)
class Canvas:
    """One canvas. `body` has the tokens to predict; `ids` and `hints` are the gap's. The losses of `body` have `weights`."""

    window: int
    hole: Hole
    body: list[int]
    held: list[int]
    ids: list[int] = field(default_factory=list)
    hints: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.held) + 1 + len(self.ids)


class Batch(NamedTuple):
    """Canvases as tensors, all in order or none. `rows` [N] are the flat places of the positions that predict `targets` [N]."""

    in_order: bool
    ids: Tensor  # [R, C]
    hints: Tensor  # [R, C]
    positions: Tensor  # [R, C]
    mask: Tensor  # [R, 1, C, L + C]
    owners: Tensor  # [R], the window of each row
    rows: Tensor
    targets: Tensor
    weights: Tensor

    def losses(self, passes: TrainedPasses, kv: KV, *, adapted: bool = True) -> Losses:
        """Return what `TrainedPasses.losses` does, given the windows' keys and values."""
        past = [(keys[self.owners], values[self.owners]) for keys, values in kv]
        hidden = passes.canvas(self.ids, self.hints, past, self.positions, self.mask, adapted=adapted)
        chosen = hidden.flatten(0, 1)[self.rows]
        return passes.losses(chosen, self.targets, self.weights, delete=not self.in_order)


def encoded(passes: LlamaPasses, windows: Sequence[Window]) -> tuple[Tensor, KV]:
    """Return the causal pass's hidden states [W, L, H] of windows, and their keys and values; shorter ones are padded."""
    length = max(len(window.ids) for window in windows)
    return passes.encode(torch.tensor([[*window.ids] + [0] * (length - len(window.ids)) for window in windows]))


def gap_of(random: Random, answer: Sequence[int], delete: int) -> list[int]:
    """Return the true tokens of a gap: the answer, and often delete tokens up to a usual size or some more."""
    kind, n = random.random(), len(answer)
    extra = 0
    if kind >= 0.75:
        extra = random.randrange(7)
    elif kind >= 0.35 and (fits := [gap for gap in GAPS if gap > n][:2]):
        extra = (random.choice(fits) if random.random() < 0.3 else fits[0]) - n
    return [*answer, *[delete] * min(extra, max(0, GAPS[-1] - n))]


def in_order(canvas: Canvas) -> Canvas:
    """Make the answer visible on a canvas that is written in order, and return it."""
    canvas.ids, canvas.hints = [*canvas.hole.answer], [NO_HINT] * len(canvas.hole.answer)
    canvas.weights = [1.0] * len(canvas.body)
    return canvas


def masked(passes: LlamaPasses, canvas: Canvas) -> Canvas:
    """Make a canvas all open, and return it."""
    canvas.ids = passes.open_ids(len(canvas.body))
    canvas.hints = [NO_HINT] * len(canvas.body)
    n = len(canvas.hole.answer)
    canvas.weights = [AFTER_END if place > n else 1.0 for place in range(len(canvas.body))]
    return canvas


def in_state(random: Random, canvas: Canvas, state: State, guesses: Sequence[int]) -> None:
    """Change an all-open canvas to a state. `guesses` are hints for its first places, and may be fewer."""
    if state in ("masks", "own"):
        return
    opened = list(canvas.ids)
    share = 1.0 if state == "draft" and random.random() < 0.6 else random.random()
    for place, token in enumerate(canvas.body):
        if random.random() >= share:
            canvas.ids[place], canvas.weights[place] = token, 0.0
        elif place < len(guesses) and (state == "draft" or random.random() < 0.7):
            canvas.hints[place] = guesses[place]
    if not any(canvas.weights):  # a batch of one such canvas would have no loss
        place = random.randrange(len(canvas.body))
        canvas.ids[place], canvas.weights[place] = opened[place], 1.0


def laid_out(canvases: Sequence[Canvas], n_windows: int, length: int, n_rows: int, *, ordered: bool) -> Batch:
    """Return a batch with `n_rows` rows for each window of `length` tokens; canvases that do not fit are left out."""
    shape = (n_windows * n_rows, ROW)
    ids, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    hints = torch.full(shape, NO_HINT)
    mask = torch.zeros(*shape, length + ROW, dtype=torch.bool)
    mask[:, :, length:] = torch.eye(ROW, dtype=torch.bool)  # a position that no canvas uses sees itself
    lossy: list[tuple[int, int, float]] = []  # row, target, weight
    room = [ROW] * shape[0]
    for canvas in canvases:
        size = len(canvas)
        fits = [row for row in range(canvas.window * n_rows, (canvas.window + 1) * n_rows) if room[row] >= size]
        if not fits:
            continue
        row = min(fits, key=lambda one: room[one])
        start, before, n_held = ROW - room[row], canvas.hole.first - 1, len(canvas.held)
        place, root = slice(start, start + size), start + n_held
        ids[row, place] = torch.tensor([*canvas.held, canvas.hole.before, *canvas.ids])
        hints[row, root + 1 : start + size] = torch.tensor(canvas.hints)
        right = before + 1 + (RIGHT_GAP if ordered else len(canvas.ids))
        positions[row, place] = torch.tensor([*range(right, right + n_held), *range(before, before + size - n_held)])
        mask[row, place, :before] = True
        seen = torch.ones(size, size, dtype=torch.bool)
        seen[:, n_held:] = seen[:, n_held:].tril(-n_held) if ordered else True
        mask[row, place, length + start : length + start + size] = seen
        targets = enumerate(zip(canvas.body, canvas.weights, strict=True), row * ROW + root)
        lossy += [(at, target, weight) for at, (target, weight) in targets if weight]
        room[row] -= size
    owners = torch.arange(n_windows).repeat_interleave(n_rows)
    columns = (torch.tensor(column) for column in zip(*lossy, strict=True))
    return Batch(ordered, ids, hints, positions, mask[:, None], owners, *columns)


def drawn(
    passes: TrainedPasses, random: Random, windows: Sequence[Window], mix: Mix, n_rows: int, end: int
) -> tuple[Batch, KV]:
    """Return a batch of canvases for the windows' holes, and the windows' keys and values. In order, `end` ends an answer."""
    hidden, kv = encoded(passes, windows)
    shape = (len(windows), hidden.shape[1], n_rows)
    holes = [(index, hole) for index, window in enumerate(windows) for hole in window.holes]
    if random.random() < mix.order:
        canvases = [Canvas(index, hole, [*hole.answer, end], _some(random, hole.after, 0.25)) for index, hole in holes]
        return laid_out([in_order(canvas) for canvas in canvases], *shape, ordered=True), kv
    canvases = [
        Canvas(index, hole, gap_of(random, hole.answer, passes.delete), _some(random, hole.after[:MASKED_HELD], 0.1))
        for index, hole in holes
    ]
    canvases = [masked(passes, canvas) for canvas in canvases]
    draw = random.random()
    state: State = "draft" if draw < mix.draft else "own" if draw < mix.draft + mix.own else "masks"
    if state == "draft":
        temperature = 0.0 if random.random() < 0.6 else 0.8
        drafts = drafted(passes, hidden, kv, canvases, temperature, random)
        for canvas, draft in zip(canvases, drafts, strict=True):
            in_state(random, canvas, "draft", draft)
    elif state == "masks":
        greedy = random.random() < 0.5
        for canvas in canvases:
            names: tuple[State, ...] = ("masks", "some", "guesses")
            (one,) = random.choices(names, (mix.masks, mix.some, mix.guesses))
            guesses = _guesses(passes, hidden, canvas, random, greedy=greedy) if one == "guesses" else []
            in_state(random, canvas, one, guesses)
    batch = laid_out(canvases, *shape, ordered=False)
    return _after_own_pass(passes, batch, kv, 0.5 + 0.45 * random.random()) if state == "own" else batch, kv


@torch.no_grad()
def drafted(
    passes: TrainedPasses, hidden: Tensor, kv: KV, canvases: Sequence[Canvas], temperature: float, random: Random
) -> list[list[int]]:
    """Return the causal model's continuations of the text before each hole: `DRAFT_TOKENS` tokens, greedy or sampled."""
    owners = torch.tensor([canvas.window for canvas in canvases])
    firsts = torch.tensor([canvas.hole.first for canvas in canvases])
    length, steps = kv[0][0].shape[2], DRAFT_TOKENS
    room = [
        tuple(torch.cat([side[owners], side.new_zeros(len(owners), side.shape[1], steps, side.shape[3])], 2) for side in pair)
        for pair in kv
    ]
    seen = torch.cat([torch.arange(length)[None] < firsts[:, None], torch.ones(len(owners), steps, dtype=torch.bool)], 1)
    last, tokens = hidden[owners, firsts - 1], list[Tensor]()
    sampler = torch.Generator().manual_seed(random.getrandbits(32))
    for step in range(steps):
        tokens.append(_token(passes.logits(last), temperature, sampler))
        if step + 1 < steps:
            at = length + step + 1
            past: KV = [(keys[:, :, :at], values[:, :, :at]) for keys, values in room]
            last = passes.decode(
                tokens[-1][:, None], past, positions=(firsts + step)[:, None], mask=seen[:, None, None, :at],
                with_room=True, adapted=False,
            )[:, 0]  # fmt: skip
    drafts: list[list[int]] = torch.stack(tokens, 1).tolist()
    return drafts


@torch.no_grad()
def _guesses(passes: TrainedPasses, hidden: Tensor, canvas: Canvas, random: Random, *, greedy: bool) -> list[int]:
    """Return what the causal pass would write at each place of the answer after the true text; [] if it has not read it."""
    hole = canvas.hole
    end = hole.first - 1 + len(hole.answer)
    if not hole.in_window or end > hidden.shape[1]:
        return []
    logits = passes.logits(hidden[canvas.window, hole.first - 1 : end])
    sampler = torch.Generator().manual_seed(random.getrandbits(32))
    guesses: list[int] = _token(logits, 0.0 if greedy else 1.0, sampler).tolist()
    return guesses


@torch.no_grad()
def _after_own_pass(passes: TrainedPasses, batch: Batch, kv: KV, level: float) -> Batch:
    """Return a batch of open canvases as the canvas itself writes them in one pass, where it is surer than `level`."""
    _, _, best, sure = batch.losses(passes, kv)
    ids, hints, gap = batch.ids.clone().view(-1), batch.hints.clone().view(-1), batch.rows + 1
    is_token = best < passes.delete
    ids[gap] = torch.where((sure > level) & is_token, best, ids[gap])
    hints[gap] = torch.where((sure <= level) & is_token, best, NO_HINT)
    return batch._replace(ids=ids.view_as(batch.ids), hints=hints.view_as(batch.hints))


def _token(logits: Tensor, temperature: float, sampler: torch.Generator) -> Tensor:
    """Return a token for each row of logits [N, V]: the best one, or one of the twelve best by chance."""
    if temperature == 0:
        return logits.argmax(-1)
    top = logits.topk(min(12, logits.shape[-1]), -1)
    picked = torch.multinomial((top.values / temperature).softmax(-1), 1, generator=sampler)
    return top.indices.gather(1, picked)[:, 0]


def _some(random: Random, held: Sequence[int], share: float) -> list[int]:
    """Return held tokens, and in a share of the calls only the first of them, as at the end of a file."""
    return [*held[: random.randrange(len(held)) if held and random.random() < share else len(held)]]
