"""How fills are applied: commits, the user's review, the HTML page."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dg_lsp import cli
from dg_lsp.batch import commands, report
from tests.batch.engines import Filling, connecting
from tests.batch.test_batch_commands import FILLED, STUB, project, run

__all__ = ["project"]

TWO = STUB + "\n\n" + STUB.replace("f()", "g()")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(project: Path) -> Path:
    (project / "a.py").write_text(TWO)
    (project / "b.py").write_text(STUB)
    git("init", "-q", "-b", "main")
    git("config", "user.name", "n")
    git("config", "user.email", "e@x")
    git("add", ".")
    git("commit", "-qm", "first")
    return project


def subjects() -> list[str]:
    return git("log", "--reverse", "--format=%s").splitlines()[1:]


def test_each_file_is_one_commit(repository: Path) -> None:
    (repository / "other.txt").write_text("mine")
    git("add", "other.txt")
    assert run(".", "--commit", "file").exit_code == 0
    assert subjects() == ["a.py: fill 2 holes", "b.py: fill 1 hole"]
    assert git("status", "--porcelain") == "A  other.txt", "what was staged stays staged, and uncommitted"


def test_each_hole_is_one_commit(repository: Path) -> None:
    assert run("a.py", "--commit", "hole").exit_code == 0
    assert subjects() == ["a.py: fill the hole at line 3", "a.py: fill the hole at line 8"]
    assert git("show", "HEAD~1:a.py") == TWO.replace("raise NotImplementedError", "return 1", 1).strip()


def test_a_file_with_uncommitted_changes_is_not_changed(repository: Path) -> None:
    (repository / "b.py").write_text(STUB + "# mine\n")
    result = run(".", "--commit", "file")
    assert (result.exit_code, subjects()) == (1, ["a.py: fill 2 holes"])
    assert "b.py:3:5: not filled: the file has uncommitted changes\n" in result.stderr
    assert (repository / "b.py").read_text() == STUB + "# mine\n"


def test_a_hook_that_refuses_leaves_the_file_written(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho the hook says no >&2\nexit 1\n")
    hook.chmod(0o755)
    result = run("a.py", "--commit", "hole")
    assert (result.exit_code, subjects()) == (1, [])
    assert "a.py is written, but not committed: git commit: the hook says no\n" in result.stderr
    assert "NotImplementedError" not in (repository / "a.py").read_text()


def test_a_detached_head_is_reported(repository: Path) -> None:
    git("checkout", "-q", "--detach")
    result = run("b.py", "--commit", "file")
    assert (result.exit_code, subjects()) == (0, ["b.py: fill 1 hole"])
    assert result.stderr.startswith(f"dg-lsp: filling\ndg-lsp: HEAD is detached in {repository}: ")


def test_a_commit_outside_a_repository_is_refused(project: Path) -> None:
    (project / "a.py").write_text(STUB)
    result = run("a.py", "--commit", "file")
    assert (result.exit_code, (project / "a.py").read_text()) == (1, STUB)
    assert result.stderr.startswith("dg-lsp: filling\ndg-lsp: a.py:3:5: not filled: the file is not in a git repository\n")
    assert run("a.py", "--commit", "line").exit_code == 2


def test_a_workspace_inside_a_repository_is_committed_to_it(repository: Path) -> None:
    (repository / "part").mkdir()
    (repository / "part" / ".dg-lsp.toml").write_text("")
    (repository / "part" / "c.py").write_text(STUB)
    git("add", "part")
    git("commit", "-q", "-m", "part")
    git("checkout", "-q", "--detach")
    result = run("part/c.py", "--commit", "file")
    assert (result.exit_code, subjects()) == (0, ["part", "part/c.py: fill 1 hole"])
    assert f"HEAD is detached in {repository}: " in result.stderr


def decided(letters: str, *args: str, answers: tuple[str, ...] = ("return 1", "return 2")) -> Result:
    engine = connecting(Filling(*answers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "can_ask", lambda: True)  # the answers come from a pipe here
        return CliRunner().invoke(
            cli.app, ["infill", ".", "--write", "--interactive", *args], obj=engine, input="\n".join(letters) + "\n"
        )


@pytest.mark.parametrize(
    ("letters", "texts"),
    [
        ("aa", ["return 1", "return 1"]),
        ("ra", ["raise NotImplementedError", "return 1"]),
        ("naxa", ["return 2", "return 1"]),
        ("nnara", ["return 1", "raise NotImplementedError"]),
        ("aq", ["return 1", "raise NotImplementedError"]),
        ("q", ["raise NotImplementedError"] * 2),
    ],
)
def test_the_user_decides_hole_by_hole(project: Path, letters: str, texts: list[str]) -> None:
    (project / "a.py").write_text(TWO)
    result = decided(letters)
    assert re.findall(r"^    (return .|raise .*)", (project / "a.py").read_text(), re.MULTILINE) == texts, result.output
    assert result.exit_code == int("raise NotImplementedError" in texts)


def test_the_user_may_accept_and_edit_an_unsure_fill(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "a.py").write_text(STUB)
    (project / "editor").write_text('#!/bin/sh\nsed -i s/return/yield/ "$1"\n')
    (project / "editor").chmod(0o755)
    monkeypatch.setenv("VISUAL", str(project / "editor"))
    result = decided("ea", "--min-confidence", "1")
    assert (project / "a.py").read_text() == FILLED.replace("return", "yield"), result.output
    assert "below --min-confidence 1" in result.stderr
    assert "a.py:3:5: 3 of 3, edited by you" in result.stderr


def test_a_hole_that_the_user_did_not_decide_is_not_rejected(project: Path) -> None:
    (project / "a.py").write_text(TWO)
    reasons = re.findall("not filled: (.*)", decided("rq").stderr)
    assert reasons == [report.REJECTED, report.UNREVIEWED]
    assert re.findall("not filled: (.*)", decided("q").stderr) == [report.UNREVIEWED] * 2


def test_the_end_of_the_input_quits_the_review(project: Path) -> None:
    (project / "a.py").write_text(TWO)
    result = decided("r")  # the second question gets no answer
    assert re.findall("not filled: (.*)", result.stderr) == [report.REJECTED, report.UNREVIEWED]
    assert (result.exit_code, "Aborted" in result.output) == (1, False)


class Loads(HTMLParser):
    """Collects what a page would load, and the names of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]


def test_the_page_shows_each_hole_before_and_after_and_loads_nothing(project: Path) -> None:
    (project / "a<b>.py").write_text(TWO)
    (project / "c.py").write_text(STUB)
    (project / "bin.py").write_bytes(b"\0")

    def answers(request: object) -> tuple[str, ...]:
        return ("return '<script>'", "return 2")[: len(request.holes)]  # type: ignore[attr-defined]

    engine = Filling(answers)
    run("a<b>.py", "bin.py", "--report", "report.html", engine=engine)
    text = (project / "report.html").read_text()
    parser = Loads()
    parser.feed(text)
    assert parser.addresses == ["data:,"]
    assert not parser.names & {"script", "iframe", "img", "object"}
    plain = re.sub(r"<style>.*?</style>|<[^>]+>", "", text, flags=re.DOTALL)
    for part in (
        "a&lt;b&gt;.py:3:5",
        "filled · body · probability 0.90",
        "raise NotImplementedError",
        "&lt;script&gt;",
        "return 2",
    ):
        assert part in plain, part
    assert "2 of 2 holes in 1 files (0 verified)" in plain
    assert "bin.py: it is binary" in plain
    run("c.py", "--min-confidence", "1", "--report", "report.html")
    assert "unsure" in (project / "report.html").read_text()
    result = run("c.py", "--report", "nowhere/report.html")
    assert (result.exit_code, "there is no folder" in result.stderr) == (2, True)


def test_a_page_that_cannot_be_written_fails_the_run(project: Path) -> None:
    (project / "c.py").write_text(STUB)
    name = f"{'x' * 300}.html"  # this is known only when it is written
    result = run("c.py", "--report", name)
    assert result.exit_code == 2
    assert f"the report can't be written to {name}: file name too long" in result.stderr
    assert "+    return 1" in result.stdout


def test_control_characters_are_escaped_on_the_page() -> None:
    assert report._printable("a\udcff\x1b\r\n\tb") == "a\\udcff\\x1b\n\tb"
