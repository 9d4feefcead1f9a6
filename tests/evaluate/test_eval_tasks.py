"""Reading and writing tasks, and the request that a task makes."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.evaluate import write_tasks
from dg_lsp.evaluate import tasks
from dg_lsp.evaluate.tasks import EvalError, Task
from tests import marked
from tests.evaluate.scripted import PROGRAMS, drawn

ROWS = marked.rows(Path(__file__).with_name("tasks.txt"))

# zlib raises an error that is not one of Python's built-in ones
BROKEN = gzip.compress(b"{}", mtime=0)[:10] + bytes([255] * 30)
LINE = {"task_id": "a", "prompt": "x = ", "suffix": "\n", "canonical_solution": "1"}


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.jsonl.gz"])
def test_written_tasks_are_read_back(tmp_path: Path, name: str) -> None:
    own = [*PROGRAMS, drawn("let é = ⟦'🙂'⟧;\n", task_id="b", language="javascript", path="a/b.js", kind="span")]
    write_tasks(tmp_path / name, own)
    again = tasks.read(tmp_path / name)
    assert [one.prompt + one.answer + one.suffix for one in again] == [one.prompt + one.answer + one.suffix for one in own]
    assert [replace(one, answer="", suffix="") for one in again] == [replace(one, answer="", suffix="") for one in own]
    write_tasks(tmp_path / name, again)
    assert tasks.read(tmp_path / name) == again


def test_the_line_end_of_a_whole_line_is_the_file_s(tmp_path: Path) -> None:
    """So it is asked for at an empty line, as the rest of that line, and the program is the same."""
    line = LINE | {"prompt": "def f(x):\n", "canonical_solution": "    return x\n", "suffix": "f(1)\n"}
    more = line | {"task_id": "b", "canonical_solution": "    x += 1\n    return x\n"}
    (tmp_path / "t.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(more)}\n")
    one, several = tasks.read(tmp_path / "t.jsonl")
    assert (one.answer, one.suffix, one.hole.extent) == ("    return x", "\nf(1)\n", "line")
    assert (several.answer, several.suffix, several.hole.extent) == ("    x += 1\n    return x", "\nf(1)\n", "block")


def test_the_same_tasks_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_tasks(tmp_path / name, PROGRAMS)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_lines_of_humaneval_infilling_are_read(tmp_path: Path) -> None:
    line = LINE | {"task_id": "SingleLineInfilling/HumanEval/12/L0", "test": "def check(f): pass", "entry_point": "f"}
    (tmp_path / "t.jsonl").write_text("\n" + json.dumps(line) + "\n\n")
    (task,) = tasks.read(tmp_path / "t.jsonl")
    assert (task.kind, task.language, task.cluster) == ("SingleLineInfilling", "python", "HumanEval/12")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2: the task is not valid JSON"),
        ("[1]", "line 2: the task must be an object, but is a list"),
        (json.dumps({"task_id": "b", "prompt": "", "suffix": ""}), "line 2: canonical_solution is missing"),
        (json.dumps(LINE | {"task_id": "b", "suffix": 3}), "line 2: suffix must be a string, but is a number"),
        (json.dumps(LINE | {"task_id": ""}), "line 2: task_id is empty"),
        (json.dumps(LINE | {"task_id": "b", "language": "klingon"}), "line 2: language is 'klingon', which is unknown"),
        (json.dumps(LINE), "line 2: task_id 'a' appears twice"),
        ("[" * 100_000, "line 2: the task is not valid JSON"),
        (json.dumps(LINE | {"task_id": "b", "prompt": "\ud800"}), "line 2: prompt has half of a surrogate pair"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps(LINE) + "\n" + line + "\n")
    with pytest.raises(EvalError, match=r"t\.jsonl, ") as error:
        tasks.read(tmp_path / "t.jsonl")
    assert sentence in str(error.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", gzip.compress(b"{}", mtime=0)[:-9], BROKEN, b"\n \n"])
def test_a_bad_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.jsonl").write_bytes(data)
    with pytest.raises(EvalError, match=r"t\.jsonl (can't be read|has no tasks)"):
        tasks.read(tmp_path / "t.jsonl")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvalError, match="no such file"):
        tasks.read(tmp_path / "t.jsonl")


@pytest.mark.parametrize(("text", "kind", "shape"), ROWS["holes"])
def test_a_task_requests_its_hole_like_a_front_end(text: str, kind: str, shape: str) -> None:
    task = drawn(text, kind)
    assert [task.hole.kind, task.hole.extent, task.hole.indent] == shape.split(", ")
    assert (task.hole.lead, task.hole.trail) == ("", "")
    request = task.request(steps=4, seed=7)
    assert (request.prefix, request.suffix) == (task.prompt, task.suffix)
    assert (request.budget.steps, request.seed) == (4, 7)


@pytest.mark.parametrize(
    ("task_id", "path", "cluster"),
    [
        ("RandomSpanInfilling/HumanEval/3/1", "", "HumanEval/3"),
        ("HumanEval/3/L0", "", "HumanEval/3"),
        ("body/click/core.py:12", "click/core.py", "click/core.py"),
        ("mine", "", "mine"),
    ],
)
def test_tasks_of_one_problem_or_file_share_a_cluster(task_id: str, path: str, cluster: str) -> None:
    assert Task(task_id, "", "", "", path=path).cluster == cluster


def test_a_limit_takes_as_many_of_each_kind() -> None:
    own = [
        Task(f"{kind}{number}", "", "", "", kind=kind) for kind, n in (("a", 30), ("b", 30), ("c", 2)) for number in range(n)
    ]
    some = tasks.spread(own, 12)
    assert [sum(task.kind == kind for task in some) for kind in "abc"] == [5, 5, 2]
    assert some == [task for task in own if task in some]
    assert some[4].task_id == "a24"
    assert tasks.spread(own, 0) == tasks.spread(own, 99) == own
