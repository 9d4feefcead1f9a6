"""The command that runs an engine (`wire.entry`), re-exported for engine code. Imports nothing else."""

from __future__ import annotations

from dg_lsp.wire.entry import ENGINE_COMMAND

__all__ = ["ENGINE_COMMAND"]
