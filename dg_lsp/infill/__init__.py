"""Fill the holes of a document: the code path that the server and the batch command share.

The names exported here are the library's interface: `connect` or `connect_sync`, then fill. docs/api.md describes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dg_lsp.client.port import EngineError
    from dg_lsp.infill.api import Session, SyncSession, connect, connect_sync
    from dg_lsp.infill.fill import Fill, FillResult

__all__ = ["EngineError", "Fill", "FillResult", "Session", "SyncSession", "connect", "connect_sync"]

_MODULES = {"EngineError": "client.port", "Fill": "infill.fill", "FillResult": "infill.fill"}


def __getattr__(name: str) -> Any:
    """Return a name of the interface, imported on first use, so that front ends start fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"dg_lsp.{_MODULES.get(name, 'infill.api')}"), name)
