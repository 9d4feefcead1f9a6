"""What is written into a tree leaves what the file is besides its text."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dg_lsp.batch import write


def test_a_read_only_file_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "a.py"
    target.write_bytes(b"old")
    target.chmod(0o444)
    with pytest.raises(write.WriteError, match=r"^the file is read-only$"):
        write.replace(target, b"new", expected=b"old")
    assert target.read_bytes() == b"old"


def test_hard_links_are_told_and_stay_one_file(tmp_path: Path) -> None:
    target, other = tmp_path / "a.py", tmp_path / "b.py"
    target.write_bytes(b"old")
    other.hardlink_to(target)
    with pytest.raises(write.WriteError, match=r"^the file has 2 names \(hard links\), and only this one would change$"):
        write.replace(target, b"new", expected=b"old")
    assert target.samefile(other)


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="this system has no extended attributes")
def test_extended_attributes_stay(tmp_path: Path) -> None:
    target = tmp_path / "a.py"
    target.write_bytes(b"old")
    try:
        os.setxattr(target, "user.note", b"kept")
    except OSError as error:
        assert error.errno == errno.ENOTSUP  # noqa: PT017 -- it is no test of the error
        pytest.skip("this file system has no extended attributes")
    write.replace(target, b"new", expected=b"old")
    assert target.read_bytes() == b"new"
    assert os.getxattr(target, "user.note") == b"kept"
