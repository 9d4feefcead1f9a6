"""A row says the same beside others as alone: prefixes and canvases of several lengths, rows that come, go and are cut off."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dg_lsp.core import confidence
from dg_lsp.core.values import Candidate, Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.common.local import LocalTask
from dg_lsp.engine.diffusion.denoising import steps
from dg_lsp.engine.diffusion.denoising.denoise import DecoderInput, Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.denoising.stack import LocalDecoder, PrefixRows, Stack, joined
from dg_lsp.engine.diffusion.filler import DiffusionFiller, waiting_steps
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.profile import Sampling
from dg_lsp.engine.model.prefix_cache import KV
from tests.engine.engine_kit import finish
from tests.engine.filler_kit import a_prefix

LINE = Hole(Span(0, 0), "cursor")
BODY = Hole(Span(0, 0), "body", indent="    ", block=True)
LIMITS = TokenLimits(tuple(range(10, 110)), tuple(range(6)), (30, 31, 32), delete=6)
SAMPLING = Sampling(line_steps=6, delete_entropy=3.0, stop_entropy=0.5)  # loose: positions are deleted, rows settle apart


def canvases(number: int) -> list[Row]:
    """Rows of one request: noise and a draft, widths and step counts of its own."""
    gap = 5 + 2 * number
    return [
        Row((20,) * gap + (40, 41, 42), (True,) * gap + (False,) * 3, 6 - number, seed=number),
        Row((21, 22, 23, 6, 6, 40), (True,) * 5 + (False,), 3, seed=number + 9, draft=True),
        Row((20,) * 4 + (50, 40), (True,) * 4 + (False,) * 2, 4, seed=number + 20, greedy=False),
    ]


# Shorter than the window of 8, as long, and far longer; equal ones, too, which need no mask.
@torch.no_grad()
@pytest.mark.parametrize("lengths", [(3, 30), (7, 8, 9), (40, 12, 3), (20, 20)])
def test_logits_in_a_shared_pass_equal_those_alone(with_experts: Any, lengths: tuple[int, ...]) -> None:
    passes = Passes(with_experts)
    prefixes = [a_prefix(passes, length) for length in lengths]
    denoisers = [Denoiser(canvases(number), LIMITS, SAMPLING, 120) for number in range(len(lengths))]
    for _ in range(2):  # at the second step conditioning and deletions differ from row to row
        decoder_inputs = [denoiser.ask(denoiser.live) for denoiser in denoisers]
        alone = [logits(passes, kv, one) for kv, one in zip(prefixes, decoder_inputs, strict=True)]
        whole = joined(decoder_inputs)
        parts = [PrefixRows(kv, len(one.ids)) for kv, one in zip(prefixes, decoder_inputs, strict=True)]
        together = Stack(parts, whole.ids.shape[1]).logits(passes, whole, conditioned=True)
        torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-3)
        for denoiser, own in zip(denoisers, alone, strict=True):
            denoiser.take(denoiser.live, own.clone())


@torch.no_grad()
def test_rows_that_join_and_leave_write_the_same_as_alone(with_experts: Any) -> None:
    passes = Passes(with_experts)
    prefixes = [a_prefix(passes, length) for length in (40, 3, 17)]
    alone = []
    for number, kv in enumerate(prefixes):
        denoiser = Denoiser(canvases(number), LIMITS, SAMPLING, 120)
        while not denoiser.done:
            denoiser.step(LocalDecoder(passes, kv))
        alone.append([denoiser.read(row) for row in range(len(denoiser.rows))])
    together = [Denoiser(canvases(number), LIMITS, SAMPLING, 120) for number in range(3)]
    for turn in range(20):
        # The first begins alone, the others join it at the second and third step.
        parties = [number for number in range(min(turn + 1, 3)) if not together[number].done]
        if not parties:
            break
        decoder_inputs = [together[number].ask(together[number].live) for number in parties]
        whole = joined(decoder_inputs)
        parts = [PrefixRows(prefixes[number], len(one.ids)) for number, one in zip(parties, decoder_inputs, strict=True)]
        answers = Stack(parts, whole.ids.shape[1]).logits(passes, whole, conditioned=True)
        for number, own in zip(parties, torch.split(answers, [int(one.free.sum()) for one in decoder_inputs]), strict=True):
            together[number].take(together[number].live, own)
    assert all(denoiser.done for denoiser in together)
    for denoiser, readings in zip(together, alone, strict=True):
        for row, reading in enumerate(readings):
            beside = denoiser.read(row)
            assert (beside.places, beside.ids) == (reading.places, reading.ids)
            assert beside.chances == pytest.approx(reading.chances, abs=1e-4)


def logits(passes: Passes, kv: KV, decoder_input: DecoderInput) -> torch.Tensor:
    """What the decoder says to rows that step alone, by the passes that are held equal to the library's."""
    n_past = kv[0][0].shape[2]
    mask = torch.cat([torch.ones(len(decoder_input.ids), n_past, dtype=torch.bool), decoder_input.used], 1)
    hidden = passes.decode(
        decoder_input.ids,
        kv,
        passes.soft(decoder_input.top_ids, decoder_input.top_chances),
        positions=n_past + (decoder_input.used.cumsum(1) - 1).clamp(min=0),
        mask=mask[:, None, None].expand(-1, 1, decoder_input.ids.shape[1], -1),
    )
    return passes.logits(hidden[decoder_input.free])


@torch.no_grad()
def test_rows_that_step_in_slices_write_the_same(with_experts: Any) -> None:
    passes = Passes(with_experts)
    kv, rows = a_prefix(passes, 30), [*canvases(0), *canvases(1)]
    readings = []
    for most in (0, 1, 4):
        denoiser = Denoiser(rows, LIMITS, SAMPLING, 120)
        decoder = LocalDecoder(passes, kv)
        while not denoiser.done:
            denoiser.step(decoder, most)
        readings.append([denoiser.read(index).ids for index in range(len(rows))])
    assert readings[1:] == readings[:1] * 2


@torch.no_grad()
def test_a_stack_serves_the_rows_it_was_made_for(with_experts: Any) -> None:
    passes = Passes(with_experts)
    one, other = a_prefix(passes, 5), a_prefix(passes, 9)
    alone, both = Stack([PrefixRows(one, 3)], 8), Stack([PrefixRows(one, 3), PrefixRows(other, 1)], 8)
    assert alone.serves([PrefixRows(one, 3)], 8)
    assert alone.serves([PrefixRows(one, 2)], 8)
    assert not alone.serves([PrefixRows(one, 4)], 8)
    assert not alone.serves([PrefixRows(other, 3)], 8)
    assert not alone.serves([PrefixRows(one, 3)], 9)
    assert both.serves([PrefixRows(one, 3), PrefixRows(other, 1)], 8)
    assert not both.serves([PrefixRows(one, 2), PrefixRows(other, 1)], 8)
    assert not both.serves([PrefixRows(one, 3)], 8)


REQUESTS = [
    InfillRequest("def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    ret", "\n", (LINE,), seed=1),
    InfillRequest("x = ", "\n", (LINE,), seed=2),
    InfillRequest(
        "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.", "\n\nPoint(1, 2)\n", (LINE,)
    ),
    InfillRequest("alpha = beta + gamma\nx = 1\nalpha = be", "ta\n", (LINE,), seed=4),
    InfillRequest("def f():\n    ", "\n", (BODY,), seed=5),
]


def model(folder: Path, *, joins: bool) -> DiffusionFiller:
    loaded = load_model(str(folder), device="cpu")
    # Several rows of noise and steps enough that requests meet, part and meet others.
    profile = replace(
        loaded.profile, line_noise_rows=2, block_noise_rows=2, sampling=replace(SAMPLING, line_steps=6, block_steps=9)
    )
    return DiffusionFiller(replace(loaded, profile=profile), joins=joins)


def alone(folder: Path) -> list[tuple[Candidate, ...]]:
    filler, answers = model(folder, joins=False), []
    for request in REQUESTS:
        task = finish(filler.start(request))
        answers.append(task.candidates())
    return answers


def check_same(candidates: tuple[Candidate, ...], expected: tuple[Candidate, ...]) -> None:
    assert [(one.texts, one.row, one.steps) for one in candidates] == [(one.texts, one.row, one.steps) for one in expected]
    assert [confidence.probability(one.confidence) for one in candidates] == pytest.approx(
        [confidence.probability(one.confidence) for one in expected], abs=1e-4
    )


@pytest.mark.parametrize("layout", ["trained_layout", "instruct_layout"])
@pytest.mark.parametrize("cut_off", [None, 1])
@pytest.mark.slow
def test_requests_in_shared_passes_get_the_same_answers(
    request: pytest.FixtureRequest, layout: str, cut_off: int | None
) -> None:
    """Each begins two turns after the one before, so that they are at different steps; one may be cancelled midway."""
    folder = request.getfixturevalue(layout)
    expected, filler = alone(folder), model(folder, joins=True)
    under_way: dict[int, LocalTask] = {}
    answers: dict[int, tuple[Candidate, ...]] = {}
    waiting, n_shared, turn = list(enumerate(REQUESTS)), 0, 0
    while waiting or under_way:
        if waiting and turn % 2 == 0:
            place, infill_request = waiting.pop(0)
            under_way[place] = filler.start(infill_request)
        turn += 1
        order = list(under_way)
        order = order[turn % len(order) :] + order[: turn % len(order)]
        joined_places = filler.predict_together([under_way[place] for place in order], 32)
        n_shared += len(joined_places) > 1
        for place in [order[index] for index in joined_places] or order[:1]:
            task = under_way[place]
            if not task.step():
                answers[place] = under_way.pop(place).candidates()
            elif place == cut_off and len(joined_places) > 1:
                under_way.pop(place)  # its rows are gone from the next pass
    assert n_shared > 2
    assert sorted(answers) == [place for place in range(len(REQUESTS)) if place != cut_off]
    for place, candidates in answers.items():
        check_same(candidates, expected[place])


def test_a_single_or_a_not_denoising_request_shares_no_pass(trained_layout: Path) -> None:
    filler = model(trained_layout, joins=True)
    first, second = filler.start(REQUESTS[0]), filler.start(REQUESTS[1])
    assert filler.predict_together([first, second], 32) == ()
    while waiting_steps(first) is None:
        assert first.step()
    assert filler.predict_together([first], 32) == ()
    assert filler.predict_together([second, first], 32) == ()
    assert filler.predict_together([first, second], 32) == ()
    while waiting_steps(second) is None:
        assert second.step()
    assert filler.predict_together([first, second], 1) == ()
    assert filler.predict_together([first, second], 32) == (0, 1)


def test_canvases_of_different_widths_step_separately(trained_layout: Path) -> None:
    filler = model(trained_layout, joins=True)
    tasks = [filler.start(REQUESTS[place]) for place in (1, 4, 0)]
    for task in tasks:
        while waiting_steps(task) is None:
            assert task.step()
    assert filler.predict_together(tasks, 32) == (0, 2)


def test_a_stack_is_built_once_for_a_set_of_rows(monkeypatch: pytest.MonkeyPatch, trained_layout: Path) -> None:
    filler = model(trained_layout, joins=True)
    stacks: list[weakref.ReferenceType[Stack]] = []

    def noted(parts: list[PrefixRows], width: int) -> Stack:
        stack = Stack(parts, width)
        stacks.append(weakref.ref(stack))
        return stack

    monkeypatch.setattr(steps, "Stack", noted)
    tasks = [filler.start(infill_request) for infill_request in REQUESTS[:3]]
    for task in tasks:
        while waiting_steps(task) is None:
            assert task.step()
    before: list[int] = []
    n_reused = 0
    while True:
        n_stacks, n_rows = len(stacks), [canvas.n_live if (canvas := waiting_steps(task)) else 0 for task in tasks]
        if len(filler.predict_together(tasks, 32)) < len(tasks):
            break
        assert len(stacks) == n_stacks + (n_rows != before)
        n_reused += n_rows == before
        before = n_rows
        for task in tasks:
            assert task.step()
    assert n_reused
    for task in tasks:
        task.close()
    assert not any(stack() for stack in stacks)  # nothing of it outlives the requests, though they are still referred to


def test_a_shared_stack_is_dropped_when_one_of_its_canvases_ends_or_is_closed(trained_layout: Path) -> None:
    filler = model(trained_layout, joins=True)
    tasks = [filler.start(infill_request) for infill_request in REQUESTS[:3]]
    for task in tasks:
        while waiting_steps(task) is None:
            assert task.step()
    bystander = tasks.pop()
    assert filler.predict_together(tasks, 32) == (0, 1)
    assert filler.stepper.bytes > 0
    bystander.close()
    assert filler.stepper.bytes > 0
    tasks[0].close()
    assert filler.stepper.bytes == 0
    assert tasks[1].step()  # by the logits it was given
    assert filler.predict_together([tasks[1], bystander], 32) == (0, 1)
    while tasks[1].step():
        pass
    assert filler.stepper.bytes == 0
