"""Makes the engine's tiny checkpoints available here."""

from __future__ import annotations

from tests.engine.conftest import instruct_layout, trained_layout

__all__ = ["instruct_layout", "trained_layout"]
