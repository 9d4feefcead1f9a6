"""Ignore files of a repository that means harm: devices, pipes, bombs. And that the honest ones mean what git says."""

from __future__ import annotations

import asyncio
import itertools
import os
import string
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dg_lsp.batch import discover
from dg_lsp.core import gitignore
from dg_lsp.core.values import Document
from dg_lsp.infill import ignoring, workspace
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.infill.workspace import ContextReader
from dg_lsp.server.snapshot import Nearby
from dg_lsp.wire import config
from dg_lsp.wire.config import stays_local
from dg_lsp.wire.settings import EVERYTHING
from tests.patience import PATIENCE_S

T = TypeVar("T")

BOMB = "*a" * 40 + "*b\n"


def in_time(work: Callable[[], T]) -> T:
    """Return what the function returns; fail where it does not return at all."""
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert answers, "it never returned"
    return answers[0]


def check_closed(root: Path, reason: str, name: str = ".gitignore") -> None:
    (root / "a.py").write_text("value = 1\n")
    (root / "deep").mkdir()
    for path in ("a.py", "deep/b.py"):
        assert in_time(partial(Ignore.for_root(root).reason, root / path)) == f"is below a {name} that {reason}"
    document = Document("", "python", "value = items\n")
    assert in_time(lambda: workspace.related(root, root / "c.py", document)) == ()


def a_link(path: Path) -> None:
    (path.parent / "rules").write_text("*.log\n")
    path.symlink_to("rules")


HOSTILE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "an endless device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "a link": (a_link, "is not a regular file"),
    "a folder": (Path.mkdir, "is not a regular file"),
    "a pipe": (os.mkfifo, "is not a regular file"),
    "a large file": (lambda path: path.write_text("*.log\n" * 700_000), "is larger than 256 KiB"),
    "many wildcards": (lambda path: path.write_text(BOMB), "has a pattern with more than 32 wildcards"),
}
"""What an ignore file may be, how it is made, and why it closes its folder."""


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", [".gitignore", ".dgignore"])
def test_a_hostile_ignore_file_closes_its_folder(tmp_path: Path, kind: str, name: str) -> None:
    make, reason = HOSTILE[kind]
    make(tmp_path / name)
    check_closed(tmp_path, reason, name)


def test_rules_that_take_too_long_close_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignoring, "MATCH_BUDGET_S", 0.0)
    (tmp_path / ".gitignore").write_text("*.log\n")
    check_closed(tmp_path, "takes too long to read")


def test_many_ignore_files_share_the_time_of_a_request_and_of_a_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By this clock, each file takes less than its own time, and all together take more than theirs.
    clock = itertools.count(0.0, ignoring.MATCH_BUDGET_S / 4)
    folder, paths = tmp_path, list[Path]()
    for number in range(200):
        folder = folder / f"f{number}" if number % 50 else tmp_path / f"f{number}"
        folder.mkdir()
        (folder / ".gitignore").write_text("*.log\n")
        (folder / "a.py").write_text("value = 1\n")
        paths.append(folder / "a.py")
    document = Document("", "python", "value = items\n")
    reason = "is below ignore files that together take too long to read"
    monkeypatch.setattr(ignoring, "time", SimpleNamespace(thread_time=lambda: next(clock)))
    ignore = Ignore.for_root(tmp_path)
    assert ignore.renewed().reason(paths[0]) == ""
    before = next(clock)
    assert ignore.renewed().reason(paths[49]) == reason
    assert next(clock) - before < ignoring.REQUEST_BUDGET_S + 2 * ignoring.MATCH_BUDGET_S
    assert workspace.related(tmp_path, paths[49], document) == ()
    # The next request has its own time.
    assert ignore.renewed().reason(paths[0]) == ""
    before = next(clock)
    *files, skipped_file = discover.files([tmp_path])
    assert next(clock) - before < 3 * ignoring.WALK_BUDGET_S
    assert 0 < len(files) < len(paths)
    assert isinstance(skipped_file, discover.Skipped)
    assert skipped_file.reason == "has ignore files that together take too long to read, so the rest of it is left out"


def test_ignore_files_get_time_for_each_path_of_a_walk_and_little_for_a_few_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, ignoring.MATCH_BUDGET_S / 4)
    (tmp_path / ".git").mkdir()
    paths = [tmp_path / f"f{number}" / "a.py" for number in range(150)]
    for path in paths:
        path.parent.mkdir()
        (path.parent / ".gitignore").write_text("*.log\n")
        path.write_text("value = 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(ignoring, "time", SimpleNamespace(thread_time=lambda: next(clock)))
        *_, skipped_file = discover.files([tmp_path])
        assert next(clock) < 2 * ignoring.WALK_START_S
        assert isinstance(skipped_file, discover.Skipped)
        assert "together take too long" in skipped_file.reason
        # All requests of a run share the time of one walk, too.
        reader, before = ContextReader(), next(clock)
        for path in paths:
            reader.read(path, Document(path.as_uri(), "python", "value = items\n"))
        assert next(clock) - before < 2 * ignoring.WALK_START_S + 3 * ignoring.REQUEST_BUDGET_S
    # A slow but honest ignore file may take five milliseconds for each path of a large repository.
    slow = itertools.count(0.0, ignoring.PATH_S / 8)
    monkeypatch.setattr(ignoring, "time", SimpleNamespace(thread_time=lambda: next(slow)))
    monkeypatch.setattr(ignoring, "WALK_START_S", ignoring.WALK_START_S / 10)
    ignore = Ignore.for_root(tmp_path)
    assert all(ignore.allows(path) for path in paths * 6)
    assert next(slow) > ignoring.WALK_START_S


def test_as_many_wildcards_as_may_be_are_matched_at_once() -> None:
    rules = gitignore.parse("*a" * (gitignore.MAX_STARS - 1) + "*b\n**/" * 10)
    assert in_time(lambda: gitignore.verdict(rules, ("a" * 255,) * 50, is_folder=False)) is None


def test_wide_brackets_are_parsed_at_once() -> None:
    # As characters, not bytes, each of these brackets takes two milliseconds to compile.
    start = time.thread_time()
    assert len(gitignore.parse("[Ā-￿]" * 4_000)) == 1
    assert time.thread_time() - start < 3


def test_brackets_mean_bytes_as_in_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    names = ["é.py", "é.txt", "a.py", "éa.py"]
    text = "*.py\n!?.py\n[é].txt\n!é?.py\n"
    (tmp_path / ".gitignore").write_text(text)
    command = ["git", "-C", str(tmp_path), "check-ignore", "-z", "--stdin"]
    process = subprocess.run(command, input="\0".join(names), capture_output=True, text=True, check=True)
    rules = gitignore.parse(text)
    assert [name for name in names if gitignore.verdict(rules, (name,), is_folder=False)] == process.stdout.split("\0")[:-1]


def test_a_run_of_stars_is_one_star() -> None:
    rules = gitignore.parse("*" * 10_000 + ".log")
    assert gitignore.verdict(rules, ("a.log",), is_folder=False)


def test_patterns_of_the_configuration_can_not_hang_either() -> None:
    pattern = "*a" * (gitignore.MAX_STARS - 1) + "*b"
    assert in_time(lambda: stays_local("a" * 255, (pattern,))) is False
    # What can't be understood keeps everything here.
    assert stays_local("x.py", (BOMB.strip(),)) is True


@pytest.mark.parametrize(
    "pattern", ["vault[", "[[:letters:]]", "vault\\", "#vault", "[z-a]", "./vault/", "a/../vault", "vault//"]
)
def test_a_private_pattern_that_can_never_match_keeps_every_file_here(tmp_path: Path, pattern: str) -> None:
    assert stays_local("x.py", ("other/", pattern)) is True
    (tmp_path / config.WORKSPACE_FILE).write_text(f"privacy.local_only = ['{pattern}']\n")
    config_read, [problem] = config.read(tmp_path, environ={})
    assert "privacy.local_only" in problem
    assert config_read.settings.local_only == EVERYTHING


def check_refused(root: Path, reason: str) -> None:
    config_read, problems = in_time(lambda: config.read(root, environ={}))
    assert problems == (f"{root / config.WORKSPACE_FILE} {reason}",)
    assert config_read.settings.local_only == EVERYTHING


@pytest.mark.parametrize("target", ["/dev/zero", "rules.toml", "nowhere"])
def test_a_workspace_s_configuration_that_is_a_link_is_not_followed(tmp_path: Path, target: str) -> None:
    (tmp_path / "rules.toml").write_text("enable = false\n")
    (tmp_path / config.WORKSPACE_FILE).symlink_to(target)
    check_refused(tmp_path, "is a link, which is not followed. Replace it with a file.")


def test_the_user_s_own_configuration_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles.toml").write_text("engine.threads = 3\n")
    (tmp_path / "config.toml").symlink_to("dotfiles.toml")
    config_read, problems = config.read(environ={"DG_LSP_CONFIG": str(tmp_path / "config.toml")})
    assert (config_read.settings.threads, problems) == (3, ())


DOTS = "has a line with more than 100 dots, which may take too long to read. Split the line."


# tomllib takes hours for the first two, which is no time for an editor to wait in.
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{'a.' * 500_000}a = 1", "is larger than 64 KiB, the limit for a configuration."),
        (f"{'a.' * 30_000}a = 1", DOTS),
        (f"[{'engine.' * 200}a]", DOTS),
    ],
    ids=["a megabyte", "a long key", "a long table"],
)
def test_a_workspace_s_configuration_that_takes_too_long_to_read_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / config.WORKSPACE_FILE).write_text(text)
    check_refused(tmp_path, reason)


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_event_loop_goes_on_while_a_hostile_folder_is_looked_up(tmp_path: Path, kind: str) -> None:
    HOSTILE[kind][0](tmp_path / ".gitignore")

    async def scenario() -> tuple[str, bool]:
        nearby = Nearby(lambda: 0.0)
        nearby.set_roots([tmp_path.as_uri()])
        uri = (tmp_path / "a.py").as_uri()
        threads: list[int] = []
        real = Ignore.reason

        def reason(self: Ignore, path: str | Path) -> str:
            threads.append(threading.get_ident())
            return real(self, path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ignore, "reason", reason)
            refusal = await nearby.look(uri)
        return refusal, threading.get_ident() in threads

    refusal, is_on_the_loop = in_time(lambda: asyncio.run(scenario()))
    assert refusal.startswith("is below a .gitignore that ")
    assert not is_on_the_loop


def test_a_file_is_refused_before_it_has_been_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Nearby, _uri: str, *, is_cell: bool) -> None:
        raise TypeError(is_cell)

    monkeypatch.setattr(Nearby, "_look_up", fail)
    nearby = Nearby(lambda: 0.0)
    nearby.set_roots([tmp_path.as_uri()])
    assert asyncio.run(nearby.look((tmp_path / "a.py").as_uri())) == "has not been looked up yet"


def test_a_look_that_never_ends_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(Ignore, "reason_of_name", lambda _self, _path: release.wait(60) and "")
    monkeypatch.setattr("dg_lsp.server.snapshot.LOOK_S", 0.01)
    nearby = Nearby(lambda: 0.0)
    nearby.set_roots([tmp_path.as_uri()])

    async def scenario() -> str:
        try:
            return await nearby.look((tmp_path / "a.py").as_uri())
        finally:
            release.set()

    assert asyncio.run(scenario()) == "takes too long to look up"


# --- Git's own opinion ------------------------------------------------------------------------------------------------

NAMES = st.text(alphabet="ab.- [!#", min_size=1, max_size=4).filter(lambda name: name.strip(".") and name == name.strip())
PIECES = st.one_of(
    NAMES,
    st.sampled_from(["*", "**", "?", "[ab]", "[!a]", "[^b]", "[a-c]", "[]a]", "[[:alpha:]]", "\\*", "\\#", "\\ ", "*.b", "a*"]),
)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    pieces = draw(st.lists(st.lists(PIECES, min_size=1, max_size=3).map("".join), min_size=1, max_size=4))
    # Git's own manual and git differ on `a**/b`: behind literal text it crosses folders all the same.
    pieces = [piece if piece == "**" else piece.replace("**", "*") for piece in pieces]
    prefix = draw(st.sampled_from(["", "", "", "/", "!", "!/", "**/"]))
    return prefix + "/".join(pieces) + draw(st.sampled_from(["", "", "/", " ", "/**"]))


TREES = st.lists(st.lists(NAMES, min_size=1, max_size=4).map("/".join), min_size=1, max_size=8, unique=True)
IGNORES = st.dictionaries(
    st.sampled_from(["", "a", "b", "a/b"]), st.lists(patterns(), min_size=1, max_size=5).map("\n".join), max_size=3
)


USUAL_RULES = {
    "": "*.tmp\n!keep.tmp\n/dist\nlogs/\n**/gen/*.py\ndocs/**/x\n\\#a\n b\n# no\n",
    "sub": "*\n!*.py\n",
    "deep": "/a\nb/\n",
}
USUAL_PATHS = """
    x.tmp keep.tmp sub/keep.tmp dist/a sub/dist/a.py logs/a.py a/logs/b.py gen/a.py a/gen/b.py docs/x docs/a/b/x #a b
    sub/a.py sub/a.txt sub/c/a.py deep/a deep/c/a deep/b/x deep/b2
"""


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("git")
    git(folder, "init", "-q")
    return folder


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *arguments], cwd=folder, env=environment, input=stdin, capture_output=True).stdout


NUMBERS = itertools.count()


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(tree=TREES, ignores=IGNORES)
@example(tree=USUAL_PATHS.split(), ignores=USUAL_RULES)
def test_git_agrees_on_generated_trees(repositories: Path, tree: list[str], ignores: dict[str, str]) -> None:
    # Each example is a folder of its own in one repository; the rules of the others do not reach it.
    root = repositories / f"t{next(NUMBERS)}"
    root.mkdir()
    for folder, text in ignores.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / ".gitignore").write_text(text + "\n")
    paths = []
    for path in tree:
        try:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
        paths.append(path)
    output = git(root, "check-ignore", "--no-index", "-z", "--stdin", stdin="".join(f"{path}\0" for path in paths).encode())
    ignored_paths = set(output.decode().split("\0")) - {""}
    ignore = Ignore.for_root(root)
    for path in paths:
        reason = ignore.reason(root / path)
        # What can't be understood is closed whatever git says.
        if not reason.startswith("is below a .gitignore that "):
            assert (reason == "is ignored by .gitignore") == (path in ignored_paths), (path, ignores)


@given(text=st.text(alphabet=string.printable + "é", max_size=60), path=st.lists(NAMES, min_size=1, max_size=3))
def test_no_ignore_file_raises_anything_but_its_own_error(text: str, path: list[str]) -> None:
    try:
        rules = gitignore.parse(text)
    except gitignore.PatternError:
        return
    assert gitignore.verdict(rules, path, is_folder=False) in (True, False, None)
