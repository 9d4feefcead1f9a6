"""Draft a gap from left to right with the encoder, whose weights are also a causal fill-in-the-middle model.

On a CPU, its passes over few tokens are far cheaper than canvas steps. Each pass also reads the next tokens that the file
model predicts (prompt lookup, speculative decoding: arXiv 2211.17192). If the model agrees, one pass writes several tokens.
Otherwise the predicted tokens are discarded, so that a draft is the same as without them.

A greedy draft that is wrong is often wrong in one token. So `branches` takes the likeliest other token at some place of a
draft and continues greedily from there: a beam search whose beams share one pass. Knows passes and token ids. Knows nothing
of text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dg_lsp.engine.file_model import NOTHING, FileModel
from dg_lsp.engine.passes import KV, Passes, crop
from dg_lsp.engine.tree import ROOT, Tree, trie

MAX_AHEAD = 8  # the most predicted tokens per pass
LEAST = 1e-12  # the least probability whose log is added up
LEAST_CHANCE = 0.2  # the least joint probability at which one more predicted token pays
STOP = -1  # stands for every token that ends a draft, because the text is the same


@dataclass(slots=True)
class Draft:
    """A continuation: its tokens, their log-probabilities under the model alone, and that of the end token after them.

    `end` is None if no pass has read the last token. `stop` is the token that ended the draft, or None. `file` is what was
    mixed into its tokens' probabilities, None for nothing. `joint` is the sum of the logs of the mixed probabilities.
    """

    ids: list[int]
    logps: list[float] = field(default_factory=list)
    end: float | None = None
    stop: int | None = None
    node: int = 0  # the tree's node of the last token read
    file: FileModel | None = None
    joint: float = 0.0


@dataclass(frozen=True, slots=True)
class _Prediction:
    """For each of some tokens: the likeliest next token, its log-probability under the model alone, and that of the end.

    `joints` are the logs of the next tokens' mixed probabilities.
    """

    tokens: list[int]
    logps: list[float]
    ends: list[float]
    joints: list[float]


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
    alone: bool = False,
    most_behind: float = math.inf,
) -> Generator[Draft, None, list[Draft]]:
    """Return at most `rows` greedy continuations of at most `most` tokens, each with another likely first token.

    `kv` ends with the token `last`. Only tokens in `first` may start a continuation; empty means any. `banned` tokens are
    never written. A continuation ends before a token of `stops`. The probabilities of `file` are mixed into every token.
    With `alone`, one more continuation follows, which the model writes alone. A continuation is dropped as soon as its
    probability is more than `most_behind` nats lower than that of a finished one. Yields the first continuation so far
    after each pass, which is one uninterruptible unit.
    """
    device = kv[0][0].device
    forbidden = torch.tensor(list(banned), dtype=torch.long, device=device)
    tree = Tree(passes, crop(kv, kv[0][0].shape[2] - 1), (rows + alone) * (most + MAX_AHEAD))
    logits = passes.logits(tree.add([last], [ROOT]))
    logps = logits[0].log_softmax(-1)
    behind = None if end is None else float(logps[end])
    continuations: list[Draft] = []
    for source, n_starts in ((file, rows), (None, int(alone and file is not None))):
        chances = _allowed(_chances(logits.clone(), forbidden, [()], [source])[0], first)
        starts = chances.topk(min(n_starts, chances.shape[-1]))
        continuations += [
            Draft([token], [float(logps[token])], behind, file=source, joint=math.log(value))
            for token, value in zip(starts.indices.tolist(), starts.values.tolist(), strict=True)
            if value > 0
        ]
    while True:
        finished = [draft for draft in continuations if _is_finished(draft, most, stops)]
        continuations = [
            draft
            for draft in continuations
            if not any(each.file is draft.file and each.joint - draft.joint > most_behind for each in finished)
        ]
        live = [draft for draft in continuations if not any(draft is each for each in finished)]
        if not live:
            break
        yield continuations[0]
        ahead = [_ahead(draft, most, stops) for draft in live]
        _write(live, ahead, _predict(passes, tree, live, ahead, forbidden, end), stops)
    return [_ended(draft, stops) for draft in continuations]


def branches(
    passes: Passes,
    kv: KV,
    last: int,
    paths: Sequence[Draft],
    *,
    count: int,
    most: int,
    first: Sequence[int],
    banned: Sequence[int],
    stops: Collection[int],
    end: int | None = None,
    most_behind: float = math.inf,
) -> Generator[Draft, None, list[Draft]]:
    """Return, for each path, its `count` likeliest branches: another token at one place, then a greedy continuation.

    A branch is as likely as the path before its place times its other token. No branch starts as a path or an earlier branch
    does, whichever token ends it. A branch is dropped as soon as its probability is more than `most_behind` nats lower than
    that of its path. The other arguments are those of `drafts`, and `paths` are its results. Yields the first path after each
    pass.
    """
    forbidden = torch.tensor(list(banned), dtype=torch.long, device=kv[0][0].device)
    tree = Tree(passes, crop(kv, kv[0][0].shape[2] - 1), len(paths) * (count + 1) * (most + 1))
    tokens, parents, nodes = trie([[last, *path.ids] for path in paths])
    logits = passes.logits(tree.add(tokens, parents))
    logps = logits.log_softmax(-1)
    live: list[_Branch] = []
    taken = {start for path in paths for start in _starts(path)}
    for path, own in zip(paths, nodes, strict=True):
        so_far = [path.ids[:place] for place in range(len(path.ids) + 1)]
        chances = _chances(logits[own], forbidden, so_far, [path.file] * len(so_far))
        chances[0] = _allowed(chances[0], first)
        for joint, place, token in _likeliest_others(path, chances, count, stops, taken):
            node = own[place]
            draft = Draft(
                [*path.ids[:place], token], [*path.logps[:place], float(logps[node, token])], node=node, file=path.file
            )
            draft.joint, draft.end = joint, None if end is None else float(logps[node, end])
            live.append(_Branch(draft, path.joint - most_behind))
    yield paths[0]
    started = live
    while live := [branch for branch in live if branch.is_likely and not _is_finished(branch.draft, most, stops)]:
        drafts_read = [branch.draft for branch in live]
        ahead = [()] * len(live)  # the path's next tokens, read ahead, saved one pass of seven, but cost as much time
        _write(drafts_read, ahead, _predict(passes, tree, drafts_read, ahead, forbidden, end), stops)
        yield paths[0]
    return [_ended(branch.draft, stops) for branch in started if branch.is_likely]


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch, and the least joint value that keeps it."""

    draft: Draft
    least: float

    @property
    def is_likely(self) -> bool:
        """Whether the branch is kept."""
        return self.draft.joint >= self.least


def _starts(path: Draft) -> Iterator[tuple[int, ...]]:
    """Yield the path up to each of its tokens, and up to its end."""
    for place in range(len(path.ids)):
        yield tuple(path.ids[: place + 1])
    if path.stop is not None:
        yield (*path.ids, STOP)


def _likeliest_others(
    path: Draft, chances: Tensor, count: int, stops: Collection[int], taken: set[tuple[int, ...]]
) -> list[tuple[float, int, int]]:
    """Return the joint values, places and tokens of the path's likeliest branches whose starts are not in `taken`.

    `chances` [N, V] are those of each token of the path. Adds the starts of the branches to `taken`.
    """
    chosen = [*path.ids, *([] if path.stop is None else [path.stop])]
    # At each place, a few of the likeliest tokens may be taken.
    top = chances[: len(chosen)].topk(min(2 * count + len(stops), chances.shape[-1]), -1)
    options: list[tuple[float, int, int]] = []
    joint = 0.0
    for place, (token, tokens, values) in enumerate(zip(chosen, top.indices.tolist(), top.values.tolist(), strict=True)):
        options += [(joint + math.log(value), place, other) for other, value in zip(tokens, values, strict=True) if value > 0]
        joint += math.log(max(float(chances[place, token]), LEAST))
    likeliest: list[tuple[float, int, int]] = []
    for option in sorted(options, reverse=True):
        _, place, token = option
        start = (*path.ids[:place], STOP if token in stops else token)
        if len(likeliest) < count and start not in taken:
            taken.add(start)
            likeliest.append(option)
    return likeliest


def _is_finished(draft: Draft, most: int, stops: Collection[int]) -> bool:
    return len(draft.ids) >= most or draft.ids[-1] in stops


def _ended(draft: Draft, stops: Collection[int]) -> Draft:
    """Return the finished draft without the token that stopped it."""
    if draft.ids[-1] in stops:
        draft.stop = draft.ids.pop()
        draft.logps.pop()
    else:
        draft.end = None  # it is the value after the token before the last
    return draft


def _ahead(draft: Draft, most: int, stops: Collection[int]) -> list[int]:
    """Return the predicted tokens to read after the draft's last token. A draft's final token need not be read."""
    room = min(MAX_AHEAD, most - len(draft.ids) - 1)
    if draft.file is None or room < 1:
        return []
    ahead = draft.file.continuation(draft.ids, most=room, least_chance=LEAST_CHANCE, stops=stops)
    end = next((index for index, token in enumerate(ahead) if token < 0 or token in stops), len(ahead))
    return ahead[:end]


def _predict(
    passes: Passes,
    tree: Tree,
    live: Sequence[Draft],
    ahead: Sequence[Sequence[int]],
    forbidden: Tensor,
    end: int | None,
) -> _Prediction:
    """Return the predictions after each draft's last token and after its predicted tokens, one draft after another."""
    tokens: list[int] = []
    parents: list[int] = []
    before: list[Sequence[int]] = []
    files: list[FileModel | None] = []
    n_known = tree.size
    for draft, more in zip(live, ahead, strict=True):
        parent = draft.node
        draft.node = n_known + len(tokens)
        for index, token in enumerate((draft.ids[-1], *more)):
            parents.append(parent)
            parent = n_known + len(tokens)
            tokens.append(token)
            before.append((*draft.ids, *more[:index]))
            files.append(draft.file)
    logits = passes.logits(tree.add(tokens, parents))
    normalizer = logits.logsumexp(-1)
    ends = [] if end is None else (logits[:, end] - normalizer).tolist()
    chances = _chances(logits.clone(), forbidden, before, files)
    values, likeliest = chances.max(-1)
    logps = logits.gather(-1, likeliest[:, None])[:, 0] - normalizer
    joints = values.clamp(min=LEAST).log()
    return _Prediction(likeliest.tolist(), logps.tolist(), ends, joints.tolist())


def _write(live: Sequence[Draft], ahead: Sequence[Sequence[int]], predicted: _Prediction, stops: Collection[int]) -> None:
    """Append the likeliest next token to each draft, and further ones as long as the predicted tokens are right."""
    at = 0
    for draft, more in zip(live, ahead, strict=True):
        base = draft.node
        for index in range(len(more) + 1):
            token = predicted.tokens[at + index]
            draft.ids.append(token)
            draft.logps.append(predicted.logps[at + index])
            draft.joint += predicted.joints[at + index]
            draft.end = predicted.ends[at + index] if predicted.ends else None
            draft.node = base + index
            if index == len(more) or more[index] != token or token in stops:
                break
        at += len(more) + 1


def _allowed(chances: Tensor, first: Sequence[int]) -> Tensor:
    """Return the probabilities [V] with 0 for every token outside `first`, unless `first` is empty."""
    if not first:
        return chances
    allowed = torch.zeros_like(chances)
    allowed[list(first)] = chances[list(first)]
    return allowed


def _chances(
    logits: Tensor, forbidden: Tensor, rows_so_far: Sequence[Sequence[int]], files: Sequence[FileModel | None]
) -> Tensor:
    """Return the next token's probabilities [R, V] after each row's tokens, mixed with those of its file model if it has one.

    `logits` are overwritten.
    """
    chances = logits.index_fill_(1, forbidden, -torch.inf).softmax(-1)
    guesses = [NOTHING if file is None else file.guess(ids) for ids, file in zip(rows_so_far, files, strict=True)]
    entries = [
        (row, token, guess.weight * share)
        for row, guess in enumerate(guesses)
        for token, share in guess.shares.items()
        if token >= 0
    ]
    if not any(guess.weight for guess in guesses):
        return chances
    chances *= torch.tensor([1 - guess.weight for guess in guesses], device=chances.device)[:, None]
    if entries:
        at_row, at_token, weights = zip(*entries, strict=True)
        index = (torch.tensor(at_row, device=chances.device), torch.tensor(at_token, device=chances.device))
        chances.index_put_(index, torch.tensor(weights, device=chances.device), accumulate=True)
        chances.index_fill_(1, forbidden, 0.0)
    return chances
