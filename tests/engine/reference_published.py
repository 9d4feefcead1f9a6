"""Readable versions of the algorithms with which published models fill masks, against which tests check `propose.masked`.

They use plain lists and loops, and read the logits of the whole text again in each step. They are slow on purpose. `logits`
returns the logits after each token of a text. All models predict a token from the position before it, and the first token
from its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

Logits = Callable[[list[int]], Sequence[Sequence[float]]]


def open_dcoder(
    logits: Logits,
    left: list[int],
    right: list[int],
    *,
    length: int,
    mask: int,
    steps: int,
    temperature: float,
    top_p: float,
    noise: torch.Generator,
) -> list[int]:
    """Return what Open-dCoder's P2 sampler writes between two sides.

    Source: `_mdm_sample` with `alg="p2"` in veomni/models/transformers/qwen2/generation_utils.py of
    github.com/pengzhangzhi/Open-dLLM. `kappa` is exact here, and a number with 32 bits there.
    """
    text, places = [*left, *[mask] * length, *right], range(len(left), len(left) + length)
    for step in range(steps):
        masked_before = [place for place in places if text[place] == mask]
        if not masked_before:
            break
        rows = logits(text)
        drawn = sample([rows[max(place - 1, 0)] for place in places], temperature, top_p, noise)
        confidence = {place: chance for place, (_, chance, _) in zip(places, drawn, strict=True)}
        n_to_mask = length * (steps - step - 1) // steps
        to_mask = sorted(places, key=lambda place: confidence[place])[:n_to_mask]
        for place, (token, _, _) in zip(places, drawn, strict=True):
            if place in to_mask:
                text[place] = mask
            elif place in masked_before:
                text[place] = token
    assert text[: len(left)] == left
    assert text[len(left) + length :] == right
    return [text[place] for place in places]


def dreamon(
    logits: Logits,
    left: list[int],
    right: list[int],
    *,
    length: int,
    mask: int,
    expand: int,
    eos: int,
    most: int,
    steps: int,
    temperature: float,
    top_p: float,
    noise: torch.Generator,
) -> tuple[list[int], list[list[int]]]:
    """Return what DreamOn writes between two sides, and the gap after each step.

    Source: `batch_generate_with_expand_as_token` with `alg="entropy"`, `delete_eos_token` and `pad_eos_to_right` in
    eval/generator.py of github.com/DreamLM/DreamOn, where `most` is `max_gen_len`.
    """
    gap, expand_budget, history = [mask] * length, most, list[list[int]]()
    for _ in range(steps):
        masks = [place for place, token in enumerate(gap) if token == mask]
        if not masks:
            break
        rows = logits([*left, *gap, *right])
        own = [list(rows[max(len(left) + place - 1, 0)]) for place in masks]
        if len(gap) == most or expand_budget == 0:
            for row in own:
                row[expand] = -math.inf
        drawn = sample(own, temperature, top_p, noise)
        entropies = [entropy for _, _, entropy in drawn]
        surest = entropies.index(min(entropies))
        gap[masks[surest]] = drawn[surest][0]
        if eos in gap:  # it and all masks after it become deleted
            first = gap.index(eos)
            gap = [token for place, token in enumerate(gap) if not (place >= first and token in (eos, mask))]
        if expand in gap:
            place = gap.index(expand)
            gap[place : place + 1] = [mask, mask]
            expand_budget -= 1
        history.append(list(gap))
    return [token for token in gap if token != mask], history


def sample(
    rows: Sequence[Sequence[float]], temperature: float, top_p: float, noise: torch.Generator
) -> list[tuple[int, float, float]]:
    """Return a token for each row of logits, its probability, and the row's entropy, among the likeliest tokens.

    These are the tokens, likeliest first, before which the probabilities add up to at most `top_p` (`sample_tokens` and
    `top_p_logits` in both sources). A draw picks the token in whose share of their sum it falls.
    """
    draws = torch.rand(len(rows), generator=noise).tolist()
    drawn = []
    for row, draw in zip(rows, draws, strict=True):
        most = max(row)
        weights = [math.exp((value - most) / temperature) for value in row]
        chances = [weight / sum(weights) for weight in weights]
        kept, total = list[int](), 0.0
        for token in sorted(range(len(row)), key=lambda token: -chances[token]):
            if total > top_p:
                break
            kept.append(token)
            total += chances[token]
        shares = {token: chances[token] / total for token in kept}
        entropy = -sum(share * math.log(share + 1e-10) for share in shares.values())
        reached, picked = 0.0, kept[-1]
        for token in kept:
            reached += shares[token]
            if reached > draw:
                picked = token
                break
        drawn.append((picked, shares[picked], entropy))
    return drawn
