"""What is written into a tree survives a hard end, and leaves what the file is besides its text."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from pathlib import Path

import pytest

from dg_lsp.batch import recovery, write
from tests.batch.test_batch_process import STUB, finish, start


def checked_and_killed(folder: Path, *more: str) -> Path:
    """Run a check and kill the run hard while its command runs; return the file."""
    target = folder / "a.py"
    target.write_text(STUB)
    os.mkfifo(folder / "started")
    command = "echo > started; sleep 600"
    process = start("fills", "a.py", "--check", command, *more, cwd=folder, XDG_STATE_HOME=str(folder / "state"))
    (folder / "started").read_text()
    assert "return 1" in target.read_text()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (folder / "started").unlink()
    return target


@pytest.mark.parametrize("more", [(), ("--write",)])
def test_what_a_killed_check_left_is_put_back_by_the_next_start(tmp_path: Path, more: tuple[str, ...]) -> None:
    target = checked_and_killed(tmp_path, *more)
    (tmp_path / "b.py").write_text("x = 1\n")
    _, _, said = finish(start("fills", "b.py", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state")))
    assert f"dg-lsp: {target} was put back to what it held before a check that was cut off" in said
    assert target.read_text() == STUB
    _, _, said = finish(start("fills", "b.py", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state")))
    assert "put back" not in said


def test_what_was_edited_since_is_left_alone(tmp_path: Path) -> None:
    target = checked_and_killed(tmp_path)
    target.write_text("mine = 1\n")
    _, _, said = finish(start("fills", "--write", "nothing.py", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state")))
    assert "put back" not in said
    assert target.read_text() == "mine = 1\n"


def test_a_run_that_ends_by_itself_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    target = tmp_path / "a.py"
    target.write_text("new")
    with contextlib.suppress(KeyboardInterrupt), recovery.remembered(target, b"old", b"new"):
        # Another run does not take what a live one is at.
        assert list(recovery.recover()) == []
        [record] = (tmp_path / "state").rglob("*.json")
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        raise KeyboardInterrupt
    assert list(recovery.recover()) == []
    assert target.read_text() == "new"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"path": "zz"}', b'{"path": "2f", "old": 1, "new": 2}'])
def test_a_record_that_was_cut_off_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "dg-lsp" / "recovery"
    folder.mkdir(parents=True)
    (folder / "a.json").write_bytes(content)
    assert list(recovery.recover()) == []
    assert not list(folder.iterdir())


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
