"""Draft a gap from left to right with the encoder, whose weights are also a causal fill-in-the-middle model.

On a CPU, its passes over few tokens are far cheaper than canvas steps. Each pass also reads the next tokens that the file
model predicts (prompt lookup, speculative decoding: arXiv 2211.17192). If the model agrees, one pass writes several tokens.
Otherwise the predicted tokens are discarded, so that a draft is the same as without them. Knows passes and token ids. Knows
nothing of text.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dg_lsp.engine.file_model import FileModel
from dg_lsp.engine.passes import KV, Passes, crop
from dg_lsp.engine.tree import ROOT, Tree

MAX_AHEAD = 8  # the most predicted tokens per pass
LEAST_CHANCE = 0.2  # the least joint probability at which one more predicted token pays


@dataclass(slots=True)
class Draft:
    """A continuation: its tokens, their log-probabilities under the model alone, and that of the end token after them.

    `end` is None if no pass has read the last token. `stop` is the token that ended the draft, or None.
    """

    ids: list[int]
    logps: list[float] = field(default_factory=list)
    end: float | None = None
    stop: int | None = None
    node: int = 0  # the tree's node of the last token read


@dataclass(frozen=True, slots=True)
class _Prediction:
    """For each of some tokens: the likeliest next token, its log-probability under the model alone, and that of the end."""

    tokens: list[int]
    logps: list[float]
    ends: list[float]


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
    end: int | None = None,
    file: FileModel | None = None,
) -> Generator[Draft, None, list[Draft]]:
    """Return at most `rows` greedy continuations of at most `most` tokens, each with another likely first token.

    `kv` ends with the token `last`. Only tokens in `first` may start a continuation; empty means any. `banned` tokens are
    never written. A continuation ends before a token of `stops`. The probabilities of `file` are mixed into every token.
    Yields the first continuation so far after each pass, which is one uninterruptible unit.
    """
    device = kv[0][0].device
    forbidden = torch.tensor(list(banned), dtype=torch.long, device=device)
    tree = Tree(passes, crop(kv, kv[0][0].shape[2] - 1), rows * (most + MAX_AHEAD))
    logits = passes.logits(tree.add([last], [ROOT]))
    normalizer = logits.logsumexp(-1)
    chances = _chances(logits.clone(), forbidden, [()], file)
    if first:
        first_chances = torch.zeros_like(chances)
        first_chances[:, list(first)] = chances[:, list(first)]
        chances = first_chances
    starts = chances[0].topk(min(rows, chances.shape[-1]))
    logps = (logits[0, starts.indices] - normalizer).tolist()
    behind = None if end is None else float(logits[0, end] - normalizer[0])
    continuations = [
        Draft([token], [logp], behind)
        for token, logp, value in zip(starts.indices.tolist(), logps, starts.values.tolist(), strict=True)
        if value > 0
    ]
    while live := [draft for draft in continuations if len(draft.ids) < most and draft.ids[-1] not in stops]:
        yield continuations[0]
        ahead = [_ahead(draft, most, stops, file) for draft in live]
        _write(live, ahead, _predict(passes, tree, live, ahead, forbidden, end, file), stops)
    for draft in continuations:
        if draft.ids[-1] in stops:
            draft.stop = draft.ids.pop()
            draft.logps.pop()
        else:
            draft.end = None  # it is the value after the token before the last
    return continuations


def _ahead(draft: Draft, most: int, stops: Collection[int], file: FileModel | None) -> list[int]:
    """Return the predicted tokens to read after the draft's last token. A draft's final token need not be read."""
    room = min(MAX_AHEAD, most - len(draft.ids) - 1)
    if file is None or room < 1:
        return []
    ahead = file.continuation(draft.ids, most=room, least_chance=LEAST_CHANCE, stops=stops)
    end = next((index for index, token in enumerate(ahead) if token < 0 or token in stops), len(ahead))
    return ahead[:end]


def _predict(
    passes: Passes,
    tree: Tree,
    live: Sequence[Draft],
    ahead: Sequence[Sequence[int]],
    forbidden: Tensor,
    end: int | None,
    file: FileModel | None,
) -> _Prediction:
    """Return the predictions after each draft's last token and after its predicted tokens, one draft after another."""
    tokens: list[int] = []
    parents: list[int] = []
    before: list[Sequence[int]] = []
    n_known = tree.size
    for draft, more in zip(live, ahead, strict=True):
        parent = draft.node
        draft.node = n_known + len(tokens)
        for index, token in enumerate((draft.ids[-1], *more)):
            parents.append(parent)
            parent = n_known + len(tokens)
            tokens.append(token)
            before.append((*draft.ids, *more[:index]))
    logits = passes.logits(tree.add(tokens, parents))
    normalizer = logits.logsumexp(-1)
    ends = [] if end is None else (logits[:, end] - normalizer).tolist()
    chances = _chances(logits.clone(), forbidden, before, file)
    likeliest = chances.argmax(-1)
    logps = logits.gather(-1, likeliest[:, None])[:, 0] - normalizer
    return _Prediction(likeliest.tolist(), logps.tolist(), ends)


def _write(live: Sequence[Draft], ahead: Sequence[Sequence[int]], predicted: _Prediction, stops: Collection[int]) -> None:
    """Append the likeliest next token to each draft, and further ones as long as the predicted tokens are right."""
    at = 0
    for draft, more in zip(live, ahead, strict=True):
        base = draft.node
        for index in range(len(more) + 1):
            token = predicted.tokens[at + index]
            draft.ids.append(token)
            draft.logps.append(predicted.logps[at + index])
            draft.end = predicted.ends[at + index] if predicted.ends else None
            draft.node = base + index
            if index == len(more) or more[index] != token or token in stops:
                break
        at += len(more) + 1


def _chances(logits: Tensor, forbidden: Tensor, rows_so_far: Sequence[Sequence[int]], file: FileModel | None) -> Tensor:
    """Return the next token's probabilities [R, V]: the model's, mixed with the file model's after each row's tokens."""
    chances = logits.index_fill_(1, forbidden, -torch.inf).softmax(-1)
    if file is None:
        return chances
    guesses = [file.guess(ids) for ids in rows_so_far]
    entries = [
        (row, token, guess.weight * share)
        for row, guess in enumerate(guesses)
        for token, share in guess.shares.items()
        if token >= 0
    ]
    chances *= torch.tensor([1 - guess.weight for guess in guesses], device=chances.device)[:, None]
    if entries:
        at_row, at_token, weights = zip(*entries, strict=True)
        index = (torch.tensor(at_row, device=chances.device), torch.tensor(at_token, device=chances.device))
        chances.index_put_(index, torch.tensor(weights, device=chances.device), accumulate=True)
        chances.index_fill_(1, forbidden, 0.0)
    return chances
