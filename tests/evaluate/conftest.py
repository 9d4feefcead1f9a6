"""The engine's tiny checkpoints, here as well."""

from __future__ import annotations

from tests.engine.conftest import instruct_layout, trained_layout

__all__ = ["instruct_layout", "trained_layout"]
