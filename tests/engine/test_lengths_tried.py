"""The rules that find a gap's length say what the readable ones say, and what is held stays as it is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dg_lsp.engine.decode.canvas.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.decode.canvas.speculation import Gap
from dg_lsp.engine.model.profile import Sampling
from tests.benchmarks.worlds import tried, tried_reference
from tests.benchmarks.worlds.tried import Search, Snap
from tests.engine.test_denoise import Toy

VOCABULARY = 7
tokens = st.integers(0, VOCABULARY - 1)
heads = st.lists(tokens, min_size=1, max_size=6)
canvases = st.tuples(st.integers(1, 14), st.integers(0, 99), st.sampled_from([0.3, 2.0, 9.0]))


def logps(shape: tuple[int, int, float]) -> Tensor:
    length, seed, sharpness = shape
    return (torch.randn(length, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * sharpness).log_softmax(-1)


def reading(text: str, alphabet: str, sure: float = 0.9) -> Tensor:
    """The log-probabilities of a canvas that reads as a text."""
    rest = (1 - sure) / (len(alphabet) - 1)
    return torch.tensor([[math.log(sure if token == character else rest) for token in alphabet] for character in text])


@given(canvases, heads)
def test_head_scores_equal_the_reference(shape: tuple[int, int, float], head: list[int]) -> None:
    logs = logps(shape)
    assert tried.head_scores(logs, head).tolist() == pytest.approx(tried_reference.head_scores(logs.tolist(), head), abs=1e-3)


@given(canvases, st.sets(tokens, max_size=3))
def test_none_before_equals_the_reference(shape: tuple[int, int, float], some: set[int]) -> None:
    logs = logps(shape)
    assert tried.none_before(logs, some).tolist() == pytest.approx(tried_reference.none_before(logs.tolist(), some), abs=1e-3)


@given(canvases, st.integers(1, 5), st.sampled_from([0.5, 0.9, 2.0]))
def test_likely_starts_equal_the_reference(shape: tuple[int, int, float], most: int, mass: float) -> None:
    scores = logps(shape)[:, 0]
    fast, plain = tried.likely(scores, most, mass), tried_reference.likely(scores.tolist(), most, mass)
    assert [start for start, _ in fast] == [start for start, _ in plain]
    assert [share for _, share in fast] == pytest.approx([share for _, share in plain], abs=1e-4)


@given(canvases, heads, st.sampled_from([0.1, 0.5]))
def test_overlap_equals_the_reference(shape: tuple[int, int, float], head: list[int], sure: float) -> None:
    logs = logps(shape)
    assert tried.overlap(logs, head, sure) == tried_reference.overlap(logs.exp().tolist(), head, sure)


def test_the_suffix_is_found_where_the_canvas_reads_as_its_head() -> None:
    alphabet = "abcdef;)"
    logs = reading("abcabc);ef", alphabet)
    head = [alphabet.index(character) for character in ");e"]
    assert int(tried.head_scores(logs, head).argmax()) == 6


def test_a_repeated_head_is_found_at_its_longest_match() -> None:
    alphabet = "abcdef;)"
    logs = reading("ab);ab);ef", alphabet)
    head = [alphabet.index(character) for character in ");ef"]
    assert int(tried.head_scores(logs, head).argmax()) == 6


def test_one_token_that_both_sides_share_does_not_shrink_a_gap() -> None:
    alphabet = "abc;"
    head = [alphabet.index(character) for character in ";ab"]
    assert tried.overlap(reading("abc;", alphabet), head) == 0
    assert tried.overlap(reading("abc;a", alphabet), head) == 2


def test_a_gap_is_short_where_its_end_alone_stays_uncertain() -> None:
    assert tried.is_short(torch.tensor([0.01, 0.02, 0.0, 0.1, 1.9, 2.0, 2.1]))
    assert not tried.is_short(torch.tensor([2.0, 1.9, 2.2, 1.8, 1.9, 2.0, 2.1]))
    assert not tried.is_short(torch.tensor([0.01, 0.02, 0.0, 0.1, 0.0, 0.1, 0.0]))


@given(st.integers(1, 9), st.integers(0, 5), st.lists(tokens, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_a_snapped_canvas_holds_the_suffix_and_keeps_its_other_state(start: int, n_steps: int, tail: list[int]) -> None:
    limits, sampling = TokenLimits(tuple(range(VOCABULARY))), Sampling(conditioning_tokens=3)
    denoiser = Denoiser([Row((0,) * 10, (True,) * 10, 8)], limits, sampling, VOCABULARY)
    for n in range(n_steps):
        if not denoiser.done:
            denoiser.take([0], logps((10, n, 1.5)).clone())
    state = tried.state_of(denoiser, 0)
    snapped = tried.snapped(state, start, tail)
    near = max(0, start - tried.NEAR_SEAM)
    assert snapped.ids.tolist() == [*state.ids[:start].tolist(), *tail]
    assert torch.equal(snapped.top_chances[:near], state.top_chances[:near])
    assert not snapped.top_chances[near:start].any()
    goes_on = tried.resume([snapped], 3, limits, sampling, VOCABULARY)
    while not goes_on.done:
        assert torch.equal(goes_on.canvas.top_ids[0, :near][:, 0], snapped.top_ids[:near, 0]) or goes_on.begun
        goes_on.take([0], logps((start, 5, 1.5)).clone())
        assert goes_on.canvas.ids[0, start:].tolist() == tail
        assert goes_on.canvas.top_ids[0, start:, 0].tolist() == tail
    assert list(goes_on.read(0).ids[start:]) == tail


gaps = st.builds(
    Gap,
    width=st.integers(6, 12),
    tail=st.lists(st.integers(4, 11), min_size=1, max_size=5).map(tuple),
    limits=st.builds(TokenLimits, st.just(tuple(range(4, 12))), st.just((0, 1, 2)), st.sampled_from([(), (7, 8)])),
    closing=st.sampled_from([(), (5,), (4, 9)]),
    steps=st.integers(1, 7),
    seed=st.integers(0, 3),
)
snaps = st.builds(
    tried.Snap,
    least=st.integers(1, 3),
    most=st.integers(3, 5),
    sure=st.sampled_from([0.3, 0.9]),
    rows=st.integers(1, 4),
    trial=st.integers(0, 3),
    margin=st.sampled_from([0.0, 1.5]),
)


@given(gaps, snaps, st.integers(0, 30), st.sampled_from([0.3, 0.7, 1.1]))  # sharper: equal scores, in no order
@settings(max_examples=80, deadline=None)
def test_a_search_equals_the_reference(gap: Gap, snap: Snap, seed: int, sharpness: float) -> None:
    toy, sampling = Toy(seed, sharpness), Sampling(entropy_bound=0.5, stop_entropy=0.3, conditioning_tokens=4)
    search = Search(gap, sampling, len(toy.table[0]), snap)
    while not search.done:
        denoiser = search.denoiser
        rows = denoiser.live
        inputs = denoiser.ask(rows)
        search.take(rows, toy.logits(inputs.ids, toy.soft(inputs.top_ids, inputs.top_chances), inputs.used, inputs.free))
        if search.is_trial_over:
            search.keep(scored([list(answer) for answer in search.answers()]))
    assert [list(answer) for answer in search.answers()] == tried_reference.search(gap, sampling, snap, toy, scored)
    assert all(tuple(search.denoiser.read(i).ids[start:]) == gap.tail for i, (start, _) in enumerate(search.starts))


def scored(answers: list[list[int]]) -> list[float]:
    """What a causal pass might say: something that depends on the answer alone."""
    return [sum(token * (place + 1) % 5 for place, token in enumerate(answer)) / 3 - len(answer) for answer in answers]


def test_a_grown_gap_keeps_its_tokens_and_adds_noise_without_conditioning() -> None:
    state = tried.State(
        torch.tensor([3, 4, 5]), torch.tensor([True, True, False]), torch.zeros(3, 2, dtype=torch.long), torch.ones(3, 2)
    )
    new_state = tried.grown(state, 5, TokenLimits((1, 2)), seed=3)
    assert new_state.ids[:2].tolist() == [3, 4]
    assert set(new_state.ids[2:].tolist()) <= {1, 2}
    assert new_state.free.all()
    assert new_state.top_chances.tolist() == [[1, 1], [1, 1], [0, 0], [0, 0], [0, 0]]
