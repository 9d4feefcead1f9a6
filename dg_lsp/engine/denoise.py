"""The denoising loop: step all rows of one request until they settle.

Each step holds the known tokens in three places: on the canvas, in the logits (held positions are never predicted) and in
the self-conditioning, as certainties. Accepted tokens are not frozen, because freezing breaks this model (research on
DiffusionGemma's sampler, arXiv 2608.00146); each step decides acceptance again. If the checkpoint has a delete token, a
position that predicts it confidently twice in a row leaves the canvas, and the positions right of it move left (DreamOn,
arXiv 2602.01326). `engine.reference` states the same rule in a readable form. A test checks that both give equal tokens.

A step has two halves, `ask` and `take`, so that several requests can share the pass between them.

Knows the two methods of a `Decoder`. Knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from dg_lsp.engine import sampler
from dg_lsp.engine.profile import Sampling


@dataclass(frozen=True, slots=True)
class Row:
    """One canvas to denoise: its ids and which of them are free.

    The ids of the gap are the draft; without a `draft`, the row starts from pure noise and they are ignored. `seed`
    determines the noise. `greedy` rows write the likeliest token of an accepted position; other rows sample it. `steps` is
    the maximum number of steps. `chances` [C] are the probabilities of a draft's tokens, which condition the first step;
    empty means no conditioning. The tokens marked in `noisy` [C] start as noise.
    """

    ids: tuple[int, ...]
    free: tuple[bool, ...]
    steps: int
    seed: int = 0
    draft: bool = False
    greedy: bool = True
    chances: tuple[float, ...] = ()
    noisy: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """The tokens that a gap may contain.

    Noise is drawn from `regular`. `banned` tokens are never written. Only the tokens in `first` may start a healed gap;
    empty means any. `delete` is the delete token, if the checkpoint has one.
    """

    regular: tuple[int, ...]
    banned: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    delete: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The current text of a canvas, without deleted positions.

    `places` are the original indexes of the positions, `ids` their tokens, `chances` the tokens' probabilities, and
    `entropy` the gap's mean entropy in nats.
    """

    places: tuple[int, ...]
    ids: tuple[int, ...]
    chances: tuple[float, ...]
    entropy: float


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """The decoder's input for one step of some rows."""

    ids: Tensor  # [R, C]
    top_ids: Tensor  # [R, C, K] self-conditioning
    top_chances: Tensor  # [R, C, K]
    used: Tensor  # [R, C] bool
    free: Tensor  # [R, C] bool


class Decoder(Protocol):
    """The decoder with a prefix already encoded.

    `soft` turns sparse probabilities into self-conditioning. `logits` runs one pass and returns the logits [G, V] of the
    positions in `free` [R, C]. Positions outside `used` [R, C] do not exist for the pass.
    """

    def soft(self, ids: Tensor, probabilities: Tensor) -> Tensor:
        """Return conditioning [R, C, H] for tokens [R, C, K] and their probabilities [R, C, K]."""

    def logits(self, canvas: Tensor, soft: Tensor, used: Tensor, free: Tensor) -> Tensor:
        """Return the logits [G, V] of the free positions, in 32 bits."""


@dataclass(slots=True)
class CanvasState:
    """The state of all rows. Finished rows keep their index but are not passed to the decoder."""

    ids: Tensor  # [R, C]
    free: Tensor  # [R, C] bool, not yet fixed
    used: Tensor  # [R, C] bool, False where a position was deleted or never existed
    best: Tensor  # [R, C] the likeliest token of each free position, and the held tokens
    entropy: Tensor  # [R, C] nats, 0 at held positions
    chance: Tensor  # [R, C] probability of `best`
    deleted: Tensor  # [R, C] bool, predicted as a confident delete in the last step
    top_ids: Tensor  # [R, C, K] self-conditioning
    top_chances: Tensor  # [R, C, K]
    steps: list[int] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)


class Denoiser:
    """Steps the rows of one request until each has settled or has used its steps."""

    def __init__(
        self, rows: Sequence[Row], limits: TokenLimits, sampling: Sampling, n_vocabulary: int, device: str = "cpu"
    ) -> None:
        self.rows, self.limits, self.sampling, self.device = list(rows), limits, sampling, device
        self._most_steps = [row.steps for row in rows]
        width = max(len(row.ids) for row in rows)
        blank = limits.regular[0]
        ids = [[*row.ids, *[blank] * (width - len(row.ids))] for row in rows]
        free = [[*row.free, *[False] * (width - len(row.free))] for row in rows]
        used = [[index < len(row.ids) for index in range(width)] for row in rows]
        self._noise = [torch.Generator().manual_seed(row.seed) for row in rows]
        self._regular = torch.tensor(limits.regular)
        forbidden = torch.zeros(n_vocabulary, dtype=torch.bool)
        forbidden[list(limits.banned)] = True
        self._forbidden = forbidden.to(device)
        self._first = forbidden.clone().fill_(True)
        self._first[list(limits.first)] = False
        self._first = (self._first | forbidden).to(device)
        if bool(self._first.all()):
            self._first = (
                self._forbidden
            )  # no allowed token may start this gap, so give up healing rather than leave the gap empty
        canvas, is_free = torch.tensor(ids), torch.tensor(free)
        certainty = (~is_free).float()  # 1 for held positions, and 0 for free ones unless a draft has probabilities
        best = canvas.clone()
        for index, row in enumerate(self.rows):
            noisy = is_free[index]
            if row.draft:
                noisy = noisy & torch.tensor([*row.noisy, *[False] * (width - len(row.noisy))])
            if not row.draft or bool(noisy.any()):
                canvas[index] = torch.where(noisy, self._uniform(index, width), canvas[index])
            if not row.draft:
                best[index] = canvas[index]
            if row.chances:
                chances = torch.tensor([*row.chances, *[0.0] * (width - len(row.chances))])
                certainty[index] = torch.where(is_free[index], chances, certainty[index])
        canvas, is_free, best, certainty = (tensor.to(device) for tensor in (canvas, is_free, best, certainty))
        k = min(sampling.conditioning_tokens, n_vocabulary)
        top_ids = best[..., None].expand(-1, -1, k).clone()
        top_chances = torch.zeros(*canvas.shape, k, device=device)
        top_chances[..., 0] = certainty
        self.canvas = CanvasState(
            canvas, is_free, torch.tensor(used).to(device), best, torch.full(canvas.shape, torch.inf, device=device),
            torch.zeros(canvas.shape, device=device), torch.zeros_like(is_free), top_ids, top_chances,
            [0] * len(rows), [not any(row.free) or row.steps < 1 for row in rows],
        )  # fmt: skip

    def bound(self, steps: int) -> None:
        """Limit each live row to `steps` more steps, within its own maximum; 0 ends all rows."""
        for index in self.live:
            n_taken = self.canvas.steps[index]
            self.rows[index] = replace(self.rows[index], steps=min(self._most_steps[index], n_taken + steps))
            self.canvas.done[index] = n_taken >= self.rows[index].steps

    def drop(self, row: int) -> None:
        """End a row."""
        self.canvas.done[row] = True

    @property
    def done(self) -> bool:
        """Whether every row has settled or used all its steps."""
        return all(self.canvas.done)

    @property
    def begun(self) -> bool:
        """Whether any step was taken. Before that, rows without a draft contain noise."""
        return any(self.canvas.steps)

    @property
    def live(self) -> list[int]:
        """The indexes of the unfinished rows."""
        return [index for index, done in enumerate(self.canvas.done) if not done]

    def step(self, decoder: Decoder, most: int = 0) -> None:
        """Take one step of all live rows, with one decoder pass per `most` rows (0: one pass for all)."""
        live = self.live
        for first in range(0, len(live), most or len(live)):
            rows = live[first : first + most] if most else live
            decoder_input = self.ask(rows)
            soft = decoder.soft(decoder_input.top_ids, decoder_input.top_chances)
            self.take(rows, decoder.logits(decoder_input.ids, soft, decoder_input.used, decoder_input.free))

    def ask(self, rows: Sequence[int]) -> DecoderInput:
        """Return the decoder's input for some unfinished rows."""
        state, at = self.canvas, torch.tensor(rows, device=self.device)
        return DecoderInput(state.ids[at], state.top_ids[at], state.top_chances[at], state.used[at], state.free[at])

    def take(self, live: Sequence[int], logits: Tensor) -> None:
        """Accept and renoise positions of `live` rows with their logits [G, V]. The logits are overwritten."""
        state, at = self.canvas, torch.tensor(live, device=self.device)
        ids, free = state.ids[at], state.free[at]
        heat = [sampler.temperature(self.sampling, state.steps[i], self.rows[i].steps) for i in live]
        logits /= torch.tensor(heat, device=self.device)[:, None].expand_as(free)[free][:, None]
        first = (free.cumsum(1) == 1) & free  # the first free position of each row
        logits.masked_fill_(self._forbidden, sampler.NEVER)
        if self.limits.first:
            starts = first[free]
            logits[starts] = logits[starts].masked_fill(self._first, sampler.NEVER)
        chances, top, gap_entropies = sampler.read(logits, state.top_ids.shape[-1])
        best, was = ids.clone(), state.best[at]
        best[free] = top.indices[:, 0]
        entropies = torch.zeros(free.shape, device=self.device)
        entropies[free] = gap_entropies
        accepted = sampler.accept(entropies, free, self.sampling.entropy_bound)
        next_ids, uniform = best, torch.stack([self._uniform(i, free.shape[1]) for i in live]).to(self.device)
        if any(not self.rows[i].greedy for i in live):
            draws = torch.stack([self._draws(i, free.shape[1]) for i in live]).to(self.device)
            sampled = best.clone()
            sampled[free] = sampler.draw(chances, draws[free])
            greedy = torch.tensor([self.rows[i].greedy for i in live], device=self.device)[:, None]
            next_ids = torch.where(greedy, best, sampled)
        state.ids[at] = torch.where(free, torch.where(accepted, next_ids, uniform), ids)
        state.top_ids[at] = state.top_ids[at].masked_scatter(free[..., None], top.indices)
        state.top_chances[at] = state.top_chances[at].masked_scatter(free[..., None], top.values)
        chance = torch.ones(free.shape, device=self.device)
        chance[free] = top.values[:, 0]
        state.best[at], state.entropy[at], state.chance[at] = best, entropies, chance
        moved = self._delete(at, best, entropies, free)
        self._settle(live, best, was, entropies, free, moved)

    def _delete(self, at: Tensor, best: Tensor, entropies: Tensor, free: Tensor) -> Tensor:
        """Remove positions that were a confident delete twice in a row; return which rows [R] lost one."""
        if self.limits.delete is None:
            return torch.zeros(len(at), dtype=torch.bool, device=self.device)
        state = self.canvas
        sure = free & (best == self.limits.delete) & (entropies < self.sampling.delete_entropy)
        leaving = sure & state.deleted[at]
        state.deleted[at] = sure & ~leaving
        state.free[at] = free & ~leaving
        state.used[at] = state.used[at] & ~leaving
        return leaving.any(1)

    def _settle(self, live: Sequence[int], best: Tensor, was: Tensor, entropies: Tensor, free: Tensor, moved: Tensor) -> None:
        same = ((best == was) | ~free).all(1)
        sure = entropies.sum(1) / free.sum(1).clamp(min=1) < self.sampling.stop_entropy
        empty = ~self.canvas.free[torch.tensor(live, device=self.device)].any(1)
        settled = ((same & sure & ~moved) | empty).tolist()
        for index, is_settled in zip(live, settled, strict=True):
            self.canvas.steps[index] += 1
            self.canvas.done[index] = is_settled or self.canvas.steps[index] >= self.rows[index].steps

    def _uniform(self, row: int, width: int) -> Tensor:
        # Draw only for the row's own length, so that its noise does not depend on the other rows.
        noise = torch.zeros(width, dtype=torch.long)
        length = len(self.rows[row].ids)
        noise[:length] = self._regular[torch.randint(len(self._regular), (length,), generator=self._noise[row])]
        return noise

    def _draws(self, row: int, width: int) -> Tensor:
        uniform = torch.zeros(width)
        if not self.rows[row].greedy:
            length = len(self.rows[row].ids)
            uniform[:length] = torch.rand(length, generator=self._noise[row])
        return uniform

    def read(self, row: int) -> Reading:
        """Return the current text of a row."""
        state, length = self.canvas, len(self.rows[row].ids)
        there, free = state.used[row].tolist(), state.free[row].tolist()
        places = [index for index in range(length) if there[index]]
        ids, chances, entropies = state.best[row].tolist(), state.chance[row].tolist(), state.entropy[row].tolist()
        gap = [entropies[index] for index in places if free[index]]
        return Reading(
            tuple(places), tuple(ids[i] for i in places), tuple(chances[i] for i in places), sum(gap) / len(gap) if gap else 0.0
        )
