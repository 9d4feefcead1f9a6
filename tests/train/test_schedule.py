"""A run advances by tokens; time and hardware do not affect it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.train.canvas.loop import dtype_of
from tests.trainer.loop import autocast
from tests.trainer.schedule import LAST_RATE, MIXED_RATE, WARM_LEG_STEPS, WARM_STEPS, Progress, Schedule

SCHEDULE = Schedule(causal_tokens=1000, mixed_tokens=400, cool_tokens=200)


def rate(causal: int, mixed: int = 0, *, steps: int = 10_000, leg: int = 10_000) -> float:
    return SCHEDULE.rate(Progress(causal, mixed, steps, steps), leg)


def test_the_rate_is_constant_until_the_end_and_then_falls() -> None:
    assert rate(0) == rate(999) == 1.0
    assert rate(1000) == rate(1100, 199) == MIXED_RATE
    assert rate(1000, 300) == MIXED_RATE / 2
    assert rate(1000, 400) == MIXED_RATE * LAST_RATE


def test_the_rate_warms_up_in_every_stage_and_briefly_in_every_leg() -> None:
    assert rate(500, leg=0) == 1 / WARM_LEG_STEPS
    assert rate(500, steps=4, leg=4) == 5 / WARM_STEPS
    assert rate(1000, 1, steps=4) == MIXED_RATE * 5 / WARM_STEPS


@given(causal=st.integers(0, 3000), mixed=st.integers(0, 900), minutes=st.floats(0, 1e6))
def test_elapsed_time_does_not_affect_the_schedule(causal: int, mixed: int, minutes: float) -> None:
    quick, slow = Progress(causal, mixed, 500, 500), Progress(causal, mixed, 500, 500, minutes)
    for decide in (
        SCHEDULE.is_causal,
        SCHEDULE.is_done,
        SCHEDULE.long_windows,
        SCHEDULE.parts_of_step,
        SCHEDULE.is_conditioned,
    ):
        assert decide(quick) == decide(slow)
    assert 0 < SCHEDULE.rate(quick, 99) == SCHEDULE.rate(slow, 99) <= 1


def test_batches_and_windows_grow_with_the_tokens() -> None:
    schedule = Schedule(causal_tokens=900, grow_tokens=100, parts=3)
    assert [len(schedule.parts_of_step(Progress(tokens))) for tokens in (0, 100, 250, 800)] == [1, 2, 3, 3]
    assert schedule.long_windows(Progress(599)) < schedule.long_windows(Progress(600))


def test_canvases_always_have_causal_windows_beside_them() -> None:
    assert SCHEDULE.parts_of_step(Progress(999)) == (True,)
    assert SCHEDULE.parts_of_step(Progress(1000)) == (False, True)
    late = Schedule(causal_tokens=100, mixed_tokens=900, grow_tokens=100, parts=4).parts_of_step(Progress(100, 800))
    assert late == (False, True, True, True)


def test_the_precision_depends_on_the_processor_s_instructions(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    for has, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has: has)
        assert dtype_of("cpu") is dtype
        with autocast("cpu", dtype):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype
    assert dtype_of("cuda") is torch.bfloat16
