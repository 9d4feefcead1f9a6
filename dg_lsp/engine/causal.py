"""Draft a gap from left to right with the encoder: the same weights are a causal fill-in-the-middle model.

On a CPU its passes over one token each are far cheaper than canvas steps. Knows passes and token ids. Knows nothing of
text.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence

import torch
from torch import Tensor

from dg_lsp.engine.file_model import FileModel
from dg_lsp.engine.passes import KV, Passes, crop, widen


def drafts(
    passes: Passes,
    kv: KV,
    last: int,
    *,
    rows: int,
    most: int,
    first: Sequence[int],
    banned: Sequence[int],
    stops: Collection[int],
    file: FileModel | None = None,
) -> Generator[bool, None, list[list[int]]]:
    """Return up to `rows` greedy continuations of at most `most` tokens, each from another likely first token.

    `kv` ends with the token `last`. Only `first` may start one, where it says so; `banned` are never written; a
    continuation ends before one of `stops`; `file` has a say in every token. Yields after each token:
    the unit that is never interrupted.
    """
    device = kv[0][0].device
    hidden, kv = passes.encode(torch.tensor([[last]], device=device), crop(kv, kv[0][0].shape[2] - 1))
    chances = _chances(passes.logits(hidden[:, -1]), banned, [[]], file)
    if first:
        allowed = torch.zeros_like(chances)
        allowed[:, list(first)] = chances[:, list(first)]
        chances = allowed
    begun = chances[0].topk(min(rows, chances.shape[-1]))
    written = [[token] for token, value in zip(begun.indices.tolist(), begun.values.tolist(), strict=True) if value > 0]
    live = list(range(len(written)))
    kv = widen(kv, len(live))
    for _ in range(most - 1):
        going = [place for place, row in enumerate(live) if written[row][-1] not in stops]
        if not going:
            break
        yield True
        if len(going) < len(live):
            index = torch.tensor(going, device=device)
            kv, live = [(keys[index], values[index]) for keys, values in kv], [live[place] for place in going]
        hidden, kv = passes.encode(torch.tensor([[written[row][-1]] for row in live], device=device), kv)
        chances = _chances(passes.logits(hidden[:, -1]), banned, [written[row] for row in live], file)
        for row, token in zip(live, chances.argmax(-1).tolist(), strict=True):
            written[row].append(token)
    return [row[:-1] if row[-1] in stops else row for row in written]


def _chances(logits: Tensor, banned: Sequence[int], written: Sequence[Sequence[int]], file: FileModel | None) -> Tensor:
    """Return the next token's probabilities [R, V]: the model's, mixed with what the file says after each row."""
    logits[:, list(banned)] = -torch.inf
    chances = logits.softmax(-1)
    if file is None:
        return chances
    forbidden = set(banned)
    for row, ids in enumerate(written):
        guess = file.guess(ids)
        chances[row] *= 1 - guess.weight
        for token, share in guess.shares.items():
            if token >= 0 and token not in forbidden:
                chances[row, token] += guess.weight * share
    return chances
