"""What is written into a tree leaves what the file is besides its text."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dg_lsp.batch import write
from tests.batch.test_batch_process import environment


def test_a_read_only_file_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "a.py"
    target.write_bytes(b"old")
    target.chmod(0o444)
    with pytest.raises(write.WriteError, match=r"^the file is read-only$"):
        write.replace(target, b"new", expected=b"old")
    assert target.read_bytes() == b"old"


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


def test_a_file_that_is_mounted_by_itself_is_named(tmp_path: Path) -> None:
    code = "from pathlib import Path; from dg_lsp.batch import write; write.replace(Path('a.py'), b'new', expected=b'old')"
    (tmp_path / "a.py").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"old")
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --bind other a.py || exit 77; exec "$@"',
        "sh",
        sys.executable,
        "-c",
        code,
    ]
    try:
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode in (1, 77) and "WriteError" not in done.stderr:
        pytest.skip("this user may not mount")
    assert (
        "the file can't be written: it is mounted by itself, so it can't be replaced; mount its folder instead" in done.stderr
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.py", "other"]
