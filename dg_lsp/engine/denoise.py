"""The denoising loop: the rows of one request, a step at a time.

Known tokens are held in three places at every step: on the canvas, in the logits (a held position is never predicted
at all) and in the self-conditioning, where they count as certainties. Nothing accepted is frozen: acceptance is
decided anew at each step (freezing breaks this model: research on DiffusionGemma's sampler, arXiv 2608.00146). Where
the checkpoint has a delete token, a position that reads it with confidence twice in a row leaves the canvas, and
what stands right of it moves left (DreamOn, arXiv 2602.01326). `engine.reference` is the same rule written for
reading; a test holds the two equal, token for token.

A step has two halves, `ask` and `take`, so that the pass between them may be shared with other requests' rows.

Knows the two calls of a `Decoder`. Knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from dg_lsp.engine import sampler
from dg_lsp.engine.profile import Sampling


@dataclass(frozen=True, slots=True)
class Row:
    """One canvas to denoise: its ids (the gap's are the draft, or anything where there is none) and which are free.

    `seed` decides its noise. A row without a `draft` starts from pure noise. `greedy` rows write the likeliest token
    of an accepted position, others draw it. `steps` bounds how long the row is worked on.
    """

    ids: tuple[int, ...]
    free: tuple[bool, ...]
    steps: int
    seed: int = 0
    draft: bool = False
    greedy: bool = True


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Which tokens a gap may hold: `regular` are drawn as noise, `banned` never written, `first` alone may begin a gap
    that was healed (empty: any may).
    """

    regular: tuple[int, ...]
    banned: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    delete: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A canvas as it reads now: where each position stood at first, its token, that token's probability, and the mean
    entropy of the gap in nats. Positions that were deleted are not in it.
    """

    places: tuple[int, ...]
    ids: tuple[int, ...]
    chances: tuple[float, ...]
    entropy: float


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """What rows give the decoder at a step, to have the logits of their free positions."""

    ids: Tensor  # [R, C]
    top_ids: Tensor  # [R, C, K] self-conditioning
    top_chances: Tensor  # [R, C, K]
    used: Tensor  # [R, C] bool
    free: Tensor  # [R, C] bool


class Decoder(Protocol):
    """The decoder with a prefix already encoded.

    `soft` turns sparse probabilities into self-conditioning; `logits` runs one pass and returns logits [G, V] of the
    positions where `free` [R, C] is set. Positions where `used` [R, C] is not set are not there at all.
    """

    def soft(self, ids: Tensor, probabilities: Tensor) -> Tensor:
        """Return conditioning [R, C, H] for tokens [R, C, K] and their probabilities [R, C, K]."""

    def logits(self, canvas: Tensor, soft: Tensor, used: Tensor, free: Tensor) -> Tensor:
        """Return logits [G, V] in 32 bits."""


@dataclass(slots=True)
class CanvasState:
    """The state of all rows. Rows that are done keep their place but no longer cost a pass."""

    ids: Tensor  # [R, C]
    free: Tensor  # [R, C] bool, still to be written
    used: Tensor  # [R, C] bool, False where a position was deleted or never existed
    best: Tensor  # [R, C] the likeliest token at each free position, the held one elsewhere
    entropy: Tensor  # [R, C] nats, 0 where nothing is free
    chance: Tensor  # [R, C] probability of `best`
    deleted: Tensor  # [R, C] bool, read as a sure delete in the last step
    top_ids: Tensor  # [R, C, K] self-conditioning
    top_chances: Tensor  # [R, C, K]
    steps: list[int] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)


class Denoiser:
    """Steps the rows of one request until each has settled."""

    def __init__(
        self, rows: Sequence[Row], limits: TokenLimits, sampling: Sampling, n_vocabulary: int, device: str = "cpu"
    ) -> None:
        self.rows, self.limits, self.sampling, self.device = tuple(rows), limits, sampling, device
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
            self._first = self._forbidden  # nothing may start this gap and be allowed in it: better unhealed than empty
        canvas, is_free = torch.tensor(ids), torch.tensor(free)
        for index, row in enumerate(self.rows):
            if not row.draft:
                canvas[index] = torch.where(is_free[index], self._uniform(index, width), canvas[index])
        canvas, is_free = canvas.to(device), is_free.to(device)
        k = min(sampling.conditioning_tokens, n_vocabulary)
        top_ids = canvas[..., None].expand(-1, -1, k).clone()
        top_chances = torch.zeros(*canvas.shape, k, device=device)
        top_chances[..., 0] = (~is_free).float()  # held: a certainty; free: nothing known yet
        self.canvas = CanvasState(
            canvas, is_free, torch.tensor(used).to(device), canvas.clone(), torch.full(canvas.shape, torch.inf, device=device),
            torch.zeros(canvas.shape, device=device), torch.zeros_like(is_free), top_ids, top_chances,
            [0] * len(rows), [not any(row.free) or row.steps < 1 for row in rows],
        )  # fmt: skip

    def drop(self, row: int) -> None:
        """Work no further on a row."""
        self.canvas.done[row] = True

    @property
    def done(self) -> bool:
        """Whether every row has settled or used up its steps."""
        return all(self.canvas.done)

    @property
    def begun(self) -> bool:
        """Whether a step was taken: before, the rows that are no drafts read as noise."""
        return any(self.canvas.steps)

    @property
    def live(self) -> list[int]:
        """The rows that are not done."""
        return [index for index, done in enumerate(self.canvas.done) if not done]

    def step(self, decoder: Decoder, most: int = 0) -> None:
        """Predict, hold, accept, renoise; mark the rows that are done. One decoder pass for each `most` rows (0: for all)."""
        live = self.live
        for first in range(0, len(live), most or len(live)):
            rows = live[first : first + most] if most else live
            decoder_input = self.ask(rows)
            soft = decoder.soft(decoder_input.top_ids, decoder_input.top_chances)
            self.take(rows, decoder.logits(decoder_input.ids, soft, decoder_input.used, decoder_input.free))

    def ask(self, rows: Sequence[int]) -> DecoderInput:
        """Return what some rows, none of them done, give the decoder next."""
        state, at = self.canvas, torch.tensor(rows, device=self.device)
        return DecoderInput(state.ids[at], state.top_ids[at], state.top_chances[at], state.used[at], state.free[at])

    def take(self, live: Sequence[int], logits: Tensor) -> None:
        """Hold, accept and renoise by the logits [G, V] that rows have asked for; the logits are written over."""
        state, at = self.canvas, torch.tensor(live, device=self.device)
        ids, free = state.ids[at], state.free[at]
        heat = [sampler.temperature(self.sampling, state.steps[i], self.rows[i].steps) for i in live]
        logits /= torch.tensor(heat, device=self.device)[:, None].expand_as(free)[free][:, None]
        first = (free.cumsum(1) == 1) & free  # the first free position of each row
        logits.masked_fill_(self._forbidden, -torch.inf)
        if self.limits.first:
            starts = first[free]
            logits[starts] = logits[starts].masked_fill(self._first, -torch.inf)
        chances = logits.softmax(-1)
        top = chances.topk(state.top_ids.shape[-1], dim=-1)
        best, was = ids.clone(), state.best[at]
        best[free] = top.indices[:, 0]
        entropies = torch.zeros(free.shape, device=self.device)
        entropies[free] = sampler.entropy(chances)
        accepted = sampler.accept(entropies, free, self.sampling.entropy_bound)
        written, uniform = best, torch.stack([self._uniform(i, free.shape[1]) for i in live]).to(self.device)
        if any(not self.rows[i].greedy for i in live):
            draws = torch.stack([self._draws(i, free.shape[1]) for i in live]).to(self.device)
            drawn = best.clone()
            drawn[free] = sampler.draw(chances, draws[free])
            greedy = torch.tensor([self.rows[i].greedy for i in live], device=self.device)[:, None]
            written = torch.where(greedy, best, drawn)
        state.ids[at] = torch.where(free, torch.where(accepted, written, uniform), ids)
        state.top_ids[at] = state.top_ids[at].masked_scatter(free[..., None], top.indices)
        state.top_chances[at] = state.top_chances[at].masked_scatter(free[..., None], top.values)
        chance = torch.ones(free.shape, device=self.device)
        chance[free] = top.values[:, 0]
        state.best[at], state.entropy[at], state.chance[at] = best, entropies, chance
        moved = self._delete(at, best, entropies, free)
        self._settle(live, best, was, entropies, free, moved)

    def _delete(self, at: Tensor, best: Tensor, entropies: Tensor, free: Tensor) -> Tensor:
        """Take positions off the canvas that read as a sure delete twice in a row; return which rows [R] lost one."""
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
        # A row draws for its own length, so that its noise does not depend on what steps beside it.
        drawn = torch.zeros(width, dtype=torch.long)
        length = len(self.rows[row].ids)
        drawn[:length] = self._regular[torch.randint(len(self._regular), (length,), generator=self._noise[row])]
        return drawn

    def _draws(self, row: int, width: int) -> Tensor:
        drawn = torch.zeros(width)
        if not self.rows[row].greedy:
            length = len(self.rows[row].ids)
            drawn[:length] = torch.rand(length, generator=self._noise[row])
        return drawn

    def read(self, row: int) -> Reading:
        """Return how a row reads now."""
        state, length = self.canvas, len(self.rows[row].ids)
        there, free = state.used[row].tolist(), state.free[row].tolist()
        places = [index for index in range(length) if there[index]]
        ids, chances, entropies = state.best[row].tolist(), state.chance[row].tolist(), state.entropy[row].tolist()
        gap = [entropies[index] for index in places if free[index]]
        return Reading(
            tuple(places), tuple(ids[i] for i in places), tuple(chances[i] for i in places), sum(gap) / len(gap) if gap else 0.0
        )
