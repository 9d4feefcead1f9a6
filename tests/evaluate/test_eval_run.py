"""Filling tasks by every method, on a tiny checkpoint and with a filler that has prepared answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import evaluate
from benchmarks.evaluate import Setup
from dg_lsp.evaluate import answers
from dg_lsp.evaluate.answers import Answer, InProcess
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


def answer(task: Task, *texts: str, chances: tuple[float, ...] = ()) -> Answer:
    return answers.answer(InProcess(ScriptedFiller(*texts, chances=chances)), task)


def test_the_first_candidate_that_survives_polishing_counts() -> None:
    found = answer(LINE, "(((", "b + 1", "b")
    assert (found.text, found.steps) == ("b + 1", 3)


def test_no_answer_that_an_editor_would_not_show_counts() -> None:
    assert answer(LINE, "(((", ")))").text == ""


def test_an_answer_is_cut_before_its_first_uncertain_token_but_no_body() -> None:
    assert answer(LINE, "b * 2", chances=(0.9, 0.9, 0.01, 0.9, 0.9)).text == "b"
    assert answer(BODY, "return a * 2", chances=(*[0.9] * 9, 0.01, 0.9, 0.9)).text == "return a * 2"


def test_a_filler_without_candidates_gives_an_empty_answer() -> None:
    found = answer(LINE)
    assert (found.text, found.steps) == ("", 0)
    row = evaluate.to_row(LINE, "full", found)
    assert (row.exact, row.similarity, row.parses) == (False, 0, False)


def test_the_request_is_that_of_an_editor() -> None:
    filler = ScriptedFiller("b")
    answers.answer(InProcess(filler), LINE, seed=9)
    (request,) = filler.requests
    assert request.seed == 9
    assert (request.prefix, request.suffix) == (LINE.prompt, LINE.suffix)
    assert request.budget.spares > 0, "dropped candidates are replaced"


def test_a_refused_task_is_named() -> None:
    with pytest.raises(EvalError, match=r"^1 can't be filled: too long$"):
        answers.answer(InProcess(RefusingFiller("too long")), LINE)


@pytest.mark.parametrize("task", [*TASKS, *PROGRAMS], ids=lambda task: task.kind)
def test_the_expected_answer_is_exact_and_an_empty_one_is_not(task: Task) -> None:
    right, wrong = evaluate.rows_of(task, Setup(("answer", "empty")))
    assert (right.exact, right.similarity, right.parses) == (True, 1, True)
    assert (wrong.exact, wrong.similarity, wrong.parses) == (False, 0, False)


def test_an_empty_answer_is_exact_if_nothing_was_expected() -> None:
    (row,) = evaluate.rows_of(drawn("x = 1⟦⟧\n"), Setup(("empty",)))
    assert (row.exact, row.similarity, row.parses) == (True, 1, True)


def test_copies_come_from_the_file() -> None:
    task = drawn("items = []\nfor item in items:\n    pass\nfor item in ⟦items:⟧\n    pass\n", kind="rest-of-line")
    (row,) = evaluate.rows_of(task, Setup(("copy",)))
    assert (row.text, row.steps) == ("items:", 0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_are_in_task_order_with_any_number_of_workers(trained_layout: Path, workers: int) -> None:
    setup = Setup(("full", "copy"), str(trained_layout), device="cpu", threads=1)
    counts: list[int] = []
    rows = evaluate.run(TASKS, setup, workers=workers, done=counts.append)
    assert [row.task_id for row in rows] == ["1", "1", "2", "2", "3", "3"]
    assert counts == [1, 1, 1]
    assert [row.text for row in rows] == [row.text for task in TASKS for row in evaluate.rows_of(task, setup)]
