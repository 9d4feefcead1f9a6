"""Finding engines on systems that lack a runtime directory, disk space or permissions, and telling their builds apart."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import NoReturn

import platformdirs
import pytest

from dg_lsp import __version__
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import DiscoveryError, EngineFiles, EngineId, EngineSettings, State


def test_a_missing_runtime_directory_gives_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", discovery.RUNTIME_DIR_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    assert discovery.runtime_dir().name == "dg-lsp"


def test_no_usable_runtime_directory_raises_an_error_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError("runtime directory belongs to another user; set XDG_RUNTIME_DIR instead")

    monkeypatch.delenv(discovery.RUNTIME_DIR_VARIABLE, raising=False)
    monkeypatch.setattr(platformdirs, "user_runtime_dir", refused)
    with pytest.raises(DiscoveryError, match="no private directory is available: runtime directory belongs to another user; "):
        discovery.runtime_dir()


def test_a_lock_that_cannot_be_created_raises_an_error_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match=r"x\.lock can't be used: No such file or directory; set "):
        discovery.hold(tmp_path / "nowhere" / "x.lock")
    with pytest.raises(DiscoveryError, match="can't be used: Is a directory; set "):
        discovery.hold(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pid", 0),
        ("pid", 2**40),
        ("address", ""),
        ("address", "nowhere"),
        ("address", "/a\0b"),
        ("address", "10.0.0.1:80"),
        ("token", "two words"),
        ("token", "a\nb"),
        ("token", "ü"),
    ],
)
def test_an_invalid_state_is_ignored(tmp_path: Path, name: str, value: object) -> None:
    files = EngineFiles(tmp_path, "engine-x")
    state = State(1, "/run/x.sock", "secret", "0.1")
    discovery.write_state(files, state)
    assert discovery.read_state(files) == state
    files.state.write_text(json.dumps({**json.loads(files.state.read_text()), name: value}))
    assert discovery.read_state(files) is None


def test_a_state_that_is_not_a_file_or_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    files = EngineFiles(tmp_path, "engine-x")
    discovery.write_state(files, State(1, "/run/x.sock", "secret", "0.1"))
    elsewhere = files.state.rename(tmp_path / "elsewhere")

    def check_refused() -> None:
        with pytest.raises(DiscoveryError, match="is not a regular file of this user; remove it"):
            discovery.read_state(files)

    files.state.symlink_to(elsewhere)
    check_refused()
    files.state.unlink()
    os.mkfifo(files.state)
    check_refused()
    files.state.unlink()
    elsewhere.rename(files.state)
    assert discovery.read_state(files) is not None
    if os.getuid() == 0:
        os.chown(files.state, 4711, -1)
        check_refused()


def test_an_engines_last_words_are_of_its_last_start(tmp_path: Path) -> None:
    files = EngineFiles(tmp_path, "engine-x")
    files.log.write_text("before\n")
    assert discovery.last_words(files) == ("before",)
    with files.log.open("a") as log:
        log.write("2026-01-01 12:00:00 starting an engine for x\nfirst\n2026-01-01 12:00:09 starting an engine for x\nsecond\n")
    assert discovery.last_words(files) == ("second",)
    assert discovery.last_words(EngineFiles(tmp_path, "engine-y")) == ()


def test_checking_a_lock_does_not_change_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    assert not discovery.is_held(path)
    assert not path.exists()
    lock = discovery.hold(path)
    assert lock is not None
    assert discovery.is_held(path)
    lock.release()
    path.touch()  # as a killed engine leaves it
    assert not discovery.is_held(path)
    again = discovery.hold(path)
    assert again is not None
    again.release()


def test_an_unknown_user_in_a_path_raises_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(discovery.RUNTIME_DIR_VARIABLE, "~nobody-of-that-name/engines")
    with contextlib.suppress(DiscoveryError):
        assert discovery.runtime_dir() == tmp_path / "~nobody-of-that-name" / "engines"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to be had")
def test_a_full_disk_is_reported_before_an_engine_starts(tmp_path: Path) -> None:
    files = EngineFiles(tmp_path, "engine-x")
    files.log.symlink_to("/dev/full")
    with pytest.raises(DiscoveryError, match=r"engine-x\.log can't be used: No space left on device; set "):
        discovery.start_engine(("engine",), files, EngineId(), EngineSettings())


# --- The build says whether two installations have the same files


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the installed files that a build describes."""
    for part in ("core", "engine", "wire"):
        shutil.copytree(discovery.PACKAGE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(discovery.PACKAGE / "__init__.py", tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.safetensors").write_bytes(b"0" * 300_000)
    return tmp_path


def test_the_same_files_are_the_same_build(package: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "dg_lsp"
    shutil.copytree(package, other)
    (other / "engine" / "__pycache__").mkdir()
    (other / "engine" / "__pycache__" / "x.py").write_text("")
    (other / "engine" / "notes.txt").write_text("")
    assert discovery.current_build(other) == discovery.current_build(package)
    assert discovery.current_build().startswith(f"{__version__}+")


@pytest.mark.parametrize("name", ["__init__.py", "engine/common/rank.py", "models/model.safetensors", "wire/new.py"])
def test_another_file_is_another_build(package: Path, name: str) -> None:
    before = discovery.current_build(package)
    with (package / name).open("ab") as file:
        file.write(b"#\n")
    assert discovery.current_build(package) != before
    (package / "__init__.py").write_text('__version__ = "9.9"\n')
    assert discovery.current_build(package).startswith("9.9+")
    assert discovery.current_build(package / "gone") == __version__


def test_a_directory_open_to_others_is_refused(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines.chmod(0o755)
    with pytest.raises(DiscoveryError, match=r"is open to other users; make it private \(chmod 700\)"):
        discovery.runtime_dir()
    link = engines.with_name(engines.name + "-link")
    link.symlink_to(engines)
    monkeypatch.setenv(discovery.RUNTIME_DIR_VARIABLE, str(link))
    try:
        with pytest.raises(DiscoveryError):
            discovery.runtime_dir()
    finally:
        link.unlink()
        engines.chmod(0o700)
        monkeypatch.setenv(discovery.RUNTIME_DIR_VARIABLE, str(engines))


def test_state_is_read_whole_or_not_at_all(engines: Path) -> None:
    files = EngineFiles(engines, "engine-x")
    state = State(1, "/x.sock", "secret", "0.1", EngineId("m", "bf16", "cpu", "f"))
    discovery.write_state(files, state)
    assert discovery.read_state(files) == state
    assert "secret" not in repr(state)
    files.state.write_text(files.state.read_text()[:-9])
    assert discovery.read_state(files) is None


def test_a_lock_has_one_holder_until_it_is_released(engines: Path) -> None:
    path = engines / "x.lock"
    lock = discovery.hold(path)
    assert lock is not None
    assert discovery.hold(path) is None
    lock.release()
    assert not path.exists()
    again = discovery.hold(path)
    assert again is not None
    again.release()


def test_a_folder_is_the_same_model_by_any_path(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(engines)
    (engines / "model").mkdir()
    assert EngineId("../" + engines.name + "/model").name == EngineId(str(engines / "model")).name == EngineId("./model/").name
    assert EngineId("./model").name != EngineId("./model", device="cuda").name
    # A hub id, which no engines may pass itself off as.
    assert EngineId("model").name != EngineId("./model").name
    (engines / "embedded").mkdir()
    assert EngineId().resolved_model == "embedded"
