"""A file is replaced atomically."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dg_lsp.wire import files


def test_a_replaced_file_is_private_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_bytes(b"old")
    target.chmod(0o644)
    files.replace(target, b"new", is_durable=True)
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_before_the_move_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_bytes(b"old")

    def fail(_: Path) -> None:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        files.replace(target, b"new", finish=fail)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
