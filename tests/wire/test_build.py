"""The build says whether two installations have the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dg_lsp import __version__
from dg_lsp.wire import build


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the installed files that a build describes."""
    for part in ("core", "engine", "wire"):
        shutil.copytree(build.PACKAGE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(build.PACKAGE / "__init__.py", tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.safetensors").write_bytes(b"0" * 300_000)
    return tmp_path


def test_the_same_files_are_the_same_build(package: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "dg_lsp"
    shutil.copytree(package, other)
    (other / "engine" / "__pycache__").mkdir()
    (other / "engine" / "__pycache__" / "x.py").write_text("")
    (other / "engine" / "notes.txt").write_text("")
    assert build.current(other) == build.current(package)
    assert build.current().startswith(f"{__version__}+")


@pytest.mark.parametrize("name", ["__init__.py", "engine/decode/canvas/denoise.py", "models/model.safetensors", "wire/new.py"])
def test_another_file_is_another_build(package: Path, name: str) -> None:
    before = build.current(package)
    with (package / name).open("ab") as file:
        file.write(b"#\n")
    assert build.current(package) != before


def test_the_version_is_that_of_the_files(package: Path) -> None:
    (package / "__init__.py").write_text('__version__ = "9.9"\n')
    assert build.current(package).startswith("9.9+")


def test_without_files_only_the_version_is_known(tmp_path: Path) -> None:
    assert build.current(tmp_path / "gone") == __version__
