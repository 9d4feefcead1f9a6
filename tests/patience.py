"""How long a test waits for a state before it fails."""

from __future__ import annotations

PATIENCE_S = 240.0
"""Long, so that tests pass on a machine whose cores are all busy; shorter than pytest's own limit, so the test says why."""
