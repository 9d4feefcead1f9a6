"""Draft a gap from left to right with the encoder, whose weights are also a causal fill-in-the-middle model.

On a CPU, its passes over few tokens are far cheaper than canvas steps. Each pass also reads the next tokens that the file
model predicts (prompt lookup, speculative decoding: arXiv 2211.17192), and in a branch those of its draft, which it often
meets again. If the model agrees, one pass writes several tokens. Otherwise the predicted tokens are discarded, so that,
apart from rounding, a draft is the same as without them.

A greedy draft that is wrong is often wrong in one token. So branches take the likeliest other tokens at any place of a
draft and continue greedily from there: a beam search whose beams share their passes. A branch starts as soon as its place
is read, so drafts and branches together take about as many passes as the longest of them has tokens. Knows passes and token
ids. Knows nothing of text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from dg_lsp.engine.decode.file_model import NOTHING, FileModel
from dg_lsp.engine.model.family import Family
from dg_lsp.engine.model.tree import ROOT, Tree

MAX_AHEAD = 16  # the most predicted tokens per pass
BRANCH_AHEAD = 6  # and in a branch; most branches meet their draft again, or never
LEAST = 1e-12  # the least probability whose log is added up
MOST_MORE, MOST_TIMES = 8, 1.5  # a branch is dropped if it becomes so many tokens and times longer than its finished draft
LEAST_CHANCE = 0.2  # the least joint probability at which one more predicted token pays
MOST_ENDS = 4
STOP = -1  # stands for every token that ends a draft, because the text is the same

# Returns the tokens that may follow a draft's tokens; empty means any.
Allowed = Callable[[Sequence[int]], Sequence[int]]


def anything(_ids: Sequence[int]) -> Sequence[int]:
    """Allow any token."""
    return ()


@dataclass(slots=True)
class CausalDraft:
    """A continuation: its tokens, their log-probabilities under the model alone, and that of the end token after them.

    `end` is None if no pass has read the last token. `stop` is the token that ended the draft, or None; it is not in `ids`.
    `heads` are the log-probabilities of the suffix's first token in place of each token, and after the last one if it was read.
    `file` is what was mixed into its tokens' probabilities, None for nothing. `joints` are the logs of the mixed
    probabilities, that of `stop` included.
    """

    ids: list[int]
    logps: list[float] = field(default_factory=list)
    end: float | None = None
    heads: list[float] = field(default_factory=list)
    stop: int | None = None
    nodes: list[int] = field(default_factory=lambda: [ROOT])  # of the prefix's last token, and of the tokens read
    source: CausalDraft | None = None  # the draft of which it is a branch
    file: FileModel | None = None
    joints: list[float] = field(default_factory=list)
    is_finished: bool = False
    shorter: list[CausalDraft] = field(default_factory=list)  # where it would have ended, but had to go on

    @property
    def joint(self) -> float:
        """The log of the mixed probability of all tokens."""
        return sum(self.joints)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """How many drafts to write, and what they may contain.

    There are at most `rows` greedy drafts of at most `most` tokens, each with another likely first token. Only the tokens that
    `allowed` returns may follow, and `banned` tokens are never written. A draft ends before a token of `stops`, or if given,
    before the token after which `is_over` says so. If it `is_incomplete` there, a shorter draft ends instead, and it goes on
    with one of the tokens `going_on`, up to `MOST_ENDS` times. `end` is the token that ends an answer, if the model has one,
    and `head` the suffix's first token. The probabilities of `file` are mixed into every token. `ahead` only predicts tokens
    to read ahead, where `file` does not. With `alone`, one more draft follows, which the model writes without `file`. With
    `start`, there is only one, which begins with these tokens, at least two.

    After these follow the `branches` likeliest branches of each: another token at one place, then a greedy continuation. A
    branch is as likely as its draft before the place times its other token. No branch starts as a draft or an earlier
    branch does, whichever token ends it.

    A draft is dropped as soon as its probability is more than `most_behind` nats lower than that of a finished one with the
    same file; a branch, than that of its finished draft, or if it becomes much longer than that.
    """

    rows: int
    most: int
    banned: Sequence[int]
    stops: Collection[int]
    allowed: Allowed = anything
    is_over: Callable[[Sequence[int]], bool] | None = None
    is_incomplete: Callable[[Sequence[int]], bool] | None = None
    going_on: Sequence[int] = ()
    end: int | None = None
    head: int | None = None
    file: FileModel | None = None
    ahead: FileModel | None = None
    alone: bool = False
    start: Sequence[int] = ()
    branches: int = 0
    most_behind: float = math.inf


def drafts(passes: Family, tree: Tree, settings: DraftSettings) -> Generator[list[CausalDraft], bool | None, list[CausalDraft]]:
    """Return continuations of the root of `tree`: drafts, then their branches.

    Yields the drafts so far, without branches, after each pass, which is one uninterruptible unit. If it is sent True, it
    returns only what is finished.
    """
    logits, n_branches, most_behind = passes.logits(tree.hidden([ROOT])), settings.branches, settings.most_behind
    banned, stop_ids = (
        torch.tensor(sorted(ids), dtype=torch.long, device=logits.device) for ids in (settings.banned, settings.stops)
    )
    limits = _Limits(settings, banned, stop_ids)
    beams = [_started(passes, tree, limits)] if settings.start else _first_beams(logits, limits)
    while True:
        finished = [beam.draft for beam in beams if beam.draft.is_finished]
        beams = [beam for beam in beams if not any(_is_behind(beam.draft, other, most_behind) for other in finished)]
        own = [beam.draft for beam in beams]
        others: list[CausalDraft] = []
        for draft, likeliest in zip(own, _likeliest_branches(beams, n_branches, limits), strict=True):
            if draft.is_finished:
                least, longest = draft.joint - most_behind, MOST_MORE + MOST_TIMES * len(draft.ids)
                likeliest = [branch for branch in likeliest if branch.joint >= least and len(branch.ids) <= longest]
            others += likeliest
        live = [draft for draft in (*own, *others) if not draft.is_finished]
        if not live:
            return _with_shorter([*own, *others])
        if (yield own):
            # Better branches may still start from unfinished drafts.
            known = own if len(finished) < len(own) else [*own, *others]
            return [draft for draft in _with_shorter(known) if draft.is_finished]
        _step(passes, tree, beams, live, limits)


def _with_shorter(written: Sequence[CausalDraft]) -> list[CausalDraft]:
    return [*written, *(shorter for draft in written for shorter in draft.shorter)]


@dataclass(frozen=True, slots=True)
class _Limits:
    """The settings of the drafts, and two of them as tensors: the ids of `banned` tokens and of `stops`."""

    settings: DraftSettings
    banned: Tensor
    stop_ids: Tensor

    def is_over(self, ids: Sequence[int]) -> bool:
        """Return whether the last token ends a draft, which does not contain it."""
        return self.settings.is_over(ids) if self.settings.is_over else ids[-1] in self.settings.stops

    def must_go_on(self, draft: CausalDraft, token: int) -> bool:
        """Return whether the token would end a draft that is incomplete."""
        is_incomplete = self.settings.is_incomplete
        if is_incomplete is None or token not in self.settings.stops or len(draft.shorter) == MOST_ENDS:
            return False
        return is_incomplete(draft.ids)

    def check(self, draft: CausalDraft) -> None:
        """Finish the draft if its last token is a stop, or the last that it may have."""
        if self.is_over(draft.ids):
            draft.is_finished, draft.stop = True, draft.ids.pop()
            draft.logps.pop()
        elif len(draft.ids) >= self.settings.most:
            draft.is_finished, draft.end = True, None  # it is the value after the token before the last


@dataclass(frozen=True, slots=True)
class _Reading:
    """What the model predicts after each of N tokens.

    `logits` [N, V] are its own, `sums` [N] their logs of the sum of exponentials, and `chances` [N, V] the probabilities with
    those of the file mixed in. `ends` are the log-probabilities of the end token, and `head_logps` those of the suffix's first
    token; empty without one. `nodes` are the tree's.
    """

    logits: Tensor
    sums: Tensor
    chances: Tensor
    ends: list[float]
    head_logps: list[float]
    nodes: Sequence[int]

    def logp(self, row: int, token: int) -> float:
        """Return the log-probability of a token under the model alone."""
        return float(self.logits[row, token] - self.sums[row])

    def end(self, row: int) -> float | None:
        """Return the log-probability of the end token."""
        return self.ends[row] if self.ends else None

    def likeliest_of(self, row: int, tokens: Sequence[int]) -> tuple[int, float, float]:
        """Return the likeliest of these tokens, its log-probability, and that with the file's mixed in."""
        chance, index = self.chances[row, _index(tuple(tokens)).to(self.chances.device)].max(-1)
        token = tokens[int(index)]
        return token, self.logp(row, token), math.log(max(float(chance), LEAST))

    def heads(self, row: int) -> list[float]:
        """Return the log-probability of the suffix's first token, in a list that is empty without one."""
        return self.head_logps[row : row + 1]


class _Option(NamedTuple):
    """The start of a branch: its joint log-probability, its place in the draft, and the token there.

    `logp` and `end` are as in `CausalDraft`.
    """

    joint: float
    place: int
    token: int
    logp: float
    end: float | None


class _Beam:
    """A draft, the branches that may start from it, and those that have started."""

    def __init__(self, draft: CausalDraft, n_others: int) -> None:
        """Begin with a draft of one token. It keeps the `n_others` likeliest tokens of each place."""
        self.draft = draft
        self._n_others = n_others
        self._options: list[_Option] = []
        self._started: dict[tuple[int, int], CausalDraft] = {}

    def learn(self, reading: _Reading, row: int, place: int, limits: _Limits) -> None:
        """Keep the likeliest tokens of each place from `place` to the draft's end, which the rows from `row` on predict."""
        if not self._n_others:
            return
        n_places = len(self.draft.ids) - place
        rows = slice(row, row + n_places)
        chances = _with_one_stop(reading.chances[rows], limits.stop_ids)
        top = chances.topk(min(self._n_others, chances.shape[-1]), -1)
        logps = reading.logits[rows].gather(-1, top.indices) - reading.sums[rows, None]
        for index, likeliest in enumerate(zip(top.indices.tolist(), top.values.tolist(), logps.tolist(), strict=True)):
            before = sum(self.draft.joints[: place + index])
            self._options += [
                _Option(before + math.log(value), place + index, token, logp, reading.end(row + index))
                for token, value, logp in zip(*likeliest, strict=True)
                if value > 0
            ]

    def branches(self, count: int, limits: _Limits, taken: set[tuple[int, ...]]) -> list[CausalDraft]:
        """Return the likeliest branches so far whose starts are not in `taken`, and add their starts to it."""
        likeliest: list[CausalDraft] = []
        self._options.sort(reverse=True)
        for option in self._options:
            if len(likeliest) == count:
                break
            start = (*self.draft.ids[: option.place], STOP if option.token in limits.settings.stops else option.token)
            if start not in taken:
                taken.add(start)
                likeliest.append(self._branch(option, limits))
        return likeliest

    def starts(self) -> Iterator[tuple[int, ...]]:
        """Yield the draft up to each of its tokens, and up to its end."""
        for place in range(len(self.draft.ids)):
            yield tuple(self.draft.ids[: place + 1])
        if self.draft.stop is not None:
            yield (*self.draft.ids, STOP)

    def _branch(self, option: _Option, limits: _Limits) -> CausalDraft:
        """Return the branch, which may have started before. A better one may have stopped it in between."""
        _, place, token, logp, end = option
        if (place, token) not in self._started:
            draft, joints = self.draft, self.draft.joints[:place]
            branch = CausalDraft([*draft.ids[:place], token], [*draft.logps[:place], logp], end, draft.heads[: place + 1])
            branch.nodes, branch.source, branch.file = draft.nodes[: place + 1], draft, draft.file
            branch.joints = [*joints, option.joint - sum(joints)]
            limits.check(branch)
            self._started[place, token] = branch
        return self._started[place, token]


def _started(passes: Family, tree: Tree, limits: _Limits) -> _Beam:
    """Return the draft that begins with the settings' start. Its last token is not read yet."""
    start, file = list(limits.settings.start), limits.settings.file
    nodes = [ROOT, *tree.grow([(ROOT, start[:-1])])[0]]
    before = [start[:n] for n in range(len(start))]
    reading = _reading(passes.logits(tree.hidden(nodes)), limits, before, [file] * len(start), nodes)
    rows = range(len(start))
    draft = CausalDraft(start, [reading.logp(row, start[row]) for row in rows], reading.end(rows[-1]), nodes=nodes, file=file)
    draft.heads = [head for row in rows for head in reading.heads(row)]
    draft.joints = [math.log(max(float(reading.chances[row, start[row]]), LEAST)) for row in rows]
    return _Beam(draft, 0)


def _first_beams(logits: Tensor, limits: _Limits) -> list[_Beam]:
    """Return the drafts of one token that follow the root, whose logits are [1, V]."""
    settings, beams = limits.settings, list[_Beam]()
    n_alone = int(settings.alone and settings.file is not None)
    # At a place, as many tokens may start drafts, or branches of other drafts.
    n_others = (settings.rows + n_alone) * (1 + settings.branches) if settings.branches else 0
    for source, n_starts in ((settings.file, settings.rows), (None, n_alone)):
        reading = _reading(logits, limits, [()], [source], [ROOT])
        starts = reading.chances[0].topk(min(n_starts, logits.shape[-1]))
        for token, value in zip(starts.indices.tolist(), starts.values.tolist(), strict=True):
            if value > 0:
                draft = CausalDraft([token], [reading.logp(0, token)], reading.end(0), reading.heads(0), file=source)
                draft.joints = [math.log(value)]
                beams.append(_Beam(draft, n_others))
                beams[-1].learn(reading, 0, 0, limits)
                limits.check(draft)
    return beams


def _likeliest_branches(beams: Sequence[_Beam], count: int, limits: _Limits) -> list[list[CausalDraft]]:
    """Return the likeliest branches so far of each draft, of which no two have the same start."""
    if not count:
        return [[] for _ in beams]
    taken = {start for beam in beams for start in beam.starts()}
    return [beam.branches(count, limits, taken) for beam in beams]


def _with_one_stop(chances: Tensor, stop_ids: Tensor) -> Tensor:
    """Return the probabilities [N, V] with 0 for all tokens that end a draft but the likeliest."""
    if not len(stop_ids):
        return chances
    values, likeliest = chances[:, stop_ids].max(-1, keepdim=True)
    return chances.index_fill(1, stop_ids, 0.0).scatter_(1, stop_ids[likeliest], values)


def _is_behind(draft: CausalDraft, other: CausalDraft, most_behind: float) -> bool:
    return draft.file is other.file and other.joint - draft.joint > most_behind


def _step(passes: Family, tree: Tree, beams: Sequence[_Beam], live: Sequence[CausalDraft], limits: _Limits) -> None:
    """Write the next token of each live draft, and of the beams' drafts the next tokens that the file predicts."""
    beam_by_draft = {id(beam.draft): beam for beam in beams}
    ahead = [_ahead(draft, limits) for draft in live]
    reading = _read(passes, tree, live, ahead, limits)
    values, likeliest = reading.chances.max(-1)
    logps = reading.logits.gather(-1, likeliest[:, None])[:, 0] - reading.sums
    next_tokens = list(zip(likeliest.tolist(), logps.tolist(), values.clamp(min=LEAST).log().tolist(), strict=True))
    row = 0
    for draft, more in zip(live, ahead, strict=True):
        place = len(draft.ids)
        for index, (token, logp, joint) in enumerate(next_tokens[row : row + len(more) + 1]):
            if limits.must_go_on(draft, token):
                draft.shorter.append(_ended(draft, reading, row + index, token, joint))
                reading.chances[row + index].index_fill_(0, limits.stop_ids, 0.0)  # no branch needs to end here too
                token, logp, joint = reading.likeliest_of(row + index, limits.settings.going_on)
            draft.ids.append(token)
            draft.logps.append(logp)
            draft.joints.append(joint)
            draft.end = reading.end(row + index)
            draft.heads += reading.heads(row + index)
            draft.nodes.append(reading.nodes[row + index])
            # The draft goes on as long as the predicted tokens are right.
            if index == len(more) or more[index] != token or limits.is_over(draft.ids):
                break
        if beam := beam_by_draft.get(id(draft)):
            beam.learn(reading, row, place, limits)
        limits.check(draft)
        row += len(more) + 1


def _ended(draft: CausalDraft, reading: _Reading, row: int, stop: int, joint: float) -> CausalDraft:
    """Return the draft as it is, ended by the token that the row predicts."""
    heads = [*draft.heads, *reading.heads(row)]
    ended = CausalDraft([*draft.ids], [*draft.logps], reading.end(row), heads, stop, [*draft.nodes, reading.nodes[row]])
    ended.source, ended.file, ended.joints, ended.is_finished = draft.source, draft.file, [*draft.joints, joint], True
    return ended


def _ahead(draft: CausalDraft, limits: _Limits) -> list[int]:
    """Return the predicted tokens to read after the draft's last token. A draft's final token need not be read."""
    most = BRANCH_AHEAD if draft.source else MAX_AHEAD
    room = min(most, limits.settings.most - len(draft.ids) - 1)
    if room < 1:
        return []
    if draft.source:
        return list(_of_source(draft.ids, draft.source.ids)[:room])
    file = draft.file or limits.settings.ahead
    if file is None:
        return []
    ahead = file.continuation(draft.ids, most=room, least_chance=LEAST_CHANCE, stops=limits.settings.stops)
    end = next((index for index, token in enumerate(ahead) if token < 0 or token in limits.settings.stops), len(ahead))
    return ahead[:end]


def _of_source(ids: Sequence[int], source: Sequence[int]) -> Sequence[int]:
    """Return the tokens of a branch's draft that may follow the branch: those after the place that its last token is from.

    A branch of one other token replaces the draft's token there.
    """
    if list(ids[:-1]) == list(source[: len(ids) - 1]):
        return source[len(ids) :]
    places = [place for place, token in enumerate(source) if token == ids[-1]]
    return source[min(places, key=lambda place: abs(place - len(ids) + 1)) + 1 :] if places else ()


def _read(passes: Family, tree: Tree, live: Sequence[CausalDraft], ahead: Sequence[Sequence[int]], limits: _Limits) -> _Reading:
    """Return what follows each draft's last token and its predicted tokens, one draft after another."""
    pairs = list(zip(live, ahead, strict=True))
    rows = tree.grow((draft.nodes[-1], [draft.ids[-1], *more]) for draft, more in pairs)
    rows_so_far = [[*draft.ids, *more[:n]] for draft, more in pairs for n in range(len(more) + 1)]
    files = [draft.file for draft, more in pairs for _ in range(len(more) + 1)]
    nodes = [node for row in rows for node in row]
    return _reading(passes.logits(tree.hidden(nodes)), limits, rows_so_far, files, nodes)


def _reading(
    logits: Tensor,
    limits: _Limits,
    rows_so_far: Sequence[Sequence[int]],
    files: Sequence[FileModel | None],
    nodes: Sequence[int],
) -> _Reading:
    """Return what the logits [N, V] predict, mixed with what each row's file model predicts after the row's tokens."""
    sums = logits.logsumexp(-1)
    ends, heads = (
        [] if one is None else (logits[:, one] - sums).tolist() for one in (limits.settings.end, limits.settings.head)
    )
    chances = _chances(logits, limits.banned, rows_so_far, files)
    for row, ids in enumerate(rows_so_far):
        if allowed := limits.settings.allowed(ids):
            index = _index(tuple(allowed)).to(chances.device)
            chances[row] = torch.zeros_like(chances[row]).index_copy_(0, index, chances[row, index])
    return _Reading(logits, sums, chances, ends, heads, nodes)


@lru_cache(maxsize=64)
def _index(tokens: tuple[int, ...]) -> Tensor:
    return torch.tensor(tokens)


def _chances(
    logits: Tensor, forbidden: Tensor, rows_so_far: Sequence[Sequence[int]], files: Sequence[FileModel | None]
) -> Tensor:
    """Return the next token's probabilities [R, V] after each row's tokens, mixed with those of the row's file model."""
    chances = logits.index_fill(1, forbidden, -torch.inf).softmax(-1)
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
