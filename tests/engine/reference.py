"""A readable implementation of the denoising rule for one row, against which tests check `diffusion.denoise`.

It uses plain lists and loops, and is slow on purpose. It also has readable versions of the rules of `diffusion.search` and
`common.copies`, `diffusion.readout` without slices, and a step of `diffusion.fixed_step` without buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor

from dg_lsp.engine.diffusion.denoise import STATE, CanvasState, Denoiser, Row, TokenLimits, advanced
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.diffusion.readout import NEVER, Constraints, Readout
from dg_lsp.engine.diffusion.search import Gap, Speculate
from dg_lsp.engine.model.kv import KV


class Decoder(Protocol):
    """The decoder with a prefix already encoded."""

    def logits(self, rows: CanvasState) -> Tensor:
        """Return the logits [G, V] of the free positions of some rows. Unused positions do not exist for it."""


@dataclass(frozen=True)
class PlainDecoder:
    """The decoder of a model behind a prefix: each row behind its own copy."""

    passes: Passes
    kv: KV

    def logits(self, rows: CanvasState) -> Tensor:
        """Return what `Decoder` says."""
        hidden = decoded(self.passes, rows.ids, self.kv, self.passes.soft(rows.top_ids, rows.top_chances), rows.used)
        return self.passes.logits(hidden[rows.free])


def decoded(passes: Passes, canvas: Tensor, kv: KV, soft: Tensor | None = None, used: Tensor | None = None) -> Tensor:
    """Return the hidden states [R, C, H] of canvases [R, C] behind a prefix; without `used`, all their positions are."""
    (n_rows, width), n_past, device = canvas.shape, kv[0][0].shape[2], canvas.device

    def with_room(side: Tensor) -> Tensor:
        return torch.cat([side, side[:, :, :1].expand(-1, -1, width, -1)], 2).repeat(n_rows, 1, 1, 1)

    used = torch.ones(n_rows, width, dtype=torch.bool, device=device) if used is None else used
    mask = torch.cat([torch.ones(n_rows, n_past, dtype=torch.bool, device=device), used], 1)
    return passes.decode(
        canvas,
        [(with_room(keys), with_room(values)) for keys, values in kv],
        torch.zeros(n_rows, width, passes.n_hidden, dtype=passes.hidden_dtype, device=device) if soft is None else soft,
        n_past + (used.cumsum(1) - 1).clamp(min=0),
        mask[:, None, None].expand(-1, 1, width, -1),
    )


def take_step(denoiser: Denoiser, decoder: Decoder, rows: Sequence[int] | None = None) -> None:
    """Take one step of some rows of a denoiser, or of all live ones."""
    live, device = denoiser.live if rows is None else rows, denoiser.device
    at, inputs = torch.tensor(live, device=device), denoiser.inputs(live)
    state = denoiser.canvas.rows(at)
    free = state.free
    rules = Constraints(
        inputs.heat.to(device)[:, None].expand_as(free)[free],
        denoiser.forbidden,
        denoiser.first_forbidden,
        ((free.cumsum(1) == 1) & free)[free],  # the first free position of each row
        None if inputs.draws is None else inputs.draws.to(device)[free],
    )
    found = plain_readout(decoder.logits(state).clone(), rules, state.top_ids.shape[-1])
    predicted = Readout(
        state.top_ids.masked_scatter(free[..., None], found.top_ids),
        state.top_chances.masked_scatter(free[..., None], found.top_chances),
        state.entropy.masked_scatter(free, found.entropies),
        None if found.sampled is None else state.best.masked_scatter(free, found.sampled),
    )
    after = advanced(state, predicted, inputs.noise.to(device), inputs.greedy.to(device), denoiser.sampling)
    for name in STATE:
        getattr(denoiser.canvas, name)[at] = getattr(after, name)
    denoiser.note(live, after.settled.tolist())


@dataclass
class Canvas:
    """The state of one row."""

    row: Row
    ids: list[int]
    free: list[bool]
    conditioning: list[list[tuple[int, float]]]
    best: list[int]
    noise: torch.Generator
    n_steps: int = 0

    def uniform(self, limits: TokenLimits) -> list[int]:
        """Return a random token for each position."""
        return [
            limits.regular[i] for i in torch.randint(len(limits.regular), (len(self.row.ids),), generator=self.noise).tolist()
        ]


def denoise(row: Row, limits: TokenLimits, sampling: Sampling, decoder: Decoder) -> list[int]:
    """Return the ids of the finished canvas."""
    canvas = begin(row, limits)
    while canvas.n_steps < row.steps and any(canvas.free):
        if step(canvas, limits, sampling, decoder)[0]:
            break
    return canvas.best


def begin(row: Row, limits: TokenLimits) -> Canvas:
    """Return the canvas of a row before its first step."""
    ids, free = list(row.ids), list(row.free)
    conditioning = [[(token, 0.0 if is_free else 1.0)] for token, is_free in zip(ids, free, strict=True)]
    noise = torch.Generator().manual_seed(row.seed)
    canvas = Canvas(row, ids, free, conditioning, list(ids), noise)
    if row.chances:
        canvas.conditioning = [[(t, p if f else 1.0)] for t, p, f in zip(ids, row.chances, free, strict=True)]
    if any(is_free and is_noisy for is_free, is_noisy in zip(free, row.noisy, strict=False)):
        fresh = canvas.uniform(limits)
        canvas.ids = [fresh[i] if free[i] and row.noisy[i] else ids[i] for i in range(len(ids))]
    if not row.draft:
        fresh = canvas.uniform(limits)
        canvas.ids = [fresh[i] if free[i] else ids[i] for i in range(len(ids))]
        canvas.best = list(canvas.ids)
        canvas.conditioning = [[(t, 0.0 if f else 1.0)] for t, f in zip(canvas.ids, free, strict=True)]
    return canvas


def step(canvas: Canvas, limits: TokenLimits, sampling: Sampling, decoder: Decoder) -> tuple[bool, list[list[float]]]:
    """Take one step; return whether the canvas has settled, and the step's log-probabilities of the free positions."""
    row, free, conditioning = canvas.row, canvas.free, canvas.conditioning
    temperature = sampling.t_min + (sampling.t_max - sampling.t_min) * (row.steps - canvas.n_steps) / row.steps
    canvas.n_steps += 1
    logits = _logits(decoder, canvas.ids, conditioning, free)
    logps = [each.log_softmax(-1).tolist() for each in logits]
    previous, entropies = canvas.best, [0.0] * len(canvas.ids)
    best, sampled = list(canvas.ids), list(canvas.ids)
    fresh = canvas.uniform(limits)
    draws = torch.zeros(len(row.ids)) if row.greedy else torch.rand(len(row.ids), generator=canvas.noise)
    for index in [i for i, is_free in enumerate(free) if is_free]:
        z = logits.pop(0) / temperature
        z[list(limits.banned)] = -math.inf
        if limits.first and index == free.index(True):
            allowed_ids = set(limits.first) - set(limits.banned)
            if allowed_ids:
                z[[token for token in range(len(z)) if token not in allowed_ids]] = -math.inf
        chances = z.softmax(-1)
        entropies[index] = float(torch.special.entr(chances).sum())
        top = chances.topk(min(sampling.conditioning_tokens, len(chances)))
        conditioning[index] = list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        best[index] = int(top.indices[0])
        total = chances.cumsum(-1)
        sampled[index] = min(int((total <= draws[index] * total[-1]).sum()), len(chances) - 1)
    accepted, entropy_sum = set[int](), 0.0
    for index in sorted((i for i, is_free in enumerate(free) if is_free), key=lambda i: entropies[i]):
        if entropy_sum > sampling.entropy_bound:
            break
        accepted.add(index)
        entropy_sum += entropies[index]
    next_ids = best if row.greedy else sampled
    for index in [i for i, is_free in enumerate(free) if is_free]:
        canvas.ids[index] = next_ids[index] if index in accepted else fresh[index]
    mean = sum(entropies[i] for i, is_free in enumerate(free) if is_free) / sum(free)
    same = all(previous[i] == best[i] for i, is_free in enumerate(free) if is_free)
    canvas.best = best
    return same and mean < sampling.stop_entropy, logps


def _logits(
    decoder: Decoder, canvas: list[int], conditioning: list[list[tuple[int, float]]], free: list[bool]
) -> list[torch.Tensor]:
    k = max(len(entries) for entries in conditioning)
    padded = [entries + [(entries[0][0], 0.0)] * (k - len(entries)) for entries in conditioning]
    ids = torch.tensor([[[token for token, _ in entries] for entries in padded]])
    chances = torch.tensor([[[chance for _, chance in entries] for entries in padded]])
    mask = torch.tensor([free])
    rows: Any = SimpleNamespace(
        ids=torch.tensor([canvas]), top_ids=ids, top_chances=chances, used=torch.ones_like(mask), free=mask
    )
    return list(decoder.logits(rows))


def cut_at_suffix(draft: list[int], head: list[int], least: int = 3) -> int:
    """Return where a draft continues with the suffix, or the draft's length."""
    runs = [_agreement(draft[start:], head) for start in range(len(draft))]
    longest = max(runs, default=0)
    return runs.index(longest) if longest >= min(least, len(head)) and longest else len(draft)


def _agreement(first: Sequence[object], second: Sequence[object]) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


def speculate(
    gap: Gap,
    ends: set[int],
    sampling: Sampling,
    options: Speculate,
    decoder: Decoder,
    causal: Callable[[list[int]], torch.Tensor],
) -> tuple[list[int], list[int]]:
    """Return the text that an open canvas proposes and causal passes verify, and the answer lengths worth scoring.

    `causal` returns the logits of the token after a text. The fast version computes those of many texts in one pass.
    """
    tail = list(gap.tail)
    canvas = begin(Row((gap.limits.regular[0],) * gap.width, (True,) * gap.width, gap.steps, gap.seed), gap.limits)
    text: list[int] = []
    heads: list[float] = []
    limits, n_rounds, is_over = gap.limits, 0, False
    while not is_over and n_rounds < gap.steps:
        repeated = [n for n in range(options.repeats, len(tail)) if len(text) >= n and text[-n:] == tail[:n]]
        if repeated:
            proposal = tail[max(repeated) :][: gap.width - len(text)]
        else:
            step(canvas, limits, sampling, decoder)
            n_rounds += 1
            proposal = canvas.best[len(text) :][: options.look]
        for proposed in [*proposal, None]:
            logits = causal(text).float()
            heads.append(float(logits.log_softmax(-1)[tail[0]]))
            token = _likeliest(logits, gap.limits.banned, gap.limits.first if not text else ())
            text.append(token)
            ends_here = token in ends or token in gap.closing or len(text) == gap.width
            is_over = is_over or ends_here
            if ends_here or token != proposed:
                break
        is_over = is_over or text[-len(tail) :] == tail
        hold(canvas, text)
        limits = replace(limits, first=())
    return text, _possible_lengths(gap, ends, options, text, heads, canvas)


def before_suffix(text: str, suffix: str, solid: int) -> str:
    """Return a draft up to where it continues with the suffix, which is the longest run of the suffix's start in it.

    If the suffix starts with several line ends, they count as one.
    """
    if is_line_end := suffix.startswith("\n"):
        suffix = "\n" + suffix.lstrip("\n")
    runs = [_agreement(text[start:], suffix) for start in range(len(text))]
    counted = [n if _is_suffix(text, start, n, suffix, solid) else 0 for start, n in enumerate(runs)]
    longest = max(counted, default=0)
    if not longest:
        return text
    draft_start = text[: counted.index(longest)]
    return draft_start.rstrip("\n") if is_line_end else draft_start


def _is_suffix(text: str, start: int, n: int, suffix: str, solid: int) -> bool:
    """Return whether a run of `n` characters counts as the suffix, by the rule in `cuts.before_suffix`."""
    blank = len(suffix) - len(suffix.lstrip())
    first_line = blank + len(suffix[blank:].split("\n")[0])
    is_last, is_solid = start + n == len(text), sum(not c.isspace() for c in text[start : start + n]) >= solid
    return blank < n and ((n >= first_line and (is_solid or is_last or n == len(suffix))) or (is_last and is_solid))


def renoised(chances: list[float], sure: float) -> list[bool]:
    """Return which tokens of a draft start as noise: those with a causal probability below `sure`."""
    return [chance < sure for chance in chances]


def _likeliest(logits: torch.Tensor, banned: tuple[int, ...], first: tuple[int, ...]) -> int:
    allowed_first = [token for token in first if token not in banned]
    writable = allowed_first or [token for token in range(len(logits)) if token not in banned]
    return max(writable, key=lambda token: (float(logits[token]), -token))


def hold(canvas: Canvas, text: list[int]) -> None:
    """Make a text the held start of a canvas."""
    for index, token in enumerate(text):
        canvas.ids[index] = canvas.best[index] = token
        canvas.free[index], canvas.conditioning[index] = False, [(token, 1.0)]


def _possible_lengths(
    gap: Gap, ends: set[int], options: Speculate, text: list[int], heads: list[float], canvas: Canvas
) -> list[int]:
    """Return the possible starts of the suffix: the longest run of its head, then where its first token was likeliest."""
    whole = [*text, *canvas.best[len(text) :]]
    closed = [index for index, token in enumerate(whole) if token in ends or token in gap.closing]
    most = min(gap.longest, min(closed, default=len(whole)))
    suffix_start = min(max(cut_at_suffix(whole, list(gap.tail)), 1), max(most, 1))
    likely = [n for n in range(1, most + 1) if n < len(heads) and heads[n] >= math.log(options.possible)]
    others = sorted((n for n in likely if n != suffix_start), key=lambda n: (-heads[n], n))
    return [suffix_start, *others[: options.starts - 1]]


def plain_readout(logits: Tensor, constraints: Constraints, k: int) -> Readout:
    """Return the readout of logits [G, V], which are overwritten, with probabilities of the whole vocabulary."""
    logits /= constraints.heat[:, None]
    logits.masked_fill_(constraints.forbidden, NEVER)
    logits[constraints.starts] = logits[constraints.starts].masked_fill(constraints.first, NEVER)
    chances = logits.softmax(-1)
    top = chances.topk(k, dim=-1)
    # The entropy is the log of the normaliser minus the mean logit, which avoids a logarithm of each probability. Forbidden
    # tokens have the logit `NEVER`, because zero times minus infinity is not a number.
    normalizer = logits.gather(-1, top.indices[:, :1])[:, 0] - top.values[:, 0].log()
    entropies = (normalizer - torch.linalg.vecdot(chances, logits)).clamp_(min=0.0)
    return Readout(top.indices, top.values, entropies, None if constraints.draws is None else _draw(chances, constraints.draws))


def _draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return one token per row of probabilities [G, V], by inverse sampling with `uniform` [G] in [0, 1)."""
    cumulative = probabilities.cumsum(-1)
    picked = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
    return picked.clamp(max=probabilities.shape[-1] - 1)
