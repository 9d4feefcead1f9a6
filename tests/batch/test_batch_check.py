"""Running a check in a copy: its limits, the end of its processes, and the contents of a copy."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dg_lsp.batch import check, git, scratch
from dg_lsp.batch.check import Check, Verdict
from tests.batch.test_batch_process import SCRIPTED, environment
from tests.processes import is_gone

STUB = 'def f():\n    """Do."""\n    ...\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "pro ject"
    root.mkdir()
    (root / "a.py").write_text(STUB)
    return root


def verdict(root: Path, command: str, seconds: float | None = None, memory_mb: int = 0) -> Verdict:
    with scratch.directory() as folder:
        copy, problems = scratch.copy(root, folder / "0")
        assert not problems
        return asyncio.run(check.run(Check(command, root, seconds, memory_mb), copy, root / "a.py"))


def test_a_check_knows_its_file_and_reports_its_last_line(project: Path) -> None:
    assert verdict(project, 'echo one; test {} = "$DG_LSP_FILE"; echo {}; exit 3').problem == (
        f"the check exited with status 3: {project / 'a.py'}"
    )


@pytest.mark.parametrize(
    ("text", "in_copy"),
    [
        ("{P}", "{C}"),
        ("{P}/", "{C}/"),
        ("{P}/a.py:/bin:{P}/tools", "{C}/a.py:/bin:{C}/tools"),
        ("--cov-config={P}/x.cfg -I{P} -L{P}/tools", "--cov-config={C}/x.cfg -I{C} -L{C}/tools"),
        ("file://{P}/x sqlite:///{P}/x.db", "file://{C}/x sqlite:///{C}/x.db"),
        ("{B}/alias/tools/../a.py", "{C}/a.py"),
        ("/proc/self/cwd/a.py", "{C}/a.py"),
        ("/proc/self/root{P}/a.py:{B}/./alias/a.py:/{P}/a.py", "{C}/a.py:{C}/a.py:/{C}/a.py"),
        ("cd ~/alias/tools; cat $HOME/alias/a.py ${{HOME}}/alias/a.py ~/other", "cd {C}/tools; cat {C}/a.py {C}/a.py ~/other"),
        ("mypy {P} --strict", "mypy {C} --strict"),
        ('cd "$HOME/pro ject" && x "${{HOME}}/pro ject/tools"', 'cd "{C}" && x "{C}/tools"'),
        ("cd ~/pro\\ ject && x", "cd {E} && x"),
        ("cd {B}/pro\\ ject/tools && x ~/pro\\ ject\\ old", "cd {E}/tools && x ~/pro\\ ject\\ old"),
        ("{P} old", "{P} old"),
        ("{P} old/new", "{P} old/new"),
        ("{P}2 /mnt{P} x{P} {P}/../other", "{P}2 /mnt{P} x{P} {P}/../other"),
        ("{P}/elsewhere", "{C}/elsewhere"),
        # What the copy lacks is copied or made, unless it is large, has programs, or is searched.
        ("{P}/target/debug", "{C}/target/debug"),
        ("{P}/new/.coverage", "{C}/new/.coverage"),
        ("{P}/secret/key.json:{P}/secret", "{C}/secret/key.json:{C}/secret"),
        ("{P}/big:{P}/big/x", "{P}/big:{P}/big/x"),
        ("{P}/venv", "{P}/venv"),
        ("{B}/alias/venv/bin", "{B}/alias/venv/bin"),
        ("{P}/my venv/bin:{P}/target", "{P}/my venv/bin:{C}/target"),
        ("PATH={P}/libs:{P}/venv/bin:{P}/tools:{P}/build", "{P}/libs:{P}/venv/bin:{C}/tools:{C}/build"),
    ],
)
def test_a_path_in_the_project_means_that_of_the_copy(
    project: Path, monkeypatch: pytest.MonkeyPatch, text: str, in_copy: str
) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / ".gitignore").write_text("secret\ntarget\n*venv\nlibs\nbig\nelsewhere\n")
    for name in ("target/debug/x", "venv/bin/x", "my venv/bin/x", "secret/key.json", "secret/b", "libs/x", "tools/x", "big/x"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    os.truncate(project / "big" / "x", scratch.MAX_LINKED_BYTES + 1)
    (project.parent / "alias").symlink_to(project)
    project.with_name("pro ject old").mkdir()
    (project.with_name("pro ject old") / "b").touch()
    (project / "elsewhere").symlink_to(project.with_name("pro ject old"))
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(project.parent))
    with scratch.directory() as folder:
        copy, _ = scratch.copy(project, folder / "0")
        places = {"P": project, "C": copy.root, "B": project.parent, "E": str(copy.root).replace(" ", "\\ ")}
        for _ in range(2):  # folders that were made for a check change nothing for the next one
            is_searched = text.startswith("PATH=")
            found = copy.text_in_copy(text.removeprefix("PATH=").format(**places), is_searched=is_searched)
            assert found == in_copy.format(**places)
            if (place := Path(found.rpartition(":")[2])).name in ("debug", "secret", "elsewhere"):
                assert place.is_dir()
                assert (place / "b").exists() is (place.name != "debug")
            assert copy.too_large == {project / "big" for _ in [text] if "big" in text}


def test_a_check_runs_in_the_folder_of_the_copy_that_corresponds(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    assert "/dg-lsp-check-" in verdict(project, 'test "$(printenv HOME)" != "$PWD" && pwd | sed s,/dg,X/dg,').output


def test_a_hanging_check_is_ended_with_its_child_processes(project: Path, tmp_path: Path) -> None:
    pids = shlex.quote(str(tmp_path / "pids"))
    # One child process in the check's group, and one outside of it.
    command = f"sleep 1000 & echo $! > {pids}; setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' & wait"
    while True:
        assert verdict(project, command, 0.5).problem == "the check took longer than 0.5 s"
        numbers = (tmp_path / "pids").read_text().split()
        if len(numbers) == 2:  # on a busy machine the second may not have started
            break
    assert all(is_gone(int(number)) for number in numbers)


@pytest.mark.parametrize(
    ("tests", "option"),
    [
        (["t.a::test_b", "t.C::test_a[x::y z]", "t.D::test_a[1]"], "-k 'test_a or test_b'"),
        (["t.a::test_a", "::t.a"], ""),  # a file that can't be imported
        (["t.a::not"], ""),
        ([f"t.a::test_{n}" for n in range(201)], ""),
        ([], ""),
    ],
)
def test_tests_are_selected_by_the_names_of_their_functions(tests: list[str], option: str) -> None:
    assert check.selection(tests) == option


@pytest.mark.parametrize("how", ["", "env -i"])
def test_processes_that_a_check_leaves_running_are_ended(project: Path, tmp_path: Path, how: str) -> None:
    pid = tmp_path / "pid"
    assert verdict(project, f"{how} setsid sleep 1000 & echo $! > {shlex.quote(str(pid))}").problem == ""
    assert is_gone(int(pid.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux alone")
def test_a_check_that_takes_too_much_memory_ends(project: Path) -> None:
    python = shlex.quote(sys.executable)
    assert "MemoryError" in verdict(project, f"{python} -c 'x = bytearray(900 << 20)'", 60, 300).problem
    # Each process is below the limit, but all together are above it.
    one = f"{python} -c 'import time; x = bytearray(b\"1\") * (80 << 20); time.sleep(1000)'"
    assert verdict(project, " & ".join([one] * 4) + " & wait", 600, 200).problem == (
        "the check took more than 200 MiB of memory"
    )


def test_a_check_that_prints_without_end_is_ended(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_OUTPUT_BYTES", 1 << 20)
    assert verdict(project, "yes").problem == "the check printed more than 1 MiB"


def test_a_copy_contains_tracked_files_and_generated_files_between_them(project: Path) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / ".gitignore").write_text("build/\n_version.py\nnode_modules/\n.venv/\n*.log\n")
    for name in (
        "build/x.o",
        "_version.py",
        "node_modules/m/index.js",
        ".venv/bin/python",
        "new.py",
        "sub/deep.py",
        "sub/.git",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    (project / "inside").symlink_to(project / "a.py")
    (project / "nowhere").symlink_to("../elsewhere")
    os.mkfifo(project / "pipe")
    with scratch.directory() as folder:
        copy, problems = scratch.copy(project, folder / "0")
        names = {path.relative_to(copy.root).as_posix() for path in copy.root.rglob("*") if not path.is_dir()}
        assert problems == []
        assert names == {
            "a.py", ".gitignore", "_version.py", "node_modules/m/index.js", "new.py", "sub/deep.py", "inside"
        }  # fmt: skip
        assert (copy.root / "inside").resolve() == copy.root / "a.py"
        scratch_copy, _ = scratch.copy(project, folder / "1", ".venv/bin/python -m pytest build")
        assert (scratch_copy.root / ".venv" / "bin" / "python").exists()
        assert (scratch_copy.root / "build" / "x.o").exists()
    assert not folder.exists()


def test_a_copy_has_no_link_out_but_that_to_an_environment_s_python(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "worktrees").mkdir(parents=True)
    interpreters = ("python3.11", "python3.13d", "python3.14td", "graalpy", "pypy3.11")
    for name in ("notes.txt", "tool", *interpreters):
        (outside / name).write_text("x")
    (project / "env" / "bin").mkdir(parents=True)
    (project / "env" / "pyvenv.cfg").touch()
    targets = {"python": "python3.11", "python3": "tool", "python_notes.txt": "notes.txt", "pip": "tool"}
    for name, target in {**targets, **dict(zip(interpreters, interpreters, strict=True))}.items():
        (project / "env" / "bin" / name).symlink_to(outside / target)
    for name, git_dir in {"worktree": "worktrees", "node_modules/m": "worktrees"}.items():
        (project / name).mkdir(parents=True)
        (project / name / ".git").write_text(f"gitdir: {outside / git_dir}\n")
    (project / "linked").mkdir()
    (project / "linked" / ".git").symlink_to(outside / "tool")
    with scratch.directory() as folder:
        copy, _ = scratch.copy(project, folder / "0", "test linked/.git")
        links = {path.name for path in copy.root.rglob("*") if path.is_symlink()}
        assert links == {"python", *interpreters}
        assert (copy.root / "env" / "bin" / "python3").read_text() == "x"
        assert not list(copy.root.rglob(".git"))


@pytest.mark.parametrize(
    ("link", "target", "is_kept"),
    [
        (".bin/jest", "../jest/cli.js", True),
        ("jest", ".pnpm/jest@1/node_modules/jest", True),  # named in the command
        (".pnpm/jest@1/node_modules/core", "../../core@1/node_modules/core", True),
        ("tool.js", "../tool.js", False),
        ("packages", "../packages", False),
    ],
)
def test_a_folder_that_a_link_leads_to_has_its_own_links(project: Path, link: str, target: str, is_kept: bool) -> None:
    main = project.with_name("main") / "node_modules"
    place = (main / link).parent / target
    place = Path(os.path.normpath(place if place.suffix else place / "index.js"))
    for path in (place, main / link):
        path.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("x")
    (main / link).symlink_to(target)
    (project / "node_modules").symlink_to("../main/node_modules")
    with scratch.directory() as folder:
        copy, _ = scratch.copy(project, folder / "0", "npx jest")
        copied = copy.root / "node_modules" / link
        assert copied.is_symlink() is is_kept
        assert copied.exists() is (link != "packages")
        assert not is_kept or copied.resolve() == (copied.parent / target).resolve()


@pytest.mark.parametrize(
    ("name", "text", "in_copy"),
    [
        (".venv/bin/pip", "#!{P}/.venv/bin/python\nimport sys  # a//b\r\n", "#!{C}/.venv/bin/python\nimport sys  # a//b\r\n"),
        (".venv/bin/activate", "VIRTUAL_ENV='{P}/.venv'", "VIRTUAL_ENV='{C}/.venv'"),
        (".venv/pyvenv.cfg", "home = /usr/bin\ncommand = python -m venv {P}/.venv\n", None),
        (".venv/lib/x.dist-info/direct_url.json", '{{"url": "file://{P}"}}', '{{"url": "file://{C}"}}'),
        (".venv/lib/_x.pth", "{P}/src\n{P}/ignored\n", "{C}/src\n{C}/ignored\n"),
        (".venv/lib/__editable___x_finder.py", "MAPPING = {{'x': '{P}/src/x'}}\n", "MAPPING = {{'x': '{C}/src/x'}}\n"),
        (".venv/bin/other", "#!{P}/venv/bin/python\n", "#!{P}/venv/bin/python\n"),  # of an environment that is not copied
        (".venv/bin/program", "\0{P}/.venv", "\0{P}/.venv"),
        (".venv/lib/x.py", "a = '{P}/.venv'", "a = '{P}/.venv'"),
        ("node_modules/.bin/x", '#!/bin/sh\nNODE_PATH="{P}/node_modules/x:$NODE_PATH"\n', None),
    ],
)
def test_a_copied_environment_is_of_the_copy(project: Path, name: str, text: str, in_copy: str | None) -> None:
    for each in ("src/a.py", ".venv/bin/python", "venv/bin/python", name):
        (project / each).parent.mkdir(parents=True, exist_ok=True)
        (project / each).write_bytes(text.format(P=project).encode())
    with scratch.directory() as folder:
        copy, _ = scratch.copy(project, folder / "0", ".venv/bin/pip install -e .")
        expected = (in_copy or text.replace("{P}", "{C}")).format(P=project, C=copy.root)
        assert copy.path_of(project / name).read_bytes().decode() == expected
        copy.path_of(project / name).write_text("changed")
        copy.restore()
        assert copy.path_of(project / name).read_bytes().decode() == expected


def test_a_project_without_a_repository_of_its_own_is_copied_whole(project: Path) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / ".gitignore").write_text("ignored/\n")
    own = project / "ignored"
    for name in (".git", ".hg", ".jj/repo", "pkg"):
        (own / name).mkdir(parents=True)
    for name in ("a.py", "pkg/b.py", ".hg/store", ".jj/repo/store"):
        (own / name).write_text("x")
    with scratch.directory() as folder:
        copy, problems = scratch.copy(own, folder / "0")
        assert problems == []
        assert sorted(path.name for path in copy.root.rglob("*") if path.is_file()) == ["a.py", "b.py"]
    with pytest.raises(git.GitError):  # not of the repository around it
        git.run(own, "status")


def test_a_hard_link_to_the_original_is_replaced(project: Path) -> None:
    with scratch.directory() as folder:
        copy, _ = scratch.copy(project, folder / "0")
        (copy.root / "a.py").unlink()
        (copy.root / "a.py").hardlink_to(project / "a.py")
        copy.restore()
        (copy.root / "a.py").write_text("changed in place")
    assert (project / "a.py").read_text() == STUB


STRANGE = "[pytest]\naddopts = --strange\n"
FAILS = "raise RuntimeError\n"


@pytest.mark.parametrize(
    ("temporary", "above"),
    [
        ({"pytest.ini": STRANGE}, {}),
        ({"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--strange'\n"}, {}),
        ({"setup.cfg": STRANGE.replace("pytest", "tool:pytest")}, {"deep/conftest.py": FAILS}),
        ({"setup.py": "", "conftest.py": FAILS}, {}),
        (
            {"pytest.ini": STRANGE},
            {"pytest.ini": "[pytest]\npython_files = a.py\n", "conftest.py": ""},
        ),
        (
            {"Cargo.toml": "[workspace]\n"},
            {"tox.ini": "[pytest]\n", "conftest.py": ""},
        ),
        # What such a file imports is beside the original.
        (
            {"setup.py": ""},
            {"conftest.py": "import kit, pack.more", "kit.py": "", "pack/more.py": "import deep.project.a as a; a.test_a"},
        ),
        ({"package.json": '{"type": "module"}'}, {"setup.py": "", "conftest.py": "import os; os.environ['USED'] = '1'"}),
        ({"node_modules/a.js": "", "conftest.py": ""}, {"pyproject.toml": "[tool.uv.workspace]\nmembers = ['other']\n"}),
    ],
)
def test_settings_above_a_project_apply_to_its_copy_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: dict[str, str], above: dict[str, str]
) -> None:
    project = tmp_path / "above" / "deep" / "project"
    for folder, texts in (("tmp", temporary), ("above", above)):
        for name, text in texts.items():
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(text)
    project.mkdir(parents=True)
    for name in ("a.py", "test_a.py"):
        (project / name).write_text("def test_a(pytestconfig):\n    print('root:', pytestconfig.rootpath)\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    command = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {shlex.quote(sys.executable)} -m pytest -sq -p no:cacheprovider"
    at_home = subprocess.run(command, shell=True, cwd=project, capture_output=True, text=True, check=False)
    copies: list[Path] = []

    async def checked() -> Verdict:
        with check.open_copies(Check(command, folder=project), 1, pytest.fail) as open_copies:
            async with open_copies.taken(project) as copy:
                copies.append(copy.root)
                return await check.run(open_copies.check, copy, project / "a.py")

    result = asyncio.run(checked())
    assert (result.problem, "1 passed" in at_home.stdout) == ("", True), result.output
    [root] = [line for line in at_home.stdout.splitlines() if line.startswith("root: ")]
    [root_of_copy] = [line for line in result.output.splitlines() if line.startswith("root: ")]
    depth = len(project.relative_to(root.removeprefix("root: ")).parts)
    assert root_of_copy == root or root_of_copy == f"root: {copies[0].parents[depth - 1]}"
    assert not copies[0].is_relative_to(tmp_path)


def test_settings_above_all_places_for_copies_are_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_places", lambda: [project.parent / "tmp"])
    (project.parent / "tmp").mkdir()
    (project.parent / "tmp" / "go.work").touch()
    messages: list[str] = []
    with check.open_copies(Check("true", folder=project), 1, messages.append):
        pass
    assert [each.partition(" is above the copies for --check")[0] for each in messages] == [
        str(project.parent / "tmp" / "go.work")
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_settings_of_another_user_above_all_places_for_copies_are_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = project.parent / "tmp"
    monkeypatch.setattr(scratch, "_places", lambda: [place])
    place.mkdir()
    for name, owner in (("conftest.py", 0), ("pytest.ini", 12345)):
        (place / name).touch()
        os.chown(place / name, owner, -1)
    with scratch.directory(place) as folder, pytest.raises(scratch.ScratchError, match=r"pytest\.ini of another user"):
        scratch.copy(project, folder / "0")


def test_a_copy_ends_where_the_project_does_and_its_settings_above_are_restored(project: Path) -> None:
    named = project.rename(project.parent / "output")  # as the log of a check
    (named / ".git").mkdir()
    (named.parent / "mypy.ini").write_text("[mypy]\n")
    (named.parent / "tox.ini").symlink_to("tox.ini")
    with scratch.directory() as folder:
        copy, problems = scratch.copy(named, folder / "0")
        assert problems == []
        assert list((copy.root / ".git").iterdir()) == []
        setting = copy.root.parent / "mypy.ini"
        setting.write_text("changed")
        copy.restore()
        assert setting.read_text() == "[mypy]\n"
        assert asyncio.run(check.run(Check("true"), copy, named / "a.py")).problem == ""


def test_what_a_project_has_is_not_taken_for_copies_left_over(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(project))
    for folder in (project / "dg-lsp-check-1", project.parent / "outside"):
        folder.mkdir(mode=0o700)
        (folder / "lock").touch()
    (project / "dg-lsp-check-2").symlink_to("../outside")
    with scratch.directory():
        assert (project / "dg-lsp-check-1" / "lock").exists()
        assert (project / "dg-lsp-check-2" / "lock").exists()


@pytest.mark.parametrize(
    ("limit", "error", "sentence"),
    [
        (10, None, "to copy for --check"),
        # Filling a real disk would harm other programs, so the system's error is raised instead.
        (scratch.MAX_BYTES, OSError(errno.ENOSPC, "No space left on device"), r"no space left .* or set TMPDIR"),
    ],
)
def test_a_project_that_does_not_fit_is_refused_once(
    project: Path, monkeypatch: pytest.MonkeyPatch, limit: int, error: OSError | None, sentence: str
) -> None:
    def copystat(*_: object) -> None:
        assert error, "nothing is copied that is over the limit"
        raise error

    monkeypatch.setattr(scratch, "MAX_BYTES", limit)
    monkeypatch.setattr("shutil.copystat", copystat)

    async def twice(copies: check.Copies) -> None:
        for n_left in (0, 1):
            with pytest.raises(scratch.ScratchError, match=sentence):
                async with copies.taken(project):
                    pass
            names = {path.name for path in copies.folder.iterdir()}
            assert names == {*["lock", "0"][: n_left + 1]}, "no copy is made again"
            (copies.folder / "0").touch()

    with check.open_copies(Check("true", folder=project), 1, pytest.fail) as copies:
        asyncio.run(twice(copies))


@pytest.mark.parametrize("extra", [[], ["--write"]])
def test_a_run_that_is_killed_leaves_the_project_as_it_was(project: Path, tmp_path: Path, extra: list[str]) -> None:
    (project / "b.py").write_text(STUB)
    pid_pipe = tmp_path / "started"
    os.mkfifo(pid_pipe)
    before = {path.name: path.read_bytes() for path in project.iterdir()}
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = f"echo $$ > {shlex.quote(str(pid_pipe))}; exec sleep 1000"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPTED, "fills", "infill", ".", "--check", command, *extra],
        cwd=project,
        env=environment(TMPDIR=str(temporary)),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    check_pid = int(pid_pipe.read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        assert {path.name: path.read_bytes() for path in project.iterdir()} == before
    finally:
        os.killpg(check_pid, signal.SIGKILL)
    assert list(temporary.iterdir()), "the killed run left its copies"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        with scratch.directory() as folder:
            assert list(temporary.iterdir()) == [folder], "the next one removes them, and not its own"
            with scratch.directory() as other:
                assert set(temporary.iterdir()) == {folder, other}
