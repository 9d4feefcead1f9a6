"""The commands as a user types them, with an engine that answers at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dg_lsp import is_interrupt
from dg_lsp.cli import main as cli
from dg_lsp.cli import progress
from tests.batch.conftest import STUB
from tests.batch.engines import connecting
from tests.fakes import FailingEngine, Filling

FILLED = 'def f():\n    """Do."""\n    return 1\n'


def run(*args: str | Path, engine: Filling | FailingEngine | None = None) -> Result:
    result = CliRunner().invoke(cli.app, ["infill", *map(str, args)], obj=connecting(engine or Filling("return 1")))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def report(*args: str | Path, engine: Filling | FailingEngine | None = None) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run(*args, "--json", engine=engine).stdout)
    return result


def test_a_file_with_hard_links_is_skipped_and_reported(stubbed: Path) -> None:
    (stubbed / "b.txt").hardlink_to(stubbed / "a.py")
    (stubbed / "c.py").write_text(STUB)
    result = run("--write", "a.py", "c.py")
    assert "a.py:3:5: not filled: the file has 2 names (hard links), and only this one would change" in result.stderr
    assert (stubbed / "a.py").samefile(stubbed / "b.txt")
    assert (stubbed / "a.py").read_text() == STUB
    assert (stubbed / "c.py").read_text() != STUB


def test_the_diff_goes_to_stdout_and_the_rest_to_stderr(stubbed: Path) -> None:
    result = run("a.py")
    assert result.stdout == (
        '--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n def f():\n     """Do."""\n-    raise NotImplementedError\n+    return 1\n'
    )
    assert result.stderr.startswith("dg-lsp: filling\ndg-lsp: filled 1 of 1 hole in 1 file, ")
    assert (result.exit_code, (stubbed / "a.py").read_text()) == (0, STUB)


def test_progress_is_reported_in_lines_without_a_terminal(project: Path) -> None:
    for name in ("a.py", "b.py"):
        (project / name).write_text(STUB)
    assert run(".").stderr.startswith("dg-lsp: filling (0 of 2)\ndg-lsp: filled 2 of 2 holes in 2 files, ")


def test_the_diff_of_a_folder_applies_where_it_was_made(project: Path) -> None:
    for name in ("a.py", "deep/er/b c.py", "ä.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(STUB)
    (project / "crlf.py").write_bytes(STUB.replace("\n", "\r\n").encode())
    (project / "open.py").write_text(STUB.rstrip("\n"))
    diff = run(".").stdout_bytes
    subprocess.run(["git", "apply", "--check", "-"], input=diff, check=True)
    subprocess.run(["patch", "-p1", "--binary"], input=diff, check=True, capture_output=True)
    assert (project / "deep/er/b c.py").read_text() == FILLED
    assert (project / "crlf.py").read_bytes() == FILLED.replace("\n", "\r\n").encode()
    assert (project / "open.py").read_text() == FILLED.rstrip("\n")


def test_a_diff_of_files_elsewhere_says_where_it_begins(project: Path) -> None:
    (project / "there" / "in").mkdir(parents=True)
    (project / "there" / "in" / "a.py").write_text(STUB)
    (project / "here").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project / "here")
        result = run("../there")
    assert "--- a/in/a.py\n" in result.stdout
    assert f"the diff's file names are relative to {project / 'there'}" in result.stderr


def test_the_report_accounts_for_every_hole(project: Path) -> None:
    (project / "a.py").write_text(STUB + "\n\n" + STUB)
    (project / "b.js").write_text('function f() {\n  throw new Error("not implemented");\n}\n')
    (project / "bin.py").write_bytes(b"\0")
    (project / "bad.py").write_text(STUB + "x = (\n")
    result = report(".")
    assert [(row["path"], row["line"], row["kind"], row["status"], row["text"]) for row in result["holes"]] == [
        ("a.py", 3, "body", "filled", "return 1"),
        ("a.py", 8, "body", "filled", "return 1"),
        ("b.js", 2, "body", "filled", "return 1"),
        ("bad.py", 3, "body", "filled", "return 1"),
    ]
    assert {"probability", "verified", "candidates", "steps", "ms", "reason", "column"} <= result["holes"][0].keys()
    assert result["files"] == [
        {"path": "bin.py", "status": "skipped", "reason": "is binary"},
        {"path": "bad.py", "status": "noted", "reason": "does not parse (line 4); its holes are filled anyway"},
    ]
    summary = result["summary"]
    assert (summary["files"], summary["holes"], summary["filled"], summary["unsure"], summary["failed"]) == (3, 4, 4, 0, 0)


def test_a_hole_without_an_answer_has_a_reason_and_the_exit_status_is_3(stubbed: Path) -> None:
    result = run(".", engine=FailingEngine("the engine is busy"))
    assert (result.exit_code, result.stdout) == (3, "")
    assert "a.py:3:5: not filled: the engine is busy\n" in result.stderr
    [row] = report(".", engine=FailingEngine("the engine is busy"))["holes"]
    assert (row["status"], row["reason"]) == ("failed", "the engine is busy")


def test_a_selection_can_be_filled(project: Path) -> None:
    (project / "a.py").write_text("x = old\ny = 2\n")
    [row] = report("--at", "a.py:1:5-1:8", engine=Filling("int"))["holes"]
    assert (row["line"], row["column"], row["kind"], row["text"]) == (1, 5, "selection", "int")


def test_several_places_and_paths_go_together(project: Path) -> None:
    for name in ("a.py", "b.py"):
        (project / name).write_text("x = \ny = \n" + STUB)
    result = report("--at", "a.py:1:5", "--at", "a.py:2:5", "--at", "b.py:1:5", ".", engine=Filling("1"))
    assert [(row["path"], row["line"]) for row in result["holes"]] == [("a.py", 1), ("a.py", 2), ("b.py", 1)]


def test_kinds_can_be_chosen(project: Path) -> None:
    (project / "a.py").write_text(STUB + "\n\nx = 1\n# FILL: one\n\n\ndef h():\n    pass\n")

    def kinds(*args: str) -> list[tuple[str, int]]:
        return [(row["kind"], row["line"]) for row in report(".", *args)["holes"]]

    assert kinds() == [("body", 3), ("marker", 7)]
    assert kinds("--holes", "markers") == [("marker", 7)]
    assert kinds("--holes", "bodies,empty") == [("body", 3), ("body", 11)]


def test_wrong_options_exit_with_2(stubbed: Path) -> None:
    (stubbed / "notes").write_text("mine")
    (stubbed / "link").symlink_to("new")
    for args, sentence in (
        ((), "name files or folders"),
        (("gone.py",), "there is no gone.py"),
        (("--at", "a.py"), "a place is FILE:LINE:COL"),
        (("--at", "a.py:99:1"), "the file has 4 lines"),
        (("--at", "gone.py:1:1"), "gone.py does not exist"),
        (("--at", ".:1:1"), "dg-lsp: . is a folder; a place is in a file\n"),
        (("--at", "a.py:1:99"), "dg-lsp: there is no a.py:1:99: line 1 has 8 characters\n"),
        (("--at", "a.py:1:1:9"), "FILE:LINE:COL-LINE:COL, not 'a.py:1:1:9'; there is no file a.py:1\n"),
        ((".", "--holes", "bodies;markers"), "--holes takes"),
        ((".", "--holes", ","), "--holes takes"),
        (("--at", "a.py:1:1-2:99"), "line 2 has 13 characters"),
        ((".", "--candidates", "0"), "candidates"),
        ((".", "--resume", "a.py"), "--resume names a.py, which is one of the files to fill; name a new file"),
        (("a.py", "--resume", "notes"), "--resume notes: this file is not as an earlier run left it; name a new file"),
        (("a.py", "--patch", "notes"), "--patch notes: this file is not as an earlier run left it; name a new file"),
        (("a.py", "--patch", "link"), "--patch link: this is a link; name a new file"),
        ((".", "--patch", "new.py", "--resume", "new.py"), "--patch and --resume name the same file"),
        ((".", "--nonsense"), "--nonsense"),
        ((".", "--patch", "gone/a.diff"), f"--patch gone/a.diff: there is no folder {stubbed / 'gone'}"),
        ((".", "--patch", "."), "--patch .: this is a folder; name a file in it"),
        ((".", "--patch", "/dev/null"), "--patch /dev/null: this is not a regular file"),
    ):
        result = run(*args)
        assert (result.exit_code, result.stdout) == (2, ""), args
        assert sentence in result.stderr, (args, result.stderr)
        assert "Traceback" not in result.stderr


def test_a_check_decides_which_fills_are_accepted(stubbed: Path) -> None:
    (stubbed / "b.py").write_text(STUB)
    result = run(".", "--write", "--check", 'test "$(basename {})" = a.py')
    assert result.exit_code == 1
    assert ((stubbed / "a.py").read_text(), (stubbed / "b.py").read_text()) == (FILLED, STUB)
    assert "b.py:3:5: not filled: the check exited with status 1" in result.stderr


def test_an_unsure_hole_stays_open_with_its_candidates(stubbed: Path) -> None:
    (stubbed / "b.py").write_text("x = \n")
    result = run("a.py", "--write", "--min-confidence", "0.95")
    assert (result.exit_code, (stubbed / "a.py").read_text()) == (1, STUB)
    assert "a.py:3:5: unsure: its probability is 90 %, below --min-confidence 0.95\n" in result.stderr
    assert "filled" not in result.stderr.splitlines()[-1]
    assert "wrote 0 of 1 hole, unsure 1 in 1 file" in result.stderr
    assert (
        "to decide unsure holes: a stronger model (--model); a check that proves fills (--check 'pytest -q')" in result.stderr
    )
    [row] = report("a.py", "--min-confidence", "0.95", engine=Filling("return 1", "return 2"))["holes"]
    assert (row["status"], row["text"], row["probability"]) == ("unsure", "", None)
    assert row["candidates"] == [{"text": "return 1", "probability": 0.9}, {"text": "return 2", "probability": 0.45}]
    assert run("a.py", "--min-confidence", "0.95", "--all").exit_code == 0


def test_a_named_place_needs_a_lower_probability_than_a_body(project: Path) -> None:
    (project / "a.py").write_text("x = \n" + STUB)
    low = Filling(lambda request: ("1" if request.holes[0].kind == "cursor" else "return 1",))
    low.best = 0.6
    assert run("--at", "a.py:1:5", engine=low).exit_code == 0
    assert run("a.py", engine=low).exit_code == 1


def test_a_check_can_prove_an_unsure_fill(stubbed: Path) -> None:
    command = f"{sys.executable} -c 'import a; assert a.f() == 2'"
    args = ("a.py", "--write", "--min-confidence", "1", "--check", command)
    result = run(*args, engine=Filling("return 1", "return 2"))
    assert (result.exit_code, (stubbed / "a.py").read_text()) == (0, FILLED.replace("1", "2"))
    assert "wrote 1 of 1 hole (1 verified) in 1 file" in result.stderr


def test_a_check_runs_for_further_rounds(stubbed: Path) -> None:
    command = f"{sys.executable} -c 'import a; assert a.f() == 3, a.f()'"
    engine = Filling(lambda request: (f"return {len(engine.requests)}",))
    [row] = report("a.py", "--check", command, "--retries", "1", engine=engine)["holes"]
    assert (row["status"], row["reason"]) == ("failed", "the check exited with status 1: AssertionError: 2")
    engine = Filling(lambda request: (f"return {len(engine.requests)}",))
    [row] = report("a.py", "--check", command, engine=engine)["holes"]
    assert (row["status"], row["text"], row["verified"]) == ("filled", "return 3", "the check")
    assert "AssertionError: 1" in engine.requests[1].holes[0].instruction


def test_an_interrupted_run_goes_on(project: Path) -> None:
    for name in ("a.py", "b.py"):
        (project / name).write_text(STUB)
    run("a.py", "--resume", "journal", engine=Filling("return 1"))
    engine = Filling("return 2")
    rows = report(".", "--resume", "journal", engine=engine)["holes"]
    assert [row["text"] for row in rows] == ["return 1", "return 2"]
    assert len(engine.requests) == 1
    other = Filling("return 3")
    report(".", "--resume", "journal", "--seed", "1", engine=other)
    assert len(other.requests) == 2, "another seed is another question"


def test_a_file_of_unknown_language_is_filled_at_its_markers(project: Path) -> None:
    (project / "notes.xyz").write_text("one\n# FILL: two\nthree\n")
    assert "+two\n" in run("notes.xyz", engine=Filling("two")).stdout


def test_a_fill_in_data_is_left_alone_with_a_reason(project: Path) -> None:
    (project / "data.jsonl").write_text('{"a": "// FILL: b"}\n# FILL\n')
    result = run("data.jsonl", engine=Filling("two"))
    assert result.stdout == ""
    assert "skipped data.jsonl: it holds data or plain text, where FILL is no comment" in result.stderr


def test_a_file_name_is_sent_as_text_of_limited_length(project: Path) -> None:
    deep = project.joinpath(*["d" * 100] * 6)
    deep.mkdir(parents=True)
    (project / ".git").mkdir()
    for path in (project / "ä%20ö.py", deep / "a.py"):
        path.write_text(STUB)
    engine = Filling("return 1")
    run(".", engine=engine)
    assert [request.path for request in engine.requests] == ["ä%20ö.py", "/".join([*["d" * 100] * 3, "a.py"])]


def test_the_configuration_sets_the_defaults_of_the_command_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "user.toml").write_text("[engine]\nmodel = 'owner/name'\n[batch]\ndeadline = 70\ncandidates = 3\n")
    (project / "a.py").write_text(STUB)
    monkeypatch.setenv("DG_LSP_CONFIG", str(project / "user.toml"))

    def asked(*args: str) -> tuple[str, int, int]:
        models, engine = list[str](), Filling("return 1")
        result = CliRunner().invoke(cli.app, ["infill", "a.py", *args], obj=connecting(engine, models))
        assert result.exit_code == 0, result.stderr
        [model], [request] = models, engine.requests
        return model, request.budget.ms, request.budget.candidates

    assert asked() == ("owner/name", 70, 3)
    assert asked("--model", "embedded", "--deadline", "0", "--candidates", "4") == ("embedded", 0, 4)
    (project / "user.toml").write_text("[batch]\ndeadline = -1\n")
    result = run("a.py")
    assert (result.exit_code, re.search("batch.deadline in .*user.toml must be a whole number", result.stderr) is not None) == (
        2,
        True,
    )


def test_local_only_files_are_never_sent_to_a_remote_model(project: Path) -> None:
    for name in ("vault/a.py", "src/vault/b.py", "src/c d.py", "src/near.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(STUB)
    (project / ".dg-lsp.toml").write_text("[privacy]\nlocal_only = ['/vault/', 'src/near.py']\n")

    def sent(*args: str | Path) -> list[tuple[str, list[str]]]:
        engine = Filling("return 1")
        assert run(*args, engine=engine).exit_code == 0
        # A local model also gets passages to copy from; a remote one never does.
        is_remote = "--model" in args
        return [
            (request.path, [snippet.path for snippet in request.related if is_remote or not snippet.for_copying])
            for request in engine.requests
        ]

    everything = [
        ("src/c d.py", ["src/near.py"]),
        ("src/near.py", ["src/c d.py"]),
        ("src/vault/b.py", []),
        ("vault/a.py", []),
    ]
    assert sorted(sent(".")) == everything
    for model in ("vllm:http://gpu01:8000", "fim:mercury"):
        assert sent(".", "--model", model) == [("src/c d.py", []), ("src/vault/b.py", [])]
        result = run("vault", "src/near.py", "--model", model)
        private = "it is for local models only (privacy.local_only), and the chosen model is remote"
        assert f"dg-lsp: skipped vault/a.py: {private}\n" in result.stderr
        assert f"dg-lsp: skipped src/near.py: {private}\n" in result.stderr
        # The workspace of a named file counts, not the current folder.
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(project / "vault")
            assert sent("a.py", project / "src", "--model", model) == [("src/c d.py", []), ("src/vault/b.py", [])]


def test_a_rate_reads_well() -> None:
    assert [progress.rate(speed) for speed in (None, 0.0, 0.05, 1.0, 12.34)] == ["", "", "20.0 s each", "1.0/s", "12.3/s"]


def test_progress_in_lines_is_reported_at_intervals() -> None:
    lines: list[str] = []
    times = iter([0.0, 9.0, 10.0, 11.0, 20.0, 99.0])
    done = progress.in_lines("filling", 50, lines.append, lambda: next(times))
    for n in (1, 1, 1, 20):
        done(n)
    assert lines == ["filling (0 of 50)", "filling (2 of 50)", "filling (23 of 50)"]
    done(27)
    assert len(lines) == 3
    progress.in_lines("fitting", 1, lines.append)(1)
    assert lines[3:] == ["fitting"]


def test_an_error_that_causes_itself_is_no_interrupt_and_a_cause_hides_none() -> None:
    circle, wrapper, hidden = ValueError(), RuntimeError(), RuntimeError()
    circle.__context__, wrapper.__cause__ = wrapper, circle
    hidden.__cause__, hidden.__context__ = TypeError(), KeyboardInterrupt()
    assert (is_interrupt(circle), is_interrupt(hidden)) == (False, True)


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


@pytest.mark.parametrize("name", ["x" * 300, f"{'x' * 300}/a.py"])
def test_a_name_that_is_too_long_is_not_an_internal_error(name: str) -> None:
    for arguments in (["infill", "--at", f"{name}:1:1"], ["infill", name]):
        result = invoked(*arguments)
        assert result.exit_code == 2
        sentence = r"dg-lsp: (x+(/a.py)? can't be read: file name too long|there is no x+(/a.py)?)\n"
        assert re.fullmatch(sentence, result.stderr)


@pytest.mark.parametrize("command", list(cli.LATER))
def test_each_subcommand_has_plain_help_of_its_own_and_is_reported_if_it_is_missing(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = invoked(command, "-h")
    assert result.stdout.startswith(f"Usage: dg-lsp {command} ")
    assert "completion for the current shell" not in result.stdout
    assert "─" not in result.stdout
    monkeypatch.setitem(sys.modules, cli.LATER[command][1], None)
    result = invoked(command, "--help")
    assert (result.exit_code, f"this installation has no `{command}`" in result.stderr) == (2, True)
