"""The denoising rule once more, one row, written to be read: the oracle of `engine.denoise`.

Plain lists and a plain loop; positions that are deleted really leave the list. Slow on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dg_lsp.engine.denoise import Decoder, Row, TokenLimits
from dg_lsp.engine.lengths import LEAST, NEAR_SEAM, Gap, Snap
from dg_lsp.engine.profile import Sampling


@dataclass
class Canvas:
    """One row under way. `places` say where each position stood at first: its noise keeps that name."""

    row: Row
    ids: list[int]
    free: list[bool]
    places: list[int]
    conditioning: list[list[tuple[int, float]]]
    best: list[int]
    was_delete: list[bool]
    noise: torch.Generator
    n_steps: int = 0

    def uniform(self, limits: TokenLimits) -> list[int]:
        """Draw a token for each position that there was at first."""
        return [
            limits.regular[i] for i in torch.randint(len(limits.regular), (len(self.row.ids),), generator=self.noise).tolist()
        ]


def denoise(row: Row, limits: TokenLimits, sampling: Sampling, decoder: Decoder) -> list[int]:
    """Return the ids of the finished canvas, deleted positions left out."""
    canvas = begin(row, limits)
    while canvas.n_steps < row.steps and any(canvas.free):
        if step(canvas, limits, sampling, decoder)[0]:
            break
    return canvas.best


def begin(row: Row, limits: TokenLimits) -> Canvas:
    """Return a row's canvas before its first step."""
    ids, free = list(row.ids), list(row.free)
    conditioning = [[(token, 0.0 if is_free else 1.0)] for token, is_free in zip(ids, free, strict=True)]
    noise = torch.Generator().manual_seed(row.seed)
    canvas = Canvas(row, ids, free, list(range(len(ids))), conditioning, list(ids), [False] * len(ids), noise)
    if not row.draft:
        fresh = canvas.uniform(limits)
        canvas.ids = [fresh[i] if free[i] else ids[i] for i in canvas.places]
        canvas.best = list(canvas.ids)
        canvas.conditioning = [[(t, 0.0 if f else 1.0)] for t, f in zip(canvas.ids, free, strict=True)]
    return canvas


def step(canvas: Canvas, limits: TokenLimits, sampling: Sampling, decoder: Decoder) -> tuple[bool, list[list[float]]]:
    """Take one step; return whether the canvas has settled, and the log-probabilities that the step was taken by."""
    row, free, places, conditioning = canvas.row, canvas.free, canvas.places, canvas.conditioning
    temperature = sampling.t_min + (sampling.t_max - sampling.t_min) * (row.steps - canvas.n_steps) / row.steps
    canvas.n_steps += 1
    logits = _logits(decoder, canvas.ids, conditioning, free)
    said = [each.log_softmax(-1).tolist() for each in logits]
    previous, entropies = canvas.best, [0.0] * len(canvas.ids)
    best, drawn = list(canvas.ids), list(canvas.ids)
    fresh = canvas.uniform(limits)
    draws = torch.zeros(len(row.ids)) if row.greedy else torch.rand(len(row.ids), generator=canvas.noise)
    for index in [i for i, is_free in enumerate(free) if is_free]:
        z = logits.pop(0) / temperature
        z[list(limits.banned)] = -math.inf
        if limits.first and index == free.index(True):
            allowed = set(limits.first) - set(limits.banned)
            if allowed:
                z[[token for token in range(len(z)) if token not in allowed]] = -math.inf
        chances = z.softmax(-1)
        entropies[index] = float(torch.special.entr(chances).sum())
        top = chances.topk(min(sampling.conditioning_tokens, len(chances)))
        conditioning[index] = list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        best[index] = int(top.indices[0])
        total = chances.cumsum(-1)
        drawn[index] = min(int((total <= draws[places[index]] * total[-1]).sum()), len(chances) - 1)
    accepted, spent = set[int](), 0.0
    for index in sorted((i for i, is_free in enumerate(free) if is_free), key=lambda i: entropies[i]):
        if spent > sampling.entropy_bound:
            break
        accepted.add(index)
        spent += entropies[index]
    written = best if row.greedy else drawn
    for index in [i for i, is_free in enumerate(free) if is_free]:
        canvas.ids[index] = written[index] if index in accepted else fresh[places[index]]
    mean = sum(entropies[i] for i, is_free in enumerate(free) if is_free) / sum(free)
    same = all(previous[i] == best[i] for i, is_free in enumerate(free) if is_free)
    gone: list[int] = []
    if limits.delete is not None:
        sure = [f and b == limits.delete and h < sampling.delete_entropy for f, b, h in zip(free, best, entropies, strict=True)]
        gone = [i for i, is_sure in enumerate(sure) if is_sure and canvas.was_delete[i]]
        canvas.was_delete = sure
    left = [i for i in range(len(canvas.ids)) if i not in gone]
    canvas.ids, canvas.free, canvas.best = [canvas.ids[i] for i in left], [free[i] for i in left], [best[i] for i in left]
    canvas.places, canvas.conditioning = [places[i] for i in left], [conditioning[i] for i in left]
    canvas.was_delete = [canvas.was_delete[i] for i in left]
    return same and mean < sampling.stop_entropy and not gone, said


def _logits(
    decoder: Decoder, canvas: list[int], conditioning: list[list[tuple[int, float]]], free: list[bool]
) -> list[torch.Tensor]:
    k = max(len(entries) for entries in conditioning)
    padded = [entries + [(entries[0][0], 0.0)] * (k - len(entries)) for entries in conditioning]
    ids = torch.tensor([[[token for token, _ in entries] for entries in padded]])
    chances = torch.tensor([[[chance for _, chance in entries] for entries in padded]])
    wanted = torch.tensor([free])
    return list(decoder.logits(torch.tensor([canvas]), decoder.soft(ids, chances), torch.ones_like(wanted), wanted))


def head_scores(logps: list[list[float]], head: list[int]) -> list[float]:
    """Return, for each start, how much likelier the suffix's head is there than anywhere."""
    floored = [[max(value, math.log(LEAST)) for value in row] for row in logps]
    mean = {token: sum(row[token] for row in floored) / len(floored) for token in head}
    scores = []
    for start in range(len(floored)):
        there = list(zip(floored[start:], head, strict=False))  # the head as far as the canvas reaches
        scores.append(sum(row[token] - mean[token] for row, token in there))
    return scores


def none_before(logps: list[list[float]], tokens: set[int]) -> list[float]:
    """Return, for each start, the log-probability that none of `tokens` stands before it."""
    sums, total = [], 0.0
    for row in logps:
        sums.append(total)
        some = sum(math.exp(row[token]) for token in tokens)
        total += math.log(1 - min(some, 1 - LEAST))
    return sums


def overlap(chances: list[list[float]], head: list[int], sure: float = 0.5) -> int:
    """Return how many of a gap's last positions read as the beginning of the suffix's head."""
    fitting = [n for n in range(2, min(len(head), len(chances) - 1) + 1) if _reads_as(chances[-n:], head[:n], sure)]
    return max(fitting, default=0)


def _reads_as(chances: list[list[float]], tokens: list[int], sure: float) -> bool:
    return all(row[token] > sure for row, token in zip(chances, tokens, strict=True))


def cut_at_suffix(draft: list[int], head: list[int], least: int = 3) -> int:
    """Return where a draft goes on into the suffix, or its length."""
    runs = [_agreement(draft[start:], head) for start in range(len(draft))]
    longest = max(runs, default=0)
    return runs.index(longest) if longest >= min(least, len(head)) and longest else len(draft)


def _agreement(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def likely(scores: list[float], most: int, mass: float) -> list[tuple[int, float]]:
    """Return the likeliest starts with their shares, best first, as many as make up `mass`."""
    total = sum(math.exp(score - max(scores)) for score in scores)
    shares = [(start, math.exp(score - max(scores)) / total) for start, score in enumerate(scores)]
    best: list[tuple[int, float]] = []
    for start, share in sorted(shares, key=lambda pair: -pair[1])[:most]:
        if sum(share for _, share in best) < mass:
            best.append((start, share))
    return best


def search(
    gap: Gap, sampling: Sampling, snap: Snap, decoder: Decoder, score: Callable[[list[list[int]]], list[float]]
) -> list[list[int]]:
    """Return what each canvas of a gap of unknown length comes to; `score` says what a causal pass says of answers."""
    row = Row((gap.limits.regular[0],) * gap.width, (True,) * gap.width, gap.steps, gap.seed)
    canvas = begin(row, gap.limits)
    while True:
        settled, logps = step(canvas, gap.limits, sampling, decoder)
        is_last = settled or canvas.n_steps in (snap.most, gap.steps)
        if canvas.n_steps < snap.least and not is_last:
            continue
        heads, ends = head_scores(logps, list(gap.tail)), none_before(logps, set(gap.closing))
        scores = [one + other for one, other in zip(heads, ends, strict=True)][: gap.longest + 1]
        starts = likely([-math.inf, *scores[1:]], snap.rows, snap.mass)  # an answer is never empty
        if starts[0][1] >= snap.sure or is_last:
            break
    held = [snapped(canvas, start, gap, number) for number, (start, _) in enumerate(starts)]
    live = list(range(len(held)))
    for n in range(gap.steps):
        live = [i for i in live if not step(held[i], gap.held, sampling, decoder)[0]]
        if n + 1 == snap.trial and len(live) > 1 and n + 1 < gap.steps:
            chances = score([canvas.best[:start] for canvas, (start, _) in zip(held, starts, strict=True)])
            live = [i for i in live if chances[i] >= max(chances) - snap.margin]
    return [canvas.best[:start] for canvas, (start, _) in zip(held, starts, strict=True)]


def snapped(canvas: Canvas, start: int, gap: Gap, number: int) -> Canvas:
    """Return the canvas as one of its own that holds the suffix from `start` on, and knows nothing near that seam."""
    free = [True] * start + [False] * len(gap.tail)
    other = begin(Row((*canvas.ids[:start], *gap.tail), tuple(free), gap.steps, gap.seed + 1 + number, draft=True), gap.held)
    for index in range(start - NEAR_SEAM):
        other.conditioning[index] = canvas.conditioning[index]
    return other
