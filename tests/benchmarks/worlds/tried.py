"""Rules that find the length of a gap and that the product does not use: `docs/decisions/0001-length-of-a-gap.md` has why.

*Snap* reads from the logits of an open canvas where the suffix's head begins, before the canvas is settled, and goes on
with canvases that hold the suffix there. *Elastic* moves a held suffix after each step. *Probe* guesses from the encoder's
last hidden state.

Every rule is written once more in `tried_reference`, to be read. Knows logits and token ids. Knows nothing of text, nor of
how passes are run.

Shapes: C canvas positions, G gap positions, V vocabulary, H hidden.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dg_lsp.engine.decode.canvas.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.decode.canvas.speculation import Gap
from dg_lsp.engine.model.profile import Sampling

LEAST = 1e-4  # a probability below this counts as this: one sure mistake must not outweigh a whole suffix
NEAR_SEAM = 2  # self-conditioning so near a new seam was about another canvas


def head_scores(logps: Tensor, head: Sequence[int]) -> Tensor:
    """Return, for each start [C], how much likelier the suffix's head is there than anywhere, in nats.

    `logps` [C, V] are of an open canvas. Each token of the head counts its log-probability less the mean of that over all
    positions; what reaches beyond the canvas counts nothing.
    """
    at = logps[:, list(head)].clamp(min=math.log(LEAST))  # [C, S]
    above = at - at.mean(0)
    width, n_head = above.shape
    padded = torch.cat([above, above.new_zeros(n_head, n_head)])
    diagonals = padded.unfold(0, n_head, 1)[:width]  # [C, S, S]: token j, at i positions behind the start
    return diagonals.diagonal(dim1=1, dim2=2).sum(1)


def none_before(logps: Tensor, tokens: Collection[int]) -> Tensor:
    """Return, for each start [C], the log-probability that none of `tokens` stands before it.

    For the rest of a line, which holds no line end.
    """
    if not tokens:
        return logps.new_zeros(len(logps))
    some = logps[:, sorted(tokens)].logsumexp(1).exp().clamp(max=1 - LEAST)
    without = torch.log1p(-some)
    return without.cumsum(0) - without


def likely(scores: Tensor, most: int, mass: float = 1.0) -> list[tuple[int, float]]:
    """Return the likeliest starts with their shares of a softmax over all: as many as make up `mass`, `most` at most."""
    shares = scores.softmax(0)
    sorted_shares, order = shares.sort(descending=True, stable=True)  # of equal starts the first
    starts, sum_before = [], 0.0
    for start, share in zip(order[:most].tolist(), sorted_shares[:most].tolist(), strict=True):
        if sum_before >= mass:
            break
        starts.append((int(start), float(share)))
        sum_before += share
    return starts


@dataclass(frozen=True, slots=True)
class State:
    """One canvas between steps: its ids [C], which are free [C], and its self-conditioning [C, K]."""

    ids: Tensor
    free: Tensor
    top_ids: Tensor
    top_chances: Tensor


def snapped(state: State, start: int, tail: Sequence[int]) -> State:
    """Return the canvas with `tail` held from `start` on, and nothing known of the free positions near that seam."""
    tail_ids = torch.tensor(tail, dtype=torch.long, device=state.ids.device)
    ids = torch.cat([state.ids[:start], tail_ids])
    k = state.top_ids.shape[1]
    certain = torch.zeros(len(tail_ids), k, device=tail_ids.device)
    certain[:, 0] = 1
    top_chances = torch.cat([state.top_chances[:start], certain])
    top_chances[max(0, start - NEAR_SEAM) : start] = 0
    free = torch.arange(len(ids), device=tail_ids.device) < start
    return State(ids, free, torch.cat([state.top_ids[:start], tail_ids[:, None].expand(-1, k)]), top_chances)


def grown(state: State, gap: int, limits: TokenLimits, seed: int) -> State:
    """Return the canvas with room for a gap of so many positions at its beginning: noise, of which nothing is known."""
    n_free = int(state.free.sum())
    noise = torch.Generator().manual_seed(seed)
    noise_ids = torch.tensor(limits.regular)[torch.randint(len(limits.regular), (gap - n_free,), generator=noise)]
    fresh = noise_ids.to(state.ids.device)
    k = state.top_ids.shape[1]
    return State(
        torch.cat([state.ids[:n_free], fresh]),
        torch.ones(gap, dtype=torch.bool, device=fresh.device),
        torch.cat([state.top_ids[:n_free], fresh[:, None].expand(-1, k)]),
        torch.cat([state.top_chances[:n_free], torch.zeros(len(fresh), k, device=fresh.device)]),
    )


def state_of(denoiser: Denoiser, row: int) -> State:
    """Return one row of a denoiser as it stands."""
    canvas, width = denoiser.canvas, len(denoiser.rows[row].ids)
    tensors = (canvas.ids, canvas.free, canvas.top_ids, canvas.top_chances)
    return State(*(tensor[row, :width].clone() for tensor in tensors))


def resume(
    states: Sequence[State], steps: int, limits: TokenLimits, sampling: Sampling, n_vocabulary: int, seed: int = 0
) -> Denoiser:
    """Return a denoiser that goes on with canvases, as rows of their own, for so many steps."""
    rows = [
        Row(tuple(state.ids.tolist()), tuple(state.free.tolist()), steps, seed + index, draft=True)
        for index, state in enumerate(states)
    ]
    denoiser = Denoiser(rows, limits, sampling, n_vocabulary, str(states[0].ids.device))
    for index, state in enumerate(states):
        denoiser.canvas.top_ids[index, : len(state.ids)] = state.top_ids
        denoiser.canvas.top_chances[index, : len(state.ids)] = state.top_chances
    return denoiser


@dataclass(frozen=True, slots=True)
class Snap:
    """When an open canvas says enough: after `least` steps where one start has the share `sure`, after `most` anyhow.

    The starts that make up `mass` become canvases that hold the suffix, `rows` at most. After `trial` steps those go on whose
    joint log-probability is within `margin` nats of the best (0 steps: all do).
    """

    least: int = 2
    most: int = 4
    sure: float = 0.9
    mass: float = 0.98
    rows: int = 3
    trial: int = 2
    margin: float = 3.0


class Search:
    """The canvases of one gap of unknown length: an open one, then those that hold the suffix where it seems to begin.

    `denoiser` has the rows of now. The caller runs the passes and gives their results to `take`.
    """

    def __init__(self, gap: Gap, sampling: Sampling, n_vocabulary: int, snap: Snap | None = None, device: str = "cpu") -> None:
        self.gap, self.sampling, self.snap = gap, sampling, snap or Snap()
        self._n_vocabulary = n_vocabulary
        row = Row((gap.limits.regular[0],) * gap.width, (True,) * gap.width, gap.steps, gap.seed)
        self.denoiser = Denoiser([row], gap.limits, sampling, n_vocabulary, device)
        self.starts: list[tuple[int, float]] = []  # where the suffix is held, with its share; empty while the canvas is open
        self._n_steps = 0

    @property
    def is_open(self) -> bool:
        """Whether nothing is held yet."""
        return not self.starts

    @property
    def done(self) -> bool:
        """Whether all canvases have settled."""
        return not self.is_open and self.denoiser.done

    @property
    def is_trial_over(self) -> bool:
        """Whether it is time for `keep`."""
        return not self.is_open and 0 < self._n_steps == self.snap.trial and len(self.denoiser.live) > 1

    def take(self, rows: Sequence[int], logits: Tensor) -> None:
        """Take a step by the logits [G, V] that rows have asked for; they are written over."""
        self._n_steps += 1
        if not self.is_open:
            self.denoiser.take(rows, logits)
            return
        logps = logits.log_softmax(-1)
        self.denoiser.take(rows, logits)
        if self._n_steps < self.snap.least and not self.denoiser.done:
            return
        starts = likely(self._scores(logps), self.snap.rows, self.snap.mass)
        if starts[0][1] >= self.snap.sure or self._n_steps >= self.snap.most or self.denoiser.done:
            state = state_of(self.denoiser, 0)
            states = [snapped(state, start, self.gap.tail) for start, _ in starts]
            gap = self.gap
            self.denoiser = resume(states, gap.steps, gap.held, self.sampling, self._n_vocabulary, gap.seed + 1)
            self.starts, self._n_steps = starts, 0

    def _scores(self, logps: Tensor) -> Tensor:
        scores = head_scores(logps, self.gap.tail) + none_before(logps, self.gap.closing)
        scores[0] = -torch.inf  # an answer is never empty
        return scores[: self.gap.longest + 1]

    def answers(self) -> list[tuple[int, ...]]:
        """Return what stands in the gap of each canvas that holds the suffix."""
        return [self.denoiser.read(index).ids[:start] for index, (start, _) in enumerate(self.starts)]

    def keep(self, scores: Sequence[float]) -> None:
        """Go on with the canvases whose answers score within the margin of the best."""
        for index, score in enumerate(scores):
            if score < max(scores) - self.snap.margin:
                self.denoiser.drop(index)


def overlap(logps: Tensor, head: Sequence[int], sure: float = 0.5) -> int:
    """Return how many of a gap's last positions read as the beginning of the suffix's head: the gap is too long by so many.

    Each must be likelier than `sure`, and one alone says nothing: an answer may end with what the suffix begins with.
    """
    for n in range(min(len(head), len(logps) - 1), 1, -1):
        tokens = torch.tensor(head[:n], device=logps.device)
        if bool((logps[-n:].gather(1, tokens[:, None]) > math.log(sure)).all()):
            return n
    return 0


def is_short(entropies: Tensor, last: int = 3, unsure: float = 1.0) -> bool:
    """Return whether a gap's last positions stay uncertain while those before them have settled: it is too short."""
    if len(entropies) <= last:
        return bool(entropies.mean() > unsure)
    before, end = entropies[:-last], entropies[-last:]
    return bool(end.mean() > unsure) and bool(before.median() < unsure / 4)


@dataclass(frozen=True, slots=True)
class Probe:
    """A softmax regression from the encoder's last hidden state to lengths: `weights` [H + 1, N] of the `lengths`."""

    weights: Tensor
    lengths: tuple[int, ...]

    def guess(self, hidden: Tensor, most: int) -> list[int]:
        """Return the likeliest lengths after a prompt whose last hidden state is `hidden` [H]."""
        scores = hidden.float() @ self.weights[:-1] + self.weights[-1]
        return [self.lengths[index] for index in scores.topk(min(most, len(self.lengths))).indices.tolist()]


def fit_probe(hidden: Tensor, n_tokens: Sequence[int], *, penalty: float = 1e-3, steps: int = 300) -> Probe:
    """Return a probe fitted to prompts' last hidden states [N, H] and the lengths of their answers.

    Short lengths have a class each; longer ones share one with their neighbours, an eighth wide.
    """
    classes = [1]
    while classes[-1] < max(n_tokens):
        classes.append(classes[-1] + max(1, classes[-1] // 8))
    targets = torch.tensor([min(range(len(classes)), key=lambda index: abs(classes[index] - n)) for n in n_tokens])
    states = hidden.float()
    mean, spread = states.mean(0), states.std(0).clamp(min=1e-6)
    scaled = (states - mean) / spread
    weights = torch.zeros(states.shape[1] + 1, len(classes), requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        scores = scaled @ weights[:-1] + weights[-1]
        value = torch.nn.functional.cross_entropy(scores, targets) + penalty * weights[:-1].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    plain = weights.detach()[:-1] / spread[:, None]
    return Probe(torch.cat([plain, (weights.detach()[-1] - mean @ plain)[None]]), tuple(classes))
