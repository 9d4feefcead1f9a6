"""Compute how much memory a model needs, and choose the precision in which it fits a device. Imports no torch."""

from __future__ import annotations

from dg_lsp.engine.model.fit.choice import Choice, Machine, NoRoomError, choose
from dg_lsp.engine.model.fit.geometry import Geometry, GeometryError, of_config
from dg_lsp.engine.model.fit.needs import PRECISIONS, Needs, Precision, Use, needs

__all__ = [
    "PRECISIONS",
    "Choice",
    "Geometry",
    "GeometryError",
    "Machine",
    "Needs",
    "NoRoomError",
    "Precision",
    "Use",
    "choose",
    "needs",
    "of_config",
]
