"""The engine's tiny checkpoints, here as well."""

from __future__ import annotations

from tests.engine.conftest import trained_layout

__all__ = ["trained_layout"]
