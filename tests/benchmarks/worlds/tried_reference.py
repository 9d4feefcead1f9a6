"""The rules of `tried` once more, one row in plain Python, written to be read.

Knows one row. Knows nothing of how passes are run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dg_lsp.engine.decode.canvas.denoise import Decoder, Row
from dg_lsp.engine.decode.canvas.reference import Canvas, begin, step
from dg_lsp.engine.decode.canvas.speculation import Gap
from dg_lsp.engine.model.profile import Sampling
from tests.benchmarks.worlds.tried import LEAST, NEAR_SEAM, Snap


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
    canvases = [snapped(canvas, start, gap, number) for number, (start, _) in enumerate(starts)]
    live = list(range(len(canvases)))
    for n in range(gap.steps):
        live = [i for i in live if not step(canvases[i], gap.held, sampling, decoder)[0]]
        if n + 1 == snap.trial and len(live) > 1 and n + 1 < gap.steps:
            chances = score([canvas.best[:start] for canvas, (start, _) in zip(canvases, starts, strict=True)])
            live = [i for i in live if chances[i] >= max(chances) - snap.margin]
    return [canvas.best[:start] for canvas, (start, _) in zip(canvases, starts, strict=True)]


def snapped(canvas: Canvas, start: int, gap: Gap, number: int) -> Canvas:
    """Return the canvas as one of its own that holds the suffix from `start` on, and knows nothing near that seam."""
    free = [True] * start + [False] * len(gap.tail)
    other = begin(Row((*canvas.ids[:start], *gap.tail), tuple(free), gap.steps, gap.seed + 1 + number, draft=True), gap.held)
    for index in range(start - NEAR_SEAM):
        other.conditioning[index] = canvas.conditioning[index]
    return other
