"""Commands that write change the file that they were asked to change, and nothing else, byte for byte.

Each command gets some forty kinds of targets, which a user may name by mistake. A snapshot of the whole tree is compared
before and after: contents, types, owners, permissions, attributes and the targets of links.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from dg_lsp.batch import report
from dg_lsp.cli import setup
from dg_lsp.core.calibration import Calibration
from dg_lsp.engine.common import calibration_store
from dg_lsp.engine.common.calibration_store import ModelId
from dg_lsp.engine.model.pull import pulling
from dg_lsp.engine.model.weights.fetch import PullError
from dg_lsp.server import offers
from dg_lsp.wire import laptop
from dg_lsp.wire.config import ConfigError
from dg_lsp.wire.laptop import LaptopModel
from tests.batch.conftest import STUB
from tests.batch.test_batch_commands import FILLED, run
from tests.engine import laptop_kit

pytestmark = pytest.mark.slow

NOBODY = 65534
SOURCE = b"x = 1\n"
DIFF = report.unified("old.py", "1\n", "2\n").encode()
JOURNAL = b'# dg-lsp infill --resume\n{"key": "%s", "fills": []}\n' % (b"a" * 64)
OWN = {"--patch": report.patch_file(DIFF), "--resume": JOURNAL}
"""What an option wrote in an earlier run."""


def snapshot(root: Path) -> Mapping[str, object]:
    """Return what each file below the root is, except in a repository's own folder."""
    entries: dict[str, object] = {}
    for here, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = Path(here, name)
            status = path.lstat()
            content: object = None
            if stat.S_ISREG(status.st_mode):
                content = path.read_bytes(), os.listxattr(path)
            elif stat.S_ISLNK(status.st_mode):
                content = path.readlink()
            entries[str(path)] = (status.st_mode, status.st_uid, status.st_gid), content
        if ".git" in folders and Path.cwd() == Path(here):
            folders.remove(".git")
    return entries


@contextlib.contextmanager
def only(root: Path, *allowed: str) -> Iterator[None]:
    """Check that no other file changes, that these keep their type, owner and permissions, and open files their content."""
    before = snapshot(root)
    with contextlib.ExitStack() as stack:
        files = [Path(name) for name in before if stat.S_ISREG(os.lstat(name).st_mode)]
        opened = [stack.enter_context(path.open("rb")) for path in files]
        contents = [file.read() for file in opened]
        yield
        for file, content in zip(opened, contents, strict=True):
            file.seek(0)
            assert file.read().startswith(content), f"{file.name} changed in its place"
    after = snapshot(root)
    paths = {str(path) for path in allowed}
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        assert old == new or name in paths, f"{name} was changed from {old} to {new}"
        if name in paths and old and new:
            assert old[0] == new[0], f"{name} has another type, owner or permissions"  # type: ignore[index]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, in which commands run, and a folder beside it."""
    for name, text in {"full.py": SOURCE.decode(), "holes.py": STUB, "src/deep.py": STUB, "../outside/far.py": STUB}.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path / "project")
    for name, value in (("NAME", "n"), ("EMAIL", "e@x")):
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    for command in ("init -q", "add .", "commit -qm first"):
        subprocess.run(["git", *command.split()], check=True)
    return tmp_path


Make = Callable[[bytes], str]
"""Makes a target in the current folder, given what its option wrote before, and returns its name."""


def file(name: str, content: bytes | None = None, mode: int = 0o644, owner: int | None = None) -> Make:
    """Return what makes a file; without content, that of the option."""

    def make(own: bytes) -> str:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(own if content is None else content)
        path.chmod(mode)
        if owner is not None:
            if os.geteuid():
                pytest.skip("only root may give files away")
            os.chown(path, owner, owner)
        return name

    return make


def link(target: str) -> Make:
    def make(own: bytes) -> str:
        file("own")(own)
        Path("link").symlink_to(Path(target).absolute())
        return "link"

    return make


def hard_link(content: bytes | None = None) -> Make:
    def make(own: bytes) -> str:
        file("one", content)(own)
        os.link("one", "../outside/two")
        return "one"

    return make


def ignored(content: bytes | None = None) -> Make:
    return lambda own: file("../project/.gitignore", b"out\n")(own) and file("out", content)(own)


def folder(*names: str) -> Make:
    def make(own: bytes) -> str:
        Path("folder").mkdir()
        for name in names:
            file(f"folder/{name}", b"mine\n")(own)
        return "folder"

    return make


def pipe(_: bytes) -> str:
    os.mkfifo("pipe")
    return "pipe"


def listener(_: bytes) -> str:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
    return "socket"


def named(name: str) -> Make:
    return lambda _: name


def begins(own: bytes) -> bytes:
    return own.splitlines(keepends=True)[0]


def begun(own: bytes) -> str:
    return file("begun", report.patch_file(b"") if report.is_patch_file(own) else begins(own))(own)


WRITTEN: Mapping[str, Make] = {
    "new": named("new"),
    "of an earlier run": file("own"),
    "begun": begun,
    "private": file("own", mode=0o600),
    "executable": file("own", mode=0o755),
    "of another user": file("own", owner=NOBODY),
    "ignored by git": ignored(),
    "of a long name": named("n" * 251),
    "of a name that is not UTF-8": named(os.fsdecode(b"\xff\xfe")),
    "of a name with a line break": named("a\nb"),
    "of a name with a dash": named("./-new"),
    "of a name with a blank": file("a b"),
    "above and below": named("src/../new"),
    "in a linked folder": lambda own: f"{link('../outside')(own)}/new",
}
KEPT: Mapping[str, Make] = {
    "source": named("full.py"),
    "source with holes": named("src/deep.py"),
    "file to fill": named("holes.py"),
    "empty": file("empty", b""),
    "empty source": file("pkg/__init__.py", b""),
    "empty source of another language": file("main.dart", b""),
    "empty mark": file("py.typed", b""),
    "source below the first line of an output": lambda own: file("mine.py", begins(own) + SOURCE)(own),
    "output below another line": lambda own: file("a.txt", b"mine\n" + own)(own),
    "first line of an output and a bit more": lambda own: file("mine", begins(own) + b"\n")(own),
    "source that begins like a diff": file("a.lua", b"--- a/b is a path\nlocal x = 1\n"),
    "executable source": file("a.sh", b"#!/bin/sh\n", 0o755),
    "private source": file("a.py", SOURCE, 0o600),
    "notes": file("notes", b"mine\n"),
    "binary": file("bin", b"\x7fELF\0\xff"),
    "zeros": file("zeros", bytes(100)),
    "large file": file("large", b"line\n" * 200_000),
    "UTF-16": file("wide", DIFF.decode().encode("utf-16")),
    "secrets": file(".env", b"KEY=1\n", 0o600),
    "settings": file(".dg-lsp.toml", b"[batch]\n"),
    "git's index": named(".git/index"),
    "git's configuration": named(".git/config"),
    "diff": file("a.diff", DIFF),
    "diff with a comment": file("a.diff", b"# mine\n" + DIFF),
    "diff of git": file("a.diff", b"diff --git a/x b/x\n" + DIFF),
    "diff with times": file("a.diff", DIFF.replace(b".py\n", b".py\t2024-01-01\n")),
    "mail with a diff": file("a.patch", b"From: a\n\n" + DIFF),
    "file with a key": file("a.json", b'{"key": "1", "fills": []}\n'),
    "file with a hash": file("a.json", JOURNAL.partition(b"\n")[2]),
    "start of an object": file("a.json", b"{"),
    "link to a source": link("full.py"),
    "link to a source outside": link("../outside/far.py"),
    "link to an earlier output": link("own"),
    "link to nothing": link("../outside/gone"),
    "link to itself": link("link"),
    "link to a folder": link("../outside"),
    "link to a device": link("/dev/null"),
    "source with another name": hard_link(SOURCE),
    "output with another name": hard_link(),
    "empty folder": folder(),
    "folder": folder("a.py"),
    "folder with a slash": lambda own: folder("a.py")(own) + "/",
    "current folder": named("."),
    "pipe": pipe,
    "socket": listener,
    "device": named("/dev/null"),
    "full device": named("/dev/full"),
    "source of another user": file("a.py", SOURCE, owner=NOBODY),
    "private file of another user": file("notes", b"his\n", 0o600, NOBODY),
    "read-only output": file("own", mode=0o444),
    "read-only source": file("a.py", SOURCE, 0o444),
    "in no folder": named("gone/new"),
    "in a file": named("full.py/new"),
    "source of a name that is not UTF-8": file(os.fsdecode(b"\xff.py"), SOURCE),
    "source of a long name": file("n" * 251 + ".py", SOURCE),
    "source that git ignores": ignored(SOURCE),
}


@pytest.mark.parametrize("option", OWN)
@pytest.mark.parametrize("kind", WRITTEN)
def test_an_output_is_the_only_file_that_changes(root: Path, option: str, kind: str) -> None:
    target = Path(WRITTEN[kind](OWN[option]))
    with only(root, os.path.realpath(target)):
        assert run("holes.py", option, target).exit_code == 0
    written = target.read_bytes()
    if option == "--patch":
        assert report.is_patch_file(written)
        assert b"\n--- a/holes.py\n" in written
    else:
        assert written.startswith(begins(JOURNAL) + b'{"key": ')


@pytest.mark.parametrize("option", OWN)
@pytest.mark.parametrize("kind", KEPT)
def test_no_output_replaces_what_its_option_did_not_write(root: Path, option: str, kind: str) -> None:
    target = KEPT[kind](OWN[option])
    for path in ("holes.py", "full.py"):
        with only(root):
            result = run(path, option, target)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"dg-lsp: {option} ")
        assert result.stderr.count("\n") == 1


def test_no_two_outputs_are_one_file(root: Path) -> None:
    link("new")(b"")
    for other in ("new", "./new", "src/../new", "../project/new"):
        with only(root):
            assert run("holes.py", "--patch", "new", "--resume", other).exit_code == 2


def test_the_places_are_no_output(root: Path) -> None:
    Path("places").write_text("holes.py:3:5\n")
    for option in OWN:
        with only(root):
            assert run("--places", "places", option, "places").exit_code == 2


def source(name: str = "a.py", mode: int = 0o644, owner: int | None = None, content: str = STUB) -> Make:
    return file(name, content.encode(), mode, owner)


SOURCES: Mapping[str, tuple[Make, bool]] = {
    "tracked": (named("holes.py"), True),
    "untracked": (source(), True),
    "private": (source(mode=0o600), True),
    "executable": (source(mode=0o755), True),
    "of another user": (source(owner=NOBODY), True),
    "ignored by git": (ignored(STUB.encode()), False),
    "of a name that is not UTF-8": (source(os.fsdecode(b"\xff.py")), True),
    "of a long name": (source("n" * 251 + ".py"), True),
    "of a name with a line break": (source("a\nb.py"), True),
    "of a name with a dash": (source("./-a.py"), True),
    "of a name with a pattern": (source("*.py"), True),
    "with line ends of Windows": (source(content=STUB.replace("\n", "\r\n")), True),
    "with a byte order mark": (source(content="\ufeff" + STUB), True),
    "without a last line end": (source(content=STUB.rstrip()), True),
    "link": (link("holes.py"), True),
    "link to a source outside": (link("../outside/far.py"), True),
    "link to nothing": (link("../outside/gone.py"), False),
    "link to itself": (link("link"), False),
    "link to a device": (link("/dev/zero"), False),
    "with another name": (hard_link(STUB.encode()), False),
    "read-only": (source(mode=0o444), False),
    "generated": (source(content="# @generated\n" + STUB), False),
    "in vendor": (source("vendor/a.py"), False),
    "minified": (source("a.min.js", content="function f() {\n  // FILL\n}\n"), False),
    "secrets": (source(".env", content="# FILL\n"), False),
    "secret folder": (source(".ssh/a.py"), False),
    "in conflict": (source(content=STUB + "<<<<<<< a\n=======\n>>>>>>> b\n"), False),
    "binary": (source(content=STUB + "\0"), False),
    "UTF-16": (file("a.py", STUB.encode("utf-16")), False),
    "not UTF-8": (file("a.py", STUB.encode() + b"\xff\n"), False),
    "too large": (source(content=STUB + "#\n" * 600_000), False),
    "without holes": (named("full.py"), False),
    "empty": (source(content=""), False),
    "pipe": (pipe, False),
    "socket": (listener, False),
    "device": (named("/dev/zero"), False),
    "folder of links": (lambda own: folder()(own) if not link("holes.py")(own) else "link", True),
    "git's hook": (source(".git/hooks/a.py"), False),
}


@pytest.mark.parametrize("option", ["--write", "--commit"])
@pytest.mark.parametrize("kind", SOURCES)
def test_only_the_file_to_fill_changes(root: Path, option: str, kind: str) -> None:
    make, is_filled = SOURCES[kind]
    target = make(b"")
    before = snapshot(root)
    with only(root, os.path.realpath(target)):
        result = run(target, target, option, "--all")
    assert "Traceback" not in result.stderr
    after = snapshot(root)
    if not is_filled and option == "--write" and kind != "ignored by git":
        assert after == before
    if option == "--write" and is_filled:
        text = Path(target).read_bytes().decode().removeprefix("\ufeff").replace("\r\n", "\n")
        assert text.rstrip("\n") == FILLED.rstrip("\n")


def test_a_folder_is_filled_and_its_links_are_not_followed(root: Path) -> None:
    for make in (link("../outside/far.py"), pipe, listener, source("deep/.env"), source(mode=0o444), hard_link(STUB.encode())):
        make(b"")
    Path("more").symlink_to(root / "outside")
    Path("one").rename("one.py")
    with only(root, *(f"{root}/project/{name}" for name in ("holes.py", "src/deep.py"))):
        result = run(".", "--write")
    assert "wrote 2 of 4 holes" in result.stderr, result.stderr


@pytest.mark.parametrize("kind", [*WRITTEN, *KEPT])
def test_setup_changes_only_the_model_of_its_file(root: Path, kind: str) -> None:
    target = ({**WRITTEN, **KEPT})[kind](b'# mine\n[engine]\ndevice = "cpu"\n')
    real = Path(os.path.realpath(target))
    before = real.read_bytes() if stat.S_ISREG(real.stat().st_mode if real.exists() else 0) else b""
    is_written = True
    with only(root, str(real), *([] if real.parent.exists() else [str(real.parent)])):
        try:
            setup.write_model(Path(target), "embedded")
        except ConfigError:
            is_written = False
    if is_written:
        assert real.read_bytes().replace(b'model = "embedded"\n', b"").startswith(before)
    assert is_written or kind in KEPT


OUR_FILES = (
    *("new", "of an earlier run", "of another user", "output with another name", "source", "link to a source"),
    *("link to nothing", "folder", "pipe", "device"),
)


@pytest.mark.parametrize("kind", OUR_FILES)
@pytest.mark.parametrize("what", ["calibration", "choice"])
def test_a_file_of_ours_is_not_written_through_a_link(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, what: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(root / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))
    model = ModelId("embedded", "1")
    path = calibration_store.path(model) if what == "calibration" else offers.choice_file()
    target = ({**WRITTEN, **KEPT})[kind](b"{}")
    path.parent.mkdir(parents=True)
    if os.path.lexists(target) and not target.startswith("/"):
        Path(target).rename(path)
    before = snapshot(root)
    with contextlib.suppress(OSError):
        if what == "calibration":
            calibration_store.write(model, Calibration(0.0, {}), {})
        else:
            offers.write_choice({"never": True})
    after = snapshot(root)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} <= {str(path)}


# --- The folder of a pulled model


@pytest.fixture
def model(root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> LaptopModel:
    data = laptop_kit.write_gguf(Path("tiny.gguf")).read_bytes()
    tiny = laptop_kit.in_parts(data, tmp_path_factory.mktemp("wheels"))
    monkeypatch.setattr(laptop, "MODELS", (tiny,))
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(root / "store"))
    laptop.store().mkdir(mode=0o700)
    return tiny


IN_THE_STORE: Mapping[str, Make] = {
    "file": file("notes", b"mine\n"),
    "link to a file": link("full.py"),
    "link to a folder": link("../outside"),
    "link to nothing": link("../outside/gone"),
    "folder": folder("config.json", "model.safetensors"),
    "empty folder": folder(),
    "pipe": pipe,
    "socket": listener,
}


@pytest.mark.parametrize("kind", IN_THE_STORE)
def test_what_was_not_pulled_is_neither_replaced_nor_removed(root: Path, model: LaptopModel, kind: str) -> None:
    Path(IN_THE_STORE[kind](b"")).rename(model.folder)
    with only(root), pytest.raises(PullError, match="is not from dg-lsp"):
        pulling.pull(model, file=Path("tiny.gguf"))
    with only(root), contextlib.suppress(PullError):
        pulling.remove(model)


@pytest.mark.parametrize("kind", ["file", "link to a file", "link to a folder", "link to nothing", "pipe"])
def test_a_working_folder_is_no_link(root: Path, model: LaptopModel, kind: str) -> None:
    Path(IN_THE_STORE[kind](b"")).rename(model.folder.with_name(f".{model.name}.partial"))
    with only(root), pytest.raises(PullError):
        pulling.pull(model, file=Path("tiny.gguf"))


def test_a_pulled_model_is_replaced_and_removed_alone(root: Path, model: LaptopModel) -> None:
    file(f"{laptop.store()}/other/mine", b"mine\n")(b"")
    before = snapshot(root)
    pulling.pull(model, file=Path("tiny.gguf"))
    facts = model.folder / laptop.FACTS
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "adapter": "old"}))
    pulling.pull(model, file=Path("tiny.gguf"))
    assert model.is_current
    assert pulling.remove(model)
    assert snapshot(root) == before
