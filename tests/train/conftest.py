"""Fixtures: source files to train on, and training in 32 bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dg_lsp.train.canvas import holes, loop

SOURCE = "".join(
    f"class Thing{n}:\n    def __init__(self, value):\n        self.value = value\n\n"
    f"    def get_{n}(self):\n        return self.value + {n}\n\n\n"
    for n in range(12)
)


@pytest.fixture(scope="package")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of many files, and some of projects that are held out and never read."""
    folder = tmp_path_factory.mktemp("sources")
    for n in range(150):
        (folder / f"thing_{n}.py").write_text(SOURCE.replace("value", f"value_{n}"))
    for name in ("python/pallets__click", "requests"):
        (folder / name).mkdir(parents=True)
        (folder / name / "held.py").write_text(SOURCE)
    assert 0 < sum(holes.is_aside(path.name) for path in folder.iterdir()) < 20
    return folder


@pytest.fixture
def in_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in 32 bits, in which any processor computes the same."""
    monkeypatch.setattr(loop, "dtype_of", lambda _device: torch.float32)
