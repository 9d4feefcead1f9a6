"""Which files a run fills, and why others are left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dg_lsp.batch import discover
from dg_lsp.batch.discover import Skipped, Source
from tests.patience import PATIENCE_S

CODE = "def f():\n    pass\n"


def tree(root: Path, *names: str, text: str | bytes = CODE) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return root


def names(*paths: Path, root: Path) -> list[str]:
    return [
        f"{Path(one.name).name}: {one.reason}" if isinstance(one, Skipped) else one.relative_to(root).as_posix()
        for one in discover.files(paths)
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path.resolve()


SECRET_FILES = ".config/gh/hosts.yml .m2/settings.xml .config/op/a.py .aws/b.py secrets/c.py"
IGNORED, HELD = "{}: is ignored by .dgignore", "{}: may hold secrets"


@pytest.mark.parametrize(
    ("files", "ignore_files", "named", "expected"),
    [
        ("b.py a/z.go a/c.js readme.txt data.json noise", {}, ".", "b.py a/c.js a/z.go"),
        ("notes.txt a.py", {}, "notes.txt . a.py", "notes.txt a.py"),
        ("a.py build/b.py c.py", {".gitignore": "build/ c.py"}, ".", "a.py"),
        ("a.py build/b.py c.py", {".gitignore": "build/ c.py"}, "c.py build", "c.py build/b.py"),
        ("a.py private/b.py", {".dgignore": "private/"}, "private/b.py", IGNORED.format("b.py")),
        ("a.py private/b.py", {".dgignore": "private/"}, "private", IGNORED.format("private")),
        ("private/b.py", {".gitignore": "private/", ".dgignore": "private/"}, "private", IGNORED.format("private")),
        ("out/c.py out/deep/d.py", {".gitignore": "out/", ".dgignore": "out/deep/"}, "out", "out/c.py"),
        ("secrets.py .env", {}, ".", ""),
        ("secrets.py .env", {}, ".env", HELD.format(".env")),
        *((SECRET_FILES, {}, name, HELD.format(Path(name).name)) for name in f"{SECRET_FILES} .aws secrets .config/op".split()),
        (SECRET_FILES, {}, ".config", ""),
        ("secrets/c.py lib/d.py", {}, "lib lib/d.py", "lib/d.py"),
    ],
)
def test_which_files_of_a_repository_are_found(
    root: Path, files: str, ignore_files: dict[str, str], named: str, expected: str
) -> None:
    tree(root, ".git/x", *files.split())
    for name, patterns in ignore_files.items():
        (root / name).write_text(patterns.replace(" ", "\n"))
    assert " ".join(names(*(root / name for name in named.split()), root=root)) == expected


def test_a_script_without_an_ending_is_known_by_its_first_line(root: Path) -> None:
    tree(root, "tool", text="#!/usr/bin/env python3\n" + CODE)
    tree(root, "notes", text="plain\n")
    assert names(root, root=root) == ["tool"]


def test_dgignore_of_a_parent_folder_applies_without_a_repository(root: Path) -> None:
    tree(root, "in/a.py", "in/private/b.py")
    (root / ".dgignore").write_text("private/\n")
    assert names(root / "in", root=root) == ["in/a.py"]
    assert names(root / "in" / "private" / "b.py", root=root) == ["b.py: is ignored by .dgignore"]


@pytest.mark.parametrize("name", [".gitignore", ".dgignore"])
def test_an_ignore_file_that_closes_its_folder_is_reported_once(root: Path, name: str) -> None:
    tree(root, "a.py", "deep/b.py", "deep/deeper/c.py", "deep/d.py")
    (root / ".git").mkdir()
    (root / "deep" / name).symlink_to("/dev/zero")
    message = f"{name}: is not a regular file, so nothing in its folder is read"
    assert names(root, root=root) == ["a.py", message]


def test_a_pipe_in_a_folder_is_never_opened(root: Path) -> None:
    os.mkfifo(root / "tool")
    # If the pipe is opened anyway, it contains a script, so that the test does not block.
    handle = os.open(root / "tool", os.O_RDWR)
    os.write(handle, b"#!/usr/bin/env python3\n" + b"#" * discover.N_HEAD_BYTES)
    assert names(root, root=root) == []
    os.close(handle)


def test_a_hidden_folder_of_secrets_outside_a_repository_is_left_out(root: Path) -> None:
    tree(root, ".aws/deep/a.py", "secrets/b.py")
    assert names(root / ".aws" / "deep" / "a.py", root / ".aws" / "deep", root=root) == [
        "a.py: may hold secrets",
        "deep: may hold secrets",
    ]
    assert names(root / "secrets", root=root) == ["secrets/b.py"]


def test_third_party_files_are_left_out(root: Path) -> None:
    tree(root, "a.py", "node_modules/b.js", "lib/site-packages/c.py", ".venv/d.py")
    (root / ".git").mkdir()
    (root / ".gitignore").write_text("dist/\n")
    tree(root, "vendor/e.go", "dist/f.js", "docs/vendor.py")
    others = "holds files of others; --generated fills such files, too"
    assert names(root, root=root) == [f"vendor: {others}", "a.py", "docs/vendor.py", f"site-packages: {others}"]
    everything = [path for path in discover.files([root], with_foreign=True) if not isinstance(path, Skipped)]
    assert [path.name for path in everything] == ["a.py", "vendor.py", "c.py", "e.go"]


BY_NAME = """
    a.min.js X.MIN.JS a-min.js app.bundle.js Form1.Designer.cs a.g.cs a.g.i.cs a.feature.cs a.pb.go a.pb.gw.go a_grpc.pb.go
    a.pb.cc a_pb2.py a_pb2_grpc.pyi a_pb.js a_pb.d.ts a.g.dart a.freezed.dart zz_generated.deepcopy.go a_generated.h
    routeTree.gen.ts parser.tab.c lex.yy.c moc_window.cpp
"""
OWN = "password_gen.py count-min.py generated.py designer.cs distance/a.py vendor.py a.minor.js build/a.py target/a.py"
FOREIGN = "vendor/deep dist node_modules/x Vendor Third-Party 3rdparty Pods/A"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        *((f"{folder}/a.py", CODE, f"is in {folder.partition('/')[0]}") for folder in FOREIGN.split()),
        *((name, "", "is generated, as its name says") for name in BY_NAME.split()),
        *((name, CODE, "") for name in OWN.split()),
        ("a.py", "# x\n" * 2_000 + "# @generated\n" + CODE, ""),
        ("a.py", "x = 1\n\n\n# @generated\n" + CODE, "is generated, as line 4 says"),
    ],
)
def test_a_file_that_tools_or_others_write_is_known(root: Path, name: str, text: str, reason: str) -> None:
    (root / ".git").mkdir()
    source = discover.read(tree(root, name, text=text) / name)
    assert isinstance(source, Source)
    assert discover.foreign(source) == reason


def test_links_are_not_followed(root: Path) -> None:
    tree(root, "in/a.py", "out/b.py")
    (root / "in" / "link.py").symlink_to(root / "out" / "b.py")
    (root / "in" / "folder").symlink_to(root / "out")
    assert names(root / "in", root=root) == ["in/a.py"]


def test_a_named_link_is_written_through(root: Path) -> None:
    tree(root, "out/b.py")
    (root / "link.py").symlink_to(root / "out" / "b.py")
    assert names(root / "link.py", root=root) == ["out/b.py"]


# A pipe replaces the file between the check of the file and its opening.
EXCHANGED = """
import os, sys
from pathlib import Path
from dg_lsp.batch import discover, write

how, path = sys.argv[1], Path(sys.argv[2])
data = path.read_bytes()

def exchange(event, details):
    if event == "open" and str(details[0]) == str(path):
        os.mkfifo(f"{path}.pipe")
        os.replace(f"{path}.pipe", path)

sys.addaudithook(exchange)
try:
    print(discover.read(path).reason if how == "read" else write.replace(path, b"new", expected=data))
except write.WriteError as error:
    print(error)
"""


@pytest.mark.parametrize(("how", "message"), [("read", "is not a regular file"), ("write", "the file is not a regular file")])
def test_a_pipe_that_replaces_a_file_does_not_block(root: Path, how: str, message: str) -> None:
    tree(root, "a.py")
    command = [sys.executable, "-c", EXCHANGED, how, str(root / "a.py")]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (completed.stdout, completed.stderr) == (f"{message}\n", "")
