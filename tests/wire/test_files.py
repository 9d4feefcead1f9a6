"""A file is replaced atomically."""

from __future__ import annotations

import os
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


def test_a_file_that_can_be_replaced_has_no_problem(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("new", "old"):
        assert files.output_problem(tmp_path / name) == ""


def test_a_file_that_cannot_be_replaced_is_explained(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert files.output_problem(tmp_path) == "this is a folder; name a file in it"
    assert files.output_problem(tmp_path / "pipe") == "this is not a regular file"
    assert files.output_problem(tmp_path / "gone" / "a") == f"there is no folder {tmp_path / 'gone'}"
    assert files.output_problem(tmp_path / ("x" * 300) / "a").startswith("there is no folder ")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("old", b"own\n", ""),
        ("new", None, ""),
        ("empty", b"", "this file is not as an earlier run left it; name a new file"),
        ("__init__.py", b"", "this file is not as an earlier run left it; name a new file"),
        ("old", b"other\n", "this file is not as an earlier run left it; name a new file"),
        ("old", b"\xff\0", "this file is not as an earlier run left it; name a new file"),
    ],
)
def test_an_option_writes_only_new_files_and_its_own(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert files.output_problem(path, is_own) == problem
    if problem:
        with pytest.raises(OSError, match=problem):
            files.write_output(path, b"own 2", is_own=is_own)
        assert path.read_bytes() == content
    else:
        files.write_output(path, b"own 2", is_own=is_own)
        assert path.read_bytes() == b"own 2"


def test_an_option_writes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"own")
    for target in ("own", "gone"):
        link = tmp_path / f"link to {target}"
        link.symlink_to(target)
        assert files.output_problem(link, is_own) == "this is a link; name a new file"


def test_a_read_only_file_is_not_written_even_by_root(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"own")
    (tmp_path / "own").chmod(0o444)
    assert files.output_problem(tmp_path / "own", is_own) == files.output_problem(tmp_path / "own") == "this file is read-only"


def test_a_file_in_a_folder_without_permission_is_explained(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("root may write in every folder")
    assert files.output_problem(closed / "a").startswith(f"files can't be written in {closed}: permission denied")
