"""Drafts that read along what the file says are the drafts of one token at a time, and so are their scores."""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from typing import Any

import pytest
import torch

from dg_lsp.engine.common import drafts
from dg_lsp.engine.common.drafts import CausalDraft, DraftSettings, FileModel
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model.tree import Tree
from tests.engine.filler_kit import hidden_of, tree_of

pytestmark = pytest.mark.usefixtures("without_gradients")

PREFIX = [17, 30, 31, 32, 33, 34, 35, 36, 20, 30, 31, 32, 33, 34, 21, 30, 31]
AFTER = [40, 30, 31, 32, 33, 34, 35, 36, 37]
BANNED, STOPS, END = [0, 1, 3, 4], {2, 36}, 2


@pytest.fixture
def passes(with_experts: Any) -> Passes:
    return Passes(with_experts)


def after_prefix(passes: Passes) -> Tree:
    """The tree after the prefix."""
    return tree_of(passes, torch.tensor([PREFIX]))


def starting(first: tuple[int, ...]) -> drafts.Allowed:
    """Allow only these tokens at the start; none means any."""
    return lambda ids: () if ids else first


def written(passes: Passes, **settings: Any) -> Generator[list[CausalDraft], bool | None, list[CausalDraft]]:
    return drafts.drafts(after_prefix(passes), DraftSettings(**settings))


def drafted(
    passes: Passes, file: FileModel | None, *, first: tuple[int, ...] = (), most: int = 10
) -> tuple[list[CausalDraft], int]:
    """The drafts, and how many passes they took after the first."""
    return counted(written(passes, rows=3, most=most, allowed=starting(first), banned=BANNED, stops=STOPS, end=END, file=file))


def counted(
    work: Generator[list[CausalDraft], bool | None, list[CausalDraft]], most_passes: int | None = None
) -> tuple[list[CausalDraft], int]:
    """Run the work to its end, or say after some passes that it is late; return its drafts, and how many passes they took."""
    n_passes = 0
    is_late: bool | None = None
    while True:
        try:
            work.send(is_late)
        except StopIteration as stop:
            return stop.value, n_passes
        n_passes += 1
        is_late = n_passes == most_passes


def finished(work: Generator[list[CausalDraft], bool | None, list[CausalDraft]]) -> list[CausalDraft]:
    """Run the work to its end, and return its drafts."""
    return counted(work)[0]


def logps_after(passes: Passes, ids: list[int]) -> torch.Tensor:
    """The log-probabilities of what follows the prefix, and each of the tokens behind it, in a pass over the whole text."""
    hidden = hidden_of(passes, torch.tensor([[*PREFIX, *ids]]))[0, len(PREFIX) - 1 :]
    return passes.logits(hidden).log_softmax(-1)


def check_scores(passes: Passes, drafts: list[CausalDraft], most: int) -> None:
    """Check the log-probabilities of drafts by a pass over each whole one."""
    assert drafts
    for draft in drafts:
        logps = logps_after(passes, draft.ids)
        assert draft.logps == pytest.approx([float(logps[at, token]) for at, token in enumerate(draft.ids)], abs=1e-4)
        # Tokens after the maximum number are not evaluated.
        assert (draft.end is None) == (len(draft.ids) == most)
        assert draft.end is None or draft.end == pytest.approx(float(logps[-1, END]), abs=1e-4)


def chances_after(passes: Passes, file: FileModel | None, ids: list[int]) -> torch.Tensor:
    """The probabilities of the token after `ids`, in a pass of its own."""
    logits = logps_after(passes, ids)[-1]
    logits[BANNED] = -torch.inf
    mixed = logits.softmax(-1)
    if file is not None:
        guess = file.guess(ids)
        mixed *= 1 - guess.weight
        for token, share in guess.shares.items():
            if token >= 0 and token not in BANNED:
                mixed[token] += guess.weight * share
    return mixed


def one_at_a_time(passes: Passes, file: FileModel | None, *, first: tuple[int, ...] = (), most: int = 10) -> list[list[int]]:
    """The same drafts by the rule as it reads: one row, one token, one pass."""
    first_chances = chances_after(passes, file, [])
    if first:
        first_chances = torch.zeros_like(first_chances).index_copy(0, torch.tensor(first), first_chances[list(first)])
    rows = [[token] for token in first_chances.topk(3).indices.tolist() if first_chances[token] > 0]
    for row in rows:
        while len(row) < most and row[-1] not in STOPS:
            row.append(int(chances_after(passes, file, row).argmax()))
    return [row[:-1] if row[-1] in STOPS else row for row in rows]


@pytest.mark.parametrize("first", [(), (30, 32, 40, 50), (99,)])
@pytest.mark.parametrize("full", [0.0, 0.5, 0.98])
@pytest.mark.parametrize("most", [1, 2, 10])
@pytest.mark.slow
def test_drafts_equal_those_written_one_token_at_a_time(passes: Passes, first: tuple[int, ...], full: float, most: int) -> None:
    file = FileModel(PREFIX, AFTER, full=full) if full else None
    drafts, _ = drafted(passes, file, first=first, most=most)
    assert [draft.ids for draft in drafts] == one_at_a_time(passes, file, first=first, most=most)


def test_file_predictions_save_passes(passes: Passes) -> None:
    file = FileModel(PREFIX, AFTER, full=0.98, half_at=0.1)
    drafts, n_passes = drafted(passes, file, first=(32,))
    assert drafts[0].ids == [32, 33, 34, 35]
    assert n_passes < len(drafts[0].ids)


MANY_STOPS = set(range(5, 100, 2))
MAY_NOT_END = {"stops": MANY_STOPS, "going_on": [40, 42, 44], "is_incomplete": lambda ids: len(ids) < 4}


@pytest.mark.parametrize("full", [0.0, 0.5, 0.98])
@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 3, "first": (32, 30, 50)},
        {"rows": 1, "branches": 5},
        {"rows": 1, "start": [30, 31]},
        {"rows": 2, "first": (30, 32, 40), **MAY_NOT_END},  # with the shorter drafts that these leave
    ],
    ids=["drafts", "branches", "a start", "may not end"],
)
def test_log_probabilities_equal_those_of_one_pass_over_the_text(passes: Passes, full: float, settings: dict[str, Any]) -> None:
    file = FileModel(PREFIX, AFTER, full=full, half_at=0.1) if full else None
    limits = {"most": 8, "banned": BANNED, "stops": STOPS, "end": END, **settings}
    check_scores(passes, finished(written(passes, file=file, allowed=starting(limits.pop("first", ())), **limits)), 8)


def test_what_drafting_computed_is_not_computed_again(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, file = after_prefix(passes), FileModel(PREFIX, AFTER, full=0.98, half_at=0.1)
    limits: dict[str, Any] = {"rows": 1, "most": 10, "banned": BANNED, "stops": STOPS, "end": END, "branches": 2}
    settings = DraftSettings(**limits, allowed=starting((32,)), file=file)
    drafts_and_branches, _ = counted(drafts.drafts(tree, settings))
    rows = [[*draft.ids, END] for draft in drafts_and_branches if draft.end is not None]
    assert rows
    monkeypatch.setattr(type(passes), "logits", lambda *_: pytest.fail("the tokens of a draft are known"))
    monkeypatch.setattr(type(passes), "read", lambda *_: pytest.fail("the tokens of a draft are encoded"))
    for row, logps in zip(rows, tree.log_probabilities(rows), strict=True):
        check_bound(tree, row, sum(logps), is_exact=True)


def check_bound(tree: Tree, row: list[int], logp: float, *, is_exact: bool) -> None:
    assert tree.bound(row).logp == pytest.approx(logp, abs=1e-4)
    assert (not tree.bound(row).n_unknown) == is_exact


def test_bound_is_what_the_known_tokens_leave(passes: Passes) -> None:
    tree = after_prefix(passes)
    check_bound(tree, [30, 31], 0.0, is_exact=False)
    first, second = tree.log_probabilities([[30], [31, 40]])
    check_bound(tree, [30], first[0], is_exact=True)
    check_bound(tree, [30, 9], first[0], is_exact=False)
    check_bound(tree, [31, 9], second[0] + math.log1p(-math.exp(second[1])), is_exact=False)
    left = 1 - math.exp(first[0]) - math.exp(second[0])
    check_bound(tree, [9, 9], math.log(left), is_exact=False)
    for row in ([30, 9], [31, 9], [9, 9]):
        assert tree.bound(row).logp >= sum(after_prefix(passes).log_probabilities([row])[0]) - 1e-4


def test_a_draft_that_is_enough_has_no_branches(passes: Passes) -> None:
    limits: dict[str, Any] = {"rows": 1, "most": 10, "banned": BANNED, "stops": STOPS, "end": END, "branches": 3}
    limits |= {"allowed": starting((32,)), "file": FileModel(PREFIX, AFTER, full=0.98, half_at=0.1)}
    all_drafts, n_passes = counted(written(passes, **limits))
    assert len(all_drafts) > 1
    [draft], n_fewer = counted(written(passes, is_enough=lambda draft, _margin: draft.is_finished, **limits))
    assert draft.ids == all_drafts[0].ids
    assert n_fewer < n_passes
    assert len(counted(written(passes, is_enough=lambda _draft, _margin: False, **limits))[0]) == len(all_drafts)


def test_a_tree_learns_how_likely_other_texts_are_where_drafts_begin_like_them(passes: Passes) -> None:
    tree = after_prefix(passes)
    settings: dict[str, Any] = {"rows": 1, "most": 6, "banned": BANNED, "stops": STOPS, "end": END}
    [draft], _ = counted(drafts.drafts(after_prefix(passes), DraftSettings(**settings)))
    other = [*draft.ids[:2], next(token for token in range(40, 60) if token != draft.ids[2]), 30]
    counted(drafts.drafts(tree, DraftSettings(**settings, others=[other])))
    logps = after_prefix(passes).log_probabilities([other])[0]
    check_bound(tree, other, sum(logps[:3]), is_exact=False)


def test_a_file_continuation_ends_when_it_is_improbable() -> None:
    file = FileModel(PREFIX, AFTER, full=0.98, half_at=0.1)
    assert file.continuation([32], most=3, least_chance=0.1, stops=()) == [33, 34, 35]
    assert file.continuation([32], most=9, least_chance=0.1, stops=(34,)) == [33, 34]
    assert file.continuation([32], most=9, least_chance=1.0, stops=()) == []
    assert file.continuation([99], most=9, least_chance=0.1, stops=()) == []


def test_related_files_count_but_no_match_spans_two_files() -> None:
    assert FileModel([5, 6], []).guess([]).weight == 0.0
    with_related = FileModel([5, 6], [], related=[[1, 5, 6, 7], [8, 6]])
    assert set(with_related.guess([]).shares) == {7}
    assert with_related.guess([7]).weight == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_matches_equal_a_search_of_every_place(seed: int) -> None:
    """Few different tokens, so that matches are long and many, longer than what is looked at and more than are counted."""
    chance = random.Random(seed)
    before = [chance.randrange(3) for _ in range(chance.choice([0, 5, 300]))]
    after = [chance.randrange(3) for _ in range(chance.choice([0, 5, 300]))] + before[:20]
    file = FileModel(before, after, full=0.9)
    for n_written in range(4):
        new_tokens = [chance.randrange(3) for _ in range(n_written)]
        tail = [*before, *new_tokens][-16:]
        guess = file.guess(new_tokens)
        matches: list[tuple[int, int]] = []
        for side in (before, after):
            for place in range(len(side) - 1):
                length = 0
                while length < len(tail) and place - length >= 0 and side[place - length] == tail[-1 - length]:
                    length += 1
                if length:
                    matches.append((length, side[place + 1]))
        matches = matches[-96:]
        if not matches:
            assert guess.weight == 0.0
            continue
        best = max(length for length, _ in matches)
        counts = {token: sum(4.0 ** (length - best) for length, other in matches if other == token) for _, token in matches}
        assert guess.shares == pytest.approx({token: count / sum(counts.values()) for token, count in counts.items()})
        assert guess.weight == pytest.approx(0.9 * best / (best + 4) * max(counts.values()) / sum(counts.values()))


@pytest.mark.parametrize("full", [0.0, 0.5])
def test_branches_are_the_likeliest_other_tokens_continued_greedily(passes: Passes, full: float) -> None:
    file = FileModel(PREFIX, AFTER, full=full) if full else None
    limits: dict[str, Any] = {"most": 6, "banned": BANNED, "stops": STOPS}
    draft, *branches = finished(written(passes, rows=1, file=file, branches=4, **limits))

    # The rule as it reads: each place of the draft, each other token, one pass for each.
    path = [*draft.ids, *([] if draft.stop is None else [draft.stop])]
    options = []
    logp = 0.0
    for place, chosen in enumerate(path):
        row = chances_after(passes, file, path[:place])
        # The likeliest token that ends the text stands for all of them, and there is none where the path itself ends.
        ends = sorted(STOPS, key=lambda token: float(row[token]), reverse=True)
        unwanted = {chosen, *(ends if chosen in STOPS else ends[1:])}
        options += [
            (logp + float(row[token].log()), place, token) for token in row.topk(9).indices.tolist() if token not in unwanted
        ]
        logp += float(row[chosen].log())
    expected = []
    for _, place, token in sorted(options, reverse=True)[:4]:
        ids = [*path[:place], token]
        while len(ids) < 6 and ids[-1] not in STOPS:
            ids.append(int(chances_after(passes, file, ids).argmax()))
        expected.append(ids[:-1] if ids[-1] in STOPS else ids)
    assert [branch.ids for branch in branches] == expected


def test_no_branch_starts_as_a_draft_or_another_branch_does(passes: Passes) -> None:
    file = FileModel(PREFIX, AFTER, full=0.98, half_at=0.1)
    limits: dict[str, Any] = {"most": 1, "banned": BANNED, "stops": STOPS}
    drafts = finished(written(passes, rows=1, file=file, alone=True, branches=5, **limits))
    assert len(drafts) == 2 + 2 * 5
    assert len({tuple(draft.ids) for draft in drafts}) == len(drafts)


def test_branches_are_written_in_the_passes_of_their_draft(passes: Passes) -> None:
    limits: dict[str, Any] = {"most": 12, "banned": BANNED, "stops": STOPS}
    drafts, n_passes = counted(written(passes, rows=1, branches=5, **limits))
    assert max(len(draft.ids) for draft in drafts) == 12
    assert n_passes <= 13


def test_a_finished_draft_is_there_while_its_branches_are_written(passes: Passes) -> None:
    file = FileModel(PREFIX, AFTER, full=0.98, half_at=0.1)
    limits: dict[str, Any] = {"most": 10, "allowed": starting((32,)), "banned": BANNED, "stops": STOPS, "end": END}
    finished_drafts = []
    for each in written(passes, rows=1, file=file, branches=5, **limits):
        finished_drafts += [(draft.ids, draft.stop) for draft in each if draft.is_finished]
    assert ([32, 33, 34, 35], 36) in finished_drafts


def test_late_drafts_are_those_that_are_finished(passes: Passes) -> None:
    # With many stop tokens, drafts and branches end after different numbers of passes.
    limits: dict[str, Any] = {"most": 8, "banned": BANNED, "stops": set(range(5, 60, 2))}
    whole, n_passes = counted(written(passes, rows=3, branches=5, **limits))
    n_late = []
    for most_passes in range(1, n_passes):
        late, _ = counted(written(passes, rows=3, branches=5, **limits), most_passes)
        assert all(draft.ids in [each.ids for each in whole] for draft in late)
        n_late.append(len(late))
    assert n_late == sorted(n_late)
    assert (n_late[0], len(set(n_late)) > 2, n_late[-1] < len(whole)) == (0, True, True)


def test_a_branch_starts_only_with_an_allowed_token(passes: Passes) -> None:
    first = (30, 32, 40)
    limits: dict[str, Any] = {"most": 4, "allowed": starting(first), "banned": BANNED, "stops": STOPS}
    draft, *branches = finished(written(passes, rows=1, branches=30, **limits))
    assert {branch.ids[0] for branch in branches} <= set(first)
    assert len({tuple(branch.ids) for branch in branches} - {tuple(draft.ids)}) > 2
    assert all(not set(branch.ids) & set(BANNED) for branch in branches)


def test_the_model_alone_writes_one_more_draft(passes: Passes) -> None:
    file = FileModel(PREFIX, AFTER, full=0.98, half_at=0.1)
    limits: dict[str, Any] = {"most": 6, "banned": BANNED, "stops": STOPS, "end": END}
    both = finished(written(passes, rows=1, file=file, alone=True, **limits))
    alone = finished(written(passes, rows=1, **limits))
    assert [draft.ids for draft in both] == [drafted(passes, file, most=6)[0][0].ids, alone[0].ids]
    assert [draft.file for draft in both] == [file, None]


def test_improbable_drafts_and_branches_are_dropped(passes: Passes) -> None:
    limits: dict[str, Any] = {"most": 6, "banned": BANNED, "stops": STOPS, "end": END}
    drafts = finished(written(passes, rows=3, **limits))
    best = max(draft.joint for draft in drafts)
    likely = finished(written(passes, rows=3, most_behind=0.0, **limits))
    assert [draft.ids for draft in likely] == [draft.ids for draft in drafts if draft.joint == best]

    draft, *branches = finished(written(passes, rows=1, branches=5, **limits))
    behind = sorted(draft.joint - branch.joint for branch in branches)
    middle = (behind[1] + behind[2]) / 2
    _, *some = finished(written(passes, rows=1, branches=5, most_behind=middle, **limits))
    assert [branch.ids for branch in some] == [branch.ids for branch in branches if draft.joint - branch.joint <= middle]
    assert 0 < len(some) < len(branches)

    assert finished(written(passes, rows=1, least_joint=draft.joint, **limits))
    assert not finished(written(passes, rows=1, least_joint=draft.joints[0] / 2, **limits))


def test_a_draft_that_may_not_end_yet_goes_on_and_leaves_a_shorter_one(passes: Passes) -> None:
    # With many stop tokens, drafts end soon.
    limits: dict[str, Any] = {"rows": 2, "most": 9, "banned": BANNED, "end": END, "stops": MANY_STOPS}
    stops, going_on = MANY_STOPS, [40, 42, 44]
    limits["allowed"] = starting((30, 32, 40))
    plain = finished(written(passes, **limits))
    drafts = finished(written(passes, **{**limits, **MAY_NOT_END}))
    assert any(draft.stop is not None and 0 < len(draft.ids) < 4 for draft in plain)
    longer, shorter = drafts[:2], drafts[2:]
    for draft, once in zip(longer, plain, strict=True):
        # The rule as it reads: one token, one pass, and no end before the fourth token.
        ids, ends = draft.ids[:1], []
        while len(ids) < 9:
            row = chances_after(passes, None, ids)
            token = int(row.argmax())
            if token in stops and len(ids) < 4:
                ends.append(ids)
                token = max(going_on, key=lambda one: float(row[one]))
            if token in stops:
                break
            ids = [*ids, token]
        assert draft.ids == ids
        assert [each.ids for each in draft.shorter] == ends
        assert once.ids in [*ends, ids]
    assert shorter


@pytest.mark.parametrize("start", [[30, 31], [50, 51, 52, 53]])
def test_a_draft_with_a_start_goes_on_greedily_after_it(passes: Passes, start: list[int]) -> None:
    limits: dict[str, Any] = {"rows": 3, "most": 9, "branches": 2, "banned": BANNED, "stops": STOPS, "end": END, "start": start}
    (draft,) = finished(written(passes, **limits))
    ids = list(start)
    while len(ids) < 9 and ids[-1] not in STOPS:
        ids.append(int(chances_after(passes, None, ids).argmax()))
    assert draft.ids == (ids[:-1] if ids[-1] in STOPS else ids)
