"""How fills are applied: commits, and git in a hook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dg_lsp.batch import git as product_git
from tests import marked
from tests.batch.conftest import STUB
from tests.batch.test_batch_commands import report, run
from tests.batch.test_batch_process import ROOT
from tests.processes import git

ROWS = marked.rows(Path(__file__).with_name("hooks.txt"))

TWO = STUB + "\n\n" + STUB.replace("f()", "g()")
FILLED_TWO = TWO.replace("raise NotImplementedError", "return 1")


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


def hook(repository: Path, script: str, name: str = "pre-commit") -> None:
    path = repository / ".git" / "hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_that_the_user_may_not_write_stays_and_another_keeps_its_group() -> None:
    us, ours, shared, another = 5555, 5556, 5557, 6666
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, owner, group, mode in (
            ("own", us, ours, 0o640),
            ("shared", another, shared, 0o660),
            ("x", another, shared, 0o644),
        ):
            (folder / file).write_text("old")
            os.chown(folder / file, owner, group)
            (folder / file).chmod(mode)
        folder.chmod(0o777)
        code = f"""
import encodings.idna, os
from pathlib import Path
from dg_lsp.batch import write
os.setgroups([{shared}])
os.setgid({ours})
os.setuid({us})  # after the imports, because another user may not read dg-lsp
for path in sorted(Path({name!r}).iterdir()):
    try:
        write.replace(path, b"new", expected=b"old")
    except write.WriteError as error:
        print(error)
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("the file is read-only\n", "")
        found = {path.name: (path.read_text(), path.stat().st_gid) for path in folder.iterdir()}
        assert found == {"own": ("new", ours), "shared": ("new", shared), "x": ("old", shared)}


def test_all_files_are_one_commit_of_nothing_else(repository: Path) -> None:
    (repository / "other.txt").write_text("mine")
    git("add", "other.txt")
    assert run(".", "--commit").exit_code == 0
    assert subjects() == ["fill 3 holes in 2 files"]
    assert git("status", "--porcelain") == "A  other.txt", "what was staged stays staged, and uncommitted"


@pytest.mark.parametrize("how", ["LITERAL", "GLOB", "NOGLOB", "ICASE"])
def test_a_name_is_no_pattern_whatever_git_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv(f"GIT_{how}_PATHSPECS", "1")
    assert run("a.py", "--commit").exit_code == 0
    assert subjects() == ["fill 2 holes in 1 file"]


@pytest.mark.parametrize("name", ["b c.py", "*.py", ":b.py", "-b.py", "ä.py"])
def test_a_name_is_no_pattern(repository: Path, name: str) -> None:
    (repository / name).write_text(STUB)
    git("add", f"./{name}")
    git("commit", "-qm", "a name")
    assert run(f"./{name}", "--commit").exit_code == 0
    assert git("-c", "core.quotePath=off", "show", "--format=", "--name-only") == name


@pytest.mark.parametrize(("prepared", "reason"), ROWS["not alone"])
def test_a_file_that_cannot_be_committed_alone_is_not_changed(repository: Path, prepared: str, reason: str) -> None:
    subprocess.run(prepared, shell=True, check=True)
    before = (repository / "b.py").read_text()
    result = run("a.py", "b.py", "--commit")
    assert (result.exit_code, subjects()[-1]) == (1, "fill 2 holes in 1 file")
    assert f"b.py:3:5: not filled: {reason}\n" in result.stderr
    assert (repository / "b.py").read_text() == before


FORMAT = "sed -i 's/return 1/return  1/' a.py"
WRAP = "sed -i 's/return 1/return (\\n        1\\n    )/' a.py"


@pytest.mark.parametrize(("name", "script", "prepared", "named", "status"), ROWS["more"])
def test_what_a_hook_adds_to_the_commit_is_named_and_in_the_index(
    repository: Path, name: str, script: str, prepared: str, named: str, status: str
) -> None:
    (repository / "o.txt").write_text("o\n")
    git("add", "o.txt")
    git("commit", "-qm", "other")
    subprocess.run(prepared, shell=True, check=True)
    hook(repository, f"{FORMAT}; git add a.py; {script}", name)
    result = run("a.py", "--commit")
    assert result.exit_code == 0 or "was changed by a hook" in result.stderr
    message = f"a hook changed other files in HEAD of {repository}: {named}\n"
    assert (message in result.stderr) if named else ("other files" not in result.stderr)
    assert git("status", "--porcelain") == status


@pytest.mark.parametrize(
    ("script", "committed", "text", "note"),
    [
        ("echo the hook >&2; echo says no; exit 1", False, FILLED_TWO, "is written, but not committed: git commit: "),
        (
            f"{FORMAT}; echo formatted 1 file; exit 1",
            False,
            FILLED_TWO.replace("return 1", "return  1"),
            "is written, but not committed: git commit: formatted 1 file; was changed by a hook after it was filled",
        ),
        (
            f"{FORMAT}; git add a.py",
            True,
            FILLED_TWO.replace("return 1", "return  1"),
            "was changed by a hook after it was filled",
        ),
        (
            f"sed -i '1i import os' a.py; {WRAP}; git add a.py",
            True,
            "import os\n" + FILLED_TWO.replace("return 1", "return (\n        1\n    )"),
            "was changed by a hook after it was filled",
        ),
    ],
    ids=["refuses", "formats and refuses", "formats and adds", "imports and wraps"],
)
def test_what_is_reported_after_a_hook_is_in_the_file(
    repository: Path, script: str, committed: bool, text: str, note: str
) -> None:
    hook(repository, script)
    about = report("a.py", "--commit", "--patch", "a.diff")
    assert (repository / "a.py").read_text() == text
    assert about["summary"]["filled"] == 2
    assert [file["status"] for file in about["files"]] == ["noted"]
    assert note in about["files"][0]["reason"]
    assert len(subjects()) == committed
    if committed:
        assert git("show", "HEAD:a.py") == text.strip()
    git("checkout", "-q", "HEAD~1" if committed else "HEAD", "--", "a.py")
    git("apply", "a.diff")
    assert (repository / "a.py").read_text() == text


def test_a_refused_commit_is_named_with_the_words_of_the_hook(repository: Path) -> None:
    hook(repository, "echo the hook >&2; echo says no; exit 1")
    result = run(".", "--commit")
    assert (result.exit_code, subjects()) == (1, [])
    assert f"nothing is committed in {repository}: git commit: the hook says no\n" in result.stderr
    assert "wrote 3 of 3 holes" in result.stderr


@pytest.mark.parametrize("text", ["pass", "raise NotImplementedError", "...", ""])
@pytest.mark.parametrize("ending", ["exit 1", "git add a.py"], ids=["refuses", "adds"])
def test_a_fill_that_a_hook_removes_is_not_filled(repository: Path, text: str, ending: str) -> None:
    hook(repository, f"sed -i '0,/return 1/s//{text}/' a.py; echo no fill there; {ending}")
    result = run("a.py", "--commit", "--patch", "a.diff")
    why = "; git commit: no fill there" if ending == "exit 1" else ""
    assert (result.exit_code, len(subjects())) == (1, not why)
    assert f"a.py:3:5: not filled: a hook removed the fill{why}\n" in result.stderr
    assert "wrote 1 of 2 holes" in result.stderr
    after = (repository / "a.py").read_text()
    git("checkout", "-q", "main~0" if why else "main~1", "--", "a.py")
    git("apply", "a.diff")
    assert (repository / "a.py").read_text() == after


def test_fills_that_a_hook_removes_are_not_called_written(repository: Path) -> None:
    hook(repository, "git show HEAD:a.py >a.py; echo no fills here; exit 1")
    result = run("a.py", "--commit")
    assert (result.exit_code, (repository / "a.py").read_text()) == (1, TWO)
    assert "a.py:3:5: not filled: a hook removed the fill; git commit: no fills here\n" in result.stderr
    assert "wrote 0 of 2 holes" in result.stderr
    assert "are written" not in result.stderr
    assert "was changed" not in result.stderr


@pytest.mark.parametrize("ending", ["exit 1", "exit 0"])
def test_a_file_that_a_hook_removes_is_not_filled(repository: Path, ending: str) -> None:
    hook(repository, f"rm a.py; {ending}")
    result = run("a.py", "--commit", "--patch", "a.diff")
    assert (result.exit_code, (repository / "a.diff").read_text().count("@@")) == (1, 0)
    assert "a.py:3:5: not filled: the file can't be read after the commit: No such file or directory" in result.stderr
    assert "wrote 0 of 2 holes" in result.stderr


@pytest.mark.parametrize(("name", "script", "committed", "filled", "note"), ROWS["reported"])
def test_what_is_reported_after_a_hook_is_in_the_files_and_in_the_commit(
    repository: Path, name: str, script: str, committed: str, filled: str, note: str
) -> None:
    n_filled = int(filled)
    hook(repository, script, name)
    result = run(".", "--commit", "--json")
    assert committed.format(repository) in result.stderr
    about = json.loads(result.stdout)
    assert about["summary"]["filled"] == n_filled
    assert {file["reason"][: len(note)] for file in about["files"]} == ({note} if note else set())
    assert result.exit_code == (n_filled != 3 or bool(note))
    assert sum((repository / each).read_text().count("return 1") for each in ("a.py", "b.py")) == n_filled


def test_a_commit_of_a_file_that_git_stores_in_another_form_is_known(repository: Path) -> None:
    for name in ("clean", "smudge"):
        git("config", f"filter.rot.{name}", "tr a-z n-za-m")
    (repository / ".gitattributes").write_text("a.py filter=rot\n")
    git("add", "--renormalize", ".", ".gitattributes")
    git("commit", "-qm", "filter")
    result = run("a.py", "--commit")
    assert (result.exit_code, subjects()[-1]) == (0, "fill 2 holes in 1 file"), result.stderr
    assert "erghea 1" in git("cat-file", "blob", "HEAD:a.py")


def test_a_key_that_interrupts_ends_no_command_but_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text(f"#!{sys.executable}\nimport os\nprint(os.getpgrp())\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ran = [product_git.read(tmp_path, "ls-files"), product_git.run(tmp_path, "reset"), product_git.run(tmp_path, "commit")]
    assert [int(group) == os.getpgrp() for group in ran] == [False, False, True]


def test_a_lock_of_git_is_named_with_the_way_out(repository: Path) -> None:
    (repository / ".git" / "index.lock").touch()
    result = run("a.py", "--commit")
    assert (result.exit_code, subjects()) == (1, [])
    assert f"Unable to create '{repository}/.git/index.lock': File exists." in result.stderr
    assert "remove the file manually to continue." in result.stderr


def test_a_detached_head_is_reported(repository: Path) -> None:
    git("checkout", "-q", "--detach")
    result = run("b.py", "--commit")
    assert (result.exit_code, subjects()) == (0, ["fill 1 hole in 1 file"])
    assert f"dg-lsp: HEAD is detached in {repository}: run git branch" in result.stderr


def test_a_commit_outside_a_repository_is_refused(stubbed: Path) -> None:
    result = run("a.py", "--commit")
    assert (result.exit_code, (stubbed / "a.py").read_text()) == (1, STUB)
    assert result.stderr.startswith("dg-lsp: filling\ndg-lsp: a.py:3:5: not filled: the file is not in a git repository\n")


def test_the_first_commit_of_a_repository_has_no_fills(stubbed: Path) -> None:
    git("init", "-q")
    git("add", ".")
    assert (run("a.py", "--commit").exit_code, (stubbed / "a.py").read_text()) == (1, STUB)


def test_a_workspace_inside_a_repository_is_committed_to_it(repository: Path) -> None:
    (repository / "part").mkdir()
    (repository / "part" / ".dg-lsp.toml").write_text("")
    (repository / "part" / "c.py").write_text(STUB)
    git("add", "part")
    git("commit", "-q", "-m", "part")
    result = run("part/c.py", "--commit")
    assert (result.exit_code, subjects()) == (0, ["part", "fill 1 hole in 1 file"])


# --- In a hook, git's variables name the hook's repository.


def test_a_check_sees_no_variable_that_git_sets_for_a_hook(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["AUTHOR_DATE", "EDITOR", "EXEC_PATH", "REFLOG_ACTION", "PUSH_OPTION_COUNT"]
    for name in (*(f"GIT_{each}" for each in names), "GITHEAD_abc", *git("rev-parse", "--local-env-vars").split()):
        monkeypatch.setenv(name, "1")
    assert run("a.py", "--all", "--check", "! env | grep -q ^GIT.*=1").exit_code == 0
    monkeypatch.undo()
    monkeypatch.chdir(repository)
    monkeypatch.setenv("GIT_EXEC_PATH", "/of/an/alias")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "of the user")
    assert run("a.py", "--all", "--check", 'test "$GIT_AUTHOR_NAME" = "of the user"').exit_code == 0


OTHER = """
rm -rf "$TMPDIR/other"; git init -q "$TMPDIR/other" && cd "$TMPDIR/other" && echo x >x && git add x
git -c user.name=n -c user.email=e@x commit -qm "of the test"
"""


@pytest.mark.parametrize("dir_too", [False, True], ids=["index", "index and folder"])
def test_a_check_in_a_hook_of_a_linked_worktree_has_its_own_git(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, dir_too: bool
) -> None:
    linked = tmp_path_factory.mktemp("linked") / "tree"
    git("worktree", "add", "-q", "-b", "topic", str(linked))
    folder = repository / ".git" / "worktrees" / "tree"
    monkeypatch.chdir(linked)
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
    before = (folder / "index").read_bytes(), git("rev-parse", "main", "topic"), git("config", "--list", "--local")
    with monkeypatch.context() as hooked:
        hooked.setenv("GIT_INDEX_FILE", str(folder / "index"))
        if dir_too:
            hooked.setenv("GIT_DIR", str(folder))
        result = run("a.py", "--write", "--all", "--changed-since", "HEAD~0", "--check", OTHER + "false")
        assert "--changed-since" in result.stderr, "nothing has changed"
        result = run("a.py", "--write", "--all", "--check", OTHER)
    assert "wrote 2 of 2 holes" in result.stderr
    assert (folder / "index").read_bytes() == before[0]
    assert (git("rev-parse", "main", "topic"), git("config", "--list", "--local")) == before[1:]
    assert git("status", "--porcelain") == "M a.py"


@pytest.mark.parametrize(
    ("revision", "words"),
    [("gone", "git knows no such revision in "), ("HEAD", "detected dubious ownership in repository at ")],
)
def test_a_revision_that_cannot_be_compared_is_explained(
    repository: Path, monkeypatch: pytest.MonkeyPatch, revision: str, words: str
) -> None:
    if revision == "HEAD":
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    result = run(".", "--changed-since", revision)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--changed-since {revision}: " in result.stderr
    assert words in result.stderr
    assert revision == "gone" or "safe.directory" in result.stderr, "the way out"
    # The environment of a container may trust it, with other settings of git's.
    pairs = {"KEY_0": "core.pager", "VALUE_0": "cat", "KEY_1": "safe.directory", "VALUE_1": "*", "COUNT": "2"}
    # So may `git -c`, as it is written since git 2.31 and was before.
    for settings in (pairs, {"PARAMETERS": "'core.pager'='cat' 'safe.directory'='*'"}, {"PARAMETERS": "'safe.directory=*'"}):
        with monkeypatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(f"GIT_CONFIG_{name}", value)
            assert (run(".", "--changed-since", revision).exit_code == 2) == (revision == "gone")


@pytest.mark.parametrize(
    ("how", "words", "way_out"),
    [
        (
            "--depth=1",
            "git knows no such revision in {}; this is a shallow clone: `git fetch --unshallow` in it",
            ("fetch", "-q", "--unshallow"),
        ),
        (
            "--filter=tree:0",
            "; this is a partial clone: `git diff --quiet HEAD~1` in it fetches what it lacks",
            ("diff", "--quiet", "HEAD~1"),
        ),
        ("--filter=blob:none", "", ()),
    ],
)
def test_a_clone_without_the_history_is_compared_or_explained(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    how: str,
    words: str,
    way_out: tuple[str, ...],
) -> None:
    (repository / "a.py").write_text(TWO + "# changed\n")
    git("commit", "-qam", "second")
    git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path_factory.mktemp("clones") / "clone"
    git("clone", "-q", how, f"file://{repository}", str(clone))
    monkeypatch.chdir(clone)
    (clone / "b.py").touch()
    if words:
        result = run(".", "--changed-since", "HEAD~1")
        assert (result.exit_code, result.stdout) == (2, "")
        assert words.format(clone) in result.stderr
        for unknown in ("nonsense", "HEAD@{9}"):
            assert "partial clone" not in run(".", "--changed-since", unknown).stderr, "it knows all revisions"
        subprocess.run(["git", *way_out], check=False)
    result = run(".", "--changed-since", "HEAD~1")
    assert (result.exit_code, result.stdout.count("+++ "), "a.py" in result.stdout) == (0, 1, True), result.stderr


@pytest.mark.parametrize("revision", ["", "HEAD"])
def test_a_pipe_that_git_waits_for_does_not_block(repository: Path, monkeypatch: pytest.MonkeyPatch, revision: str) -> None:
    monkeypatch.setattr("dg_lsp.batch.git._SECONDS", 0.5)
    os.mkfifo(repository / "pipe")
    git("config", "core.excludesFile", str(repository / "pipe"))
    result = run(".", "--all", *(("--changed-since", revision) if revision else ("--check", "true")))
    assert result.exit_code == (2 if revision else 0), result.stderr
    assert ("it took longer than 0.5 s" in result.stderr) == bool(revision)
