"""The denoising loop: the state of all rows of one request, which step until they settle.

Each step holds the known tokens in three places: on the canvas, in the logits (held positions are never predicted) and in
the self-conditioning, as certainties. Accepted tokens are not frozen, because freezing breaks this model (research on
DiffusionGemma's sampler, arXiv 2608.00146); each step decides acceptance again. `tests/engine/reference.py` states the rule
plainly; a test checks that both give equal tokens.

`fixed_step` takes the steps: with what `inputs` returns it computes the logits and then `advanced`, and calls `note`.

Temperature and acceptance follow DiffusionGemma's sampler (transformers 5.23, `generation_diffusion_gemma.py`; EB-sampler,
arXiv 2505.24857). Infilling needs two differences: everything is computed on the gap only, and each row has its own budget.

Knows nothing of models and text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.diffusion.readout import Readout


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
    empty means any.
    """

    regular: tuple[int, ...]
    banned: tuple[int, ...] = ()
    first: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """The current text of a canvas.

    `ids` are the tokens of its positions, `chances` their probabilities, and `entropy` the gap's mean entropy in nats.
    """

    ids: tuple[int, ...]
    chances: tuple[float, ...]
    entropy: float


@dataclass(slots=True)
class CanvasState:
    """The state of some rows. Finished rows keep their index but are not passed to the decoder.

    Each field has the values of all rows, because a step replaces all values of some rows together.
    """

    ids: Tensor  # [R, C]
    free: Tensor  # [R, C] bool, not yet fixed
    used: Tensor  # [R, C] bool, False behind the end of a row
    best: Tensor  # [R, C] the likeliest token of each free position, and the held tokens
    entropy: Tensor  # [R, C] nats, 0 at held positions
    chance: Tensor  # [R, C] probability of `best`
    top_ids: Tensor  # [R, C, K] self-conditioning
    top_chances: Tensor  # [R, C, K]
    settled: Tensor  # [R] bool
    steps: list[int] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)

    def rows(self, at: Tensor) -> CanvasState:
        """Return the state of the rows `at` [N], without their steps."""
        return CanvasState(*(getattr(self, name)[at] for name in STATE))


STATE = ("ids", "free", "used", "best", "entropy", "chance", "top_ids", "top_chances", "settled")
"""The tensors of a `CanvasState`."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The numbers that one step of some rows takes from the host, on the CPU."""

    heat: Tensor  # [R] temperatures
    noise: Tensor  # [R, C] the tokens of positions that are not accepted
    draws: Tensor | None  # [R, C] random numbers in [0, 1) that sample a token; None if all rows are greedy
    greedy: Tensor  # [R] bool


def temperature(sampling: Sampling, step: int, n_steps: int) -> float:
    """Return the temperature of step 0, 1, … of `n_steps`, which falls from `t_max` towards `t_min`."""
    return sampling.t_min + (sampling.t_max - sampling.t_min) * (n_steps - step) / n_steps


def accept(entropies: Tensor, free: Tensor, bound: float) -> Tensor:
    """Return which free positions [R, C] are accepted: those of lowest entropy in each row.

    The sum of the entropies before each accepted position is within the bound. So each row with free positions gets at
    least one.
    """
    ordered, order = entropies.masked_fill(~free, torch.inf).sort(dim=1, stable=True)
    finite = ordered.nan_to_num(posinf=0.0)
    within = (finite.cumsum(1) - finite) <= bound
    return torch.zeros_like(free).scatter(1, order, within) & free


def advanced(state: CanvasState, predicted: Readout, noise: Tensor, greedy: Tensor, sampling: Sampling) -> CanvasState:
    """Return the rows' state after one step: accept and renoise positions, and find the rows that settle.

    `predicted` is the readout at its places on the canvases, [R, C, K] and [R, C]; where a position is not free, it has no
    meaning. All shapes are those of the state, whatever its values, so that a GPU can record it as a graph. The rule is that
    of `tests/engine/reference.py`.
    """
    free = state.free
    best = torch.where(free, predicted.top_ids[..., 0], state.ids)
    entropies = torch.where(free, predicted.entropies, 0.0)
    accepted = accept(entropies, free, sampling.entropy_bound)
    sampled = best if predicted.sampled is None else torch.where(greedy[:, None], best, predicted.sampled)
    ids = torch.where(free, torch.where(accepted, sampled, noise), state.ids)
    same = ((best == state.best) | ~free).all(1)
    sure = entropies.sum(1) / free.sum(1).clamp(min=1) < sampling.stop_entropy
    return CanvasState(
        ids,
        free,
        state.used,
        best,
        entropies,
        torch.where(free, predicted.top_chances[..., 0], 1.0),
        torch.where(free[..., None], predicted.top_ids, state.top_ids),
        torch.where(free[..., None], predicted.top_chances, state.top_chances),
        (same & sure) | ~free.any(1),
    )


class Denoiser:
    """The rows of one request, each of which is done once it has settled or has used its steps.

    Besides the canvas, its attributes are the rows and their limits as tensors, which are made once for all steps.
    """

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
        first = forbidden.clone().fill_(True)
        first[list(limits.first)] = False
        first |= forbidden
        self.forbidden = forbidden.to(device)  # [V] bool
        # If no allowed token may start this gap, give up healing rather than leave the gap empty.
        self._first = self.forbidden if bool(first.all()) else first.to(device)
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
            torch.zeros(canvas.shape, device=device), top_ids, top_chances,
            torch.zeros(len(rows), dtype=torch.bool, device=device),
            [0] * len(rows), [not any(row.free) or row.steps < 1 for row in rows],
        )  # fmt: skip

    @property
    def first_forbidden(self) -> Tensor:
        """The tokens [V] that may not stand at the first free position of a row."""
        return self._first if self.limits.first else self.forbidden

    def bound(self, steps: int) -> None:
        """Limit each live row to `steps` more steps, within its own maximum; 0 ends all rows."""
        for index in self.live:
            n_taken = self.canvas.steps[index]
            self.rows[index] = replace(self.rows[index], steps=min(self._most_steps[index], n_taken + steps))
            self.canvas.done[index] = n_taken >= self.rows[index].steps

    @property
    def width(self) -> int:
        return self.canvas.ids.shape[1]

    def drop(self, row: int) -> None:
        self.canvas.done[row] = True

    @property
    def done(self) -> bool:
        return all(self.canvas.done)

    @property
    def begun(self) -> bool:
        """Whether any step was taken. Before that, rows without a draft contain noise."""
        return any(self.canvas.steps)

    @property
    def live(self) -> list[int]:
        return [index for index, done in enumerate(self.canvas.done) if not done]

    def inputs(self, rows: Sequence[int]) -> StepInputs:
        """Return what the next step of these rows takes from the host. The rows' random numbers advance."""
        width = self.width
        heat = [temperature(self.sampling, self.canvas.steps[i], self.rows[i].steps) for i in rows]
        noise = torch.stack([self._uniform(i, width) for i in rows])
        greedy = torch.tensor([self.rows[i].greedy for i in rows])
        draws = None if bool(greedy.all()) else torch.stack([self._draws(i, width) for i in rows])
        return StepInputs(torch.tensor(heat), noise, draws, greedy)

    def note(self, rows: Sequence[int], settled: Sequence[bool]) -> None:
        """Count a step of these rows; those that settled or have used their steps are finished."""
        state = self.canvas
        for index, is_settled in zip(rows, settled, strict=True):
            state.steps[index] += 1
            state.done[index] = is_settled or state.steps[index] >= self.rows[index].steps

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
        state, length = self.canvas, len(self.rows[row].ids)
        ids, chances = state.best[row, :length].tolist(), state.chance[row, :length].tolist()
        gap = state.entropy[row, :length][state.free[row, :length]].tolist()
        return Reading(tuple(ids), tuple(chances), sum(gap) / len(gap) if gap else 0.0)
