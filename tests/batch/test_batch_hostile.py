"""Faulty trees and processes: each is reported in one line, and no data is lost."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import marked
from tests.batch.conftest import STUB
from tests.batch.test_batch_commands import FILLED, run
from tests.batch.test_batch_process import SCRIPTED, environment
from tests.processes import git

ROWS = marked.rows(Path(__file__).with_name("misbehaving.txt"))


def test_a_tree_with_many_faults_is_filled_where_possible(project: Path) -> None:
    (project / "good.py").write_text(STUB)
    (project / "utf16.py").write_bytes(STUB.encode("utf-16"))
    (project / "utf16be.py").write_bytes(STUB.encode("utf-16-be"))
    (project / "latin.py").write_bytes(STUB.encode() + b"# \xe4\n")
    (project / "mark.py").write_bytes(b"\xef\xbb\xbf" + STUB.replace("\n", "\r\n").encode())
    (project / "conflict.py").write_text(f"{STUB}<<<<<<< ours\nx = 1\n=======\nx = 2\n>>>>>>> theirs\n")
    (project / "binary.py").write_bytes(b"\x7fELF\0\0")
    (project / "heading.py").write_text(f"'''\nTitle\n=======\n'''\n{STUB}")
    with (project / "huge.py").open("wb") as file:
        file.truncate(50 << 20)
    (project / "loop").symlink_to(".")
    (project / "loop.py").symlink_to("loop.py")
    (project / "gone.py").symlink_to("nowhere.py")
    os.mkfifo(project / "pipe.py")
    result = run(".", "--write")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines()[:-1] == [
        "dg-lsp: skipped binary.py: it is binary",
        "dg-lsp: skipped conflict.py: it contains the markers of a merge conflict (line 4); resolve it first",
        "dg-lsp: skipped gone.py: it is a link to a file that does not exist",
        "dg-lsp: skipped huge.py: it is larger than 1024 KiB",
        f"dg-lsp: skipped latin.py: it is not UTF-8 (byte {len(STUB) + 2})",
        "dg-lsp: skipped loop.py: it is a link in a loop of links",
        "dg-lsp: skipped pipe.py: it is not a regular file",
        "dg-lsp: skipped utf16.py: it is UTF-16, and only UTF-8 can be filled",
        "dg-lsp: skipped utf16be.py: it is binary",
        "dg-lsp: filling (0 of 3)",
    ]
    assert (project / "good.py").read_text() == FILLED
    assert (project / "mark.py").read_bytes() == b"\xef\xbb\xbf" + FILLED.replace("\n", "\r\n").encode()


@pytest.mark.parametrize("has_git", [False, True])
def test_unreadable_files_and_folders_are_named(project: Path, has_git: bool) -> None:
    unprivileged: list[str] = []
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root reads every file, and setpriv is not installed")
        unprivileged = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    for name in ("good.py", "closed.py", "shut/a.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(STUB)
    if has_git:
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
        subprocess.run(["git", "add", "."], cwd=project, check=True)
    (project / "closed.py").chmod(0)
    (project / "shut").chmod(0)
    command = [*unprivileged, sys.executable, "-c", SCRIPTED, "fills", "infill", ".", "--check", "true", "--all"]
    result = subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True, check=False)
    (project / "shut").chmod(0o700)
    lacking = project / ("shut/a.py" if has_git else "shut")
    assert result.stderr.splitlines()[:-1] == [
        "dg-lsp: skipped closed.py: it can't be read: permission denied",
        "dg-lsp: skipped shut: it can't be read: permission denied",
        "dg-lsp: filling",
        f"dg-lsp: the copy for --check lacks {project / 'closed.py'}: permission denied",
        f"dg-lsp: the copy for --check lacks {lacking}: permission denied",
    ]
    assert "+++ b/good.py" in result.stdout


def test_another_repository_is_filled_checked_and_committed_only_if_it_is_named(project: Path) -> None:
    other, main = project / "other", project / "main"
    for folder in (other, main):
        folder.mkdir()
        git("init", "-q", "-b", "main", cwd=folder)
        (folder / "a.py").write_text(STUB)
        git("add", ".", cwd=folder)
        git("commit", "-qm", "first", cwd=folder)
    git("submodule", "add", "-q", str(other), "sub", cwd=main)
    git("commit", "-qm", "submodule", cwd=main)
    git("worktree", "add", "-q", "tree", cwd=main)
    git("clone", "-q", str(other), "deep/clone", cwd=main)
    python = shlex.quote(sys.executable)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(main)
        for name, value in (("NAME", "n"), ("EMAIL", "e@x")):
            patch.setenv(f"GIT_AUTHOR_{name}", value)
            patch.setenv(f"GIT_COMMITTER_{name}", value)
        result = run(".", "--commit")
        assert "dg-lsp: skipped sub, tree, deep/clone: each is another repository; name its path to fill it\n" in result.stderr
        assert "wrote 1 of 1 hole" in result.stderr
        assert git("log", "--format=%s", "-1", cwd=main) == "fill 1 hole in 1 file"
        assert [(main / name / "a.py").read_text() for name in ("sub", "tree", "deep/clone")] == [STUB] * 3
        assert run(".", "sub").stdout.count("+++ ") == 1, "a folder that is named too is not left out"
        command = f"cd sub; {python} -c 'import a; assert a.f() == 1'"
        result = run("sub", "--commit", "--check", command)
    assert result.exit_code == 0, result.output
    assert "wrote 1 of 1 hole (1 verified)" in result.stderr
    assert git("log", "--format=%s", "-1", cwd=main / "sub") == "fill 1 hole in 1 file"
    assert git("log", "--format=%s", "-1", cwd=main) == "fill 1 hole in 1 file"


@pytest.mark.parametrize(("command", "sentence"), ROWS["checks"])
def test_a_check_that_misbehaves_is_one_line(stubbed: Path, command: str, sentence: str) -> None:
    seconds = "0.5" if "sleep" in command else "200"  # on a busy machine, even the commands that end may take seconds
    result = run("a.py", "--write", "--check", command, "--check-timeout", seconds, "--retries", "0", "--candidates", "1")
    [line] = [line for line in result.stderr.splitlines() if "a.py:3:5" in line] or [""]
    assert sentence in line
    assert (stubbed / "a.py").read_text() == (STUB if sentence else FILLED)


def test_a_path_that_cannot_be_looked_up_is_not_called_missing(project: Path) -> None:
    (project / "around").symlink_to("around")
    result = run("around/app.py")
    assert result.exit_code == 2
    assert "around/app.py can't be read: too many levels of symbolic links" in result.stderr
    assert "there is no" not in result.stderr
