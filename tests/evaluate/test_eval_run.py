"""Filling tasks by every method, on a tiny checkpoint and with a filler that has prepared answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dg_lsp.evaluate import run
from dg_lsp.evaluate.run import BASELINES, FULL, Bench, Method, Setup
from dg_lsp.evaluate.tasks import EvalError, Task
from tests.evaluate.scripted import PROGRAMS, RefusingFiller, ScriptedFiller, drawn

LINE = drawn(
    "def f(a):\n    return a\n\n\ndef g(b):\n    return ⟦b⟧\n\n\nprint(f(1), g(2))\n", kind="rest-of-line", task_id="1"
)
BODY = drawn(
    "def f(a):\n    return a + 1\n\n\ndef g(a):\n    ⟦return a + 2⟧\n\n\nprint(f(1), g(2))\n", kind="body", task_id="2"
)
SPAN = drawn("first = call(one, two)\nother = call(on⟦e, tw⟧o)\n", kind="span", task_id="3")
TASKS = [LINE, BODY, SPAN]


def test_the_first_candidate_that_survives_polishing_counts() -> None:
    answer = run.fill(ScriptedFiller("(((", "b + 1", "b"), LINE, FULL)
    assert (answer.text, answer.source, answer.steps) == ("b + 1", "causal", 3)


def test_the_best_candidate_counts_unpolished_if_none_survives() -> None:
    assert run.fill(ScriptedFiller("(((", ")))"), LINE, FULL).text == "((("


def test_a_filler_without_candidates_gives_an_empty_answer() -> None:
    answer = run.fill(ScriptedFiller(), LINE, FULL)
    assert (answer.text, answer.source, answer.steps) == ("", "", 0)
    row = run.to_row(LINE, FULL, answer)
    assert (row.exact, row.similarity, row.parses) == (False, 0, False)


def test_the_request_follows_the_method() -> None:
    filler = ScriptedFiller("b")
    run.fill(filler, LINE, Method("m", steps=5), seed=9)
    (request,) = filler.requests
    assert (request.budget.steps, request.seed) == (5, 9)
    assert (request.prefix, request.suffix) == (LINE.prompt, LINE.suffix)


def test_a_refused_task_is_named() -> None:
    with pytest.raises(EvalError, match=r"^1 can't be filled: too long$"):
        run.fill(RefusingFiller("too long"), LINE, FULL)


@pytest.mark.parametrize("task", [*TASKS, *PROGRAMS], ids=lambda task: task.kind)
def test_the_expected_answer_is_exact_and_an_empty_one_is_not(task: Task) -> None:
    bench = Bench(Setup(BASELINES["answer"] + BASELINES["empty"]), None)
    right, wrong = bench.rows(task)
    assert (right.exact, right.similarity, right.parses) == (True, 1, True)
    assert (wrong.exact, wrong.similarity, wrong.parses) == (False, 0, False)


def test_an_empty_answer_is_exact_if_nothing_was_expected() -> None:
    task = drawn("x = 1⟦⟧\n")
    (row,) = Bench(Setup(BASELINES["empty"]), None).rows(task)
    assert (row.exact, row.similarity, row.parses) == (True, 1, True)


def test_copies_come_from_the_file() -> None:
    bench = Bench(Setup(BASELINES["copy"]), None)
    (row,) = bench.rows(drawn("for item in items:\n    pass\nfor item in ⟦items:⟧\n    pass\n", kind="rest-of-line"))
    assert (row.text, row.source, row.steps) == ("items:", "copy", 0)
    without_length, with_length = bench.rows(SPAN)
    assert (without_length.method, with_length.method) == ("copy", "copy, told the length")
    assert with_length.text == "e, tw"


def test_a_copy_is_also_found_after_the_hole() -> None:
    assert run.copied_to_length(drawn("other = call(on⟦e, tw⟧o)\nfirst = call(one, two)\n", kind="span")) == "e, tw"
    assert run.copied_to_length(drawn("x⟦y⟧z")) == ""
    assert run.copied_to_length(drawn("abcdef⟦ghi⟧")) == ""


@pytest.fixture(scope="module")
def bench(trained_layout: Path) -> Bench:
    method_list = (FULL, *BASELINES["copy"], *BASELINES["ar"])
    return run.load_bench(Setup(method_list, str(trained_layout), device="cpu", threads=1))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_every_method_answers_every_task(bench: Bench, task: Task) -> None:
    rows = {row.method: row for row in bench.rows(task)}
    expected = ["full", "copy", *(["copy, told the length"] if task is SPAN else []), "ar"]
    assert list(rows) == expected
    assert all(row.ms > 0 for row in rows.values())
    assert rows["full"].steps > 0
    assert rows["ar"].steps == 0
    assert rows["ar"].source == "causal"
    assert rows["copy"].steps == 0


def test_an_answer_depends_on_its_seed_alone(bench: Bench) -> None:
    alone = bench.answer(SPAN, FULL)
    bench.warm_up(LINE)
    assert bench.answer(SPAN, FULL).text == alone.text


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_are_in_task_order_with_any_number_of_workers(trained_layout: Path, workers: int) -> None:
    setup = Setup((FULL, *BASELINES["copy"]), str(trained_layout), device="cpu", threads=1)
    counts: list[int] = []
    rows = run.run(TASKS, setup, workers=workers, done=counts.append)
    assert [row.task_id for row in rows] == ["1", "1", "2", "2", "3", "3", "3"]
    assert counts == [1, 1, 1]
    assert [row.text for row in rows] == [row.text for task in TASKS for row in run.load_bench(setup).rows(task)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_a_missing_model_is_named(workers: int) -> None:
    with pytest.raises(EvalError, match="there is no model folder"):
        run.run(TASKS, Setup((FULL,), "no such model"), workers=workers)
