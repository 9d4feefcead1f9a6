"""The fast rule that finds where an answer ends verifies what the readable one verifies."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dg_lsp.engine.diffusion.denoise import TokenLimits
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.diffusion.search import Gap, Speculate, Speculation, cut_at_suffix
from tests.engine import reference
from tests.engine.test_denoise import VOCABULARY, Toy

SAMPLING = Sampling(entropy_bound=0.5, stop_entropy=0.3, conditioning_tokens=4)
END = 1

gaps = st.builds(
    Gap,
    width=st.integers(6, 12),
    tail=st.lists(st.integers(4, 11), min_size=1, max_size=5).map(tuple),
    limits=st.builds(TokenLimits, st.just(tuple(range(4, 12))), st.just((0, 2)), st.sampled_from([(), (7, 8)])),
    closing=st.sampled_from([(), (5,), (4, 9)]),
    steps=st.integers(1, 7),
    seed=st.integers(0, 3),
)
choices = st.builds(
    Speculate,
    look=st.sampled_from([2, 32]),
    possible=st.sampled_from([0.001, 0.1]),
    starts=st.integers(1, 4),
    repeats=st.integers(1, 3),
)


class ToyCausal:
    """A causal model of a few lines: what comes next depends on the last two tokens and on how long the text is."""

    def __init__(self, seed: int, sharpness: float) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.table = torch.randn(3, VOCABULARY, VOCABULARY, generator=noise) * sharpness

    def __call__(self, text: list[int]) -> Tensor:
        last, before = (text[-1] if text else 0), (text[-2] if len(text) > 1 else 0)
        return self.table[0, last] + self.table[1, before] + self.table[2, len(text) % VOCABULARY] * 0.2


def speculated(gap: Gap, options: Speculate, toy: Toy, causal: ToyCausal) -> Speculation:
    speculation = Speculation(gap, (END,), SAMPLING, VOCABULARY, options)
    while not speculation.done:
        if speculation.wants_canvas:
            speculation.denoiser.take([0], toy.logits(speculation.denoiser.ask([0])))
        proposal, text = speculation.proposal, list(speculation.text)
        logits = torch.stack([causal([*text, *proposal[:n]]) for n in range(len(proposal) + 1)])
        n_agreed = speculation.verify(proposal, logits)
        assert tuple(speculation.text[len(text) :][:n_agreed]) == proposal[:n_agreed]
    return speculation


@given(gaps, choices, st.integers(0, 40), st.sampled_from([0.3, 0.7, 1.1]))
def test_the_fast_rule_equals_the_reference(gap: Gap, options: Speculate, seed: int, sharpness: float) -> None:
    toy, causal = Toy(seed, sharpness), ToyCausal(seed + 1, sharpness * 3)
    fast = speculated(gap, options, toy, causal)
    text, starts = reference.speculate(gap, {END}, SAMPLING, options, toy, causal)
    assert fast.text == text
    assert fast.starts() == starts
    assert all(len(fast.answer(start)) == start for start in starts if start <= len(text))


@given(gaps, st.integers(0, 40))
def test_the_verified_text_is_the_greedy_causal_text(gap: Gap, seed: int) -> None:
    causal = ToyCausal(seed, 2.0)
    text = speculated(gap, Speculate(), Toy(seed, 1.0), causal).text
    for n, token in enumerate(text):
        logits = causal(text[:n])
        logits[[0, 2]] = -torch.inf
        if n == 0 and gap.limits.first:
            others = [other for other in range(VOCABULARY) if other not in gap.limits.first]
            logits[others] = -torch.inf
        assert token == int(logits.argmax())


def test_the_rest_of_the_suffix_is_verified_in_one_pass() -> None:
    gap = Gap(20, (7, 9, 8, 10, 7, 6), TokenLimits(tuple(range(4, VOCABULARY)), (0, 1, 2)), (), steps=9)
    speculation = Speculation(gap, (END,), SAMPLING, VOCABULARY)
    speculation.text = [4, 7, 9, 8]
    assert not speculation.wants_canvas
    assert speculation.proposal == (10, 7, 6)
    sure = torch.nn.functional.one_hot(torch.tensor([10, 7, 6, 5]), VOCABULARY) * 9.0
    assert speculation.verify((10, 7, 6), sure) == 3
    assert speculation.starts()[0] == 1


def test_lengths_far_below_the_best_are_not_denoised() -> None:
    gap = Gap(20, (7,), TokenLimits(tuple(range(4, VOCABULARY))), (), steps=9)
    speculation = Speculation(gap, (END,), SAMPLING, VOCABULARY, Speculate(rows=2, margin=3.0))
    assert speculation.lengths([4, 6, 9], [-2.0, -9.0, -1.0]) == [9, 4]
    assert speculation.lengths([4, 6, 9], [-7.0, -9.0, -1.0]) == [9]


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_the_cut_of_a_draft_equals_the_reference(draft: list[int], head: list[int]) -> None:
    assert cut_at_suffix(draft, head) == reference.cut_at_suffix(draft, head)


def test_a_draft_ends_at_the_longest_run_of_the_suffix() -> None:
    assert cut_at_suffix([1, 2, 3, 9, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]) == 4
    assert cut_at_suffix([7, 1, 2], [1, 2, 3, 4]) == 3
    assert cut_at_suffix([7, 1], [1]) == 1
