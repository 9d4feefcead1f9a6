"""What comes first, and what a deadline leaves room for, by a clock that only the model's passes move."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.local import LocalTask
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.model.kv import Tokens

BODY = Hole(Span(0, 0), "body", indent="    ", extent="block")
BLOCK = InfillRequest("def area(self):\n    ", "\n\n\nprint(1)\n", (BODY,), language="python")
LINE = InfillRequest("x = alpha(beta)\ny = ", "\n", (Hole(Span(0, 0), "cursor"),), language="python")
STEP_S, PASS_S = 0.1, 0.001


@dataclass
class Timed:
    """A checkpoint whose passes take a stated time: a decoder step, and for each of its rows; an encoder pass; a token.

    A token is a pass over a tree of one node: only a draft that is written token by token has such passes.
    """

    loaded: Loaded[Any, Any]
    step_s: float = STEP_S
    row_s: float = 0.0
    position_s: float = 0.0
    token_s: float = PASS_S
    now_s: float = 0.0
    did: list[str] = field(default_factory=list)

    def filler(self) -> DiffusionFiller:
        return DiffusionFiller(self.loaded, clock=lambda: self.now_s)

    @property
    def n_steps(self) -> int:
        return self.did.count("step")


@pytest.fixture(scope="module")
def loaded(instruct_layout: Path) -> Loaded[Any, Any]:
    loaded = load_model(str(instruct_layout), device="cpu")
    # A random model settles by chance; here it never does.
    sampling = Sampling(stop_entropy=-1.0, block_steps=24)
    return replace(loaded, profile=replace(loaded.profile, sampling=sampling, block_gaps=(4, 6, 8), canvas_tokens=48))


@pytest.fixture
def timed(loaded: Loaded[Any, Any], monkeypatch: pytest.MonkeyPatch) -> Timed:
    return with_clock(loaded, monkeypatch)


def with_clock(loaded: Loaded[Any, Any], monkeypatch: pytest.MonkeyPatch) -> Timed:
    time, passes = Timed(loaded), loaded.passes
    decode, read = passes.decode, passes.read

    def timed_decode(canvas: Any, *rest: Any, **options: Any) -> Any:
        time.did.append("step")
        time.now_s += time.step_s + time.row_s * len(canvas) + time.position_s * canvas.numel()
        return decode(canvas, *rest, **options)

    def timed_read(tokens: Tokens, store: Any) -> Any:
        is_token = tokens.visible is not None and len(tokens.ids) == 1
        time.did.append("token" if is_token else "pass")
        time.now_s += time.token_s if is_token else PASS_S
        return read(tokens, store)

    monkeypatch.setattr(passes, "decode", timed_decode)
    monkeypatch.setattr(passes, "read", timed_read)
    return time


def finish(filler: DiffusionFiller, request: InfillRequest, timed: Timed, ms: float = 0.0) -> LocalTask:
    timed.did.clear()
    filler.cache.clear()
    task = filler.start(request)
    if ms:
        task.finish_in(ms)
    while task.step():
        pass
    return task


@pytest.mark.parametrize("row_s", [pytest.param(0.0, marks=pytest.mark.slow), 0.03])
def test_a_deadline_of_eight_steps_returns_the_open_canvas_of_a_block(timed: Timed, row_s: float) -> None:
    """Where the gap's length is not known, a canvas that holds the suffix could only guess it: the open one has the time."""
    filler = timed.filler()
    finish(filler, BLOCK, timed)  # measured, with no deadline: all steps
    timed.row_s = row_s
    finish(filler, BLOCK, timed)
    eight_s = 8 * (STEP_S + row_s)
    began = timed.now_s
    task = finish(filler, BLOCK, timed, eight_s * 1000 + STEP_S * 900)
    assert timed.n_steps == 8
    assert timed.now_s - began <= eight_s + STEP_S
    noise = [candidate for candidate in task.candidates() if candidate.row == "noise"]
    assert noise
    assert all(candidate.steps == 8 and candidate.finished for candidate in noise)


def test_a_deadline_of_sixteen_steps_leaves_eight_for_a_canvas_of_the_right_length(timed: Timed) -> None:
    filler = timed.filler()
    finish(filler, BLOCK, timed)
    task = finish(filler, BLOCK, timed, 16.9 * STEP_S * 1000)
    assert timed.n_steps == 16
    assert {candidate.steps for candidate in task.candidates()} == {16}
    # An open canvas whose text is verified, step by step; then the steps of the canvas that holds the suffix.
    steps = [index for index, did in enumerate(timed.did) if did == "step"]
    assert [timed.did[index + 1] for index in steps[:8]] == ["pass"] * 8
    assert [timed.did[index + 1] for index in steps[8:-1]] == ["step"] * 7


def test_a_canvas_without_steps_is_not_a_candidate(timed: Timed) -> None:
    filler = timed.filler()
    finish(filler, BLOCK, timed)
    task = finish(filler, BLOCK, timed, 8.9 * STEP_S * 1000)
    assert [row.entropy for row in task.progress.proposals if row.row == "noise"] == [None]  # the open canvas's alone


def test_a_deadline_is_kept_before_any_measurement(timed: Timed) -> None:
    task = finish(timed.filler(), BLOCK, timed, 550)
    assert 4 <= timed.n_steps <= 6
    assert timed.now_s < 0.65
    assert task.candidates()


def test_without_a_deadline_all_steps_are_taken(timed: Timed) -> None:
    filler = timed.filler()
    first = [candidate.texts for candidate in finish(filler, BLOCK, timed).candidates()]
    assert timed.n_steps >= 24
    timed.step_s = 9.0  # and no answer depends on the clock
    assert [candidate.texts for candidate in finish(filler, BLOCK, timed).candidates()] == first


def test_the_verified_text_of_a_search_is_the_causal_draft(timed: Timed) -> None:
    task = finish(timed.filler(), BLOCK, timed)
    assert timed.did.index("step") < timed.did.index("pass", timed.did.index("step"))
    assert "token" not in timed.did
    assert task.candidates()


def test_each_draft_is_corrected_by_its_own_row(timed: Timed) -> None:
    request = replace(BLOCK, prefix="x = alpha(beta)\nx = al", holes=(Hole(Span(0, 0), "cursor"),))
    kinds = [row.row for row in finish(timed.filler(), request, timed).progress.proposals]
    assert kinds.count("copy") == 2  # as it came, and what the canvas made of it


def test_holes_in_sequence_share_the_time(timed: Timed) -> None:
    filler = timed.filler()
    finish(filler, BLOCK, timed)
    apart = "\n".join(f"x{n} = {n}" for n in range(40))
    two = replace(BLOCK, holes=(BODY, BODY), between=(f"\n\n{apart}\n\n",))
    began = timed.now_s
    task = finish(filler, two, timed, 2_500)
    assert len(task.candidates()[0].texts) == 2
    assert 16 <= timed.n_steps <= 24
    assert timed.now_s - began < 2.5


def test_a_pace_predicts_a_units_time_by_its_size() -> None:
    pace = Pace(lambda: 0.0)
    assert pace.expected_ms("step", 10) is None
    pace.note("step", 100, 50)
    assert pace.expected_ms("step", 10) == pytest.approx(50)  # it may well take as long
    assert pace.expected_ms("step", 200) == pytest.approx(100)
    pace.note("step", 200, 60)
    assert pace.expected_ms("step", 300) == pytest.approx(70)
    assert pace.expected_ms("token", 1) is None


def test_a_pace_follows_a_machine_that_slows_down() -> None:
    pace = Pace(lambda: 0.0)
    for took in (10, 10, 10, *[40] * 12):
        pace.note("step", 64, took)
    assert 38 < (pace.expected_ms("step", 64) or 0) <= 40
