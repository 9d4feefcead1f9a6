"""Fixtures: the engine's tiny checkpoints, and a private folder for engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import trained_layout
from tests.engine.engine_kit import home

__all__ = ["trained_layout"]


STUB = 'def f():\n    """Do."""\n    raise NotImplementedError\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


@pytest.fixture
def stubbed(project: Path) -> Path:
    """The project, with a hole in `a.py`."""
    (project / "a.py").write_text(STUB)
    return project


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this test's engines, which are stopped at its end."""
    with home(monkeypatch) as folder:
        yield folder
