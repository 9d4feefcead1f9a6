"""Fixtures: a project, and one with a hole."""

from __future__ import annotations

from pathlib import Path

import pytest

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
