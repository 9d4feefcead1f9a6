"""`benchmarks/evaluate.py`, from its command line to its output."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import evaluate, scores
from benchmarks.evaluate import write_tasks
from benchmarks.sandbox import protection
from dg_lsp.evaluate import tasks
from tests import marked
from tests.evaluate.scripted import PROGRAMS
from tests.evaluate.test_eval_make import GO, PYTHON

ROWS = marked.rows(Path(__file__).with_name("commands.txt"))

MEASURES = ("pass_at_1", "exact_match", "edit_similarity", "parse_rate")


@dataclass
class Result:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def call(*arguments: str | Path) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = evaluate.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    write_tasks(tmp_path / "programs.jsonl.gz", PROGRAMS)
    return tmp_path / "programs.jsonl.gz"


def test_expected_answers_pass_every_test_and_empty_ones_none(programs: Path) -> None:
    result = call(
        programs, "--baselines-only", "--baseline", "answer", "--baseline", "empty", "--execute", "--unprotected", "--json"
    )
    assert result.exit_code == 0, result.output
    stated = json.loads(result.stdout)
    perfect = {"value": 1, "low": 1, "high": 1}
    assert {name: stated["methods"]["answer"][name] for name in MEASURES} == dict.fromkeys(MEASURES, perfect)
    assert stated["methods"]["empty"]["pass_at_1"]["value"] == 0
    assert stated["methods"]["answer"]["exact_match_gain"]["empty"]["value"] == 1
    means = "in bubblewrap" if protection() else "with your rights"
    assert f"running generated programs of 3 tasks, {means}\n" in result.stderr


def test_the_json_has_the_full_engine_s_figures_at_the_top_level(programs: Path, trained_layout: Path) -> None:
    result = call(programs, "--model", trained_layout, "--device", "cpu", "--threads", "1", "--baseline", "copy", "--json")
    assert result.exit_code == 0, result.output
    stated = json.loads(result.stdout)
    assert stated["method"] == "full"
    assert stated["n"] == 3
    assert stated["pass_at_1"] is None
    for name in MEASURES[1:]:
        assert set(stated[name]) == {"value", "low", "high"}
        assert stated[name] == stated["methods"]["full"][name]
    assert stated["ms_p95"] >= stated["ms_p50"] > 0
    assert set(stated["kinds"]) == {"SingleLineInfilling", "MultiLineInfilling", "RandomSpanInfilling"}
    assert stated["methods"]["copy"]["n"] == 3
    assert "--execute runs them" in result.stderr


def test_the_csv_is_sorted_and_has_no_times(programs: Path, tmp_path: Path) -> None:
    arguments = (programs, "--baselines-only", "--baseline", "empty", "--baseline", "answer", "--csv", tmp_path / "a.csv")
    assert call(*arguments).exit_code == 0
    head, *lines = (tmp_path / "a.csv").read_text().splitlines()
    assert head == ",".join(scores.COLUMNS)
    assert [line.split(",")[:4] for line in lines[:2]] == [
        ["MultiLineInfilling/Own/1/L0_L1", "MultiLineInfilling", "answer", "1"],
        ["MultiLineInfilling/Own/1/L0_L1", "MultiLineInfilling", "empty", "0"],
    ]
    first = (tmp_path / "a.csv").read_bytes()
    assert call(*arguments).exit_code == 0
    assert (tmp_path / "a.csv").read_bytes() == first


def test_tasks_are_made_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(PYTHON)
    (tmp_path / "src" / "b.go").write_text(GO)
    result = call("--make", tmp_path / "src", "--out", tmp_path / "t.jsonl.gz", "--n", "10", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert "10 tasks from 2 files" in result.stderr
    assert len(tasks.read(tmp_path / "t.jsonl.gz")) == 10
    short = call("--make", tmp_path / "src", "--out", tmp_path / "t.jsonl", "--n", "9999")
    assert "(fewer than 9999, because the files have no more)" in short.stderr


@pytest.mark.parametrize(("arguments", "sentence"), ROWS["impossible"])
def test_an_impossible_request_is_reported_in_one_sentence(programs: Path, arguments: str, sentence: str) -> None:
    words = arguments.split(" | ") if arguments else []
    result = call(*(str(programs) if word == "FILE" else word for word in words))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
