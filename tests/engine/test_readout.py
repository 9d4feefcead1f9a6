"""The readout in slices equals the readout of the whole vocabulary, and a row says the same however the logits arrive."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dg_lsp.engine.diffusion import readout
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.readout import Constraints, Readout
from dg_lsp.engine.model.fit import VOCABULARY_SLICE
from tests.engine import reference


def constraints(n_positions: int, n_vocabulary: int, seed: int, *, sampled: bool, starts: bool) -> Constraints:
    noise = torch.Generator().manual_seed(seed)
    forbidden = torch.rand(n_vocabulary, generator=noise) < 0.3
    forbidden[seed % n_vocabulary] = False
    first = forbidden | (torch.rand(n_vocabulary, generator=noise) < 0.5)
    first[seed % n_vocabulary] = False
    return Constraints(
        torch.rand(n_positions, generator=noise) + 0.3,
        forbidden,
        first,
        torch.rand(n_positions, generator=noise) < (0.5 if starts else 0.0),
        torch.rand(n_positions, generator=noise) if sampled else None,
    )


def check_equal(sliced: Readout, plain: Readout) -> None:
    torch.testing.assert_close(sliced.top_chances, plain.top_chances, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(sliced.entropies, plain.entropies, atol=1e-4, rtol=1e-4)
    # Tokens of probability 0 have no order, and below the normal numbers rounding decides it.
    there = plain.top_chances > torch.finfo(torch.float32).tiny
    assert torch.equal(sliced.top_ids[there], plain.top_ids[there])
    assert (sliced.sampled is None) == (plain.sampled is None)
    if sliced.sampled is not None and plain.sampled is not None:
        assert torch.equal(sliced.sampled, plain.sampled)


@given(
    n_positions=st.integers(1, 9),
    n_vocabulary=st.integers(5, 90),
    size=st.sampled_from([1, 7, 16, 64, 100]),
    k=st.integers(1, 5),
    scale=st.sampled_from([0.1, 3.0, 20.0]),
    seed=st.integers(0, 99),
    sampled=st.booleans(),
    starts=st.booleans(),
)
@example(n_positions=5, n_vocabulary=86, size=1, k=3, scale=20.0, seed=86, sampled=False, starts=True)
def test_slices_give_the_readout_of_the_whole_vocabulary(
    n_positions: int,
    n_vocabulary: int,
    size: int,
    k: int,
    scale: float,
    seed: int,
    sampled: bool,
    starts: bool,
) -> None:
    logits = torch.randn(n_positions, n_vocabulary, generator=torch.Generator().manual_seed(seed)) * scale
    rules = constraints(n_positions, n_vocabulary, seed, sampled=sampled, starts=starts)
    plain = reference.plain_readout(logits.clone(), rules, k)
    found = readout.sliced(lambda first, last: logits[:, first:last].clone(), n_vocabulary, rules, k, size)
    check_equal(found, plain)


def test_a_sample_at_the_end_of_the_distribution_is_never_forbidden() -> None:
    logits = torch.zeros(1, 12)
    forbidden = torch.arange(12) >= 9
    largest = torch.ones(1)  # what rounding may make of a large draw
    rules = Constraints(torch.ones(1), forbidden, forbidden, forbidden[:1], largest)
    found = readout.sliced(lambda first, last: logits[:, first:last].clone(), 12, rules, 3, 5)
    assert found.sampled is not None
    assert found.sampled.tolist() == [8]


def test_a_large_vocabulary_is_read_in_slices_and_says_the_same() -> None:
    n_vocabulary = VOCABULARY_SLICE + 5
    logits = torch.randn(3, n_vocabulary, generator=torch.Generator().manual_seed(3)) * 4
    rules = constraints(3, n_vocabulary, 3, sampled=True, starts=True)
    found = readout.sliced(lambda first, last: logits[:, first:last].clone(), n_vocabulary, rules, 8)
    check_equal(found, reference.plain_readout(logits.clone(), rules, 8))


@torch.no_grad()
def test_the_readout_of_hidden_states_makes_no_tensor_of_all_logits(with_experts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(with_experts)
    hidden = torch.randn(7, 64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(readout, "POSITIONS", 3)  # so that the positions take three parts
    rules = constraints(7, 120, 1, sampled=True, starts=True)
    asked: list[tuple[int, int]] = []

    def logits(own: torch.Tensor, first: int, last: int) -> torch.Tensor:
        asked.append((len(own), last - first))
        return passes.logits(own, first, last)

    found = readout.read_hidden(logits, hidden, 120, rules, 5)
    check_equal(found, reference.plain_readout(passes.logits(hidden), rules, 5))
    assert {n_positions for n_positions, _ in asked} == {3, 1}
    assert max(n_tokens for _, n_tokens in asked) <= VOCABULARY_SLICE


@torch.no_grad()
def test_a_slice_of_the_logits_equals_that_part_of_all(with_experts: Any) -> None:
    passes = Passes(with_experts)
    hidden = torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(passes.logits(hidden, 10, 50), passes.logits(hidden)[:, 10:50])
