"""Whether a model fits on this machine, for `dg-lsp doctor`: from its `config.json` alone, before anything is loaded.

Imports no torch, and fetches no weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from dg_lsp.engine import fit
from dg_lsp.engine.fit import machine
from dg_lsp.engine.weights import fetch
from dg_lsp.wire import model_names
from dg_lsp.wire.settings import EMBEDDED

MAX_BYTES = 1 << 20
LISTED: tuple[tuple[fit.Precision, str], ...] = (("bfloat16", "16 bits"), ("fp8", "8"), ("int4", "4"))


def look(model: str, device: str, dtype: str = "") -> tuple[str, str, dict[str, object]]:
    """Return what a model needs and where it fits, as a sentence; what to do where it does not; and the bytes."""
    try:
        stated = _stated(model)
        geometry = fit.of_config(stated)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return "unknown, as its configuration can't be read", f"{error.filename or model}: {reason}. Name a model's folder.", {}
    except (fetch.FetchError, fit.GeometryError, ValueError) as error:
        return "unknown, as its configuration can't be read", f"{model}: {error}.", {}
    place = machine.of_device(device)
    stored = "fp8" if "quantization_config" in stated else ""
    sizes = {precision: fit.needs(geometry, precision) for precision in fit.PRECISIONS}
    listed = ", ".join(f"{fit.size(sizes[precision].total)} at {name}" for precision, name in LISTED)
    free = "unknown" if place.free is None else fit.size(place.free)
    said = f"{model} needs {listed}; {free} free on {place.label}"
    facts: dict[str, object] = {
        "free_bytes": place.free,
        "device": place.kind,
        "bytes": {
            name: {"weights": one.weights, "workspace": one.workspace, "cache": one.cache, "rows": one.rows, "total": one.total}
            for name, one in sizes.items()
        },
    }
    try:
        choice = fit.choose(model, geometry, place, asked="" if dtype == "auto" else dtype, stored=stored)
    except fit.NoRoomError as error:
        return said, str(error), facts
    return f"{said}: it runs in {choice.precision} ({choice.why})", "", {**facts, "dtype": choice.precision}


def _stated(model: str) -> Mapping[str, Any]:
    folder = model_names.folder_of(model)
    if model == EMBEDDED:
        folder = Path(str(resources.files("dg_lsp.models"))) / EMBEDDED
    if folder is None:
        return fetch.config_values(model)
    file = folder / fetch.CONFIG
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{file} is too large for a configuration")
    stated = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(stated, dict):
        raise ValueError(f"{file} is no JSON object")  # noqa: TRY004 -- as wrong as no JSON at all
    return stated
