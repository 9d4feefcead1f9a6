"""The denoising rule once more, one row, written to be read: the oracle of `engine.denoise`.

Plain lists and a plain loop; positions that are deleted really leave the list. Slow on purpose.
"""

from __future__ import annotations

import math

import torch

from dg_lsp.engine.denoise import Decoder, Row, TokenLimits
from dg_lsp.engine.profile import Sampling


def denoise(row: Row, limits: TokenLimits, sampling: Sampling, decoder: Decoder) -> list[int]:
    """Return the ids of the finished canvas, deleted positions left out."""
    noise = torch.Generator().manual_seed(row.seed)
    width = len(row.ids)

    def uniform() -> list[int]:
        return [limits.regular[i] for i in torch.randint(len(limits.regular), (width,), generator=noise).tolist()]

    places = list(range(width))  # where each position of the canvas stood at first: its noise keeps that name
    canvas, free = list(row.ids), list(row.free)
    if not row.draft:
        fresh = uniform()
        canvas = [fresh[i] if free[i] else canvas[i] for i in places]
    best: list[int] = list(canvas)
    conditioning = [[(token, 0.0 if is_free else 1.0)] for token, is_free in zip(canvas, free, strict=True)]
    was_delete = [False] * width

    for step in range(row.steps):
        if not any(free):
            break
        temperature = sampling.t_min + (sampling.t_max - sampling.t_min) * (row.steps - step) / row.steps
        logits = _logits(decoder, canvas, conditioning, free)
        previous, entropies = best, [0.0] * len(canvas)
        best, drawn = list(canvas), list(canvas)
        fresh = uniform()
        draws = torch.zeros(width) if row.greedy else torch.rand(width, generator=noise)
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
            canvas[index] = written[index] if index in accepted else fresh[places[index]]
        mean = sum(entropies[i] for i, is_free in enumerate(free) if is_free) / sum(free)
        same = all(previous[i] == best[i] for i, is_free in enumerate(free) if is_free)
        deleted: list[int] = []
        if limits.delete is not None:
            sure = [
                f and b == limits.delete and h < sampling.delete_entropy for f, b, h in zip(free, best, entropies, strict=True)
            ]
            deleted = [i for i, is_sure in enumerate(sure) if is_sure and was_delete[i]]
            was_delete = sure
        left = [i for i in range(len(canvas)) if i not in deleted]
        canvas, free, best = [canvas[i] for i in left], [free[i] for i in left], [best[i] for i in left]
        places, conditioning = [places[i] for i in left], [conditioning[i] for i in left]
        was_delete = [was_delete[i] for i in left]
        if same and mean < sampling.stop_entropy and not deleted:
            break
    return best


def _logits(
    decoder: Decoder, canvas: list[int], conditioning: list[list[tuple[int, float]]], free: list[bool]
) -> list[torch.Tensor]:
    k = max(len(entries) for entries in conditioning)
    padded = [entries + [(entries[0][0], 0.0)] * (k - len(entries)) for entries in conditioning]
    ids = torch.tensor([[[token for token, _ in entries] for entries in padded]])
    chances = torch.tensor([[[chance for _, chance in entries] for entries in padded]])
    is_free = torch.tensor([free])
    return list(decoder.logits(torch.tensor([canvas]), decoder.soft(ids, chances), torch.ones_like(is_free), is_free))
