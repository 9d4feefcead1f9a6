"""How fills are applied: commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.batch.conftest import STUB
from tests.batch.test_batch_commands import run

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


def test_a_commit_outside_a_repository_is_refused(stubbed: Path) -> None:
    result = run("a.py", "--commit", "file")
    assert (result.exit_code, (stubbed / "a.py").read_text()) == (1, STUB)
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
