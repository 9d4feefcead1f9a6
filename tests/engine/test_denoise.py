"""The fast loop writes what the readable one writes, token for token, and never touches what is held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from dg_lsp.engine.diffusion.denoise import CanvasState, Denoiser, Row, TokenLimits, accept, temperature
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.diffusion.readout import Constraints, sliced
from tests.engine import reference
from tests.engine.filler_kit import room_of
from tests.engine.reference import PlainDecoder, take_step

VOCABULARY = 12


class Toy:
    """A model of a few lines: logits depend on each position's token, its neighbours and its conditioning."""

    def __init__(self, seed: int, sharpness: float) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.table = torch.randn(3, VOCABULARY, VOCABULARY, generator=noise) * sharpness

    def logits(self, state: CanvasState) -> Tensor:
        canvas, used, rows = state.ids, state.used, []
        dense = torch.zeros(*canvas.shape, VOCABULARY)
        soft = dense.scatter_add(2, state.top_ids, state.top_chances)
        for row in range(len(canvas)):
            there = used[row].nonzero()[:, 0]
            ids, hints = canvas[row][there], soft[row][there]
            from_left, from_right = self.table[0][ids.roll(1)], self.table[1][ids.roll(-1)]
            scores = torch.zeros(len(used[row]), VOCABULARY)
            scores[there] = self.table[2][ids] * 0.5 + from_left + from_right + hints @ self.table[2]
            rows.append(scores)
        return torch.stack(rows)[state.free]


limits = st.builds(
    TokenLimits,
    regular=st.just(tuple(range(4, VOCABULARY))),
    banned=st.sampled_from([(0, 1, 2), (0, 1, 2, 5, 6)]),
    first=st.sampled_from([(), (4,), (7, 8), (5,)]),
)


@st.composite
def rows(draw_from: Any) -> Row:
    free = draw_from(st.lists(st.booleans(), min_size=2, max_size=12).filter(any))
    ids = draw_from(st.lists(st.integers(3, VOCABULARY - 1), min_size=len(free), max_size=len(free)))
    row = Row(
        tuple(ids),
        tuple(free),
        draw_from(st.integers(1, 9)),
        draw_from(st.integers(0, 5)),
        draw_from(st.booleans()),
        draw_from(st.booleans()),
    )
    if not row.draft or draw_from(st.booleans()):
        return row
    chances = draw_from(st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.0]), min_size=len(free), max_size=len(free)))
    return replace(row, chances=tuple(chances), noisy=tuple(reference.renoised(chances, 0.5)))


# A draft whose unsure tokens are all held: nothing starts as noise.
HELD_NOISE = Row(
    (3,) * 7, (True, *[False] * 6), 3, 0, draft=True, greedy=False, chances=(0.7, *[0.0] * 6), noisy=(False, *[True] * 6)
)


@given(st.lists(rows(), min_size=1, max_size=4), limits, st.integers(0, 50), st.sampled_from([0.3, 1.5, 4.0]))
@example([HELD_NOISE], TokenLimits(tuple(range(4, VOCABULARY)), (0, 1, 2), ()), 0, 0.3)
def test_the_fast_loop_equals_the_reference(many: list[Row], limit: TokenLimits, seed: int, sharpness: float) -> None:
    toy, sampling = (
        Toy(seed, sharpness),
        Sampling(entropy_bound=0.5, stop_entropy=0.3, conditioning_tokens=4),
    )
    denoiser = Denoiser(many, limit, sampling, VOCABULARY)
    while not denoiser.done:
        take_step(denoiser, toy)
    for index, row in enumerate(many):
        assert list(denoiser.read(index).ids) == reference.denoise(row, limit, sampling, toy)


@given(st.lists(rows(), min_size=1, max_size=4), limits, st.integers(0, 50))
def test_held_tokens_never_change(many: list[Row], limit: TokenLimits, seed: int) -> None:
    denoiser = Denoiser(many, limit, Sampling(), VOCABULARY)
    while not denoiser.done:
        take_step(denoiser, Toy(seed, 2.0))
        for index, row in enumerate(many):
            held, reading = [place for place, free in enumerate(row.free) if not free], denoiser.read(index)
            for ids in (reading.ids, denoiser.canvas.ids[index].tolist()):
                assert [ids[place] for place in held] == [row.ids[place] for place in held]


def test_improbable_draft_tokens_start_as_noise_and_their_probabilities_condition_the_first_step() -> None:
    row = Row((4, 5, 6, 7), (True, True, True, False), 3, draft=True, chances=(0.9, 0.2, 0.6, 0.0), noisy=(False, True, False))
    row = replace(row, noisy=(*row.noisy, False))
    canvas = Denoiser([row], TokenLimits((9, 10)), Sampling(conditioning_tokens=2), VOCABULARY).canvas
    assert canvas.ids[0, [0, 2, 3]].tolist() == [4, 6, 7]
    assert int(canvas.ids[0, 1]) in (9, 10)
    assert canvas.best[0].tolist() == [4, 5, 6, 7]
    assert canvas.top_ids[0, :, 0].tolist() == [4, 5, 6, 7]
    assert canvas.top_chances[0, :, 0].tolist() == pytest.approx([0.9, 0.2, 0.6, 1.0])


def test_rows_take_only_the_allowed_further_steps() -> None:
    toy = Toy(3, 0.1)
    denoiser = Denoiser([Row((4,) * 5, (True,) * 5, 6, seed=1)], TokenLimits((4, 5, 6)), Sampling(), VOCABULARY)
    take_step(denoiser, toy)
    denoiser.bound(1)
    assert denoiser.rows[0].steps == 2
    denoiser.bound(9)  # there is more time after all, but never more steps than were planned
    assert denoiser.rows[0].steps == 6
    denoiser.bound(0)
    assert denoiser.done


def test_the_loops_agree_on_a_real_model(with_experts: Any) -> None:
    passes = Passes(with_experts)
    limit = TokenLimits(tuple(range(10, 110)), tuple(range(6)), (30, 31, 32))
    many = [
        Row((20,) * 10 + (40, 41, 42), (True,) * 10 + (False,) * 3, 6, seed=1),
        Row((21, 22, 23, 6, 6, 40), (True,) * 5 + (False,), 3, seed=2, draft=True),
        Row((20,) * 4 + (50,) + (20,) * 3 + (40,), (True,) * 4 + (False,) + (True,) * 3 + (False,), 6, seed=3, greedy=False),
    ]
    with torch.no_grad():
        decoder = PlainDecoder(passes, room_of(passes, torch.arange(30)[None] + 10).kv)
        denoiser = Denoiser(many, limit, Sampling(), 120)
        while not denoiser.done:
            take_step(denoiser, decoder)
        for index, row in enumerate(many):
            assert list(denoiser.read(index).ids) == reference.denoise(row, limit, Sampling(), decoder)


def test_positions_of_lowest_entropy_are_accepted_within_the_bound() -> None:
    entropies = torch.tensor([[0.05, 0.9, 0.04, 0.02, 0.0]])
    free = torch.tensor([[True, True, True, True, False]])
    assert accept(entropies, free, 0.1).tolist() == [[True, False, True, True, False]]
    assert accept(entropies, free, 0.01).tolist() == [[False, False, False, True, False]]


def test_at_least_one_position_is_accepted() -> None:
    assert accept(torch.tensor([[3.0, 2.0]]), torch.tensor([[True, True]]), 0.1).tolist() == [[False, True]]


def test_temperature_falls_from_the_first_step_to_the_last() -> None:
    sampling = Sampling(t_min=0.4, t_max=0.8)
    assert temperature(sampling, 0, 4) == pytest.approx(0.8)
    assert temperature(sampling, 3, 4) == pytest.approx(0.5)


def test_sampling_inverts_the_distribution() -> None:
    logits, allowed = torch.tensor([[0.25, 0.5, 0.25]]).log().repeat(4, 1), torch.zeros(3, dtype=torch.bool)
    rules = Constraints(torch.ones(4), allowed, allowed, torch.zeros(4, dtype=torch.bool), torch.tensor([0.0, 0.3, 0.7, 0.99]))
    found = sliced(lambda first, last: logits[:, first:last], 3, rules, 2)
    assert found.sampled is not None
    assert found.sampled.tolist() == [0, 1, 1, 2]
