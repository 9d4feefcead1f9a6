"""The selection of holes, and the list of a dry run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.batch.conftest import STUB
from tests.batch.test_batch_commands import report, run
from tests.fakes import Filling

CLASS = 'class C:\n    def f(self):\n        """Do."""\n        ...\n\n    def g(self):\n        """Do."""\n        ...\n'


@pytest.fixture
def files(project: Path) -> Path:
    for name in ("a.py", "sub/b.py", "sub/test_b.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(STUB)
    (project / "c.js").write_text('function f() {\n  throw new Error("not implemented");\n}\n')
    (project / "k.py").write_text(CLASS)
    return project


def chosen(*args: str) -> list[str]:
    engine = Filling("return 1")
    rows = report(".", *args, engine=engine)["holes"]
    return [f"{row['path']}:{row['line']}" for row in rows]


@pytest.mark.parametrize(
    ("args", "places"),
    [
        (["--lang", "javascript"], ["c.js:2"]),
        (["--include", "sub/"], ["sub/b.py:3", "sub/test_b.py:3"]),
        (["--include", "*.py", "--exclude", "test_*", "--exclude", "k.py"], ["a.py:3", "sub/b.py:3"]),
        (["--symbol", "C"], ["k.py:4", "k.py:8"]),
        (["--symbol", "C.g"], ["k.py:8"]),
        (["--symbol", "f", "--lang", "python", "--max-holes", "2"], ["a.py:3", "k.py:4"]),
    ],
)
def test_holes_can_be_chosen(files: Path, args: list[str], places: list[str]) -> None:
    assert chosen(*args) == places


def test_only_what_changed_since_a_revision_is_filled(files: Path) -> None:
    for command in (
        ["init", "-q"], ["add", "a.py", "c.js", "sub/b.py"],
        ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "one"], ["checkout", "-q", "--detach"],
    ):  # fmt: skip
        subprocess.run(["git", *command], check=True)
    (files / "sub" / "b.py").write_text("# changed\n" + STUB)
    (files / ".gitignore").write_text("k.py\n")
    for revision, worktree in (("HEAD", files), (":/one", files / "sub"), ("HEAD", files.parent)):
        subprocess.run(["git", "config", "core.worktree", worktree], check=True)
        assert chosen("--changed-since", revision) == ["sub/b.py:4", "sub/test_b.py:3"]
    for revision, words in (
        *((each, f"takes one git revision, not '{each}'") for each in ("--output=x", "^HEAD", "HEAD..HEAD", "HEAD...HEAD")),
        ("nonsense", "nonsense: git knows no such revision in "),
    ):
        for arguments in ((".",), (".", "--symbol", "none"), ("sub/none",)):
            (files / "sub" / "none").mkdir(exist_ok=True)
            result = run(*arguments, f"--changed-since={revision}")
            assert (result.exit_code, words in result.stderr) == (2, True), (arguments, revision)
    assert not (files / "x").exists()


def test_holes_that_are_left_out_are_reported(files: Path) -> None:
    result = run(".", "--lang", "javascript", "--max-holes", "1")
    assert "dg-lsp: 5 holes left out by --lang\n" in result.stderr
    result = run(".", "--max-holes", "1")
    assert "dg-lsp: 5 holes left out by --max-holes\n" in result.stderr
    result = run(".", "--lang", "pyton")
    assert (result.exit_code, result.stderr) == (
        2,
        "dg-lsp: --lang pyton is not a language that dg-lsp supports; did you mean python?\n",
    )


def test_a_dry_run_lists_the_holes_and_asks_no_engine(files: Path) -> None:
    (files / "bin.py").write_bytes(b"\0")
    engine = Filling("return 1")
    result = run(".", "--dry-run", "--exclude", "a.py", engine=engine)
    assert result.exit_code == 0
    assert result.stdout == (
        "5 holes in 4 files\n"
        "c.js:2:3: body f\nk.py:4:9: body C.f\nk.py:8:9: body C.g\nsub/b.py:3:5: body f\nsub/test_b.py:3:5: body f\n"
    )
    assert result.stderr == "dg-lsp: skipped bin.py: it is binary\ndg-lsp: 1 hole left out by --exclude\n"
    report = json.loads(run(".", "--dry-run", "--json", "--lang", "javascript", engine=engine).stdout)
    assert report["holes"] == [
        {"path": "c.js", "line": 2, "column": 3, "kind": "body", "language": "javascript", "symbol": "f"}
    ]
    assert (report["left_out"], engine.requests) == ({"--lang": 5}, [])
    (files / "a\nb.py").write_text((files / "k.py").read_text())
    assert "\na\\nb.py:4:9: body C.f\n" in run(".", "--dry-run", engine=engine).stdout


def test_generated_files_are_filled_only_if_asked_for(project: Path) -> None:
    for name in ("a.py", "vendor/b.py", "c.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(("# @generated\n" if name == "c.py" else "") + STUB)
    (project / "d.py").write_text("# @generated\n")
    result = report(".")
    more = "; --generated fills such files, too"
    assert [row["path"] for row in result["holes"]] == ["a.py"]
    assert [(file["path"], file["reason"]) for file in result["files"]] == [
        ("vendor", f"holds files of others{more}"),
        ("c.py", f"is generated, as line 1 says{more}"),
    ]
    assert [file["reason"] for file in report("c.py")["files"]] == [f"is generated, as line 1 says{more}"]
    everything = report(".", "--generated")
    assert [row["path"] for row in everything["holes"]] == ["a.py", "c.py", "vendor/b.py"]
    assert everything["files"] == []
    assert len(report("--at", "c.py:4:5")["holes"]) == 1, "a place is named"


@pytest.mark.parametrize(
    "option", ["--changed-since", "--check", "--model", "--symbol", "--include", "--at", "--places", "--lang"]
)
@pytest.mark.parametrize("value", ["", " ", "\t\n"])
def test_an_option_without_a_value_is_no_run_without_the_option(stubbed: Path, option: str, value: str) -> None:
    result = run("a.py", option, value, "--write")
    assert (result.exit_code, (stubbed / "a.py").read_text()) == (2, STUB)
    assert f"{option} is empty; give it a value, or leave it out" in result.stderr


@pytest.mark.parametrize("path", ["", " "])
def test_an_empty_path_is_not_the_current_folder(stubbed: Path, path: str) -> None:
    result = run(path, "--write")
    assert (result.exit_code, (stubbed / "a.py").read_text()) == (2, STUB)
    assert "a path is empty; give it a value, or leave it out" in result.stderr
