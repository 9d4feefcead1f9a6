"""How many threads passes use: the policy over recorded series of times, and what applies it.

`fixtures/cores.json` has the wall-clock and the processor time, in milliseconds, of the same units of work with one thread and
with two, on two cores: while they are free, beside one other program that never rests, and beside two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise, repeat

import pytest
import torch

from dg_lsp.engine.model import cores
from dg_lsp.engine.model.cores import LONGEST_RETRY_MS, MOST, Cores, Plan
from tests.engine.engine_kit import ROOT

RECORDED: dict[str, dict[str, list[list[float]]]] = json.loads((ROOT / "fixtures" / "cores.json").read_text("utf-8"))


def total_ms(situations: Sequence[str], threads: int) -> float:
    return sum(wall for situation in situations for wall, _ in RECORDED[situation][str(threads)])


def played(situations: Sequence[str], plan: Plan) -> tuple[float, list[int]]:
    """Return the milliseconds of all units in these situations, one after the other, and the threads of each."""
    spent, chosen = 0.0, list[int]()
    for situation in situations:
        for unit in range(len(RECORDED[situation]["1"])):
            wall, processor = RECORDED[situation][str(plan.threads)][unit]
            chosen.append(plan.threads)
            spent += wall
            plan = cores.after(plan, wall, processor)
    return spent, chosen


def test_all_cores_are_used_while_they_are_free() -> None:
    spent, chosen = played(["idle"] * 3, Plan(2, 2))
    assert chosen.count(2) > 0.8 * len(chosen)
    assert spent < 0.6 * total_ms(["idle"] * 3, 1)


@pytest.mark.parametrize("busy", ["beside one", "beside two"])
def test_beside_programs_that_never_rest_it_is_as_fast_as_one_thread(busy: str) -> None:
    many = [busy] * 8
    spent, chosen = played(many, Plan(2, 2))
    assert spent < 1.1 * total_ms(many, 1)
    assert chosen.count(2) < 0.15 * len(chosen)


def test_it_follows_programs_that_come_and_go() -> None:
    days = ["idle", "idle", "beside one", "beside one", "idle", "idle", "beside two", "idle", "idle"]
    spent, _ = played(days, Plan(2, 2))
    best = sum(min(total_ms([day], 1), total_ms([day], 2)) for day in days)
    assert spent < 1.2 * best
    assert spent < total_ms(days, 1)


def simulated(n_free: float, limit: int, plan: Plan | None = None) -> Iterator[Plan]:
    """Yield the plans of passes that take 50 ms on a core each, on a machine with this many free cores."""
    plan = plan or Plan(limit, limit)
    while True:
        yield plan
        used = min(plan.threads, n_free)
        plan = cores.after(plan, 50 * plan.threads / used, 50 * plan.threads)


@pytest.mark.parametrize("n_free", range(1, MOST + 1))
def test_it_finds_the_number_of_free_cores(n_free: int) -> None:
    chosen = [plan.threads for plan in islice(simulated(n_free, MOST), 1000)]
    assert sum(n_free <= threads <= n_free / cores.FREE for threads in chosen) > 900


@pytest.mark.parametrize("limit", [1, 2, 3, 6, MOST])
def test_it_never_exceeds_its_limit(limit: int) -> None:
    assert max(plan.threads for plan in islice(simulated(99, limit, Plan(1, limit)), 100)) == limit


def test_what_failed_is_tried_more_and_more_seldom_but_not_never() -> None:
    plans = list(islice(simulated(1, 2), 2000))
    tries = [index for index, (before, plan) in enumerate(pairwise(plans)) if plan.threads > before.threads]
    apart = [later - earlier for earlier, later in pairwise(tries)]
    assert apart == sorted(apart)
    assert 0.9 * LONGEST_RETRY_MS < 50 * apart[-1] < 1.2 * LONGEST_RETRY_MS


def test_a_short_pass_decides_nothing() -> None:
    plan = cores.after(Plan(2, 2), 5, 2)
    assert plan.threads == 2


def test_a_new_limit_holds_from_the_next_pass_on() -> None:
    used = Cores(2, follows=True)
    seen = list[int]()
    for asked in chain([0, 1, 3], repeat(0, 1)):
        used.limit_to(asked)
        with used.used():
            seen.append(torch.get_num_threads())
    assert seen == [2, 1, 3, 2]
    assert used.threads == 2


def test_a_pass_goes_on_with_fewer_threads_when_another_program_begins_to_need_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    used, now, spent = Cores(2, follows=True), 0.0, 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr("time.process_time", lambda: spent)
    seen = list[int]()
    with used.used():
        for index in range(3):
            now, spent = now + cores.SOON_MS / 1000, spent + cores.SOON_MS / 1000  # a core for both threads together
            cores.before_layer(index)
            seen.append(torch.get_num_threads())
    assert seen == [2, 1, 1]  # what comes before the first layer has one thread anyway


def test_all_threads_are_tried_again_after_a_second_without_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    used, now = Cores(2, follows=True), 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr("time.process_time", lambda: now)  # a core for all threads together
    seen = list[int]()
    for pause in (0.0, 0.1, cores.STALE_S + 0.1):
        now += pause
        with used.used():
            seen.append(torch.get_num_threads())
            now += 2 * cores.SOON_MS / 1000
    assert seen == [2, 1, 2]


def test_nothing_changes_between_layers_that_no_model_of_ours_runs() -> None:
    threads = torch.get_num_threads()
    cores.before_layer(1)
    assert torch.get_num_threads() == threads


def test_the_times_of_all_passes_are_added() -> None:
    used = Cores(1, follows=True)
    with used.used():
        sum(range(200_000))
    assert used.wall_ms >= used.processor_ms * 0.5 > 0
