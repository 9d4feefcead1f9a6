"""Draft a gap from left to right with the encoder, whose weights are also a causal fill-in-the-middle model.

On a CPU, its passes over few tokens are far cheaper than canvas steps. Each pass also reads the next tokens that the file
model predicts (prompt lookup, speculative decoding: arXiv 2211.17192), and in a branch those of its draft, which it often
meets again. If the model agrees, one pass writes several tokens. Otherwise the predicted tokens are discarded, so that,
apart from rounding, a draft is the same as without them.

A greedy draft that is wrong is often wrong in one token. So branches take the likeliest other tokens at any place of a
draft and continue greedily from there: a beam search whose beams share their passes. A branch starts as soon as its place
is read, so drafts and branches together take about as many passes as the longest of them has tokens. Knows passes and token
ids. Knows nothing of text.

A small model knows little, but the file itself contains its own names and repeated phrases. If the last tokens occurred before
in the file, the token after them is a prediction. Its weight grows with the length of the match (cache models: Grave et al.,
arXiv 1612.04426). The weight by match length is fitted on files of the training packages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.task import Progress
from dg_lsp.engine.model.tree import LEAST, ROOT, Tree

MAX_AHEAD = 16  # the most predicted tokens per pass
BRANCH_AHEAD = 6  # and in a branch; most branches meet their draft again, or never
MOST_MORE, MOST_TIMES = 8, 1.5  # a branch is dropped if it becomes so many tokens and times longer than its finished draft
LEAST_CHANCE = 0.2  # the least joint probability at which one more predicted token pays
AHEAD_CHANCE = 0.02  # the same where the file only predicts: up to 16 rows take hardly longer than one, which reads all weights
MOST_ENDS = 4
MOST_BEHIND = 3.0  # nats: a draft that is so much less likely than another of its hole is hardly ever right
LONGEST_DRAFT = 128  # tokens
STOP = -1  # stands for every token that ends a draft, because the text is the same

# Returns the tokens that may follow a draft's tokens; empty means any.
Allowed = Callable[[Sequence[int]], Sequence[int]]


def anything(_ids: Sequence[int]) -> Sequence[int]:
    return ()


@dataclass(slots=True)
class CausalDraft:
    """A continuation: its tokens, their log-probabilities under the model alone, and that of the end token after them.

    `end` is None if no pass has read the last token. `stop` is the token that ended the draft, or None; it is not in `ids`.
    `heads` are the log-probabilities of the suffix's first token in place of each token, and after the last one if it was read.
    `file` is what was mixed into its tokens' probabilities, None for nothing. `joints` are the logs of the mixed
    probabilities, that of `stop` included. All of this is kept, because no later pass reads these tokens again.
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
    """How many drafts to write, and what they may contain. Drafts depend on these and on the encoded prefix alone.

    There are at most `rows` greedy drafts of at most `most` tokens, each with another likely first token. Only the tokens that
    `allowed` returns may follow, and `banned` tokens are never written. A draft ends before a token of `stops`, or if given,
    before the token after which `is_over` says so. If it `is_incomplete` there, a shorter draft ends instead, and it goes on
    with one of the tokens `going_on`, up to `MOST_ENDS` times. `end` is the token that ends an answer, if the model has one,
    and `head` the suffix's first token. The probabilities of `file` are mixed into every token. `ahead` only predicts tokens
    to read ahead, where `file` does not. With `alone`, one more draft follows,
    which the model writes without `file`. With `start`, there is only one, which begins with these tokens, at least two.

    After these follow the `branches` likeliest branches of each: another token at one place, then a greedy continuation. A
    branch is as likely as its draft before the place times its other token. No branch starts as a draft or an earlier
    branch does, whichever token ends it.

    If a finished draft `is_enough`, it is the only one; the number says by how many nats it is likelier than the start of any
    branch. A draft is dropped as soon as the log of its probability is below `least_joint`, or more than `most_behind` lower
    than that of a finished one with the same file; a branch, than that of its finished draft, or if it becomes much longer
    than that. The tree learns the log-probabilities of `others`, texts that are no drafts, as far as
    the drafts begin like them.
    """

    rows: int
    most: int
    banned: Sequence[int]
    stops: Collection[int]
    allowed: Allowed = anything
    is_over: Callable[[Sequence[int]], bool] | None = None
    is_incomplete: Callable[[Sequence[int]], bool] | None = None
    is_enough: Callable[[CausalDraft, float], bool] | None = None
    going_on: Sequence[int] = ()
    others: Sequence[Sequence[int]] = ()
    end: int | None = None
    head: int | None = None
    file: FileModel | None = None
    ahead: FileModel | None = None
    alone: bool = False
    start: Sequence[int] = ()
    branches: int = 0
    most_behind: float = math.inf
    least_joint: float = -math.inf


# Drafts after each pass, which is sent whether the time is over; the result are the finished ones.
Drafting = Generator[list[CausalDraft], bool | None, list[CausalDraft]]


def drafts(tree: Tree, settings: DraftSettings) -> Drafting:
    """Return continuations of the root of `tree`: drafts, then their branches.

    Yields the drafts so far, without branches, after each pass, which is one uninterruptible unit. If it is sent True, it
    returns only what is finished.
    """
    if not tree.is_read:  # the pass that reads the prefix's last token reads what is predicted after it, too
        tree.grow([(ROOT, _predicted((), None, settings, MAX_AHEAD))])
    logits, n_branches, most_behind = tree.logits([ROOT]), settings.branches, settings.most_behind
    banned, stop_ids = (
        torch.tensor(sorted(ids), dtype=torch.long, device=logits.device) for ids in (settings.banned, settings.stops)
    )
    limits = _Limits(settings, banned, stop_ids)
    beams = [_started(tree, limits)] if settings.start else _first_beams(logits, limits, tree)
    while True:
        finished = [beam.draft for beam in beams if beam.draft.is_finished]
        for beam in beams:
            if settings.is_enough and beam.draft.is_finished and settings.is_enough(beam.draft, beam.margin()):
                return [beam.draft]
        beams = [
            beam
            for beam in beams
            if (beam.draft.is_finished or beam.draft.joint >= settings.least_joint)
            and not any(beam.draft.file is done.file and done.joint - beam.draft.joint > most_behind for done in finished)
        ]
        own, others = [beam.draft for beam in beams], list[CausalDraft]()
        branching = beams if n_branches else []
        # No two branches have the same start, nor that of a draft.
        taken = {tuple(beam.draft.ids[:n]) for beam in branching for n in range(1, len(beam.draft.ids) + 1)}
        taken |= {(*beam.draft.ids, STOP) for beam in branching if beam.draft.stop is not None}
        for beam in branching:
            likeliest, draft = beam.branches(n_branches, limits, taken), beam.draft
            if draft.is_finished:
                least, longest = draft.joint - most_behind, MOST_MORE + MOST_TIMES * len(draft.ids)
                likeliest = [branch for branch in likeliest if branch.joint >= least and len(branch.ids) <= longest]
            others += likeliest
        live = [draft for draft in (*own, *others) if not draft.is_finished]
        is_late = bool(live) and bool((yield own))
        if is_late or not live:
            # Better branches may still start from unfinished drafts.
            known = own if is_late and len(finished) < len(own) else [*own, *others]
            written = [*known, *(shorter for draft in known for shorter in draft.shorter)]
            return [draft for draft in written if draft.is_finished]
        _step(tree, beams, live, limits)


def finished(
    work: Drafting, timing: Timing, score_ms: Callable[[], float], written: list[CausalDraft], so_far: Progress
) -> Generator[Progress, None, tuple[list[CausalDraft], bool]]:
    """Return the drafts that are finished before the time runs out, which scoring needs too, and whether it did.

    `written` holds the drafts after each pass, and `so_far` says what the answer would be then.
    """
    is_late: bool | None = None
    while True:
        began = timing.pace.clock()
        try:
            written[:] = work.send(is_late)
        except StopIteration as stop:
            return stop.value, bool(is_late)
        timing.pace.note("token", 1, (timing.pace.clock() - began) * 1000)
        is_late = timing.left_ms(score_ms()) <= 0
        if not is_late:
            yield so_far


@dataclass(frozen=True, slots=True)
class _Limits:
    """The settings of the drafts, and two of them as tensors: the ids of `banned` tokens and of `stops`."""

    settings: DraftSettings
    banned: Tensor
    stop_ids: Tensor

    def is_over(self, ids: Sequence[int]) -> bool:
        """Return whether the last token ends a draft, which does not contain it."""
        return self.settings.is_over(ids) if self.settings.is_over else ids[-1] in self.settings.stops

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
    those of the file mixed in. `ends` are the log-probabilities of the end token, None without one. `heads` are those of the
    suffix's first token; empty without one. `nodes` are those of the `tree`, which learns what is looked at.
    """

    logits: Tensor
    sums: Tensor
    chances: Tensor
    ends: Sequence[float | None]
    heads: list[float]
    nodes: Sequence[int]
    tree: Tree

    def logp(self, row: int, token: int) -> float:
        """Return the log-probability of a token under the model alone."""
        logp = float(self.logits[row, token] - self.sums[row])
        self.tree.learn(self.nodes[row], {token: logp})
        return logp


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
        rows = slice(row, row + len(self.draft.ids) - place)
        chances = reading.chances[rows]
        if len(limits.stop_ids):  # of the tokens that end a draft, only the likeliest counts, because the text is the same
            values, likeliest = chances[:, limits.stop_ids].max(-1, keepdim=True)
            chances = chances.index_fill(1, limits.stop_ids, 0.0).scatter_(1, limits.stop_ids[likeliest], values)
        top = chances.topk(min(self._n_others, chances.shape[-1]), -1)
        logps = reading.logits[rows].gather(-1, top.indices) - reading.sums[rows, None]
        for index, others in enumerate(zip(top.indices.tolist(), top.values.tolist(), logps.tolist(), strict=True)):
            before, (tokens, _, own_logps) = sum(self.draft.joints[: place + index]), others
            reading.tree.learn(reading.nodes[row + index], dict(zip(tokens, own_logps, strict=True)))
            self._options += [
                _Option(before + math.log(value), place + index, token, logp, reading.ends[row + index])
                for token, value, logp in zip(*others, strict=True)
                if value > 0
            ]

    def margin(self) -> float:
        """Return by how many nats the finished draft is likelier than the likeliest start of a branch; 0 if none is known."""
        draft = self.draft
        own = [*draft.ids, draft.stop]
        others = (option.joint for option in self._options if own[option.place] != option.token)
        return draft.joint - max(others, default=draft.joint)

    def branches(self, count: int, limits: _Limits, taken: set[tuple[int, ...]]) -> list[CausalDraft]:
        """Return the likeliest branches so far whose starts are not in `taken`, and add their starts to it.

        A branch may have started before, when a better one had not yet stopped it.
        """
        likeliest, draft = list[CausalDraft](), self.draft
        self._options.sort(reverse=True)
        for joint, place, token, logp, end in self._options:
            if len(likeliest) == count:
                break
            start = (*draft.ids[:place], STOP if token in limits.settings.stops else token)
            if start in taken:
                continue
            taken.add(start)
            if (place, token) not in self._started:
                joints = draft.joints[:place]
                branch = CausalDraft([*draft.ids[:place], token], [*draft.logps[:place], logp], end, draft.heads[: place + 1])
                branch.nodes, branch.source, branch.file = draft.nodes[: place + 1], draft, draft.file
                branch.joints = [*joints, joint - sum(joints)]
                limits.check(branch)
                self._started[place, token] = branch
            likeliest.append(self._started[place, token])
        return likeliest


def _started(tree: Tree, limits: _Limits) -> _Beam:
    """Return the draft that begins with the settings' start. Its last token is not read yet."""
    start, file = list(limits.settings.start), limits.settings.file
    nodes = [ROOT, *tree.grow([(ROOT, start[:-1])])[0]]
    before = [start[:n] for n in range(len(start))]
    reading = _reading(tree.logits(nodes), limits, before, [file] * len(start), nodes, tree)
    rows = range(len(start))
    draft = CausalDraft(start, [reading.logp(row, start[row]) for row in rows], reading.ends[-1], nodes=nodes, file=file)
    draft.heads = reading.heads
    draft.joints = [math.log(max(float(reading.chances[row, start[row]]), LEAST)) for row in rows]
    return _Beam(draft, 0)


def _first_beams(logits: Tensor, limits: _Limits, tree: Tree) -> list[_Beam]:
    """Return the drafts of one token that follow the root, whose logits are [1, V]."""
    settings, beams = limits.settings, list[_Beam]()
    n_alone = int(settings.alone and settings.file is not None)
    # At a place, as many tokens may start drafts, or branches of other drafts.
    # Without branches, the draft's own token and the next likeliest tell its margin.
    n_others = (settings.rows + n_alone) * (1 + settings.branches) if settings.branches else 2 * bool(settings.is_enough)
    for source, n_starts in ((settings.file, settings.rows), (None, n_alone)):
        reading = _reading(logits, limits, [()], [source], [ROOT], tree)
        starts = reading.chances[0].topk(min(n_starts, logits.shape[-1]))
        for token, value in zip(starts.indices.tolist(), starts.values.tolist(), strict=True):
            if value > 0:
                draft = CausalDraft([token], [reading.logp(0, token)], reading.ends[0], [*reading.heads], file=source)
                draft.joints = [math.log(value)]
                beams.append(_Beam(draft, n_others))
                beams[-1].learn(reading, 0, 0, limits)
                limits.check(draft)
    return beams


def _step(tree: Tree, beams: Sequence[_Beam], live: Sequence[CausalDraft], limits: _Limits) -> None:
    """Write the next token of each live draft, and of the beams' drafts the next tokens that the file predicts."""
    settings, beam_by_draft = limits.settings, {id(beam.draft): beam for beam in beams}
    pairs = [(draft, _ahead(draft, settings)) for draft in live]
    # What follows each draft's last token and its predicted tokens, one draft after another.
    rows_so_far = [[*draft.ids, *more[:n]] for draft, more in pairs for n in range(len(more) + 1)]
    files = [draft.file for draft, more in pairs for _ in range(len(more) + 1)]
    grown = tree.grow((draft.nodes[-1], [draft.ids[-1], *more]) for draft, more in pairs)
    nodes = [node for own_nodes in grown for node in own_nodes]
    reading = _reading(tree.logits(nodes), limits, rows_so_far, files, nodes, tree)
    values, likeliest = reading.chances.max(-1)
    logps = reading.logits.gather(-1, likeliest[:, None])[:, 0] - reading.sums
    next_tokens = list(zip(likeliest.tolist(), logps.tolist(), values.clamp(min=LEAST).log().tolist(), strict=True))
    first = 0
    for draft, more in pairs:
        place = len(draft.ids)
        for index in range(len(more) + 1):
            row = first + index
            token, logp, joint = next_tokens[row]
            tree.learn(nodes[row], {token: logp})
            heads, draft_nodes = [*draft.heads, *reading.heads[row : row + 1]], [*draft.nodes, reading.nodes[row]]
            may_go_on = token in settings.stops and len(draft.shorter) < MOST_ENDS
            if may_go_on and settings.is_incomplete and settings.is_incomplete(draft.ids):
                ended = replace(draft, ids=[*draft.ids], logps=[*draft.logps], end=reading.ends[row], heads=heads, stop=token)
                ended.nodes, ended.joints, ended.is_finished, ended.shorter = draft_nodes, [*draft.joints, joint], True, []
                draft.shorter.append(ended)
                reading.chances[row].index_fill_(0, limits.stop_ids, 0.0)  # no branch needs to end here too
                going_on = settings.going_on
                chance, at = reading.chances[row, _index(tuple(going_on)).to(values.device)].max(-1)
                token, joint = going_on[int(at)], math.log(max(float(chance), LEAST))
                logp = reading.logp(row, token)
            draft.ids.append(token)
            draft.logps.append(logp)
            draft.joints.append(joint)
            draft.end, draft.heads, draft.nodes = reading.ends[row], heads, draft_nodes
            # The draft goes on as long as the predicted tokens are right.
            if index == len(more) or more[index] != token or limits.is_over(draft.ids):
                break
        if beam := beam_by_draft.get(id(draft)):
            beam.learn(reading, first, place, limits)
        limits.check(draft)
        first += len(more) + 1


def _ahead(draft: CausalDraft, settings: DraftSettings) -> Sequence[int]:
    """Return the predicted tokens to read after the draft's last token. A draft's final token need not be read.

    Those of a branch are its draft's, after the place that its last token is from. A branch of one other token replaces the
    draft's token there.
    """
    room = min(BRANCH_AHEAD if draft.source else MAX_AHEAD, settings.most - len(draft.ids) - 1)
    if room < 1:
        return []
    if draft.source:
        ids, source = draft.ids, draft.source.ids
        if ids[:-1] == source[: len(ids) - 1]:
            return source[len(ids) : len(ids) + room]
        places = [place for place, token in enumerate(source) if token == ids[-1]]
        start = min(places, key=lambda place: abs(place - len(ids) + 1)) + 1 if places else len(source)
        return source[start : start + room]
    return _predicted(draft.ids, draft.file, settings, room)


def _predicted(ids: Sequence[int], file: FileModel | None, settings: DraftSettings, room: int) -> Sequence[int]:
    """Return the tokens that a file predicts after a draft's ids, at most `room`: the draft's own, or that of the settings."""
    file, least_chance = file or settings.ahead, LEAST_CHANCE if file else AHEAD_CHANCE
    if file is None:
        return []
    ahead = file.continuation(ids, most=room, least_chance=least_chance, stops=settings.stops)
    end = next((index for index, token in enumerate(ahead) if token < 0 or token in settings.stops), len(ahead))
    return ahead[:end]


def _reading(
    logits: Tensor,
    limits: _Limits,
    rows_so_far: Sequence[Sequence[int]],
    files: Sequence[FileModel | None],
    nodes: Sequence[int],
    tree: Tree,
) -> _Reading:
    """Return what the logits [N, V] predict, mixed with what each row's file model predicts after the row's tokens."""
    sums, settings = logits.logsumexp(-1), limits.settings
    ends = [None] * len(logits) if settings.end is None else (logits[:, settings.end] - sums).tolist()
    heads = [] if settings.head is None else (logits[:, settings.head] - sums).tolist()
    follows = {token for token in (settings.end, settings.head) if token is not None}
    for row, ids in enumerate(rows_so_far):
        n, own = len(ids), list(ids)
        tokens = [*follows.union(text[n] for text in settings.others if len(text) > n and list(text[:n]) == own)]
        tree.learn(nodes[row], dict(zip(tokens, (logits[row, tokens] - sums[row]).tolist(), strict=True)))
    chances = logits.index_fill(1, limits.banned, -torch.inf).softmax(-1)
    guesses = [NOTHING if file is None else file.guess(ids) for ids, file in zip(rows_so_far, files, strict=True)]
    if any(guess.weight for guess in guesses):
        chances *= torch.tensor([1 - guess.weight for guess in guesses], device=chances.device)[:, None]
        entries = [
            (row, token, guess.weight * share)
            for row, guess in enumerate(guesses)
            for token, share in guess.shares.items()
            if token >= 0
        ]
        if entries:
            at_row, at_token, weights = zip(*entries, strict=True)
            index = (torch.tensor(at_row, device=chances.device), torch.tensor(at_token, device=chances.device))
            chances.index_put_(index, torch.tensor(weights, device=chances.device), accumulate=True)
            chances.index_fill_(1, limits.banned, 0.0)
    for row, ids in enumerate(rows_so_far):
        if allowed := settings.allowed(ids):
            places = _index(tuple(allowed)).to(chances.device)
            chances[row] = torch.zeros_like(chances[row]).index_copy_(0, places, chances[row, places])
    return _Reading(logits, sums, chances, ends, heads, nodes, tree)


@lru_cache(maxsize=64)
def _index(tokens: tuple[int, ...]) -> Tensor:
    return torch.tensor(tokens)


# --- What the text around a hole repeats


MAX_MATCH = 16
MAX_PLACES = 96
NO_TOKEN = -1  # separates the two sides of the hole, and files
OUTSIDE = -2


@dataclass(frozen=True, slots=True)
class Guess:
    """The tokens after the matches with their shares, and their weight beside the model."""

    shares: dict[int, float]
    weight: float


NOTHING = Guess({}, 0.0)


class FileModel:
    """The tokens of one file around the hole and of `related` files, searchable by the tokens before them.

    `before` are the last ones before the hole.
    """

    def __init__(
        self,
        before: Sequence[int],
        after: Sequence[int],
        *,
        related: Sequence[Sequence[int]] = (),
        full: float = 0.5,
        half_at: float = 4.0,
    ) -> None:
        self.before = tuple(before[-MAX_MATCH:])
        # Separators prevent matches across the hole or across files. The file itself comes last, because later places win.
        others = [token for text in related for token in (*text, NO_TOKEN)]
        self._ids = np.array([*[OUTSIDE] * MAX_MATCH, *others, *before, NO_TOKEN, *after], dtype=np.int64)
        self._full, self._half_at = full, half_at
        self._places: dict[int, NDArray[np.int64]] = {}
        self._guesses: dict[tuple[int, ...], Guess] = {}

    def guess(self, gap_ids: Sequence[int]) -> Guess:
        """Return a guess of the next token, after the text before the hole and the tokens written in it."""
        tail = (*self.before, *gap_ids)[-MAX_MATCH:]
        if not tail:
            return NOTHING
        if (known := self._guesses.get(tail)) is not None:
            return known
        places = self._places.get(tail[-1])
        if places is None:  # the last places of the token that have a next token, latest first
            places = np.flatnonzero(self._ids[:-1] == tail[-1])
            places = self._places[tail[-1]] = places[self._ids[places + 1] != NO_TOKEN][-MAX_PLACES:][::-1]
        guess = NOTHING
        if len(places):
            # The length of each place's agreement with the tail, backwards from its last token.
            stretches = self._ids[places[:, None] - np.arange(len(tail))]
            lengths = np.logical_and.accumulate(stretches == np.array(tail[::-1]), axis=1).sum(axis=1)
            best = int(lengths.max())
            counts: dict[int, float] = defaultdict(float)
            for length, token in zip(lengths.tolist(), self._ids[places + 1].tolist(), strict=True):
                # Shorter matches count too; each missing token divides the weight by four.
                counts[token] += 4.0 ** (length - best)
            total = sum(counts.values())
            weight = self._full * best / (best + self._half_at) * (max(counts.values()) / total)
            guess = Guess({token: count / total for token, count in counts.items()}, weight)
        self._guesses[tail] = guess
        return guess

    def continuation(self, gap_ids: Sequence[int], *, most: int, least_chance: float, stops: Collection[int]) -> list[int]:
        """Return at most `most` next tokens, as long as their joint weight is at least `least_chance`."""
        ahead: list[int] = []
        chance = 1.0
        while len(ahead) < most:
            guess = self.guess([*gap_ids, *ahead])
            chance *= guess.weight
            if chance < least_chance:
                break
            ahead.append(max(guess.shares, key=guess.shares.__getitem__))
            if ahead[-1] in stops:
                break
        return ahead
