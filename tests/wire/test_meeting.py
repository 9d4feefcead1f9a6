"""Where engines are met, on machines that lack what it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import platformdirs
import pytest

from dg_lsp.wire import meeting
from dg_lsp.wire.meeting import MeetingError, Place, Settings, Which


def test_a_session_without_a_directory_of_its_own_is_no_news(tmp_path: Path) -> None:
    code = "from dg_lsp.wire import meeting; print(meeting.runtime_dir())"
    unset = ("XDG_RUNTIME_DIR", meeting.RUNTIME_DIR_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    found = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert found.stderr == ""
    assert Path(found.stdout.strip()).name == "dg-lsp"


def test_no_directory_at_all_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError("runtime directory belongs to another user; set XDG_RUNTIME_DIR instead")

    monkeypatch.delenv(meeting.RUNTIME_DIR_VARIABLE, raising=False)
    monkeypatch.setattr(platformdirs, "user_runtime_dir", refused)
    with pytest.raises(MeetingError, match="no private directory to use: runtime directory belongs to another user; "):
        meeting.runtime_dir()


def test_a_lock_that_can_not_be_made_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MeetingError, match=r"x\.lock can't be used: No such file or directory; set "):
        meeting.hold(tmp_path / "nowhere" / "x.lock")
    with pytest.raises(MeetingError, match="can't be used: Is a directory; set "):
        meeting.hold(tmp_path)


def test_a_log_that_can_not_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    place = Place(tmp_path, "engine-x")
    place.log.mkdir()
    with pytest.raises(MeetingError, match=r"engine-x\.log can't be used: Is a directory; set "):
        meeting.start_engine(place, Which(), Settings())
