"""What a CI sees of `dg-lsp infill`: exit codes, files, the schema of the report, and places from another tool."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from typer.main import get_command

from dg_lsp.batch import plan
from dg_lsp.batch.plan import Location, PlanError
from dg_lsp.batch.report import ReportRow, patch_file
from dg_lsp.cli import main as cli
from tests.batch.conftest import STUB
from tests.batch.test_batch_commands import FILLED, report, run
from tests.engine.backends_kit import Recorder, serving
from tests.fakes import FailingEngine, Filling
from tests.patience import PATIENCE_S
from tests.processes import dg_lsp

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "infill-report.schema.json").read_text())
UNSURE = ("--min-confidence", "0.95")


@pytest.fixture(scope="module")
def validate() -> Callable[[dict[str, Any]], None]:
    """Raises an error for a report that is not as docs/infill-report.schema.json says."""
    validated: Callable[[dict[str, Any]], None] = fastjsonschema.compile(SCHEMA)
    return validated


def test_the_report_is_as_its_schema_says(stubbed: Path, validate: Callable[[dict[str, Any]], None]) -> None:
    (stubbed / "bad.py").write_text(STUB + "x = (\n")
    (stubbed / "bin.py").write_bytes(b"\0")
    filled = report(".")
    unsure = report(".", *UNSURE)
    failed = report(".", engine=FailingEngine("the engine is busy"))
    for each in (filled, unsure, failed, report("bin.py")):
        validate(each)
    statuses = {row["status"] for each in (filled, unsure, failed) for row in each["holes"]}
    assert statuses == {"filled", "unsure", "failed"}
    assert {file["status"] for file in filled["files"]} == {"skipped", "noted"}
    hole = filled["holes"][0]
    for wrong in (
        {**filled, "version": 2},
        {**filled, "more": 1},
        {**filled, "holes": [{**hole, "status": "open"}]},
        {**filled, "holes": [{name: value for name, value in hole.items() if name != "retry"}]},
    ):
        with pytest.raises(fastjsonschema.JsonSchemaException):
            validate(wrong)


def test_the_exit_code_says_what_a_job_can_do(stubbed: Path) -> None:
    (stubbed / "empty.py").write_text("x = 1\n")
    assert run("empty.py").exit_code == 0
    assert run("a.py").exit_code == 0
    assert run("a.py", *UNSURE).exit_code == 1
    assert run("a.py", "--check", "false").exit_code == 1
    assert run("a.py", "--model", "./gone").exit_code == 2
    assert run("a.py", "--model", "fim:gone:http://127.0.0.1:9#m").exit_code == 2
    assert run("a.py", "--model", "fim:openai:http://me:secret@host#m").exit_code == 2
    assert run("a.py", engine=FailingEngine("the engine is busy")).exit_code == 3


@pytest.mark.parametrize(
    ("fail_on", "codes"), [("open", (0, 1, 1)), ("failed", (0, 0, 1)), ("any", (1, 1, 1)), ("never", (0, 0, 0))]
)
def test_fail_on_chooses_which_holes_fail_a_job(stubbed: Path, fail_on: str, codes: tuple[int, ...]) -> None:
    (stubbed / "none.py").write_text("x = 1\n")
    option = ("--fail-on", fail_on)
    assert tuple(run("a.py", *option, *more).exit_code for more in ((), UNSURE, ("--check", "false"))) == codes
    assert run("none.py", *option).exit_code == 0
    # Neither hides an engine that failed.
    assert run("a.py", *option, engine=FailingEngine("the engine is busy")).exit_code == 3
    assert run("a.py", "--dry-run", *option).exit_code == int(fail_on == "any")
    result = run("a.py", "--fail-on", "sometimes")
    assert (result.exit_code, result.stderr) == (2, "dg-lsp: --fail-on takes open, failed, any or never, not 'sometimes'\n")


# The command with the user's engine; prints the imported modules that matter.
COMMAND = """
from dg_lsp.__main__ import main
try:
    main()
finally:
    print(sorted({"torch", "numpy", "transformers"} & sys.modules.keys()), file=sys.stderr)
"""


def infill(folder: Path, *args: str, text: str = "", before: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys\n{before}{COMMAND}", "infill", *args]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.e2e
def test_a_run_without_holes_imports_no_torch_and_starts_no_engine(tmp_path: Path, engines: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    process = infill(tmp_path, ".", "--check", "true", "--json", "--patch", "a.diff")
    assert (process.returncode, process.stderr) == (0, "dg-lsp: no holes found\n[]\n")
    assert (tmp_path / "a.diff").read_bytes() == patch_file(b"")
    assert list(engines.iterdir()) == []


@pytest.mark.e2e
def test_an_engine_that_cannot_start_is_3_and_one_that_fails_later_too(tmp_path: Path, engines: Path) -> None:
    (tmp_path / "a.py").write_text(STUB)
    log = engines / "closed"
    log.write_text("")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "DG_LSP_RUNTIME_DIR": str(log)}
    assert dg_lsp("infill", ".", cwd=tmp_path, env=variables, code=3).stdout == ""
    process = infill(tmp_path, ".", "--model", "fim:openai:http://127.0.0.1:9#m", "--json")
    [hole] = json.loads(process.stdout)["holes"]
    assert (process.returncode, hole["status"], hole["retry"]) == (3, "failed", True)


@pytest.mark.e2e
def test_a_missing_package_is_wrong_setup_and_no_reason_to_try_again(tmp_path: Path, engines: Path) -> None:
    (tmp_path / "a.py").write_text(STUB)
    process = infill(tmp_path, ".", before="sys.modules['torch'] = None")
    assert (process.returncode, process.stdout) == (2, "")
    assert "dg-lsp: the model embedded needs torch, which is not installed; install it with: " in process.stderr
    assert list(engines.iterdir()) == []


def test_a_patch_is_written_beside_the_report(stubbed: Path) -> None:
    assert report("a.py", "--patch", "a.diff")["summary"]["filled"] == 1
    result = run("a.py", "--patch", "b.diff")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (stubbed / "b.diff").read_text() == (stubbed / "a.diff").read_text()
    subprocess.run(["patch", "--dry-run", "-p1", "-i", "a.diff"], check=True)
    subprocess.run(["git", "apply", "a.diff"], check=True)
    assert (stubbed / "a.py").read_text() == FILLED
    name = f"{'x' * 300}.diff"  # that it can't be written is known only at the end
    result = run("a.py", "--patch", name)
    assert (result.exit_code, f"the patch can't be written to {name}: file name too long" in result.stderr) == (2, True)


@pytest.mark.parametrize("name", ["a.py", "plain.py", "a b.py", "ä.py", 'q"t.py', "tab\t.py"])
def test_the_next_patch_replaces_the_last_one(project: Path, name: str) -> None:
    (project / name).write_text(STUB)
    for answer in ("return 1", "return 22"):
        assert run(".", "--patch", "a.diff", engine=Filling(answer)).exit_code == 0
        assert f"+    {answer}\n" in (project / "a.diff").read_text()
    changed = (project / "a.diff").read_text().replace("22", "33")
    (project / "changed.diff").write_text(changed)
    assert (run(".", "--patch", "changed.diff").exit_code, (project / "changed.diff").read_text()) == (2, changed)
    (project / name).write_text(FILLED)
    assert (run(".", "--patch", "a.diff").exit_code, (project / "a.diff").read_bytes()) == (0, patch_file(b""))
    (project / name).write_text(STUB)
    assert run(".", "--patch", "a.diff").exit_code == 0


def test_places_have_an_optional_comment() -> None:
    text = "\ufeff\n# from a tool\na.py:3:5\nb c.py:1:2-1:9: sort the rows: by date\n\ufeffc.py:1:1 use f()\r\n\ufeff"
    assert plan.parse_places(text, "x") == [
        Location("a.py", (3, 5)),
        Location("b c.py", (1, 2), (1, 9), "sort the rows: by date"),
        Location("c.py", (1, 1), None, "use f()"),
    ]


@pytest.mark.parametrize("line", ["a.py", "a.py:3", "a.py:0:1", "a.py:1:2x", "a\0.py:1:1", "{}", "{"])
def test_an_invalid_line_of_places_is_named(line: str) -> None:
    with pytest.raises(PlanError, match=r"^--places x, line 2: "):
        plan.parse_places(f"a.py:1:1\n{line}\n", "--places x")


def test_places_come_from_a_file_and_their_comments_reach_the_model(project: Path) -> None:
    (project / "a.py").write_text(STUB + "\n\nx = \n")
    places = "a.py:3:5: return the number 1\r\na.py:6:5: a small number\r\n"
    (project / "places.txt").write_text(places, encoding="utf-8-sig")  # as some editors save it
    engine = Filling("1")
    rows = report("--places", "places.txt", "--all", engine=engine)["holes"]
    assert [(row["line"], row["kind"]) for row in rows] == [(3, "body"), (6, "cursor")]
    instructions = [hole.instruction for request in engine.requests for hole in request.holes]
    assert "return the number 1" in instructions[0]
    assert instructions[1] == "a small number"
    (project / "places.txt").write_text("")
    assert (run("--places", "places.txt").exit_code, run("--places", "places.txt").stderr) == (0, "dg-lsp: no holes found\n")
    for name, reason in (("gone", "no such file or directory"), (".", "is a directory")):
        result = run("--places", name)
        assert (result.exit_code, result.stderr) == (2, f"dg-lsp: --places {name} can't be read: {reason}\n")


DATES = '''"""Dates of orders."""

from datetime import date


def parsed(text: str) -> date:
    """Return the date that a text names."""
    raise NotImplementedError


def year(text: str) -> int:
    """Return the year of the date that a text names."""
    return parsed(text).year
'''
TESTS = """import dates


def test_year() -> None:
    assert dates.year("1999-12-31") == 1999
"""


@pytest.mark.usefixtures("engines")
@pytest.mark.e2e
def test_another_tool_lists_places_and_the_tests_prove_the_fills(tmp_path: Path) -> None:
    """In a repository of its own, with the real pytest."""
    (tmp_path / "dates.py").write_text(DATES)
    (tmp_path / "test_dates.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    line, column = DATES[: DATES.index("raise")].count("\n") + 1, 5
    places = f"dates.py:{line}:{column}: parse an ISO date such as 1999-12-31, with date.fromisoformat\n"
    answers = Recorder([{"choices": [{"text": "return date.today()"}, {"text": "return date.fromisoformat(text)"}]}])
    with serving({"POST /v1/completions": answers.answer}) as url:
        process = infill(
            tmp_path,
            *("--places", "-", "--model", f"fim:openai:{url}#m", "--candidates", "2"),
            *("--check", f"{sys.executable} -m pytest -q -p no:cacheprovider", "--patch", "dates.diff", "--json"),
            text=places,
        )
    [hole] = json.loads(process.stdout)["holes"]
    assert (process.returncode, hole["text"]) == (0, "return date.fromisoformat(text)"), process.stderr
    assert hole["verified"] == "the check: 1 test"
    assert any("parse an ISO date" in json.dumps(body) for body in answers.bodies)
    subprocess.run(["git", "apply", "dates.diff"], cwd=tmp_path, check=True)
    assert "date.fromisoformat(text)" in (tmp_path / "dates.py").read_text()


# What the documents say of it


TEXT = (Path(__file__).parents[2] / "docs" / "infill.md").read_text()


def test_every_field_of_a_hole_is_documented() -> None:
    table = TEXT.partition("| `holes[]` |")[2].partition("\n\n")[0]
    names = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1] if line else "")]
    assert names == [field.name for field in dataclasses.fields(ReportRow)]


def test_every_field_of_the_summary_is_documented(stubbed: Path) -> None:
    sentence = re.search(r"^`summary` has (.*)$", TEXT, re.MULTILINE)
    assert sentence
    assert set(re.findall(r"`(\w+)`", sentence[1])) == report("a.py")["summary"].keys()


def test_every_option_that_is_documented_exists() -> None:
    infill = get_command(cli.app).commands["infill"]  # type: ignore[attr-defined]
    options = {name for parameter in infill.params for name in parameter.opts}
    assert set(re.findall(r"(?<=`)--[a-z-]+", TEXT)) - {"--junit-xml"} <= options
