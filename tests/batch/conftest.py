"""The engine's tiny checkpoints, here as well, and a private place for engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import trained_layout
from tests.engine.engine_kit import home

__all__ = ["trained_layout"]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this test's engines, which end with it."""
    with home(monkeypatch) as folder:
        yield folder
