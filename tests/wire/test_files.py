"""A file is replaced atomically."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from dg_lsp.wire import files


def is_own(head: bytes) -> bool:
    return head.startswith(b"own")


def test_a_replaced_file_is_private_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_bytes(b"old")
    target.chmod(0o644)
    files.replace(target, b"new", is_durable=True)
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_an_output_keeps_its_link_and_permissions_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    old, link, new = tmp_path / "old", tmp_path / "link", tmp_path / "new"
    old.write_bytes(b"old")
    old.chmod(0o640)
    link.symlink_to(old)
    files.write_output(link, b"new")
    assert (link.is_symlink(), old.read_bytes(), stat.S_IMODE(old.stat().st_mode)) == (True, b"new", 0o640)
    files.write_output(new, b"new")
    (tmp_path / "usual").touch()
    assert new.stat().st_mode == (tmp_path / "usual").stat().st_mode
    files.write_output(tmp_path / "private", b"new", new_mode=0o600)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600


def test_a_failure_before_the_move_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_bytes(b"old")

    def fail(_: Path) -> None:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        files.replace(target, b"new", finish=fail)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


NOT_OWN = "this file is not as an earlier run left it; name a new file"


@pytest.mark.parametrize(
    ("name", "problem", "own_problem"),
    [
        ("new", "", ""),
        ("own", "", ""),
        ("other", "", NOT_OWN),
        ("binary", "", NOT_OWN),
        ("empty", "", NOT_OWN),
        ("link to own", "", "this is a link; name a new file"),
        ("link to gone", "", "this is a link; name a new file"),
        ("pipe", *["this is not a regular file"] * 2),
        (".", *["this is a folder; name a file in it"] * 2),
        # Even root does not write it.
        ("read-only", *["this file is read-only"] * 2),
        ("gone/a", *["there is no folder {}/gone"] * 2),
        (f"{'x' * 300}/a", *["there is no folder {}/" + "x" * 300] * 2),
    ],
)
def test_a_file_that_can_not_be_written_is_explained(tmp_path: Path, name: str, problem: str, own_problem: str) -> None:
    for content in (b"own", b"other", b"empty", b"read-only"):
        (tmp_path / content.decode()).write_bytes(content.replace(b"empty", b"").replace(b"read-only", b"own"))
    (tmp_path / "binary").write_bytes(b"\xff\0")
    (tmp_path / "read-only").chmod(0o444)
    (tmp_path / "link to own").symlink_to("own")
    (tmp_path / "link to gone").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    assert files.output_problem(path) == problem.format(tmp_path)
    assert files.output_problem(path, is_own) == own_problem.format(tmp_path)
    if own_problem:
        before = sorted(each.lstat() for each in tmp_path.iterdir())
        with pytest.raises(OSError, match=re.escape(own_problem.format(tmp_path))):
            files.write_output(path, b"own 2", is_own=is_own)
        assert sorted(each.lstat() for each in tmp_path.iterdir()) == before
    else:
        files.write_output(path, b"own 2", is_own=is_own)
        assert path.read_bytes() == b"own 2"


def test_a_file_in_a_folder_without_permission_is_explained(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("root may write in every folder")
    assert files.output_problem(closed / "a").startswith(f"files can't be written in {closed}: permission denied")
