"""The committed evaluation set, and whether its committed results are still those of the shipped model."""

from __future__ import annotations

import csv
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from benchmarks import evaluate, scores
from benchmarks.evaluate import Setup
from dg_lsp.core import polish, syntax
from dg_lsp.core.values import Calibrated, Candidate
from dg_lsp.evaluate import answers, make, tasks

FOLDER = Path(__file__).parents[2] / "fixtures" / "eval"
SHIPPED = Path(str(resources.files("dg_lsp.models"))) / "embedded" / "config.json"
RESULTS = FOLDER / "heldout.csv"
N_AGAIN = 20
COMMAND = (
    "if answers were meant to change: python benchmarks/evaluate.py fixtures/eval/heldout.jsonl.gz --baseline copy "
    "--workers 2 --threads 1 --dtype float32 --csv fixtures/eval/heldout.csv"
)

HELD_OUT = tasks.read(FOLDER / "heldout.jsonl.gz")


def test_the_held_out_set_has_sixty_tasks_of_each_kind() -> None:
    assert Counter(task.kind for task in HELD_OUT) == dict.fromkeys(make.KINDS, 60)
    assert len({task.cluster for task in HELD_OUT}) > 100


def test_every_package_is_listed_and_its_licence_kept() -> None:
    counts = Counter({"attr": "attrs"}.get(name := task.path.split("/")[0], name) for task in HELD_OUT)
    rows = [line.split("|")[1:-1] for line in (FOLDER / "README.md").read_text("utf-8").splitlines() if line.startswith("|")]
    stated = {row[0].strip(): int(row[3]) for row in rows if len(row) == 4 and row[3].strip().isdigit()}
    assert stated == counts
    assert {path.stem for path in (FOLDER / "licences").glob("*.txt")} == {*counts, "requests-NOTICE"}


def test_tasks_are_bounded() -> None:
    assert all(len(task.prompt) <= make.PROMPT_CHARS and len(task.suffix) <= make.SUFFIX_CHARS for task in HELD_OUT)
    assert all(task.task_id.startswith(f"{task.kind}/{task.path}:") for task in HELD_OUT)
    assert all(task.answer.strip() and task.language == "python" for task in HELD_OUT)


@pytest.mark.slow
def test_polish_keeps_expected_answers() -> None:
    """A filter that cuts or drops a right answer costs exact match. The known exceptions are cut at a closing bracket."""
    lost_ids = []
    for task in HELD_OUT:
        document = task.document
        polished = polish.to_edits(
            Candidate((task.answer,), Calibrated(0.5)), (task.hole,), document, syntax=syntax.of(document)
        )
        if polished.dropped or not answers.is_exact(polished.edits[0].text, task.answer):
            lost_ids.append(task.task_id)
    assert len(lost_ids) <= 6, lost_ids


@pytest.mark.slow
def test_the_copy_baseline_scores_as_expected() -> None:
    """The baseline that a model must beat: about a fifth of line ends."""
    rows = evaluate.run([task for task in HELD_OUT if task.kind == "rest-of-line"], Setup(("copy",)))
    exact = scores.measure(rows, lambda row: row.exact)
    assert exact is not None
    assert 0.12 <= exact.value <= 0.28


def again() -> list[tasks.Task]:
    """Return the tasks to fill again: a few of each kind, as `--limit` selects them."""
    return tasks.spread(HELD_OUT, N_AGAIN)


# The committed results belong to the shipped model, and must be reproduced.
STATED = list(csv.DictReader(RESULTS.read_text(encoding="utf-8").splitlines())) if RESULTS.exists() else []
with_a_model = pytest.mark.skipif(not STATED and not SHIPPED.exists(), reason="no model is shipped")


@with_a_model
def test_the_results_are_complete() -> None:
    assert STATED, f"{RESULTS.name} is missing or empty; {COMMAND}"
    assert tuple(STATED[0]) == scores.COLUMNS
    stated_pairs = {(line["task_id"], line["method"]) for line in STATED}
    expected_pairs = {(task.task_id, name) for task in HELD_OUT for name in ("full", "copy")}
    assert expected_pairs <= stated_pairs, f"{len(expected_pairs - stated_pairs)} results are missing; {COMMAND}"


@with_a_model
@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "copy"])
def test_answers_are_those_of_the_committed_results(method: str) -> None:
    expected_lines = {line["task_id"]: line for line in STATED if line["method"] == method}
    assert expected_lines, f"{RESULTS.name} states no answer of {method}; {COMMAND}"
    # A baseline without a model is fast, so all of its rows are compared.
    # In 32 bits, because processors differ in whether they compute in 16.
    task_list = again() if method == "full" else HELD_OUT
    rows = evaluate.run(task_list, Setup((method,), device="cpu", threads=1, dtype="float32"))
    changed_answers = {
        row.task_id: row.text
        for row in rows
        if (expected_lines[row.task_id]["text_sha256"], expected_lines[row.task_id]["exact"])
        != (scores.fingerprint(row.text), str(int(row.exact)))
    }
    assert changed_answers == {}, f"{len(changed_answers)} of {len(rows)} answers moved; {COMMAND}"
