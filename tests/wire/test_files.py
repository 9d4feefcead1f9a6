"""A file is replaced wholly or not at all."""

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


def test_what_fails_before_the_move_leaves_the_old_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_bytes(b"old")

    def fail(_: Path) -> None:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        files.replace(target, b"new", finish=fail)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
